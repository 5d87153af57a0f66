"""Unfinished files: each attempt has a folder of its own for them, which goes away whatever becomes of the attempt.

What belongs here: making that folder, and removing those of dead attempts. What does not: giving a
finished file its name (`location`).
"""

import fcntl
import itertools
import os
import secrets
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from embeddings_pipeline.storage.location import Location, Place

_MOST_TRIES = 100
"""How often an attempt makes its scratch folder again while others that end remove the empty parent."""


class Scratch:
    """A folder for unfinished files of one attempt, on the file system of the output.

    The attempt holds a lock on the file beside the folder for its life, so that `Scratch.sweep` can
    tell a dead attempt's folder (removed) from a live one's (left alone) without trusting process
    ids or clocks.
    """

    def __init__(self, parent: Location) -> None:
        self._parent = parent
        self._folder = parent.path / f"attempt-{secrets.token_hex(6)}"
        self._alive = self._folder.with_suffix(".alive")

    def __enter__(self) -> Self:
        self.sweep(self._parent)
        for tries in itertools.count(1):
            try:
                self._parent.path.mkdir(parents=True, exist_ok=True)
                self._lock = self._alive.open("a")
            except (FileNotFoundError, FileExistsError):
                if tries == _MOST_TRIES:
                    raise
                # Another attempt that ended just now removed the empty parent.
                continue
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if os.fstat(self._lock.fileno()).st_nlink:
                break
            # Swept by another attempt between the two calls.
            self._lock.close()
        self._folder.mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._alive.unlink(missing_ok=True)
        self._lock.close()
        self._parent.delete_if_empty()

    def file(self, name: str) -> Path:
        """Return a path in the folder for a file to be filled and then put."""
        return self._folder / name

    def put_text(self, target: Place, text: str) -> None:
        """Write a small file as a whole."""
        target.put(self.text(text))

    def text(self, text: str) -> Path:
        """Return a new scratch file with this text."""
        path = self.file(f"text-{secrets.token_hex(4)}")
        path.write_text(text, encoding="utf-8")
        return path

    @staticmethod
    def sweep(parent: Location) -> int:
        """Remove what dead attempts left; return how many there were."""
        removed = 0
        try:
            names = [path for path in parent.path.iterdir() if path.suffix == ".alive"]
        except FileNotFoundError:
            return 0
        for alive in names:
            try:
                with alive.open("r+") as opened:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if not os.fstat(opened.fileno()).st_nlink:
                        # Swept by another just now; what has its name again is a live attempt's.
                        continue
                    shutil.rmtree(alive.with_suffix(""), ignore_errors=True)
                    alive.unlink(missing_ok=True)
            except (BlockingIOError, FileNotFoundError):
                # Alive, or gone by itself meanwhile.
                continue
            removed += 1
        return removed
