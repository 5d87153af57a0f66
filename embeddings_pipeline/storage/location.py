"""Where files are: the one seam behind which local paths (here) and S3 (`s3`) lie.

What belongs here: the interface `Place` and its local implementation. What does not: unfinished files
(`scratch`), what is inside the files (`sources`, `parts`) or which of them belong together (`publish`).

A name is only ever given to a finished file: writers fill a file in a `Scratch` and `Location.put`
it, so that a reader never meets half of one.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self

from embeddings_pipeline.errors import ManifestError
from embeddings_pipeline.packages import PREFIX, path_in_package

_SETTLED_NS = 2_000_000_000
"""File systems keep times as coarsely as 2 s: within that, two contents may bear the same ones."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file as a listing shows it; `name` is relative to the listed location, with `/`.

    `version` changes whenever the content may have: times and size, or an etag. It is empty where the
    file changed so shortly before that another change would leave the same times. `modified` is in
    seconds since 1970.
    """

    name: str
    location: "Place"
    size: int
    version: str
    modified: float = 0.0


class Place(Protocol):
    """A file or folder, wherever it lies; `str()` is how logs, metadata and messages show it.

    `remote` places know no locks and no empty folders: who writes there compares versions instead.
    """

    @property
    def name(self) -> str:
        """The last step of the path."""
        ...

    @property
    def remote(self) -> bool:
        """Whether it is an object store."""
        ...

    def __truediv__(self, name: str) -> "Place":
        """Return a place below this one."""
        ...

    def relative_to(self, root: Any) -> str:
        """Return the path from `root` to here, with `/`."""
        ...

    def exists(self) -> bool:
        """Tell whether a file or folder is there."""
        ...

    def size(self) -> int | None:
        """Return the bytes of a file, None where there is no file."""
        ...

    def files(self) -> list[FileEntry]:
        """List the files at or below this place, sorted by name."""
        ...

    def open(self) -> BinaryIO:
        """Open a file for reading."""
        ...

    def parquet(self) -> Any:
        """Return what `pq.ParquetFile` takes to read this file."""
        ...

    def read_text(self) -> str | None:
        """Return the text of a small file, or None where there is none."""
        ...

    def read_version(self) -> tuple[str | None, str | None]:
        """Return the text of a small file and its version, for `swap`."""
        ...

    def fetch(self, into: Path) -> Path:
        """Return a local path with this file's bytes; a remote file is copied to `into`."""
        ...

    def put(self, finished: Path) -> None:
        """Give a finished scratch file this name, whole, and remove it from scratch."""
        ...

    def swap(self, finished: Path, expected: str | None) -> bool:
        """Put, if the file's version is still `expected` (None: no file); False where it is another."""
        ...

    def delete(self) -> bool:
        """Remove the file; False where there was none."""
        ...

    def delete_tree(self) -> bool:
        """Remove the folder with all that is in it; False where there was nothing."""
        ...

    def delete_uploads(self, before: float) -> int:
        """Remove uploads to here or below that were begun before that time and never ended; return how many."""
        ...

    def lock(self) -> Any:
        """Return a context manager that keeps other writers of this machine out; nothing where `remote`."""
        ...


