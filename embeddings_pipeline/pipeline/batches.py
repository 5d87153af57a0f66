"""Application batches on their way through the encoder, and the rows that come out.

What belongs here: keeping the device busy with at most three application batches alive, computing
each distinct text of a part once, and putting computed, carried and rejected texts back in order.
What does not: files (`storage.parts`) and which parts there are (`embedding`).
"""

import datetime as dt
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from embeddings_pipeline.errors import BatchFailedError, ModelError
from embeddings_pipeline.inference.encoder import Encoder
from embeddings_pipeline.models.store import ResolvedModel
from embeddings_pipeline.records import (
    Delivery,
    EmbeddedBatch,
    EmbedOptions,
    Reject,
    TextFailure,
    dataset_schema,
)
from embeddings_pipeline.storage.manifests import RecordsPart
from embeddings_pipeline.storage.published import KEY_COLUMNS, Carried, PublishedRows

MOST_ALIVE = 3
"""Application batches alive at once: the last one being written, the current one, the next one."""

_STAGE = "embed"


class ApplicationBatch:
    """Texts that are read, embedded, written and forgotten together.

    `rows` are those of `RECORDS_SCHEMA`; `wanted` are the positions of the texts that go through the
    model, the rest being carried over or repeats of a text of this part; `table` is set by
    `PartRows.finish` to the rows to write.
    """

    def __init__(self, rows: pa.RecordBatch, carried: Carried | None, wanted: list[int]) -> None:
        self.rows = rows
        self.carried = carried
        self.wanted = wanted
        self.table: pa.Table = pa.table({})

    @property
    def texts(self) -> int:
        """How many texts the batch has."""
        return self.rows.num_rows

    def keys(self) -> tuple[str, str]:
        """Return the first and the last record id."""
        ids = self.rows.column("record_id")
        return ids[0].as_py(), ids[len(ids) - 1].as_py()


class PartRows:
    """The rows of one part as they come out of the encoder, with their counts and rejects."""

    def __init__(
        self,
        part: RecordsPart,
        encoder: Encoder,
        model: ResolvedModel,
        delivery: Delivery,
        text_hashes: Iterable[str],
    ) -> None:
        """Start with nothing.

        Args:
            part: the part.
            encoder: what computes the vectors.
            model: its spec and fingerprint, for the rows.
            delivery: whose part it is.
            text_hashes: of all texts of the part; those of texts that repeat are remembered.
        """
        self._encoder = encoder
        self._part = part
        self._model = model
        self._delivery = delivery
        self.schema = dataset_schema(encoder.kind, encoder.dimensions, model.spec.precision)
        vector = [name for name in self.schema.names if name == "embedding" or name.startswith("sparse_")]
        self._vector_schema = pa.schema(
            [self.schema.field(name) for name in ("token_count", "truncated", *vector, "embedded_at")]
        )
        self._repeated_hashes = {text_hash for text_hash, times in Counter(text_hashes).items() if times > 1}
        self._under_way: set[str] = set()
        self._repeated: dict[str, pa.Table | TextFailure] = {}
        self.rejects: list[Reject] = []
        self.events: list[str] = []
        self.embedded = self.skipped = self.tokens = self.truncated = 0
        self.compute_seconds = 0.0

    def finish(self, batch: ApplicationBatch, result: EmbeddedBatch | None, *, carry_rows: bool) -> None:
        """Give `batch` the table to write, in input order, and count what became of its texts."""
        tables = [self._computed(result)] if result is not None else []
        failures = {failure.row: failure for failure in result.failures} if result is not None else {}
        offset = len(result) if result is not None else 0
        hashes = batch.rows.column("text_hash").to_pylist()
        computed_at = {position: row for row, position in enumerate(batch.wanted)}
        carried_at: dict[int, int] = {}
        if batch.carried is not None:
            carried_at = {int(position): row for row, position in enumerate(batch.carried.rows)}
            self.skipped += len(carried_at)
        positions: list[int] = []
        take: list[int] = []
        for position, text_hash in enumerate(hashes):
            if position in carried_at:
                if carry_rows:
                    positions.append(position)
                    take.append(-1 - carried_at[position])
                continue
            row = computed_at.get(position)
            if row is not None and text_hash in self._repeated_hashes:
                self._repeated[text_hash] = failures.get(row) or tables[0].take([row])
            known = failures.get(row) if row is not None else self._repeated[text_hash]
            if isinstance(known, TextFailure):
                self._reject(batch, position, known)
                continue
            if row is None:
                tables.append(known)
                row, offset = offset, offset + 1
            positions.append(position)
            take.append(row)
            self.embedded += 1
        if carried_at and carry_rows and batch.carried is not None:
            tables.append(batch.carried.table.select(self._vector_schema.names).cast(self._vector_schema))
        take = [row if row >= 0 else offset - 1 - row for row in take]
        batch.table = self._assemble(batch, tables, positions, take)
        computed = pa.array([row < offset for row in take], pa.bool_())
        self.truncated += batch.table.filter(computed).column("truncated").to_pylist().count(True)

    def start(self, rows: pa.RecordBatch, carried: Carried | None) -> ApplicationBatch:
        """Decide which texts of a batch go through the model."""
        skip = set() if carried is None else {int(row) for row in carried.rows}
        wanted: list[int] = []
        for position, text_hash in enumerate(rows.column("text_hash").to_pylist()):
            if position in skip or text_hash in self._under_way:
                continue
            if text_hash in self._repeated_hashes:
                self._under_way.add(text_hash)
            wanted.append(position)
        return ApplicationBatch(rows, carried, wanted)

    def _computed(self, result: EmbeddedBatch) -> pa.Table:
        self.events.extend(result.events)
        self.compute_seconds += result.compute_seconds
        self.tokens += int(np.minimum(result.token_count, self._encoder.max_length).sum())
        now = pa.scalar(dt.datetime.now(dt.UTC), pa.timestamp("us", tz="UTC"))
        columns = [
            pa.array(result.token_count, pa.int32()),
            pa.array(result.truncated, pa.bool_()),
            *self._vectors(result),
            pa.repeat(now, len(result)),
        ]
        return pa.Table.from_arrays(columns, schema=self._vector_schema)

    def _vectors(self, result: EmbeddedBatch) -> list[pa.Array]:
        if result.dense is not None:
            number = np.float16 if self._model.spec.precision == "float16" else np.float32
            flat = pa.array(np.ascontiguousarray(result.dense, number).reshape(-1))
            return [pa.FixedSizeListArray.from_arrays(flat, self._encoder.dimensions)]
        if result.sparse is None:
            raise ModelError(f"the encoder of '{self._model.name}' returned neither dense nor sparse vectors")
        offsets = pa.array(result.sparse.indptr.astype(np.int32))
        strings = self._encoder.token_strings(result.sparse.indices)
        values = (pa.array(result.sparse.indices), pa.array(result.sparse.values), strings)
        return [pa.ListArray.from_arrays(offsets, column) for column in values]

    def _reject(self, batch: ApplicationBatch, position: int, failure: TextFailure) -> None:
        record = batch.rows.slice(position, 1).to_pylist()[0]
        self.rejects.append(
            Reject(
                record["record_id"],
                self._part.strategy,
                record["chunk"],
                _STAGE,
                failure.reason,
                failure.detail,
                record["position"],
            )
        )

    def _assemble(
        self, batch: ApplicationBatch, tables: list[pa.Table], positions: list[int], take: list[int]
    ) -> pa.Table:
        """Put keys, vectors and the model's facts side by side."""
        if not positions:
            return self.schema.empty_table()
        vectors = pa.concat_tables(tables).take(pa.array(take, pa.int64())).combine_chunks()
        keys = pa.Table.from_batches([batch.rows]).select(list(KEY_COLUMNS)).take(pa.array(positions, pa.int64()))
        constants = {
            "strategy": self._part.strategy,
            "delivery": self._delivery.name,
            "model": self._model.name,
            "revision": self._model.spec.revision,
            "fingerprint": self._model.fingerprint,
        }
        columns = [
            keys.column(name)
            if name in KEY_COLUMNS
            else pa.repeat(pa.scalar(constants[name], pa.string()), len(positions))
            if name in constants
            else vectors.column(name)
            for name in self.schema.names
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)


