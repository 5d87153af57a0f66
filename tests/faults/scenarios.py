"""What is done to a run, one row of the table each: killed, refused room, answered wrongly, or met by others.

What belongs here: choosing faults and judging a row. What does not: how a fault is made (`points`, `proxy`) and what
has to hold afterwards (`backend`, `follower`).
"""

import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.backend import Backend
from tests.faults.follower import Follower
from tests.faults.nursery import Child, Nursery
from tests.faults.points import LATE, MOMENTS, POINTS
from tests.faults.proxy import FAULTS, NO_BODY, OPERATIONS, FaultyProxy
from tests.faults.target import CRASH, DONE, SENTENCE

GOOD = "equal, verified, nothing left"
KILLED = -9
STALL = 1.3
"""Longer than a run waits for an answer."""


@dataclass
class Table:
    """What was tried and how it came out; printed row by row."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    _since: float = field(default_factory=time.monotonic)

    def add(self, where: str, fault: str, happened: str, problem: str) -> None:
        now = time.monotonic()
        seconds, self._since = round(now - self._since, 1), now
        row = {"where": where, "fault": fault, "happened": happened, "seconds": seconds, "outcome": problem or GOOD}
        self.rows.append(row)
        print(f"{where:5} {fault:42} {happened:34} {seconds:5} s  {row['outcome']}", flush=True)

    @property
    def failed(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["outcome"] != GOOD]


def ended(child: Child) -> str:
    """Say how a child ended."""
    return {DONE: "done", SENTENCE: "refused", CRASH: "CRASHED", KILLED: "killed"}.get(child.wait(), str(child.status))


def unexpected(child: Child, *allowed: int) -> str:
    """Return what is wrong with how a child ended."""
    return "" if child.wait() in allowed else f"{ended(child).upper()}: {child.output.strip()[-400:]}"


def at_points(backend: Backend, nursery: Nursery, table: Table, *, every: int = 1) -> None:
    """Kill an update before, in and after every step; `every` takes only some of the rows."""
    rows = [(point, moment) for point in POINTS for moment in MOMENTS if (point, moment) != ("read", LATE)]
    for point, moment in rows[::every]:
        backend.reset()
        child = nursery.run(backend.attempt(2, point=point, moment=moment))
        problem = unexpected(child, KILLED) or backend.problem(2)
        table.add(backend.name, f"killed {moment}: {point}", ended(child), problem)


def at_random(backend: Backend, nursery: Nursery, table: Table, times: int, seed: int) -> None:
    """Kill updates back and forth at random moments, none of them cleaned up after, while a reader follows."""
    chance = random.Random(seed)
    backend.reset()
    whole = nursery.run(backend.attempt(2, seconds=0.002))
    problem = unexpected(whole, DONE)
    length = time.monotonic() - whole.started
    killed = attempts = 0
    with Follower(backend) as follower:
        while killed < times and attempts < 10 * times:
            attempts += 1
            # Two of a kind, so that one goes on with what the other left; a third would find little left to do.
            child = nursery.start(backend.attempt(1 + attempts // 2 % 2, seconds=0.002))
            # Every fifth comes to its end, so that sets change while the reader follows.
            if attempts % 5:
                time.sleep(chance.uniform(0, 0.7 * length))
                child.kill()
            killed += child.wait() == KILLED
            problem = problem or unexpected(child, KILLED, DONE, SENTENCE)
    # By the clock of a store, what was put in the second of a commit may belong to a live run.
    time.sleep(1.1 if backend.endpoint else 0)
    problem = problem or "; ".join(follower.problems[:3]) or backend.problem(2)
    if not follower.looks:
        problem = problem or "THE READER NEVER READ A SET"
    if killed < times:
        problem = problem or f"ONLY {killed} OF {times} KILLED"
    happened = f"{killed} of {attempts} killed, {follower.looks} sets read"
    table.add(backend.name, f"{times} random moments, a reader", happened, problem)


def at_once(backend: Backend, nursery: Nursery, table: Table, seed: int, *, rounds: int = 3) -> None:
    """Let three runs of one delivery race, one of them killed, while a reader follows."""
    chance = random.Random(seed)
    for number in range(rounds):
        backend.reset()
        with Follower(backend) as follower:
            children = [nursery.start(backend.attempt(2, seconds=chance.uniform(0, 0.004))) for _ in range(3)]
            time.sleep(chance.uniform(0.05, 0.4))
            children[0].kill()
            problem = "".join(unexpected(child, KILLED, DONE, SENTENCE) for child in children)
        if backend.endpoint:
            backend.settle(2)
        problem = problem or "; ".join(follower.problems[:3]) or backend.problem(2)
        happened = ", ".join(ended(child) for child in children)
        table.add(backend.name, f"three runs at once, round {number + 1}", happened, problem)


def files_too_large(backend: Backend, nursery: Nursery, table: Table) -> None:
    """Let no file grow beyond some bytes, as a quota does."""
    for most in (200, 1500, 4000):
        backend.reset()
        child = nursery.run(backend.attempt(2, file_bytes=most))
        problem = unexpected(child, SENTENCE, DONE) or _names_the_remedy(child) or backend.problem(2)
        table.add(backend.name, f"no file over {most} bytes", ended(child), problem)


def disk_full(backend: Backend, nursery: Nursery, table: Table) -> None:
    """Have a real file system without room, of 1 MB, with less and less of it free."""
    place = Path(backend.order.temporary) if backend.endpoint else Path(backend.bench.out)
    for room in (4, 24, 48, 96):
        backend.reset()
        with full(place) as why_not:
            if why_not:
                table.add(backend.name, f"disk full, {room} KiB left", f"not possible here: {why_not}", "")
                return
            if not backend.endpoint:
                backend.reset()
            ballast = place / ".ballast"
            _fill(ballast, room)
            child = nursery.run(backend.attempt(2))
            problem = unexpected(child, SENTENCE, DONE) or _names_the_remedy(child)
            ballast.unlink()
            problem = problem or backend.problem(2)
        table.add(backend.name, f"disk full, {room} KiB left", ended(child), problem)


@contextmanager
def full(place: Path) -> Iterator[str]:
    """Mount a file system of 1 MB at a folder; yields why that is not possible, or nothing."""
    place.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        yield "there is no mount command"
        return
    except subprocess.CalledProcessError as error:
        yield (error.stderr.strip().splitlines() or ["mount fails"])[-1]
        return
    try:
        yield ""
    finally:
        subprocess.run(["umount", str(place)], check=True, capture_output=True)


def _fill(ballast: Path, room: int) -> None:
    free = shutil.disk_usage(ballast.parent).free
    ballast.write_bytes(b"\0" * max(0, free - room * 1024))


def _names_the_remedy(child: Child) -> str:
    if child.wait() != SENTENCE or ("OutputUnwritableError" in child.output and "free space" in child.output):
        return ""
    return f"NO SENTENCE ABOUT ROOM: {child.output.strip()[-300:]}"


def broken_answers(backend: Backend, nursery: Nursery, table: Table, seed: int, *, every: int = 1) -> None:
    """Break answers of the store, each kind of operation in each way; the run goes on by itself or says so."""
    rows = [(wanted, fault) for wanted in OPERATIONS for fault in FAULTS if (wanted, fault) not in NO_BODY]
    with _proxy(backend, seed) as proxy:
        for wanted, fault in rows[::every]:
            wide = wanted == "MULTIPART"
            backend.clear() if wide else backend.reset()
            proxy.aim(wanted, fault, 0.5, 3)
            child = nursery.run(backend.attempt(2, endpoint=proxy.endpoint, wide=wide))
            hits = proxy.counts.total()
            problem = unexpected(child, DONE, SENTENCE) or ("" if hits else "NOTHING WAS BROKEN")
            problem = problem or backend.problem(2, wide=wide)
            table.add(backend.name, f"{wanted}: {fault}", f"{hits} broken, {ended(child)}", problem)


def store_down(backend: Backend, nursery: Nursery, table: Table, seed: int) -> None:
    """Let the store answer nothing any more from some request on: one sentence, and nothing lost."""
    with _proxy(backend, seed) as proxy:
        for after in (0, 25, 60, 100):
            backend.reset()
            proxy.aim(None, "503 SlowDown", 1.0, 10**6, after)
            child = nursery.run(backend.attempt(2, endpoint=proxy.endpoint, attempts=2))
            problem = unexpected(child, SENTENCE)
            if not problem and "LocationUnavailableError" not in child.output:
                problem = f"NO SENTENCE: {child.output.strip()[-300:]}"
            table.add(backend.name, f"store down after {after} requests", ended(child), problem or backend.problem(2))


def in_pieces(backend: Backend, nursery: Nursery, table: Table) -> None:
    """Kill an upload that goes in pieces: what the store keeps of it goes with `embeddings gc`."""
    for number, delay in enumerate((0.0, 0.02, 0.1)):
        backend.clear()
        child = nursery.start(backend.attempt(2, wide=True))
        found = _wait_for(child, lambda: bool(_uploads(backend)))
        time.sleep(delay)
        child.kill()
        problem = unexpected(child, KILLED, DONE) or ("" if found else "NO UPLOAD WAS SEEN")
        happened = f"{ended(child)}, {len(_uploads(backend))} unfinished"
        problem = problem or backend.problem(2, wide=True)
        table.add(backend.name, f"killed in an upload in pieces, {number + 1}", happened, problem)


def _uploads(backend: Backend) -> list[dict]:
    return backend.client.list_multipart_uploads(Bucket=backend.order.bucket).get("Uploads", [])


def _wait_for(child: Child, condition: Callable[[], bool]) -> bool:
    for _ in range(1000):
        if condition():
            return True
        time.sleep(0.005)
    return False


@contextmanager
def _proxy(backend: Backend, seed: int) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(backend.endpoint, seed, STALL)
    try:
        yield proxy
    finally:
        proxy.close()
