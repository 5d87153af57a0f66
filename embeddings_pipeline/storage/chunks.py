"""Records on their way from a file: one by one, or as columns where nothing is wrong with any of them.

What belongs here: what every reader of a format offers and shares. What does not: a format (`parquet`,
`lines`, `timdex`) or which files there are (`sources`).
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from embeddings_pipeline.errors import ColumnError, SourceUnreadableError, did_you_mean
from embeddings_pipeline.records import Reason, Record
from embeddings_pipeline.settings import StrategySpec
from embeddings_pipeline.storage.casting import Misfit, declared
from embeddings_pipeline.storage.fields import column_of, find_field
from embeddings_pipeline.storage.location import FileEntry
from embeddings_pipeline.storage.wording import described

_log = logging.getLogger(__name__)

ROWS_AT_A_TIME = 512


class Chunk(Protocol):
    """Some records of a file in order, taken as they are needed: as columns where that is enough."""

    def __len__(self) -> int: ...

    def cut(self, count: int) -> "tuple[Chunk, Chunk]":
        """Return the first `count` records and the rest."""
        ...

    def records(self) -> Sequence[Record]:
        """Return the records."""
        ...

    def plain(self, fields: Sequence[str]) -> "Plain | None":
        """Return the columns, if every key and every one of these fields holds a text that is not blank."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """Columns of records with which nothing is wrong."""

    keys: list[str]
    texts: dict[str, list[str]]
    positions: list[str]


@dataclass(frozen=True, slots=True)
class RecordsChunk:
    """Records that were read one by one."""

    items: Sequence[Record]

    def __len__(self) -> int:
        return len(self.items)

    def cut(self, count: int) -> "tuple[RecordsChunk, RecordsChunk]":
        """Return the first `count` records and the rest."""
        return RecordsChunk(self.items[:count]), RecordsChunk(self.items[count:])

    def records(self) -> Sequence[Record]:
        """Return the records."""
        return self.items

    def plain(self, fields: Sequence[str]) -> Plain | None:  # noqa: ARG002
        """Return None: there are no columns."""
        return None


@dataclass(frozen=True, slots=True)
class RowsChunk:
    """Rows of a parquet file; `first` is the number of the first of them, from 1, `types` what fields have to be."""

    batch: pa.RecordBatch
    file: str
    id_field: str
    first: int
    types: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.batch.num_rows

    def cut(self, count: int) -> "tuple[RowsChunk, RowsChunk]":
        """Return the first `count` records and the rest."""
        rest = replace(self, batch=self.batch.slice(count), first=self.first + count)
        return replace(self, batch=self.batch.slice(0, count)), rest

    def records(self) -> Sequence[Record]:
        """Return the records."""
        found: list[Record] = []
        for row, values in enumerate(rows(microseconds(self.batch)), start=self.first):
            position = f"{self.file} row {row}"
            if isinstance(values, dict):
                found.append(make_record(values, self.id_field, position, self.types))
            else:
                found.append(Record(None, {}, position, (Reason.UNPARSABLE, values)))
        return found

    def plain(self, fields: Sequence[str]) -> Plain | None:
        """Return the columns, if every key and every one of these fields holds a text that is not blank."""
        columns: dict[str, list[str]] = {}
        for name in {self.id_field, *fields}:
            column = column_of(self.batch, name)
            if column is None or self.types.get(name, "string") != "string":
                return None
            if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)) or column.null_count:
                return None
            try:
                columns[name] = column.to_pylist()
            except UnicodeDecodeError:
                return None
            if not all(map(str.strip, columns[name])):
                return None
        stop = self.first + self.batch.num_rows
        positions = [f"{self.file} row {row}" for row in range(self.first, stop)]
        return Plain(columns[self.id_field], {name: columns[name] for name in fields}, positions)


class Reader(Protocol):
    """What a source format has to offer."""

    def check(self, files: Sequence[FileEntry], needed: Sequence[tuple[str, StrategySpec]]) -> None:
        """Raise `ColumnError` where the files lack a column that the corpus names, or it holds no text."""
        ...

    def opens(self, file: FileEntry) -> bool:
        """Tell whether a file can be read to its end, with a warning where it cannot."""
        ...

    def read(self, file: FileEntry) -> Iterator[Record]:
        """Yield every record of a file in order."""
        ...

    def chunks(self, file: FileEntry) -> Iterator[Chunk]:
        """Yield every record of a file in order, at most 512 at a time."""
        ...


def try_open(file: FileEntry, opener: Callable[[FileEntry], Any]) -> bool:
    """Tell whether a file can be opened, or looked through, with a warning where it cannot."""
    try:
        with opener(file):
            return True
    except SourceUnreadableError as error:
        _log.warning("%s (passed over: on_unreadable is skip)", error)
        return False


def missing_column(field: str, name: str, where: str, found: list[str]) -> ColumnError:
    """Return the error for a field that a corpus names and a source lacks."""
    shown = ", ".join(sorted(found)[:30]).encode("utf-8", "backslashreplace").decode("utf-8")
    return ColumnError(field, name, f"is not in {where}{did_you_mean(name, found)}", f"columns there: {shown}")


def make_record(
    values: Mapping[str, Any], id_field: str, position: str, types: Mapping[str, str] | None = None
) -> Record:
    """Build a record with its key as text, or with the reason why it has none; `types` are those declared."""
    if types:
        values = declared(values, types)
    key = find_field(values, id_field)
    if isinstance(key, Misfit):
        return Record(None, values, position, (Reason.BAD_KEY, key.detail))
    if key is None or key == "":
        state = "empty" if key == "" else "null or missing"
        return Record(None, values, position, (Reason.NULL_KEY, f"the key field '{id_field}' is {state}"))
    if isinstance(key, int) and not isinstance(key, bool):
        key = str(key)
    if not isinstance(key, str):
        detail = f"the key field '{id_field}' holds {described(key)}, not text or a whole number"
        return Record(None, values, position, (Reason.BAD_KEY, detail))
    if not encodable(key):
        shown = key.encode("utf-8", "backslashreplace").decode("utf-8")
        detail = f"the key field '{id_field}' holds half of a surrogate pair: {shown}"
        return Record(None, values, position, (Reason.LONE_SURROGATE, detail))
    return Record(key, values, position)


def encodable(text: str) -> bool:
    """Tell whether a text has no half of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def first_line(error: Exception) -> str:
    """Return an error in one line."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | str]:
    """Yield the rows; for one with a value that Python cannot hold, say what is wrong with it instead."""
    try:
        yield from batch.to_pylist()
        return
    except (ValueError, OverflowError):
        # Not in UTF-8, a date beyond the year 9999 and the like; nothing has been yielded yet.
        singles = [batch.slice(row, 1) for row in range(batch.num_rows)]
    for single in singles:
        try:
            yield single.to_pylist()[0]
        except (ValueError, OverflowError) as error:
            yield f"the row holds a value that cannot be read: {first_line(error)}"


def microseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Cut nanoseconds to microseconds, the finest that Python's own types hold, however deep they are nested.

    pyarrow would make pandas objects of them where pandas is installed, and texts must not depend on that.
    """
    for index, column in enumerate(batch.schema):
        kind = _without_nanoseconds(column.type)
        if kind != column.type:
            batch = batch.set_column(index, column.with_type(kind), batch.column(index).cast(kind, safe=False))
    return batch


def _without_nanoseconds(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return pa.time64("us")
    if pa.types.is_dictionary(kind):
        value = _without_nanoseconds(kind.value_type)
        return kind if value == kind.value_type else value
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([field.with_type(_without_nanoseconds(field.type)) for field in fields])
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_without_nanoseconds(kind.key_type)),
            kind.item_field.with_type(_without_nanoseconds(kind.item_type)),
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_without_nanoseconds(kind.value_type)))
    return kind
