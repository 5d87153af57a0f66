"""Reading parquet files, some rows at a time and only the needed columns.

What belongs here: opening, checking and slicing them. What does not: listing (`sources`), and what a field's
name means (`fields`).
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from embeddings_pipeline.errors import ColumnError, SourceUnreadableError
from embeddings_pipeline.records import Record
from embeddings_pipeline.settings import SourceSpec, StrategySpec
from embeddings_pipeline.storage import strategies
from embeddings_pipeline.storage.chunks import ROWS_AT_A_TIME, RowsChunk, first_line, missing_column, try_open
from embeddings_pipeline.storage.fields import column_paths, steps_to, type_of
from embeddings_pipeline.storage.location import FileEntry

_log = logging.getLogger(__name__)

LARGE_ROW_GROUP_BYTES = 512 << 20
"""Before compression, of the columns that are read: from here on a file's row groups are worth a warning."""

_BUFFER_BYTES = 64 << 20
"""Of compressed data held for all columns that are read. Arrow otherwise reads a row group's columns whole: 456 MB
instead of 54 for a file of 420 MB in one row group, at the same speed."""

_COLUMN_BUFFER_BYTES = (64 << 10, 2 << 20)
_REMOTE_COLUMN_BUFFER_BYTES = (256 << 10, 8 << 20)
"""Least and most for one column: in an object store each filling is a request."""


