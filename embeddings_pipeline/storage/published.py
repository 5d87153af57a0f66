"""Reading what is published of a delivery, to carry unchanged vectors over.

What belongs here: finding published rows by part or by row, and reading them back. What does not:
changing what is published (`publish`).
"""

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from embeddings_pipeline.storage.index import Hashes, RowIndex, row_hashes
from embeddings_pipeline.storage.location import Place
from embeddings_pipeline.storage.manifests import DatasetFile, PublishedSet

_log = logging.getLogger(__name__)

KEY_COLUMNS = ("record_id", "chunk", "text_hash")


@dataclass(frozen=True, slots=True)
class Carried:
    """Published rows for some texts of a batch.

    `rows` are the positions in the batch, ascending; `table` has one published row for each.

    *Shape:* rows int64[m]
    """

    rows: npt.NDArray[np.int64]
    table: pa.Table


def is_there(root: Place, file: DatasetFile) -> bool:
    """Tell whether a file that a manifest names is where it says, with its size."""
    return (root / file.path).size() == file.bytes


def present(root: Place, files: Iterable[DatasetFile]) -> list[DatasetFile]:
    """Return the files that are where a manifest says, with their sizes; lists each folder once."""
    asked = list(files)
    sizes: dict[str, int] = {}
    for folder in {file.path.rpartition("/")[0] for file in asked}:
        sizes.update({f"{folder}/{entry.name}": entry.size for entry in (root / folder).files()})
    return [file for file in asked if sizes.get(file.path) == file.bytes]


class PublishedRows:
    """The published rows of one model and strategy whose fingerprint is still right.

    A file that is named and is not there any more, or has another size, counts as not published: its
    texts are computed again.

    Holds 12 bytes per published row (20 while they are sorted) once `carry` was called, and one row group at a time.
    """

    def __init__(self, root: Place, published: PublishedSet | None, fingerprint: str) -> None:
        files = () if published is None else published.files
        self.kind, self.dimensions = ("", 0) if published is None else (published.kind, published.dimensions)
        self._root = root
        self._files = present(root, (file for file in files if file.fingerprint == fingerprint))
        self._by_part = {file.part: file for file in self._files}
        self._damaged: set[str] = set()
        self._index: RowIndex | None = None
        self._lock = threading.Lock()

    def whole(self, part: str, texts: int) -> DatasetFile | None:
        """Return the published file that holds a vector for every text of the part."""
        file = self._by_part.get(part)
        return file if file is not None and file.rows == texts else None

    def carry(self, texts: pa.RecordBatch, columns: Sequence[str] | None = None) -> Carried | None:
        """Find the texts that are published already, key and text hash alike; one thread at a time does.

        Args:
            texts: rows of `RECORDS_SCHEMA`.
            columns: dataset columns to read; None for all.
        """
        if not self._files:
            return None
        with self._lock:
            return self._carry(texts, columns)

    def _carry(self, texts: pa.RecordBatch, columns: Sequence[str] | None) -> Carried | None:
        wanted = [texts.column(name).to_pylist() for name in KEY_COLUMNS]
        files, rows = self._rows().find(row_hashes(*wanted))
        found = np.flatnonzero(files >= 0)
        if not len(found):
            return None
        there, table = self._read(files[found], rows[found], columns)
        found = found[there]
        if not len(found):
            return None
        same = np.ones(len(found), dtype=np.bool_)
        for name, values in zip(KEY_COLUMNS, wanted, strict=True):
            published = table.column(name).to_pylist()
            same &= np.array([values[at] == there for at, there in zip(found, published, strict=True)])
        return Carried(found[same], table.filter(pa.array(same))) if same.any() else None

    def _rows(self) -> RowIndex:
        if self._index is None:
            self._index = RowIndex()
            for number, file in enumerate(self._files):
                try:
                    hashes = self._hashes(file)
                except (pa.ArrowException, OSError) as error:
                    self._leave_out(file, error)
                    continue
                self._index.add(hashes, number, 0)
        return self._index

    def _hashes(self, file: DatasetFile) -> Hashes:
        found: list[Hashes] = []
        with pq.ParquetFile((self._root / file.path).parquet()) as opened:
            for group in range(opened.num_row_groups):
                keys = opened.read_row_group(group, columns=list(KEY_COLUMNS), use_threads=False)
                found.append(row_hashes(*(keys.column(name).to_pylist() for name in KEY_COLUMNS)))
        return np.concatenate(found) if found else np.empty(0, np.uint64)

    def _leave_out(self, file: DatasetFile, error: Exception) -> None:
        """Count a damaged file as not published."""
        _log.warning(
            "the published file '%s' cannot be read (%s); its texts are embedded again",
            self._root / file.path,
            str(error).splitlines()[0],
        )
        self._damaged.add(file.path)
        self._by_part.pop(file.part, None)

    def _read(
        self, files: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], columns: Sequence[str] | None
    ) -> tuple[npt.NDArray[np.int64], pa.Table]:
        """Read rows; return which of those asked for there are, ascending, and the rows in that order."""
        tables: list[pa.Table] = []
        order: list[npt.NDArray[np.int64]] = []
        for number in np.unique(files):
            at, file = np.flatnonzero(files == number), self._files[number]
            if file.path in self._damaged:
                continue
            try:
                found = list(self._read_file(file, at, rows[at], columns))
            except (pa.ArrowException, OSError) as error:
                self._leave_out(file, error)
                continue
            order.extend(inside for inside, _ in found)
            tables.extend(table for _, table in found)
        if not tables:
            return np.empty(0, np.int64), pa.table({})
        there = np.concatenate(order)
        restored = np.argsort(there)
        return there[restored], pa.concat_tables(tables).take(pa.array(restored))

    def _read_file(
        self,
        file: DatasetFile,
        at: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        columns: Sequence[str] | None,
    ) -> Iterator[tuple[npt.NDArray[np.int64], pa.Table]]:
        with pq.ParquetFile((self._root / file.path).parquet()) as opened:
            sizes = [opened.metadata.row_group(group).num_rows for group in range(opened.num_row_groups)]
            starts = np.concatenate([[0], np.cumsum(sizes)])
            groups = np.searchsorted(starts, rows, side="right") - 1
            for group in np.unique(groups):
                inside = groups == group
                table = opened.read_row_group(int(group), columns=columns and list(columns), use_threads=False)
                yield at[inside], table.take(pa.array(rows[inside] - starts[group]))
