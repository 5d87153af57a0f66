"""What is remembered of source files, so that an unchanged one need not be read again.

What belongs here: the hashes of the keys of a delivery's files, which second keys in other files are
found by, and whether a file is still the one that was read. What does not: reading files (`sources`)
and writing parts (`parts`).
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from embeddings_pipeline.storage.index import Hashes
from embeddings_pipeline.storage.location import FileEntry
from embeddings_pipeline.storage.manifests import RecordsManifest, RecordsPart, SourceSlice
from embeddings_pipeline.storage.parts import Output

_BYTES_PER_KEY = 16


class KeysWriter:
    """Writes the hashes of a delivery's keys, file after file, and the digest of those that came twice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")
        self._all = hashlib.sha256()
        self.start()

    def start(self) -> None:
        """Begin with the next source file."""
        self.keyed = 0
        self._repeated = hashlib.sha256()
        self._any = False

    def add(self, hashes: Hashes, repeated: npt.NDArray[np.bool_]) -> None:
        """Add the next keys of the source file and which of them had been there before."""
        data = hashes.tobytes()
        self._file.write(data)
        self._all.update(data)
        positions = np.flatnonzero(repeated) + self.keyed
        self._repeated.update(positions.astype("<i8").tobytes())
        self._any = self._any or len(positions) > 0
        self.keyed += len(hashes)

    def repeated(self) -> str:
        """Return a digest of the positions of second keys in the source file; empty where there is none."""
        return self._repeated.hexdigest()[:20] if self._any else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def close(self) -> str:
        """Finish the file and return a name for it."""
        self._file.close()
        return f"keys-{self._all.hexdigest()[:20]}.bin"


def repeated_digest(repeated: npt.NDArray[np.bool_]) -> str:
    """Return what `KeysWriter.repeated` returns for these keys of one file."""
    positions = np.flatnonzero(repeated).astype("<i8")
    return hashlib.sha256(positions.tobytes()).hexdigest()[:20] if len(positions) else ""


class Remembered:
    """The files of an earlier extraction that are still as they were, with all that was written for them."""

    def __init__(self, output: Output, before: RecordsManifest | None, reading: Mapping[str, str]) -> None:
        self._output = output
        self._before = before if before is not None and before.reading == reading and not before.partial else None
        self._there: set[str] | None = None
        self._keys: Hashes | None = None
        self._slices: dict[tuple[str, str], tuple[SourceSlice, int, int]] = {}
        part = key = 0
        for entry in self._before.sources if self._before is not None else ():
            if entry.version:
                self._slices[entry.name, entry.version] = entry, part, key
            part, key = part + entry.parts, key + entry.keyed

    def whole(self, files: Sequence[FileEntry]) -> RecordsManifest | None:
        """Return the earlier manifest, if the source's files are the very same and all that was written is there."""
        if self._before is None or [(file.name, file.version) for file in files] != [
            (entry.name, entry.version) for entry in self._before.sources
        ]:
            return None
        parts_there = all(self.find(file) is not None for file in files)
        return self._before if parts_there and self._keys_there() else None

    def find(self, file: FileEntry) -> tuple[SourceSlice, Sequence[RecordsPart]] | None:
        """Return a file's slice and parts, if it is as it was and the parts are there."""
        found = self._slices.get((file.name, file.version))
        if found is None or self._before is None:
            return None
        entry, first, _ = found
        parts = self._before.parts[first : first + entry.parts]
        if any(part.file is not None and part.file not in self._names() for part in parts):
            return None
        if any(part.rejected and not self._rejects_there(part) for part in parts):
            return None
        return entry, parts

    def hashes(self, entry: SourceSlice, copy: Path) -> Hashes | None:
        """Return the hashes of a file's keys; None where they are gone. Remote ones are copied to `copy`.

        *Shape:* uint64[n, 2]
        """
        if not entry.keyed:
            return np.empty((0, 2), dtype=np.uint64)
        if self._keys is None:
            if self._before is None or not self._keys_there():
                return None
            path = (self._output.records / str(self._before.keys)).fetch(copy)
            self._keys = np.memmap(path, dtype=np.uint64, mode="r").reshape(-1, 2)
        _, _, first = self._slices[entry.name, entry.version]
        return np.asarray(self._keys[first : first + entry.keyed])

    def _keys_there(self) -> bool:
        if self._before is None or self._before.keys is None:
            return False
        keyed = sum(entry.keyed for entry in self._before.sources)
        return (self._output.records / self._before.keys).size() == keyed * _BYTES_PER_KEY

    def _names(self) -> set[str]:
        if self._there is None:
            listed = self._output.records.files() + self._output.rejects.files()
            self._there = {entry.name for entry in listed}
        return self._there

    def _rejects_there(self, part: RecordsPart) -> bool:
        return f"{part.strategy}/extract-{part.id}.parquet" in self._names()
