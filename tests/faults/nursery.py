"""A process that has everything imported and forks one child per order, so that a run to be killed costs no start.

Speaks JSON lines over stdin and stdout: {"order": {...}, "log": file} is answered with {"pid": n}, {"wait": n} with
{"status": exit code, or minus the signal}. It ends with its stdin, and its children with it.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]


@dataclass
class Child:
    """A process that obeys an order."""

    nursery: "Nursery"
    pid: int
    log: Path
    started: float
    status: int | None = None

    def kill(self) -> None:
        """Send SIGKILL; the child is not reaped before `wait`, so that the number is still its own."""
        if self.status is None:
            os.kill(self.pid, 9)

    def wait(self) -> int:
        """Return the exit code, or minus the signal."""
        if self.status is None:
            self.status = int(self.nursery.ask({"wait": self.pid})["status"])
        return self.status

    @property
    def output(self) -> str:
        """What the child has printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")


class Nursery:
    """The caller's end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.faults.nursery"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ask({})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:
            self._process.stdin.close()
            self._process.wait(30)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Send a line and return the answer."""
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, order: Any) -> Child:
        """Fork a child that obeys the order."""
        self._number += 1
        log = self._folder / f"child-{self._number}.log"
        answer = self.ask({"order": asdict(order), "log": str(log)})
        return Child(self, answer["pid"], log, time.monotonic())

    def run(self, order: Any) -> Child:
        """Fork a child and wait for its end."""
        child = self.start(order)
        child.wait()
        return child


def serve() -> None:
    """Answer until stdin ends."""
    import boto3

    from tests.faults.target import Order, obey

    # Reads the descriptions of the service once, for all children.
    boto3.client("s3", endpoint_url="http://127.0.0.1:1")
    for line in sys.stdin:
        question = json.loads(line)
        answer: dict[str, int] = {}
        if "order" in question:
            pid = os.fork()
            if not pid:
                _become(question["log"])
                code = obey(Order(**question["order"]))
                sys.stdout.flush()
                os._exit(code)
            answer = {"pid": pid}
        elif "wait" in question:
            _, status = os.waitpid(question["wait"], 0)
            answer = {"status": os.waitstatus_to_exitcode(status)}
        print(json.dumps(answer), flush=True)


def _become(log: str) -> None:
    """Detach a child from the conversation; it dies with the nursery."""
    import ctypes

    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(target, 1)
    os.dup2(target, 2)


if __name__ == "__main__":
    serve()
