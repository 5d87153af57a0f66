"""TIMDEX datasets: reading their records, and writing embeddings that timdex-dataset-api reads.

What belongs here: which records of a dataset are meant, and the two schemas. What does not: rendering a
record's JSON (`strategies`) and which embeddings are published (`publish`).
"""

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from embeddings_pipeline.errors import ColumnError
from embeddings_pipeline.records import Reason, Record
from embeddings_pipeline.settings import SourceSpec, StrategySpec
from embeddings_pipeline.storage.chunks import ROWS_AT_A_TIME, RecordsChunk, try_open
from embeddings_pipeline.storage.location import FileEntry
from embeddings_pipeline.storage.parquet import open_parquet, readable
from embeddings_pipeline.storage.wording import described, json_problem

KEY = ("timdex_record_id", "run_id", "run_record_offset")
_FACTS = (*KEY, "source", "run_type", "action", "run_timestamp")

EMBEDDINGS_SCHEMA = pa.schema(
    [
        pa.field("timdex_record_id", pa.string()),
        pa.field("run_id", pa.string()),
        pa.field("run_record_offset", pa.int32()),
        pa.field("embedding_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("embedding_model", pa.string()),
        pa.field("embedding_strategy", pa.string()),
        pa.field("embedding_vector", pa.list_(pa.float32())),
        pa.field("embedding_object", pa.binary()),
    ]
)
"""What timdex-dataset-api 4 reads below `data/embeddings/year=/month=/day=/`."""


class TimdexReader:
    """Records of a run, or the current records of a source, with one action.

    A record's key is its composite one, `<timdex_record_id> <run_id> <run_record_offset>`. For a
    source, the facts of all its record versions are held in memory, not their JSON.
    """

    def __init__(self, spec: SourceSpec, files: Sequence[FileEntry], first_offset: int = 0) -> None:
        self._spec = spec
        self._first_offset = first_offset
        self._files = files
        self._chosen: dict[str, np.ndarray] | None = None

    def check(self, files: Sequence[FileEntry], needed: Sequence[tuple[str, StrategySpec]]) -> None:  # noqa: ARG002
        """Look at the files' footers: the columns of TIMDEX records in every one."""
        for file in files:
            with open_parquet(file) as opened:
                names = opened.schema_arrow.names
            if missing := [name for name in (*_FACTS, "transformed_record") if name not in names]:
                remedy = f"name the folder of a TIMDEX dataset; columns there: {', '.join(names)}"
                raise ColumnError("source.location", missing[0], f"is not in {file.name}", remedy)

    def opens(self, file: FileEntry) -> bool:
        """Look at the file's footer."""
        return try_open(file, open_parquet)

    def read(self, file: FileEntry) -> Iterator[Record]:
        """Yield the chosen records of a file; holds at most one row group in its compressed form."""
        run, owner = self._spec.run_id, self._spec.source
        chosen = None if run is not None or owner is None else self._current().get(file.name, np.empty(0, np.int64))
        if chosen is not None and not len(chosen):
            return
        first = 0
        with open_parquet(file) as opened:
            for group in range(opened.num_row_groups):
                batches = opened.iter_batches(
                    ROWS_AT_A_TIME, row_groups=[group], columns=[*_FACTS, "transformed_record"], use_threads=False
                )
                for batch in readable(batches, file):
                    rows = np.arange(first, first + batch.num_rows)
                    first += batch.num_rows
                    mask = pc.equal(batch.column("action"), self._spec.action).fill_null(False).to_numpy(False)
                    if self._first_offset:
                        offsets = batch.column("run_record_offset")
                        mask &= pc.greater_equal(offsets, self._first_offset).fill_null(True).to_numpy(False)
                    if chosen is None:
                        mask &= pc.equal(batch.column("run_id"), run).fill_null(False).to_numpy(False)
                        if owner is not None:
                            mask &= pc.equal(batch.column("source"), owner).fill_null(False).to_numpy(False)
                    else:
                        mask &= np.isin(rows, chosen)
                    for values, row in zip(batch.filter(pa.array(mask)).to_pylist(), rows[mask].tolist(), strict=True):
                        yield record_of(values, f"{file.name} row {row + 1}")

    def chunks(self, file: FileEntry) -> Iterator[RecordsChunk]:
        """Yield the chosen records of a file, up to 512 at a time."""
        some: list[Record] = []
        for record in self.read(file):
            some.append(record)
            if len(some) == ROWS_AT_A_TIME:
                yield RecordsChunk(some)
                some = []
        if some:
            yield RecordsChunk(some)

    def _current(self) -> dict[str, np.ndarray]:
        """Find the rows that are current: the newest version of each record since the source's last full run."""
        if self._chosen is None:
            tables = [facts for number, file in enumerate(self._files) if (facts := self._facts(number, file)).num_rows]
            self._chosen = self._newest(pa.concat_tables(tables)) if tables else {}
        return self._chosen

    def _facts(self, number: int, file: FileEntry) -> pa.Table:
        with open_parquet(file) as opened:
            table = opened.read(columns=list(_FACTS), use_threads=False)
        stamp = table.column("run_timestamp").cast(pa.timestamp("us", tz="UTC"), safe=False)
        table = table.set_column(table.column_names.index("run_timestamp"), "run_timestamp", stamp)
        table = table.append_column("file", pa.array(np.full(table.num_rows, number), pa.int64()))
        table = table.append_column("row", pa.array(np.arange(table.num_rows), pa.int64()))
        table = table.filter(pc.equal(table.column("source"), self._spec.source))
        return table.select(
            ["timdex_record_id", "run_id", "run_record_offset", "run_type", "run_timestamp", "file", "row"]
        )

    def _newest(self, facts: pa.Table) -> dict[str, np.ndarray]:
        full = facts.filter(pc.equal(facts.column("run_type"), "full"))
        if not full.num_rows:
            return {}
        since = pc.max(full.column("run_timestamp"))
        facts = facts.filter(pc.greater_equal(facts.column("run_timestamp"), since))
        order = [(name, "ascending") for name in ("run_timestamp", "run_id", "run_record_offset")]
        facts = facts.sort_by(order)
        # A record without an id is nobody's version: each stays, and becomes a reject.
        ids = facts.column("timdex_record_id").to_pylist()
        newest = {key if key is not None else row: row for row, key in enumerate(ids)}
        facts = facts.take(pa.array(sorted(newest.values())))
        files, rows = facts.column("file").to_numpy(), facts.column("row").to_numpy()
        return {file.name: np.sort(rows[files == number]) for number, file in enumerate(self._files)}


def record_key(timdex_record_id: str, run_id: str, offset: int) -> str:
    """Return the key of a record version."""
    return f"{timdex_record_id} {run_id} {offset}"


def key_parts(key: str) -> tuple[str, str, int]:
    """Return what `record_key` made a key of."""
    record, run, offset = key.rsplit(" ", 2)
    return record, run, int(offset)


def record_of(values: Mapping[str, Any], position: str) -> Record:
    """Return the record that a row of a TIMDEX dataset is, with the reason where it cannot be used."""
    if any(values[name] is None for name in KEY):
        missing = ", ".join(name for name in KEY if values[name] is None)
        return Record(None, {}, position, (Reason.NULL_KEY, f"null: {missing}"))
    key = record_key(*(values[name] for name in KEY))
    data = values.get("transformed_record")
    if data is None:
        return Record(key, {}, position, (Reason.NULL_TEXT, "transformed_record is null"))
    if isinstance(data, dict):
        return Record(key, data, position)
    try:
        found = json.loads(data)
    except (TypeError, ValueError, RecursionError) as error:
        return Record(key, {}, position, (Reason.UNPARSABLE, f"transformed_record is no JSON: {json_problem(error)}"))
    if not isinstance(found, dict):
        detail = f"transformed_record holds {described(found)}, not an object"
        return Record(key, {}, position, (Reason.UNPARSABLE, detail))
    return Record(key, found, position)


def folder_of(stamp: str) -> str:
    """Return the hive folder of an embedding timestamp."""
    moment = dt.datetime.fromisoformat(stamp)
    return f"year={moment:%Y}/month={moment:%m}/day={moment:%d}"


def export(published: Path, target: Path, stamp: str) -> int:
    """Write a dataset file in TIMDEX's schema, a row group at a time; return its rows."""
    moment = pa.scalar(dt.datetime.fromisoformat(stamp), pa.timestamp("us", tz="UTC"))
    rows = 0
    with (
        pq.ParquetFile(published) as opened,
        pq.ParquetWriter(target, EMBEDDINGS_SCHEMA, compression="zstd", compression_level=1) as writer,
    ):
        for group in range(opened.num_row_groups):
            table = opened.read_row_group(group, use_threads=False)
            rows += table.num_rows
            keys = [key_parts(key) for key in table.column("record_id").to_pylist()]
            dense = "embedding" in table.column_names
            vectors = table.column("embedding").combine_chunks().cast(pa.list_(pa.float32())) if dense else None
            columns = {
                "timdex_record_id": pa.array([key[0] for key in keys], pa.string()),
                "run_id": pa.array([key[1] for key in keys], pa.string()),
                "run_record_offset": pa.array([key[2] for key in keys], pa.int32()),
                "embedding_timestamp": pa.repeat(moment, table.num_rows),
                "embedding_model": table.column("model"),
                "embedding_strategy": table.column("strategy"),
                "embedding_vector": vectors if dense else pa.nulls(table.num_rows, pa.list_(pa.float32())),
                "embedding_object": pa.nulls(table.num_rows, pa.binary()) if dense else _objects(table),
            }
            writer.write_table(pa.table(columns, schema=EMBEDDINGS_SCHEMA))
    return rows


def _objects(table: pa.Table) -> pa.Array:
    """Write sparse vectors as JSON objects from token to weight, the heaviest first."""
    tokens, values = table.column("sparse_tokens").to_pylist(), table.column("sparse_values").to_pylist()
    objects = [json.dumps(dict(zip(*pair, strict=True))).encode() for pair in zip(tokens, values, strict=True)]
    return pa.array(objects, pa.binary())