@dataclass(frozen=True, slots=True)
class Location:
    """A file or folder on a local disk. `str()` gives the absolute path, as logs and metadata show it."""

    path: Path

    @property
    def name(self) -> str:
        """The last step of the path."""
        return self.path.name

    @property
    def remote(self) -> bool:
        """False: this is no object store."""
        return False

    @classmethod
    def parse(cls, text: str, field: str) -> Self:
        """Resolve a location as a YAML gives it.

        Relative paths start at the working directory; `package:module/path` is a file inside an
        installed package.

        Raises:
            LocationNotFoundError: the package is not installed; `field` names it in the message.
        """
        if not text.startswith(PREFIX):
            return cls(Path(os.path.abspath(Path(text).expanduser())))  # noqa: PTH100 (Path.absolute keeps "..")
        return cls(path_in_package(text, field))

    def __truediv__(self, name: str) -> "Location":
        return Location(self.path / name)

    def __str__(self) -> str:
        return str(self.path)

    def relative_to(self, root: "Location") -> str:
        """Return the path from `root` to here, with `/`."""
        return self.path.relative_to(root.path).as_posix()

    def exists(self) -> bool:
        """Tell whether something is there."""
        return self.path.exists()

    def size(self) -> int | None:
        """Return the bytes of a file, None where there is no file."""
        status = _status(self.path)
        return status.st_size if status is not None and stat.S_ISREG(status.st_mode) else None

    def open(self) -> BinaryIO:
        """Open a file for reading."""
        return self.path.open("rb")

    def parquet(self) -> Path:
        """Return what `pq.ParquetFile` takes to read this file."""
        return self.path

    def fetch(self, into: Path) -> Path:  # noqa: ARG002
        """Return the file's own path."""
        return self.path

    def files(self) -> list[FileEntry]:
        """List the files at or below this location, sorted by name; hidden ones and dead links included.

        A folder that several links lead to is listed once, so that a link to a parent ends the walk. What another
        process removes meanwhile may be in the list or not.

        Raises:
            OSError: a folder may not be read.
        """
        found: list[FileEntry] = []
        if self.path.is_file():
            _add_entry(found, self.path, self.path.name)
            return found
        seen: set[tuple[int, int]] = set()
        for folder, folders, names in os.walk(self.path, followlinks=True, onerror=_raise_unless_gone):
            status = _status(Path(folder))
            if status is None or (status.st_dev, status.st_ino) in seen:
                folders.clear()
                continue
            seen.add((status.st_dev, status.st_ino))
            folders.sort()
            for path in (Path(folder) / name for name in names):
                if path.is_file() or (path.is_symlink() and not path.exists()):
                    _add_entry(found, path, path.relative_to(self.path).as_posix())
        return sorted(found, key=lambda entry: entry.name)

    def read_text(self) -> str | None:
        """Return the text of a small file, or None where there is none."""
        return self.read_version()[0]

    def read_version(self) -> tuple[str | None, str | None]:
        """Return the text of a small file, which is its own version too.

        Raises:
            ManifestError: it is no text.
        """
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None, None
        except UnicodeDecodeError as error:
            raise not_text(self) from error
        return text, text

    def put(self, finished: Path) -> None:
        """Give a finished scratch file this name; what had the name before is replaced as a whole."""
        with finished.open("rb") as opened:
            os.fsync(opened.fileno())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        finished.replace(self.path)
        _sync_folder(self.path.parent)

    def swap(self, finished: Path, expected: str | None) -> bool:
        """Put, if the file's content is still `expected`; whoever swaps holds `lock`, so nothing comes between.

        A new file is linked, which fails where another has the name, so that two makers need no lock.
        """
        if expected is not None:
            if self.read_version()[1] != expected:
                return False
            self.put(finished)
            return True
        with finished.open("rb") as opened:
            os.fsync(opened.fileno())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.path.hardlink_to(finished)
        except FileExistsError:
            return False
        finished.unlink()
        _sync_folder(self.path.parent)
        return True

    def delete(self) -> bool:
        """Remove the file or link; False where there was none."""
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        return True

    def delete_tree(self) -> bool:
        """Remove the folder with all that is in it; False where there was nothing."""
        if not self.path.is_dir() or self.path.is_symlink():
            return self.delete()
        shutil.rmtree(self.path)
        return True

    def delete_uploads(self, before: float) -> int:  # noqa: ARG002
        """Return 0: unfinished files are in a `Scratch`, which sweeps."""
        return 0

    def delete_if_empty(self, up_to: "Location | None" = None) -> None:
        """Remove this folder if nothing is in it, then its parents below `up_to` likewise."""
        folder = self.path
        while True:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent
            if up_to is None or folder == up_to.path:
                return

    @contextlib.contextmanager
    def lock(self) -> Generator[None]:
        """Hold an exclusive lock on this name; the kernel releases it when the process dies."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            yield


def not_text(place: Place) -> ManifestError:
    """Return the error for a small file of ours that holds something else than text."""
    return ManifestError(
        f"manifest '{place}' cannot be read (it is no UTF-8 text); restore it from a backup, or remove the output "
        "location and run again"
    )


def _status(path: Path) -> os.stat_result | None:
    """Return what the file system knows of a path, of a dead link itself; None where nothing is there (any more)."""
    for status in (path.stat, path.lstat):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return status()
    return None


def _add_entry(found: list[FileEntry], path: Path, name: str) -> None:
    """Describe a file; bytes of its name that are no UTF-8 are shown as escapes, since names go into files."""
    status = _status(path)
    if status is None:
        return
    shown = os.fsencode(name).decode("utf-8", "backslashreplace")
    now = time.time_ns()
    # A time in the future is a person's or another clock's; the change time is always the kernel's.
    changed = status.st_mtime_ns if status.st_mtime_ns <= now else status.st_ctime_ns
    settled = now - changed > _SETTLED_NS
    version = f"{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}" if settled else ""
    found.append(
        FileEntry(name=shown, location=Location(path), size=status.st_size, version=version, modified=status.st_mtime)
    )


def _raise_unless_gone(error: OSError) -> None:
    """Let no folder that may not be read be taken for an empty one."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
