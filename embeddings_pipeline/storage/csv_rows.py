"""Reading CSV files with a header, plain or compressed; a quoted field may hold line ends.

What belongs here: cutting rows, and going on after one that cannot be read. What does not: opening files and
cutting lines (`lines`).

Where reading goes on: a row whose quotation mark is not closed is rejected with the line in which it starts,
and the next row starts in the line after it. A mark counts as not closed if the file ends, or the row grows over
`max_line_bytes`, before it is; if text follows a closing mark in a later line; or if the row spans
several lines and has not as many fields as the header. So a single stray mark costs its own line, not those
up to the next mark.
"""

import contextlib
import csv
import re
from collections import deque
from collections.abc import Iterator, Sequence

from embeddings_pipeline.errors import SourceUnreadableError
from embeddings_pipeline.records import Reason, Record
from embeddings_pipeline.settings import SourceSpec, StrategySpec
from embeddings_pipeline.storage.chunks import make_record, missing_column
from embeddings_pipeline.storage.lines import LineReader, Lines
from embeddings_pipeline.storage.location import FileEntry

_NOT_CLOSED = "a quotation mark that is opened in this line is not closed; only this line is left out"


class CsvReader(LineReader):
    """Records of CSV files with a header."""

    def check(self, files: Sequence[FileEntry], needed: Sequence[tuple[str, StrategySpec]]) -> None:
        """Look at the headers: the key in every file, each named field in at least one."""
        seen: dict[str, None] = {}
        for file in files:
            header = _Rows(self._spec, file).header()
            if header and self._id not in header:
                raise missing_column("source.id", self._id, file.name, header)
            seen.update(dict.fromkeys(header))
        for field, strategy in needed if seen else ():
            for name in strategy.needed_fields() or ():
                if name not in seen and name not in self._optional:
                    raise missing_column(field, name, "any file", list(seen))

    def _look(self, file: FileEntry) -> contextlib.AbstractContextManager[None]:
        _Rows(self._spec, file).header()
        return super()._look(file)

    def read(self, file: FileEntry) -> Iterator[Record]:
        """Yield the file's records; holds one row."""
        rows = _Rows(self._spec, file)
        header = rows.header()
        for number, row in rows:
            position = f"{file.name} line {number}"
            if isinstance(row, int):
                yield self._too_long(row, position)
                continue
            if isinstance(row, str):
                yield Record(None, {}, position, (Reason.UNPARSABLE, row))
                continue
            bad = next((found for value in row if (found := re.search("[\udc80-\udcff]", value))), None)
            if bad is not None:
                yield self._not_encoded(ord(bad[0]) - 0xDC00, bad.start() + 1, position)
            elif len(row) != len(header):
                detail = f"the row has {len(row)} fields and the header {len(header)}"
                yield Record(None, {}, position, (Reason.UNPARSABLE, detail))
            else:
                yield make_record(dict(zip(header, row, strict=True)), self._id, position, self._types)


class _TooLong(csv.Error):
    """A line over the limit where a row would start."""

    def __init__(self, number: int, length: int) -> None:
        self.number = number
        self.length = length


class _Rows:
    """The rows of a file, each with the line in which it starts: fields, a length over the limit, or a problem."""

    def __init__(self, spec: SourceSpec, file: FileEntry) -> None:
        self._spec = spec
        self._file = file
        self._lines = iter(Lines(spec, file))
        self._pushed: deque[tuple[int, bytes | int]] = deque()
        self._held: list[tuple[int, bytes]] = []
        self._held_bytes = 0
        self._width = 0
        csv.field_size_limit(max(csv.field_size_limit(), spec.max_line_bytes))
        self._reader = csv.reader(_Feed(self), delimiter=spec.delimiter, strict=True)

    def header(self) -> list[str]:
        """Take the header, the first row; empty where the file is.

        Raises:
            SourceUnreadableError: it cannot be read, or has a name twice.
        """
        _, header = next(iter(self), (1, []))
        if isinstance(header, int):
            raise self._unreadable(f"the header has {header} bytes, more than source.max_line_bytes")
        if isinstance(header, str):
            raise self._unreadable(f"the header cannot be read: {header}")
        if twice := sorted({name for name in header if header.count(name) > 1}):
            raise self._unreadable(f"the column '{twice[0]}' stands there twice")
        self._width = len(header)
        return header

    def __iter__(self) -> Iterator[tuple[int, list[str] | int | str]]:
        while True:
            self._held.clear()
            self._held_bytes = 0
            try:
                row: list[str] | str | None = next(self._reader, None)
            except _TooLong as error:
                yield error.number, error.length
                continue
            except csv.Error:
                row = self._sloppy()
            if row is None:
                return
            first, *others = self._held
            if isinstance(row, str) or (others and self._width and len(row) != self._width):
                self._pushed.extendleft(reversed(others))
                yield first[0], row if isinstance(row, str) else _NOT_CLOSED
            elif row:
                yield first[0], row

    def next_line(self) -> str:
        """Give the csv module the next line of the row that it reads."""
        number, line = self._pushed.popleft() if self._pushed else next(self._lines)
        if self._held and (isinstance(line, int) or self._held_bytes + len(line) > self._spec.max_line_bytes):
            self._pushed.appendleft((number, line))
            raise csv.Error
        if isinstance(line, int):
            raise _TooLong(number, line)
        self._held.append((number, line))
        self._held_bytes += len(line)
        return line.decode(self._spec.encoding, "surrogateescape")

    def _sloppy(self) -> list[str] | str:
        """Read a line that is no strict CSV, such as text after a closing mark; say what is wrong where it is worse."""
        if len(self._held) > 1:
            return _NOT_CLOSED
        (_, line), asked = self._held[0], False

        def only() -> Iterator[str]:
            nonlocal asked
            yield line.decode(self._spec.encoding, "surrogateescape")
            asked = True

        try:
            row = next(csv.reader(only(), delimiter=self._spec.delimiter))
        except csv.Error as error:
            return f"the line cannot be read as CSV: {error}"
        return _NOT_CLOSED if asked else row

    def _unreadable(self, reason: str) -> SourceUnreadableError:
        return SourceUnreadableError(str(self._file.location), "csv", reason)


class _Feed:
    """The lines as the csv module takes them: it may be asked again after it was at its end."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def __iter__(self) -> "_Feed":
        return self

    def __next__(self) -> str:
        return self._rows.next_line()
