"""Which runs the files of a TIMDEX dataset hold: bad files, bad columns, and what is remembered in a bucket too."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embeddings_pipeline import pipeline
from embeddings_pipeline.errors import ColumnError, SourceUnreadableError
from embeddings_pipeline.pipeline import cleanup
from embeddings_pipeline.storage.runs import files_by_run
from embeddings_pipeline.storage.sources import list_source
from tests.fakes import Bench, works
from tests.s3 import S3Bench
from tests.storage.test_timdex import RECORDS, record


@pytest.fixture
def dataset(bench: Bench) -> Bench:
    folder = bench.source / "data" / "records"
    folder.mkdir(parents=True)
    rows = [record("a:1", "run-1", 0, 1), record("b:1", "run-b", 0, 1, source="other")]
    rows.append(record("c:1", "", 0, 1))
    pq.write_table(pa.Table.from_pylist(rows, schema=RECORDS), folder / "good.parquet")
    bench.changes |= {"source": {"kind": "timdex", "location": str(bench.source)}, "deliveries": "runs"}
    return bench


def look(bench: Bench, source: str | None = None, **more) -> dict[str, list[str]]:
    files = list_source(bench.spec().source).files
    found = files_by_run(bench.output, files, source, **more)
    return {run: [file.name for file in held] for run, held in found.items()}


def test_a_run_without_an_id_is_none_and_a_source_has_its_own_runs(dataset: Bench) -> None:
    assert look(dataset) == {"run-1": ["good.parquet"], "run-b": ["good.parquet"]}
    assert look(dataset, "alma") == {"run-1": ["good.parquet"]}
    assert look(dataset, "nobody") == {}


def test_a_file_that_cannot_be_read_is_named_or_passed_over(dataset: Bench, caplog: pytest.LogCaptureFixture) -> None:
    (dataset.source / "data/records/bad.parquet").write_bytes(b"no parquet")
    with pytest.raises(SourceUnreadableError, match=r"bad\.parquet"):
        look(dataset)
    assert set(look(dataset, opens_only=True)) == {"run-1", "run-b"}
    assert "bad.parquet" in caplog.text


def test_a_file_without_run_ids_is_no_part_of_a_timdex_dataset(dataset: Bench) -> None:
    pq.write_table(pa.table({"x": [1]}), dataset.source / "data/records/other.parquet")
    with pytest.raises(ColumnError, match="'run_id', which is not in other.parquet"):
        look(dataset)


def test_a_place_where_nothing_can_be_written_is_looked_at_each_time(
    dataset: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embeddings_pipeline.storage.location._SETTLED_NS", -1)
    dataset.out.mkdir()
    (dataset.out / "scratch").write_text("a file where a folder ought to be", encoding="utf-8")
    assert set(look(dataset)) == {"run-1", "run-b"}
    assert "cannot be remembered" in caplog.text


def test_deliveries_in_a_bucket_are_found_embedded_and_withdrawn_like_others(s3_bench: S3Bench) -> None:
    s3_bench.changes["deliveries"] = "files"
    for number, name in enumerate(("a.jsonl", "2024/b.jsonl")):
        s3_bench.put(name, works(2, start=10 * number))
    spec = s3_bench.spec()
    found = pipeline.discover(spec)
    assert [entry.name for entry in found.deliveries] == ["2024/b.jsonl", "a.jsonl"]
    for entry in pipeline.due(spec, found):
        s3_bench.chosen = entry.delivery.name
        assert s3_bench.run().publish.published_rows == 2
    assert pipeline.due(spec, pipeline.discover(spec)) == []
    s3_bench.put("a.jsonl", works(1, start=50))
    assert [entry.delivery.name for entry in pipeline.due(spec, pipeline.discover(spec))] == ["a.jsonl"]
    s3_bench.client.delete_object(Bucket=s3_bench.bucket, Key="source/2024/b.jsonl")
    assert pipeline.discover(spec).withdrawn == ("2024/b.jsonl",)
    assert cleanup.gc(spec, older_than=1e9, withdrawn=True).withdrawn == ("2024/b.jsonl",)
    assert [row["record_id"] for row in s3_bench.rows()] == ["r0", "r1"]
