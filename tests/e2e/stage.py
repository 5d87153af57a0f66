"""A Dagster of its own for the scenes: an empty home, empty data folders, a real `dagster dev`.

What belongs here: starting and stopping it as a person does in a terminal, its folders, and the look for
what it leaves behind. What does not: what is asked of it (`graphql`, `screen`) and what it works on
(`corpora`).
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.e2e.graphql import LOCATION, GraphQL
from tests.e2e.waiting import eventually

ROOT = Path(__file__).parents[2]
DAEMONS = {"BACKFILL", "QUEUED_RUN_COORDINATOR", "SCHEDULER", "SENSOR"}


class Stage:
    """The folders, environment and processes of one Dagster instance."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.corpora = folder / "corpora"
        self.data = folder / "data"
        self.log = folder / "dagster-dev.log"
        for path in (self.home, self.corpora, self.data):
            path.mkdir(parents=True)
        shutil.copy(ROOT / "dagster.yaml", self.home)
        self._dev: subprocess.Popen[bytes] | None = None
        # The same after a restart, for the browser window that is open.
        self._port = _free_port()
        self.graphql = GraphQL(f"http://127.0.0.1:{self._port}")

    def environment(self) -> dict[str, str]:
        """Return the variables of everything that runs here; models live in hosts, as in `make dev`."""
        outside = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("EMBEDDINGS_", "DAGSTER_", "PYTEST_"))
        }
        return {
            **outside,
            "DAGSTER_HOME": str(self.home),
            "EMBEDDINGS_CORPORA": str(self.corpora),
            "EMBEDDINGS_MODEL_CACHE": "host",
        }

    def start(self) -> None:
        """Start webserver, daemon and code server, and wait until all three do their work."""
        command = [str(Path(sys.executable).parent / "dagster"), "dev", "-h", "127.0.0.1", "-p", str(self._port)]
        with self.log.open("ab") as log:
            # A shell starts a background process with SIGINT ignored, and its children inherit that.
            self._dev = subprocess.Popen(
                [*command, "-w", str(ROOT / "workspace.yaml")],
                cwd=self.data,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_interruptible,
            )
        eventually(self._is_up, 120, f"`dagster dev` to load {LOCATION} (its log: {self.log})")
        eventually(
            lambda: {name for name, healthy in self.graphql.daemons().items() if healthy} >= DAEMONS,
            90,
            f"the daemons {sorted(DAEMONS)} to be healthy",
        )

    def stop(self) -> None:
        """End `dagster dev` as Ctrl-C in its terminal does; hosts of models stay."""
        if self._dev is None:
            return
        os.killpg(self._dev.pid, signal.SIGINT)
        try:
            self._dev.wait(timeout=60)
        finally:
            self._dev = None
            eventually(lambda: not self.processes(hosts=False), 60, "the processes of `dagster dev` to end")

    def command(self, *arguments: str, timeout: float = 180) -> subprocess.CompletedProcess[str]:
        """Run one of the environment's commands, `dagster …` or `embeddings …`, in the same instance."""
        program = str(Path(sys.executable).parent / arguments[0])
        return subprocess.run(
            [program, *arguments[1:]],
            cwd=self.data,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def stderr(self, run_id: str) -> str:
        """Return what the steps of a run have written to stderr, which is where the core's log lines go."""
        files = (self.home / "storage" / run_id / "compute_logs").glob("*.err")
        return "".join(path.read_text(encoding="utf-8") for path in files)

    def processes(self, *, hosts: bool = True) -> list[psutil.Process]:
        """Return the processes that belong to this instance, with or without model hosts."""
        found = self._find(lambda process: process.environ().get("DAGSTER_HOME") == str(self.home))
        return found + self.hosts() if hosts else found

    def hosts(self) -> list[psutil.Process]:
        """Return the processes of model hosts; their environment has no DAGSTER_HOME, their command line has."""
        return self._find(
            lambda process: "embeddings_pipeline.host" in process.cmdline() and str(self.home) in process.cmdline()
        )

    def run_workers(self) -> list[psutil.Process]:
        """Return the processes that carry out runs, and what they have started."""
        workers = self._find(
            lambda process: (
                process.environ().get("DAGSTER_HOME") == str(self.home)
                and any("spawn_main" in word for word in process.cmdline())
            )
        )
        return [*workers, *(child for worker in workers for child in worker.children(recursive=True))]

    def clear(self) -> None:
        """End what still runs, for the end of a failed session."""
        for process in self.processes():
            process.kill()
        if self._dev is not None:
            self._dev.wait(timeout=30)

    def _is_up(self) -> bool:
        assert self._dev is not None
        assert self._dev.poll() is None, self.log.read_text(encoding="utf-8", errors="replace")[-4000:]
        try:
            state = self.graphql.locations().get(LOCATION, "LOADING")
        except OSError:
            return False
        assert state in ("LOADED", "LOADING"), state
        return state == "LOADED"

    @staticmethod
    def _find(belongs: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and belongs(process) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _interruptible() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def describe(processes: list[psutil.Process]) -> list[str]:
    """Return the command lines of processes that are still there."""
    lines: list[str] = []
    for process in processes:
        try:
            lines.append(f"{process.pid}: {' '.join(process.cmdline())[:200]}")
        except psutil.Error:
            continue
    return lines
