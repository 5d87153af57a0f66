"""Looking at the vectors of a file: are they finite, how long are they, are they all the same.

What belongs here: one pass over a vectors file, a row group in memory at a time. What does not: what
follows from it (`publish` refuses the file, `verify` reports it, an asset check judges the figures).
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from embeddings_pipeline.errors import VerificationError
from embeddings_pipeline.reports import VectorFacts

_ROWS_AT_A_TIME = 8192
"""Bounds what a comparison copies, to 12 MB at 384 dimensions."""


class VectorsSeen:
    """What was seen of the vectors of one model: any number of tables, in constant memory."""

    def __init__(self) -> None:
        self.rows = 0
        self.width = 0
        self.non_finite = 0
        self.zeros = 0
        self._least = np.inf
        self._greatest = 0.0
        self._first: tuple[npt.NDArray[np.generic], ...] | None = None
        self._all_same = True
        self._texts: set[str] | None = None

    def add(self, table: pa.Table) -> list[int]:
        """Look at the rows of a table; return those, counted from 0, whose vector is not finite."""
        bad: list[int] = []
        look = self._dense if "embedding" in table.column_names else self._sparse
        for batch in table.to_batches(max_chunksize=_ROWS_AT_A_TIME):
            found = look(batch) if batch.num_rows else []
            bad.extend(row + self.rows for row in found)
            self.rows += batch.num_rows
        if "text_hash" in table.column_names:
            self._distinguish(table)
        self.non_finite += len(bad)
        start = self.rows - table.num_rows
        return [row - start for row in bad]

    def facts(self) -> VectorFacts:
        """Return what was seen."""
        seen = self.rows - self.non_finite > 0
        return VectorFacts(
            rows=self.rows,
            width=self.width,
            non_finite=self.non_finite,
            min_norm=float(self._least) if seen else 0.0,
            max_norm=float(self._greatest) if seen else 0.0,
            constant=self._all_same and self.rows > 1 and (self._texts is None or len(self._texts) > 1),
        )

    def _distinguish(self, table: pa.Table) -> None:
        """Keep two different texts, if there are: equal ones, and long ones with one head, have one vector by right."""
        texts = self._texts or set()
        if len(texts) < 2:
            whole = table.filter(pc.invert(table.column("truncated"))).column("text_hash")
            texts.update(whole.unique().to_pylist()[:2])
        self._texts = texts

    def _dense(self, batch: pa.RecordBatch) -> list[int]:
        column = batch.column("embedding")
        self.width = column.type.list_size
        values = np.asarray(column.flatten()).reshape(-1, self.width)
        finite = np.isfinite(values).all(axis=1)
        squares = np.einsum("ij,ij->i", values, values, dtype=np.float64)
        self._norms(np.sqrt(squares[finite]))
        if self._all_same:
            first = self._remember((values[0].copy(),))[0]
            self._all_same = bool((values == first).all())
        return np.flatnonzero(~finite).tolist()

    def _sparse(self, batch: pa.RecordBatch) -> list[int]:
        indices, weights = batch.column("sparse_indices"), batch.column("sparse_values")
        offsets = np.asarray(weights.offsets) - np.asarray(weights.offsets)[0]
        values = np.asarray(weights.flatten())
        rows = np.repeat(np.arange(len(weights)), np.diff(offsets))
        finite = np.ones(len(weights), dtype=np.bool_)
        finite[rows[~np.isfinite(values)]] = False
        squares = np.bincount(rows, np.square(values, dtype=np.float64), minlength=len(weights))
        self._norms(np.sqrt(squares[finite]))
        if self._all_same:
            size = int(offsets[1])
            flat = np.asarray(indices.flatten())
            first = self._remember((flat[:size].copy(), values[:size].copy()))
            same = np.array_equal(np.diff(offsets), np.full(len(weights), len(first[0])))
            self._all_same = same and all(
                bool((whole.reshape(len(weights), -1) == one).all())
                for whole, one in zip((flat, values), first, strict=True)
                if len(one)
            )
        return np.flatnonzero(~finite).tolist()

    def _norms(self, norms: npt.NDArray[np.float64]) -> None:
        self.zeros += int((norms == 0).sum())
        if len(norms):
            self._least = min(self._least, norms.min())
            self._greatest = max(self._greatest, norms.max())

    def _remember(self, first: tuple[npt.NDArray[np.generic], ...]) -> tuple[npt.NDArray[np.generic], ...]:
        if self._first is None:
            self._first = first
        return self._first


def check_vectors(path: Path, shown: str, schema: pa.Schema, seen: VectorsSeen) -> None:
    """Read the vectors of a file that is about to be published, each row group once.

    Args:
        path: the file on this machine.
        shown: how messages name it.
        schema: what its vector columns have to be.
        seen: takes note of the vectors.

    Raises:
        VerificationError: a vector is not finite, or has another width; names file, row and key.
    """
    columns = [name for name in schema.names if name in ("embedding", "sparse_indices", "sparse_values")]
    first = 0
    try:
        with pq.ParquetFile(path) as opened:
            for name in columns:
                found, expected = opened.schema_arrow.field(name).type, schema.field(name).type
                if found != expected:
                    raise VerificationError(
                        f"file '{shown}' holds vectors in the column '{name}' of type {found} where {expected} is "
                        "declared; delete it and run the job again"
                    )
            for group in range(opened.num_row_groups):
                table = opened.read_row_group(
                    group, columns=["record_id", "text_hash", "truncated", *columns], use_threads=False
                )
                if bad := seen.add(table):
                    key = table.column("record_id")[bad[0]].as_py()
                    raise VerificationError(
                        f"file '{shown}' holds a vector that is not finite in row {first + bad[0] + 1}, of record "
                        f"'{key}' ({len(bad)} such rows in this row group); nothing was published: delete the file "
                        "and run the job again, and if it comes back look at the model's dtype"
                    )
                first += table.num_rows
    except (pa.ArrowException, OSError) as error:
        raise VerificationError(
            f"file '{shown}' cannot be read ({str(error).splitlines()[0]}); delete it and run the job again"
        ) from error
