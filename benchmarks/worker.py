"""The child's side of a measurement: one way to embed, in a process of its own, told what to do line by line.

What belongs here: the loop over commands. What does not: the ways (`ways`, `peer_ways`) and the parent's
side (`processes`). Standard library only at import, since it runs in the peers' environments as well.

The first line on stdin names the way, ``{"way": "module:Class", "options": {...}}``; each further one is
a command: ``{"do": "prepare", "source": FOLDER}``, ``{"do": "run"}``, ``{"do": "save", "path": FILE}``. Each is
answered by one line of JSON. The end of stdin ends the process.
"""

import contextlib
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, Protocol

from benchmarks.clock import Clock, peak_memory


class Way(Protocol):
    """One way to embed texts; made from the options, with its model loaded."""

    def prepare(self, source: Path) -> None:
        """Take the texts of a folder that `texts.write_source` made; not measured."""
        ...

    def run(self) -> dict[str, float]:
        """Embed them; figures in the result replace those that the worker measured around the call."""
        ...

    def save(self, path: Path) -> None:
        """Write the vectors of the last run, in the order of the texts, as an .npz file."""
        ...


def _answer(way: Way, command: dict[str, Any]) -> dict[str, Any]:
    match command["do"]:
        case "prepare":
            way.prepare(Path(command["source"]))
            return {}
        case "run":
            with Clock() as clock:
                figures = way.run()
            return clock.figures | figures | {"peak_rss_bytes": peak_memory()}
        case "save":
            way.save(Path(command["path"]))
            return {}
        case other:
            raise ValueError(f"the command '{other}' is unknown; use prepare, run or save")


def main() -> None:
    """Answer commands until stdin ends."""
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    way: Way | None = None
    with contextlib.suppress(KeyboardInterrupt):
        for line in sys.stdin:
            command = json.loads(line)
            try:
                if way is None:
                    module, _, name = command["way"].partition(":")
                    way = getattr(importlib.import_module(module), name)(**command["options"])
                    answer: dict[str, Any] = {"peak_rss_bytes": peak_memory()}
                else:
                    answer = _answer(way, command)
            except Exception as error:  # noqa: BLE001 (whatever it is, the parent has to hear of it)
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)
    close = getattr(way, "close", None)
    if close is not None:
        close()


if __name__ == "__main__":
    main()
