"""TIMDEX datasets: which records are meant, what becomes of bad ones, and what other tools read afterwards."""

import datetime as dt
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embeddings_pipeline.errors import ColumnError, PublishConflictError
from embeddings_pipeline.pipeline import extraction
from embeddings_pipeline.records import Counts
from embeddings_pipeline.storage.location import Location
from embeddings_pipeline.storage.timdex import EMBEDDINGS_SCHEMA
from embeddings_pipeline.storage.verify import verify
from tests.fakes import Bench, vector_of
from tests.s3 import S3Bench

RECORDS = pa.schema(
    [
        ("timdex_record_id", pa.string()),
        ("source_record", pa.binary()),
        ("transformed_record", pa.binary()),
        ("source", pa.string()),
        ("run_date", pa.date32()),
        ("run_type", pa.string()),
        ("action", pa.string()),
        ("run_id", pa.string()),
        ("run_record_offset", pa.int32()),
        ("run_timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


def record(key: str | None, run: str, offset: int, day: int, **changes: Any) -> dict[str, Any]:
    return {
        "timdex_record_id": key,
        "source_record": b"<xml/>",
        "transformed_record": json.dumps({"timdex_record_id": key, "title": f"Título of {key} in {run}"}).encode(),
        "source": "alma",
        "run_date": dt.date(2024, 1, day),
        "run_type": "daily",
        "action": "index",
        "run_id": run,
        "run_record_offset": offset,
        "run_timestamp": dt.datetime(2024, 1, day, tzinfo=dt.UTC),
    } | changes


@pytest.fixture
def timdex(bench: Bench) -> Bench:
    """Give a TIMDEX dataset with a full run, an older one, and a daily one with changes and trouble."""
    runs = {
        "old": [record("a:0", "old", 0, 1), record("a:gone", "old", 1, 1)],
        "full": [record(f"a:{number}", "full", number, 2, run_type="full") for number in range(3)],
        "daily": [
            record("a:1", "daily", 0, 3),
            record("a:2", "daily", 1, 3, action="delete", transformed_record=None),
            record("a:new", "daily", 2, 3),
            record("a:null", "daily", 3, 3, transformed_record=None),
            record("a:broken", "daily", 4, 3, transformed_record=b"{"),
            record("b:other", "daily", 5, 3, source="other"),
        ],
    }
    for run, rows in runs.items():
        day = rows[0]["run_date"].day
        file = bench.source / "data" / "records" / "year=2024" / "month=01" / f"day=0{day}" / f"{run}.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=RECORDS), file)
    bench.changes["output"] = {"location": str(bench.out), "layout": "timdex"}
    return bench


def take(bench: Bench, **filters: str) -> Bench:
    bench.changes["source"] = {"kind": "timdex", "location": str(bench.source), **filters}
    return bench


def embeddings(bench: Bench) -> list[dict[str, Any]]:
    files = sorted((bench.out / "data" / "embeddings").rglob("*.parquet"))
    rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    return sorted(rows, key=lambda row: (row["timdex_record_id"], row["run_record_offset"]))


def test_a_run_gives_its_records_to_index_and_rejects_with_a_reason(timdex: Bench) -> None:
    run = take(timdex, run_id="daily").run()
    assert run.publish.counts == Counts(read=5, embedded=3, rejected=2)
    assert timdex.reasons() == [("a:null daily 3", "null_text"), ("a:broken daily 4", "unparsable")]
    rows = embeddings(timdex)
    assert [(row["timdex_record_id"], row["run_id"], row["run_record_offset"]) for row in rows] == [
        *(("a:1", "daily", 0), ("a:new", "daily", 2), ("b:other", "daily", 5)),
    ]
    assert verify(timdex.output.root).passed


def test_a_source_gives_its_current_records(timdex: Bench) -> None:
    """Since the last full run, the newest of each; what was deleted since is no record to index."""
    run = take(timdex, source="alma").run()
    assert run.publish.counts == Counts(read=5, embedded=3, rejected=2)
    assert [(row["timdex_record_id"], row["run_id"]) for row in embeddings(timdex)] == [
        *(("a:0", "full"), ("a:1", "daily"), ("a:new", "daily")),
    ]
    assert take(timdex, source="other").run().publish.counts == Counts()


def test_embeddings_have_the_schema_and_the_text_of_the_app(timdex: Bench) -> None:
    take(timdex, run_id="full").run()
    (file,) = (timdex.out / "data" / "embeddings").rglob("*.parquet")
    today = dt.datetime.now(dt.UTC)
    assert file.parent.relative_to(timdex.out).as_posix() == f"data/embeddings/{today:year=%Y/month=%m/day=%d}"
    table = pq.ParquetFile(file).read()
    assert table.schema.equals(EMBEDDINGS_SCHEMA)
    text = 'timdex_record_id: "a:0"\ntitle: "T\\u00edtulo of a:0 in full"\n'
    row = table.to_pylist()[0]
    assert row["embedding_vector"] == vector_of(text).tolist()
    assert (row["embedding_model"], row["embedding_strategy"], row["embedding_object"]) == (
        *("tests/fake", "full_record", None),
    )


def test_sparse_embeddings_are_json_objects(timdex: Bench) -> None:
    timdex.encoder.kind = "sparse"
    take(timdex, run_id="full").run(model={"name": "tests/fake", "source": str(timdex.model), "kind": "sparse"})
    row = embeddings(timdex)[0]
    assert row["embedding_vector"] is None
    assert set(json.loads(row["embedding_object"])) == {f"token{number}" for number in range(8)}


def test_a_rerun_replaces_its_own_files_and_nobody_elses(timdex: Bench) -> None:
    other = timdex.out / "data" / "embeddings" / "year=2020" / "month=01" / "day=01" / "other.parquet"
    other.parent.mkdir(parents=True)
    pq.write_table(EMBEDDINGS_SCHEMA.empty_table(), other)
    take(timdex, run_id="full").run()
    before = sorted((timdex.out / "data").rglob("*.parquet"))
    assert timdex.run().publish.counts.skipped == 3
    assert sorted((timdex.out / "data").rglob("*.parquet")) == before
    timdex.run(force=True, run_id="again")
    assert len(embeddings(timdex)) == 3
    assert other.exists()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[dt.datetime]:
    """Give the moment that extraction takes for now, as the one entry of a list."""
    now = [dt.datetime(2024, 2, 28, 23, 59, 59, tzinfo=dt.UTC)]

    class Moved(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:
            return now[0].astimezone(tz)

    monkeypatch.setattr(extraction, "dt", SimpleNamespace(datetime=Moved, UTC=dt.UTC))
    return now


def test_a_retry_after_midnight_stays_in_the_folder_of_the_day_before(timdex: Bench, clock: list[dt.datetime]) -> None:
    """Killed before it published, and begun again: one delivery, one day."""
    take(timdex, run_id="full").extract()
    timdex.embed()
    clock[0] += dt.timedelta(seconds=2)
    timdex.run(run_id="retry")
    assert {row["embedding_timestamp"].isoformat() for row in embeddings(timdex)} == {"2024-02-28T23:59:59+00:00"}
    assert [file.parent.name for file in exported(timdex)] == ["day=28"]


def test_what_another_model_embeds_is_newer_than_what_it_replaces(timdex: Bench, clock: list[dt.datetime]) -> None:
    """Readers take the newest embedding of a record, whatever its model is."""
    take(timdex, run_id="full").run()
    clock[0] += dt.timedelta(days=1)
    timdex.run(run_id="unchanged")
    assert [file.parent.name for file in exported(timdex)] == ["day=28"]
    (timdex.model / "model.safetensors").write_bytes(b"another version")
    clock[0] += dt.timedelta(days=1)
    timdex.run(run_id="another version")
    assert [file.parent.name for file in exported(timdex)] == ["day=01"]
    clock[0] += dt.timedelta(days=1)
    timdex.run(run_id="another model", model={"name": "tests/second", "source": str(timdex.model), "kind": "dense"})
    assert [file.parent.name for file in exported(timdex)] == ["day=01", "day=02"]
    (current,) = views(timdex, "select distinct embedding_model from current_embeddings")
    assert current == ("tests/second",)


def exported(bench: Bench) -> list[Path]:
    return sorted((bench.out / "data" / "embeddings").rglob("*.parquet"))


def views(bench: Bench, query: str) -> list[tuple[Any, ...]]:
    """Query the views of timdex-dataset-api over what was written, by the rules of its documentation.

    `embeddings` are all rows of all files; `current_embeddings` the newest of a record and strategy whatever the
    model; `current_run_embeddings` likewise within a run. Its reads join records on the whole key.
    """
    with duckdb.connect() as connection:
        files = f"{bench.out}/data/embeddings/**/*.parquet"
        connection.execute(f"create view embeddings as from read_parquet('{files}', hive_partitioning = true)")
        for name, keys in (("current_embeddings", ""), ("current_run_embeddings", "run_id, ")):
            connection.execute(
                f"create view {name} as from embeddings qualify 1 = row_number() over (partition by timdex_record_id, "
                f"{keys}embedding_strategy order by embedding_timestamp desc nulls last, run_record_offset desc)"
            )
        records = f"{bench.source}/data/records/**/*.parquet"
        connection.execute(f"create view records as from read_parquet('{records}', hive_partitioning = true)")
        return connection.execute(query).fetchall()


def test_the_views_of_other_tools_show_each_record_once_and_find_it(timdex: Bench) -> None:
    take(timdex, run_id="full").run(strategies=[{"name": "full_record"}, {"name": "title", "fields": ["title"]}])
    for view in ("embeddings", "current_embeddings", "current_run_embeddings"):
        assert views(timdex, f"select count(*) from {view}") == [(6,)]
    joined = "from current_embeddings join records using (timdex_record_id, run_id, run_record_offset)"
    assert views(timdex, f"select count(*) {joined} where action = 'index'") == [(6,)]
    (types,) = views(
        timdex, "select typeof(embedding_vector), typeof(embedding_timestamp), year from embeddings limit 1"
    )
    assert types[:2] == ("FLOAT[]", "TIMESTAMP WITH TIME ZONE")


def test_limit_and_offset_count_the_records_that_are_meant(timdex: Bench) -> None:
    assert take(timdex, run_id="daily").run(limit=2).publish.counts == Counts(read=2, embedded=2)
    assert [row["timdex_record_id"] for row in embeddings(timdex)] == ["a:1", "a:new"]
    assert timdex.run(offset=2).publish.counts == Counts(read=3, embedded=1, rejected=2)
    assert [row["timdex_record_id"] for row in embeddings(timdex)] == ["a:1", "a:new", "b:other"]
    assert timdex.run().publish.counts == Counts(read=5, skipped=3, rejected=2)


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_of_versions_the_newest_counts_by_time_then_run_then_offset(bench: Bench, unit: str) -> None:
    """Files of their tools hold nanoseconds, and the columns of their folders too."""
    bench.changes["output"] = {"location": str(bench.out), "layout": "timdex"}
    rows = [
        record("a:1", "full", 0, 2, run_type="full"),
        record("a:1", "full", 7, 2, run_type="full"),
        record("a:1", "before", 99, 1),
        record("a:2", "full", 1, 2, run_type="full"),
        record("a:2", "b-run", 0, 3),
        record("a:2", "a-run", 5, 3),
        record("a:3", "full", 2, 2, run_type="full"),
        record("a:3", "c-run", 0, 4, action="delete"),
        record("a:4", "c-run", 1, 4, action="delete"),
        record("a:4", "d-run", 0, 5),
        record(None, "d-run", 1, 5),
        record(None, "d-run", 2, 5),
    ]
    schema = RECORDS.set(RECORDS.names.index("run_timestamp"), pa.field("run_timestamp", pa.timestamp(unit, tz="UTC")))
    table = pa.Table.from_pylist(rows, schema=schema)
    for name, value in (("year", "2024"), ("month", "01"), ("day", "05")):
        table = table.append_column(name, pa.array([value] * len(rows)))
    folder = bench.source / "data" / "records" / "year=2024" / "month=01" / "day=05"
    folder.mkdir(parents=True)
    # Two files, so that versions of one record lie in both.
    pq.write_table(table.slice(0, 5), folder / "b.parquet")
    pq.write_table(table.slice(5), folder / "a.parquet")
    run = take(bench, source="alma").run()
    assert [(row["timdex_record_id"], row["run_id"], row["run_record_offset"]) for row in embeddings(bench)] == [
        *(("a:1", "full", 7), ("a:2", "b-run", 0), ("a:4", "d-run", 0)),
    ]
    assert run.publish.counts == Counts(read=5, embedded=3, rejected=2)
    assert bench.reasons() == [(None, "null_key"), (None, "null_key")]


def test_in_s3_a_rerun_replaces_its_own_files_and_nobody_elses(timdex: Bench, s3_bench: S3Bench) -> None:
    """In a store no lock tells who is alive: what is named no more goes, what is another's stays."""
    location = f"s3://{s3_bench.bucket}/timdex"
    options = {"endpoint": s3_bench.endpoint}
    s3_bench.changes["source"] = {"kind": "timdex", "location": str(timdex.source), "run_id": "full"}
    s3_bench.changes["output"] = {"location": location, "layout": "timdex", "s3": options}
    other = "timdex/data/embeddings/year=2020/month=01/day=01/other.parquet"
    s3_bench.client.put_object(Bucket=s3_bench.bucket, Key=other, Body=b"theirs")
    s3_bench.run()
    first = s3_bench.keys_below("timdex/data/embeddings/")
    s3_bench.run(force=True, run_id="again")
    second = s3_bench.keys_below("timdex/data/embeddings/")
    assert len(first) == len(second) == 2
    assert set(first) & set(second) == {other}


def test_what_was_written_before_a_commit_that_failed_is_not_there_twice_afterwards(
    timdex: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To TIMDEX every file in its tree is data, so that one without a manifest has to go."""
    take(timdex, run_id="full")
    with monkeypatch.context() as patched:
        patched.setattr(Location, "swap", lambda place, *_: place.name != "whole.json")
        with pytest.raises(PublishConflictError):
            timdex.run(run_id="failed")
    (orphan,) = exported(timdex)
    timdex.run(run_id="retry")
    assert exported(timdex) == [orphan]
    take(timdex, run_id="daily")
    with monkeypatch.context() as patched:
        patched.setattr(Location, "swap", lambda place, *_: place.name != "whole.json")
        with pytest.raises(PublishConflictError):
            timdex.run(run_id="failed")
    assert len(exported(timdex)) == 2
    take(timdex, run_id="full").run(run_id="later", force=True)
    assert len(exported(timdex)) == 1
    assert [row["run_id"] for row in embeddings(timdex)] == ["full"] * 3


def test_what_is_no_timdex_dataset_is_refused(bench: Bench) -> None:
    folder = bench.source / "data" / "records"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": ["a"]}), folder / "a.parquet")
    with pytest.raises(ColumnError, match="'timdex_record_id', which is not in a.parquet; name the folder of a TIMDEX"):
        take(bench, run_id="x").extract()


def test_unchanged_files_of_a_source_are_not_taken_for_current_without_the_others(timdex: Bench) -> None:
    """A new daily run makes older versions out of date in files that did not change."""
    take(timdex, source="alma").run()
    newer: Path = timdex.source / "data/records/year=2024/month=01/day=04/newer.parquet"
    newer.parent.mkdir()
    pq.write_table(pa.Table.from_pylist([record("a:0", "newer", 0, 4)], schema=RECORDS), newer)
    assert timdex.run().publish.counts == Counts(read=5, embedded=1, skipped=2, rejected=2)
    assert [row["run_id"] for row in embeddings(timdex)] == ["newer", "daily", "daily"]
