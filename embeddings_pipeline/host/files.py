"""The files of a host and the locks on them.

What belongs here: where they are, who may read them, and which of them are signs of life. What does
not: starting and stopping hosts (`lifecycle`).

Below `<home>/model_host/` (mode 0700) a host of the device `cpu` has `cpu.lock`, held as long as it
lives and the only sign of life; `cpu.json`, which says who it is; `cpu.sock`; and `cpu.log`. A host
that ends in peace removes all of them; one that is killed leaves all, and the next one takes over.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embeddings_pipeline.errors import ConfigurationError

FOLDER = "model_host"

_POLL_SECONDS = 0.02
_LONGEST_SOCKET_PATH = 100
"""The kernel takes 107 bytes; some systems less."""


@dataclass(frozen=True, slots=True)
class HostFiles:
    """Where the files of one device's host are."""

    folder: Path
    device: str

    @property
    def lock(self) -> Path:
        """Locked as long as the host lives."""
        return self._file("lock")

    @property
    def start(self) -> Path:
        """Locked by whoever is starting or replacing the host."""
        return self._file("start")

    @property
    def info(self) -> Path:
        """Says which process the host is."""
        return self._file("json")

    @property
    def log(self) -> Path:
        """What the host has to say."""
        return self._file("log")

    @property
    def socket(self) -> Path:
        """The socket; in a folder of the user's below /tmp where its path would be too long here."""
        path = self._file("sock")
        if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
            return path
        name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]
        # Not below TMPDIR: that of a run may be gone before the host is.
        return Path("/tmp") / f"embeddings-{os.getuid()}" / f"{name}.sock"

    def remove(self) -> None:
        """Remove all files but the lock, which its holder removes, and folders that are empty then."""
        for path in (self.socket, self.info, self.log, self.log.with_suffix(".log.1")):
            path.unlink(missing_ok=True)
        if self.socket.parent != self.folder:
            with contextlib.suppress(OSError):
                self.socket.parent.rmdir()

    def _file(self, suffix: str) -> Path:
        return self.folder / f"{self.device.replace(':', '-')}.{suffix}"


@contextlib.contextmanager
def held(path: Path, timeout_s: float) -> Generator[None]:
    """Hold a lock file, and remove it afterwards, with its folder if that is empty then.

    The kernel drops the lock when the process ends, however it ends.

    Raises:
        TimeoutError: somebody else held it all the time.
    """
    deadline = time.monotonic() + timeout_s
    while (opened := _try_lock(path)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} is held by another process")
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(opened)
        with contextlib.suppress(OSError):
            path.parent.rmdir()


def _try_lock(path: Path) -> int | None:
    """Lock a file and return its descriptor; None where it is locked, or removed by its last holder meanwhile."""
    private_folder(path.parent)
    try:
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(opened).st_ino == path.stat().st_ino:
            return opened
    os.close(opened)
    return None


def is_locked(path: Path) -> bool:
    """Tell whether somebody holds a lock file."""
    try:
        opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(opened)
    return False


def private_folder(folder: Path) -> None:
    """Make a folder that only this user can enter.

    Raises:
        ConfigurationError: it belongs to somebody else.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if folder.stat().st_uid != os.getuid():
            raise ConfigurationError(f"folder '{folder}' belongs to another user; choose another DAGSTER_HOME")
        folder.chmod(0o700)


def read_info(files: HostFiles) -> dict[str, Any]:
    """Return what a host has written of itself, or nothing."""
    try:
        return json.loads(files.info.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
