"""The model store: fetched models on disk, addressed by their content, named by where they came from.

What belongs here: its layout, its lock, what makes an entry complete, and checking entries. What does
not: fetching (`fetch`), and deciding which entry a spec means (`store`).

    <store>/content/<digest>/...     the files of one model; the digest is that of all of them
    <store>/names/<source>-<key>.json   what was fetched from where; written last, its presence means "done"
    <store>/incoming/<key>/...       what has arrived of an unfinished download, for the next attempt
    <store>/locks/<key>              one download of a model at a time

Looking up an entry writes nothing, so that a store may be read-only.
"""

import datetime as dt
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from embeddings_pipeline.errors import ModelDigestError, ModelFetchError
from embeddings_pipeline.models.folder import file_digest

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file of a model in the store; `path` is relative to the model's folder."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class KeptModel:
    """What was fetched: `digest` addresses the content, `changes` say what was rewritten after the download.

    `stamp` is the state of a local source when it was taken, empty for the others.
    """

    source: str
    revision: str | None
    digest: str
    files: tuple[KeptFile, ...]
    changes: tuple[str, ...] = ()
    stamp: str = ""
    fetched_at: str = ""
    format_version: int = FORMAT_VERSION

    @property
    def bytes(self) -> int:
        """The size of all files together."""
        return sum(file.size for file in self.files)


class ModelStore:
    """The model store below a folder; making one of these touches nothing."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).expanduser().absolute()

    def find(self, source: str, revision: str | None) -> KeptModel | None:
        """Return what was fetched from a source, None where nothing was, or not all of it.

        Raises:
            ModelFetchError: the entry cannot be read.
        """
        name = self._name(source, revision)
        try:
            text = name.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        kept = _parse(name, text)
        return kept if self.path(kept).is_dir() else None

    def path(self, kept: KeptModel) -> Path:
        """Return the folder of a kept model."""
        return self.root / "content" / kept.digest[:32]

    def entries(self) -> list[KeptModel]:
        """Return all entries, by source."""
        names = sorted((self.root / "names").glob("*.json"))
        return [_parse(name, name.read_text(encoding="utf-8")) for name in names]

    def problems(self, kept: KeptModel) -> list[str]:
        """Return which files of an entry are missing, changed or strange, in words; reads all of them."""
        folder = self.path(kept)
        expected = {file.path: file for file in kept.files}
        found = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
        wrong = [f"{name} is missing" for name in sorted(expected.keys() - found)]
        wrong += [f"{name} does not belong to it" for name in sorted(found - expected.keys())]
        for name in sorted(expected.keys() & found):
            if not _is(folder / name, expected[name]):
                wrong.append(f"{name} has other bytes than were fetched")
        return wrong

    def check(self, kept: KeptModel, name: str) -> Path:
        """Return the folder of an entry, if its files are those that were fetched.

        Raises:
            ModelDigestError: naming the first file that is not.
        """
        folder = self.path(kept)
        for file in kept.files:
            if not _is(folder / file.path, file):
                raise ModelDigestError(
                    name, str(folder / file.path), f"run `embeddings download-model --model {name} --force`"
                )
        return folder

    @contextmanager
    def lock(self, source: str, revision: str | None, name: str) -> Generator[Path]:
        """Hold the lock of one model's download and give its folder for what arrives.

        Raises:
            ModelFetchError: the store cannot be written.
        """
        key = _key(source, revision)
        try:
            (self.root / "locks").mkdir(parents=True, exist_ok=True)
            opened = (self.root / "locks" / key).open("a")
        except OSError as error:
            raise ModelFetchError(
                name, str(error), "set EMBEDDINGS_MODEL_STORE to a folder that can be written"
            ) from error
        with opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            incoming = self.root / "incoming" / key
            incoming.mkdir(parents=True, exist_ok=True)
            try:
                yield incoming
            finally:
                # Kept for the next attempt only where something has arrived; gone where it was kept.
                with suppress(OSError):
                    incoming.rmdir()

    def keep(
        self, incoming: Path, source: str, revision: str | None, *, changes: Sequence[str] = (), stamp: str = ""
    ) -> KeptModel:
        """Give a finished download its place and its name; the lock is held."""
        paths = sorted(file for file in incoming.rglob("*") if file.is_file())
        files = tuple(KeptFile(p.relative_to(incoming).as_posix(), p.stat().st_size, file_digest(p)) for p in paths)
        digest = hashlib.sha256("".join(f"{file.path} {file.sha256}\n" for file in files).encode()).hexdigest()
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        kept = KeptModel(source, revision, digest, files, tuple(changes), stamp, now)
        folder = self.path(kept)
        for path in (*paths, *{path.parent for path in paths}):
            _sync(path)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.is_dir() and not self.problems(kept):
            shutil.rmtree(incoming)
        else:
            self._replace(incoming, folder)
        name = self._name(source, revision)
        name.parent.mkdir(parents=True, exist_ok=True)
        part = name.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(asdict(kept), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        _sync(part)
        part.replace(name)
        _sync(name.parent)
        return kept

    def _replace(self, incoming: Path, folder: Path) -> None:
        """Move a folder to its place; what lies there is damaged and goes."""
        damaged = incoming.with_name(f"{incoming.name}.damaged")
        shutil.rmtree(damaged, ignore_errors=True)
        if folder.is_dir():
            folder.rename(damaged)
        incoming.rename(folder)
        _sync(folder.parent)
        shutil.rmtree(damaged, ignore_errors=True)

    def _name(self, source: str, revision: str | None) -> Path:
        words = "".join(sign if sign.isalnum() or sign in "._" else "-" for sign in source).strip("-.")
        return self.root / "names" / f"{words[-80:]}-{_key(source, revision)}.json"


def _key(source: str, revision: str | None) -> str:
    return hashlib.sha256(f"{source}\n{revision or ''}".encode()).hexdigest()[:16]


def _parse(name: Path, text: str) -> KeptModel:
    try:
        kept = TypeAdapter(KeptModel).validate_json(text)
    except ValidationError as error:
        reason = f"the store's entry {name} cannot be read ({error.error_count()} problems)"
        raise ModelFetchError(name.stem, reason, "remove that file and download the model again") from error
    if kept.format_version > FORMAT_VERSION:
        reason = f"the store's entry {name} has format {kept.format_version}, and this version reads {FORMAT_VERSION}"
        raise ModelFetchError(name.stem, reason, "use a newer embeddings-pipeline")
    return kept


def _is(path: Path, file: KeptFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size and file_digest(path) == file.sha256


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