class BatchFlow:
    """Runs application batches through an encoder in order, two ahead of the one that is yielded.

    Leaving the block, on whatever path, cancels what is under way, waits for it (at most one model
    batch), and ends the threads.
    """

    def __init__(
        self, encoder: Encoder, options: EmbedOptions, rows: PartRows, published: PublishedRows, *, carry_rows: bool
    ) -> None:
        self._encoder = encoder
        self._options = options
        self._rows = rows
        self._published = published
        self._carry_rows = carry_rows
        self._cancel = threading.Event()
        self._threads = ThreadPoolExecutor(max_workers=MOST_ALIVE - 1, thread_name_prefix="application-batch")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cancel.set()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[ApplicationBatch]:
        """Yield the batches in order, each with its table."""
        alive: deque[tuple[ApplicationBatch, Future[EmbeddedBatch] | None]] = deque()
        for rows in batches:
            alive.append(self._start(rows))
            del rows
            if len(alive) == MOST_ALIVE:
                yield self._finish(*alive.popleft())
        while alive:
            yield self._finish(*alive.popleft())

    def _start(self, rows: pa.RecordBatch) -> tuple[ApplicationBatch, "Future[EmbeddedBatch] | None"]:
        carried = self._published.carry(rows, None if self._carry_rows else KEY_COLUMNS)
        batch = self._rows.start(rows, carried)
        if not batch.wanted:
            return batch, None
        texts = rows.column("text").take(pa.array(batch.wanted, pa.int64())).to_pylist()
        return batch, self._threads.submit(self._encoder.embed, texts, self._options, self._cancel)

    def _finish(self, batch: ApplicationBatch, future: "Future[EmbeddedBatch] | None") -> ApplicationBatch:
        try:
            result = future.result() if future is not None else None
        except ModelError as error:
            raise BatchFailedError(*batch.keys(), error) from error
        self._rows.finish(batch, result, carry_rows=self._carry_rows)
        return batch
