"""Reading files of lines, plain or compressed, and the records of JSON lines.

What belongs here: opening such files, cutting lines, and parsing JSON ones. What does not: listing (`sources`),
CSV rows (`csv_rows`), and `.json` files that hold one document (`documents`).

A line is held as a whole up to the corpus's limit; what is longer, or holds a byte that is not in the
encoding, is a record with a problem, and reading goes on after it.
"""

import contextlib
import gzip
import io
import itertools
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, cast

import pyarrow as pa

from embeddings_pipeline.errors import SourceUnreadableError
from embeddings_pipeline.records import Reason, Record
from embeddings_pipeline.settings import SourceSpec, StrategySpec
from embeddings_pipeline.storage.chunks import (
    ROWS_AT_A_TIME,
    RecordsChunk,
    first_line,
    make_record,
    missing_column,
    try_open,
)
from embeddings_pipeline.storage.documents import document_records
from embeddings_pipeline.storage.fields import field_names
from embeddings_pipeline.storage.location import FileEntry
from embeddings_pipeline.storage.wording import described, json_problem

_PEEKED_RECORDS = 1000
"""How many JSONL records have to lack a named field before it counts as missing."""

_BOM = b"\xef\xbb\xbf"
_BLOCK = 1 << 20
_BROKEN = (OSError, EOFError, zlib.error, pa.ArrowException)


class Lines:
    """The lines of a file, numbered from 1; a line over the limit is given as its length instead."""

    def __init__(self, spec: SourceSpec, file: FileEntry) -> None:
        self._spec = spec
        self._file = file

    def __iter__(self) -> Iterator[tuple[int, bytes | int]]:
        limit = self._spec.max_line_bytes
        with self.open() as opened:
            try:
                for number in itertools.count(1):
                    line = opened.readline(limit + 1)
                    if number == 1:
                        line = line.removeprefix(_BOM)
                    if not line:
                        return
                    if len(line) <= limit or line.endswith(b"\n"):
                        yield number, line
                        continue
                    length = len(line)
                    while not line.endswith(b"\n") and (line := opened.readline(_BLOCK)):
                        length += len(line)
                    yield number, length
            except _BROKEN as error:
                raise self._unreadable(error) from error

    def look_through(self) -> None:
        """Read a compressed file to its end, which tells whether it is whole; of a plain one the first line.

        Raises:
            SourceUnreadableError: it cannot be read, or breaks off.
        """
        if self._compression() == "none":
            next(iter(self), None)
            return
        with self.open() as opened:
            try:
                while opened.read(_BLOCK):
                    pass
            except _BROKEN as error:
                raise self._unreadable(error) from error

    def open(self) -> BinaryIO:
        """Open the file, through its compression."""
        try:
            raw = self._file.location.open()
        except OSError as error:
            raise self._unreadable(error) from error
        compression = self._compression()
        if compression == "gzip":
            return cast("BinaryIO", _Gzip(raw))
        if compression == "zstd":
            return cast("BinaryIO", io.BufferedReader(_Zstandard(raw), _BLOCK))
        return raw

    def _compression(self) -> str:
        name = self._file.name.lower()
        found = "gzip" if name.endswith(".gz") else "zstd" if name.endswith((".zst", ".zstd")) else "none"
        return self._spec.compression or found

    def _unreadable(self, error: Exception) -> SourceUnreadableError:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
        return SourceUnreadableError(str(self._file.location), self._spec.kind, reason)


class _Gzip(gzip.GzipFile):
    """A gzip file that closes what it reads from."""

    def __init__(self, raw: BinaryIO) -> None:
        super().__init__(fileobj=raw, mode="rb")
        self._raw = raw

    def close(self) -> None:
        super().close()
        self._raw.close()


class _Zstandard(io.RawIOBase):
    """A zstd file through arrow, which Python lacks before 3.14."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class LineReader:
    """What the readers of JSON lines and of CSV share."""

    def __init__(self, spec: SourceSpec) -> None:
        self._spec = spec
        self._id = spec.id
        self._types = spec.types or {}
        self._optional = frozenset(spec.optional or ())

    def opens(self, file: FileEntry) -> bool:
        """Look a compressed file through, and at the first line of a plain one."""
        return try_open(file, self._look)

    def _look(self, file: FileEntry) -> contextlib.AbstractContextManager[None]:
        Lines(self._spec, file).look_through()
        return contextlib.nullcontext()

    def read(self, file: FileEntry) -> Iterator[Record]:
        """Yield the file's records."""
        raise NotImplementedError

    def chunks(self, file: FileEntry) -> Iterator[RecordsChunk]:
        """Yield the file's records, 512 at a time."""
        records = self.read(file)
        while some := list(itertools.islice(records, ROWS_AT_A_TIME)):
            yield RecordsChunk(some)

    def _too_long(self, length: int, position: str) -> Record:
        detail = f"the line has {length} bytes, more than source.max_line_bytes, {self._spec.max_line_bytes}"
        return Record(None, {}, position, (Reason.TOO_LARGE, detail))

    def _not_encoded(self, byte: int, at: int, position: str) -> Record:
        encoding = "UTF-8" if self._spec.encoding == "utf-8" else self._spec.encoding
        detail = (
            f"the line is not {encoding} (byte 0x{byte:02x} at {at}); where files are in another encoding, name it "
            "with source.encoding, such as cp1252"
        )
        return Record(None, {}, position, (Reason.UNPARSABLE, detail))


class JsonlReader(LineReader):
    """Records of JSON-lines files, one object a line; blank lines are no records.

    A file named `.json` may hold one document instead: an object, or a list of objects.
    """

    def check(self, files: Sequence[FileEntry], needed: Sequence[tuple[str, StrategySpec]]) -> None:
        """Look at the first 1,000 readable records: a named field that none of them has is missing."""
        # As they are: declared types would give every record all declared fields.
        plain = JsonlReader(self._spec.model_copy(update={"types": None}))
        readable = (record for file in files for record in plain.read(file) if record.values)
        seen: dict[str, None] = {}
        peeked = 0
        for record in itertools.islice(readable, _PEEKED_RECORDS):
            seen.update(dict.fromkeys(field_names(record.values)))
            peeked += 1
        if not peeked:
            return
        where = f"the first {peeked} records" if peeked == _PEEKED_RECORDS else "any record"
        named = [("source.id", self._id)]
        named += [(field, name) for field, strategy in needed for name in strategy.needed_fields() or ()]
        for field, name in named:
            if name not in seen and name not in self._optional:
                raise missing_column(field, name, where, list(seen))

    def read(self, file: FileEntry) -> Iterator[Record]:
        """Yield the file's records; holds one line, or one document."""
        document = document_records(self._spec, file, Lines(self._spec, file))
        if document is not None:
            yield from document
            return
        for number, line in Lines(self._spec, file):
            position = f"{file.name} line {number}"
            if isinstance(line, int):
                yield self._too_long(line, position)
            elif line.strip():
                yield self._parse(line, position)

    def _parse(self, line: bytes, position: str) -> Record:
        try:
            values = json.loads(line.decode(self._spec.encoding))
        except UnicodeDecodeError as error:
            return self._not_encoded(line[error.start], error.start + 1, position)
        except (ValueError, RecursionError) as error:
            return Record(None, {}, position, (Reason.UNPARSABLE, f"the line is no JSON: {json_problem(error)}"))
        if not isinstance(values, dict):
            detail = f"the line holds {described(values)}, not an object"
            return Record(None, {}, position, (Reason.UNPARSABLE, detail))
        return make_record(values, self._id, position, self._types)
