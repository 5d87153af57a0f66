"""The parent's side of a measurement: starting a way's process and telling it what to do.

What belongs here: processes, their environment and their answers. What does not: what they do
(`worker` and the ways) and in which order they are asked (`rounds`).
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

ROOT = Path(__file__).resolve().parents[1]

_UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""Settings that would make some libraries' matrix products another machine's."""


class WayFailedError(RuntimeError):
    """A way's process ended or answered with an error; the message has it."""


def environment() -> dict[str, str]:
    """Return the environment of a measured process: offline, and with BLAS as it is by itself."""
    kept = {name: value for name, value in os.environ.items() if name not in _UNSET}
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": kept.get("TOKENIZERS_PARALLELISM", "true")}
    return kept | quiet | {"PYTHONPATH": str(ROOT), "HF_HUB_DISABLE_PROGRESS_BARS": "1", "DO_NOT_TRACK": "1"}


class WayProcess:
    """A way in a process of its own; use it in a `with` block, which ends the process on whatever path.

    The process starts at once, so that several load their models side by side; `wait_until_ready`
    returns when the model is loaded.
    """

    def __init__(self, way: str, options: Mapping[str, Any], *, python: Path | None = None) -> None:
        """Start the process.

        Args:
            way: `module:Class` of the way.
            options: what its constructor takes.
            python: the interpreter, where it is not this one.
        """
        self.way = way
        self.loaded_peak_bytes = 0
        self._process = subprocess.Popen(
            [str(python or sys.executable), "-m", "benchmarks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            cwd=ROOT,
            env=environment(),
        )
        self._send({"way": way, "options": dict(options)})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None and error is not None:
            self._process.terminate()
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                cast("IO[str]", pipe).close()
            except BrokenPipeError:
                continue
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def wait_until_ready(self) -> None:
        """Wait until the model is loaded; raise `WayFailedError` if it cannot be."""
        self.loaded_peak_bytes = int(self._receive()["peak_rss_bytes"])

    def prepare(self, source: Path) -> None:
        """Give it the texts of a folder."""
        self._ask({"do": "prepare", "source": str(source)})

    def run(self) -> dict[str, float]:
        """Let it embed them once and return what that cost."""
        return self._ask({"do": "run"})

    def save(self, path: Path) -> None:
        """Let it write the vectors of its last run."""
        self._ask({"do": "save", "path": str(path)})

    def _ask(self, command: dict[str, str]) -> dict[str, Any]:
        self._send(command)
        return self._receive()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            print(json.dumps(message), file=self._process.stdin, flush=True)
        except BrokenPipeError as error:
            raise WayFailedError(f"{self.way} has ended (its stderr says why)") from error

    def _receive(self) -> dict[str, Any]:
        line = cast("IO[str]", self._process.stdout).readline()
        if not line:
            code = self._process.wait()
            raise WayFailedError(f"{self.way} ended with status {code} (its stderr says why)")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WayFailedError(f"{self.way}: {answer['error']}")
        return answer