class ParquetReader:
    """Records of parquet files, a row group at a time, only the needed columns (None: all)."""

    def __init__(self, spec: SourceSpec, needed: set[str] | None) -> None:
        self._id = spec.id
        self._needed = needed
        self._optional = frozenset(spec.optional or ())
        types = spec.types or {}
        self._types = {name: kind for name, kind in types.items() if needed is None or name in needed}

    def check(self, files: Sequence[FileEntry], needed: Sequence[tuple[str, StrategySpec]]) -> None:
        """Look at the files' footers: the key in every file, each named field in at least one."""
        seen: dict[str, set[pa.DataType]] = {}
        names = {name for _, strategy in needed for name in strategy.needed_fields() or ()}
        columns: dict[str, None] = {}
        for file in files:
            schema = self._schema(file)
            columns.update(dict.fromkeys(column_paths(schema)))
            for name in names:
                if (steps := steps_to(schema, name)) is not None:
                    seen.setdefault(name, set()).add(type_of(schema, steps))
        where = files[0].name if len(files) == 1 else "any file"
        for field, strategy in needed if files else ():
            for name in strategy.needed_fields() or ():
                if name not in seen and name not in self._optional:
                    raise missing_column(field, name, where, list(columns))
                self._check_text(field, name, strategy, seen.get(name, set()))

    def _schema(self, file: FileEntry) -> pa.Schema:
        """Return a file's schema, in which the key is."""
        with open_parquet(file) as opened:
            schema = opened.schema_arrow
        _check_unique(file, schema.names)
        steps = steps_to(schema, self._id)
        if steps is None:
            raise missing_column("source.id", self._id, file.name, list(column_paths(schema)))
        if self._id not in self._types:
            _check_key_type(self._id, type_of(schema, steps))
        return schema

    def _check_text(self, field: str, name: str, strategy: StrategySpec, kinds: set[pa.DataType]) -> None:
        """Raise `ColumnError` where a column of these types gives the strategy no text, unless it gets another type."""
        for kind in () if name in self._types else sorted(kinds, key=str):
            if problem := strategies.column_problem(strategy, kind):
                remedy = f"name a text column, declare source.types: {{{name}: string}}, or use full_record"
                raise ColumnError(field, name, problem, remedy)

    def opens(self, file: FileEntry) -> bool:
        """Look the file through: a page that cannot be decoded shows itself only when it is read."""
        return try_open(file, self._look)

    def _look(self, file: FileEntry) -> contextlib.AbstractContextManager[None]:
        with self._open(file) as opened:
            for _ in self._batches(file, opened):
                pass
        return contextlib.nullcontext()

    def read(self, file: FileEntry) -> Iterator[Record]:
        """Yield the file's rows."""
        for chunk in self.chunks(file):
            yield from chunk.records()

    def chunks(self, file: FileEntry) -> Iterator[RowsChunk]:
        """Yield the file's rows.

        Holds 512 decoded rows, a page of each needed column (writers make them of about 1 MB) and some of its
        compressed data, 64 MB for all of them, however large the row groups are.
        """
        with self._open(file) as opened:
            _warn_of_large_row_groups(file, opened.metadata, self._columns(opened.schema_arrow))
            first = 1
            for batch in self._batches(file, opened):
                yield RowsChunk(batch, file.name, self._id, first, self._types)
                first += batch.num_rows

    def _open(self, file: FileEntry) -> pq.ParquetFile:
        """Open a file with buffers that fit the number of its columns."""
        with open_parquet(file) as opened:
            metadata, schema = opened.metadata, opened.schema_arrow
        columns = self._columns(schema)
        paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
        read = sum(columns is None or _is_read(path, columns) for path in paths)
        least, most = _column_buffer(file)
        return open_parquet(file, min(most, max(least, _BUFFER_BYTES // max(1, read))), metadata)

    def _batches(self, file: FileEntry, opened: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
        columns = self._columns(opened.schema_arrow)
        for group in range(opened.num_row_groups):
            batches = opened.iter_batches(
                batch_size=ROWS_AT_A_TIME, row_groups=[group], columns=columns, use_threads=False
            )
            yield from readable(batches, file)

    def _columns(self, schema: pa.Schema) -> list[str] | None:
        """Return what to read of a file, down to the leaves; None for all."""
        if self._needed is None:
            return None
        found = (steps_to(schema, name) for name in sorted(self._needed))
        return list(dict.fromkeys(".".join(steps) for steps in found if steps is not None))


def open_parquet(
    file: FileEntry, column_buffer: int | None = None, metadata: pq.FileMetaData | None = None
) -> pq.ParquetFile:
    """Open a file, or raise `SourceUnreadableError`; with `metadata` its footer is not read again."""
    buffer = column_buffer or _column_buffer(file)[1]
    try:
        return pq.ParquetFile(file.location.parquet(), metadata=metadata, pre_buffer=False, buffer_size=buffer)
    except (pa.ArrowException, OSError) as error:
        raise SourceUnreadableError(str(file.location), "parquet", first_line(error)) from error


def _column_buffer(file: FileEntry) -> tuple[int, int]:
    return _REMOTE_COLUMN_BUFFER_BYTES if file.location.remote else _COLUMN_BUFFER_BYTES


def readable(batches: Iterator[pa.RecordBatch], file: FileEntry) -> Iterator[pa.RecordBatch]:
    """Yield the batches, or raise `SourceUnreadableError`."""
    try:
        yield from batches
    except (pa.ArrowException, OSError) as error:
        raise SourceUnreadableError(str(file.location), "parquet", first_line(error)) from error


def _warn_of_large_row_groups(file: FileEntry, metadata: pq.FileMetaData, columns: Sequence[str] | None) -> None:
    """Name the largest row group of a file if it is large: it is read in pieces here, but by few others."""
    largest, rows, number = 0, 0, 0
    for group in range(metadata.num_row_groups):
        facts = metadata.row_group(group)
        read = (facts.column(index) for index in range(facts.num_columns))
        size = sum(
            column.total_uncompressed_size
            for column in read
            if columns is None or _is_read(column.path_in_schema, columns)
        )
        if size > largest:
            largest, rows, number = size, facts.num_rows, group
    if largest >= LARGE_ROW_GROUP_BYTES:
        _log.warning(
            "row group %d of '%s' holds %s rows and %s bytes of the columns that are read; it is read a page at a "
            "time, which takes little memory only as long as its pages are small: write such files with row groups "
            "of at most 64 MB (pyarrow: row_group_size)",
            number + 1,
            file.location,
            f"{rows:,}",
            f"{largest:,}",
        )


def _is_read(path: str, columns: Sequence[str]) -> bool:
    """Tell whether a leaf lies at or below one of the columns."""
    return any(f"{path}.".startswith(f"{name}.") for name in columns)


def _check_unique(file: FileEntry, names: list[str]) -> None:
    """Refuse two columns with one name: a record has one value for each."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SourceUnreadableError(str(file.location), "parquet", f"the column '{twice[0]}' stands there twice")


def _check_key_type(name: str, kind: pa.DataType) -> None:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    text = pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value)
    if not (text or pa.types.is_integer(value) or pa.types.is_null(value)):
        remedy = f"name a column of text or whole numbers, or declare source.types: {{{name}: int}}"
        raise ColumnError("source.id", name, f"has the type {kind}", remedy)
