"""The first rejects of a delivery, read back for a person to see."""

import pytest

from embeddings_pipeline.errors import VerificationError
from embeddings_pipeline.records import Reason
from embeddings_pipeline.storage.location import Location
from embeddings_pipeline.storage.rejects import first_rejects
from tests.fakes import Bench, FakeEncoder, works


def test_the_first_rows_of_both_stages_are_shown_and_no_more_than_asked_for(bench: Bench) -> None:
    bench.encoder = FakeEncoder(bad={"work 3": Reason.NON_FINITE})
    broken = [{"id": None, "title": f"lost {number}"} for number in range(30)]
    bench.put("a.jsonl", [*works(5), *broken])
    report = bench.run(part_texts=10).embed
    assert len(report.first_rejects) == 20
    assert {reject.stage for reject in report.first_rejects} == {"embed", "extract"}
    (embedded,) = [reject for reject in report.first_rejects if reject.stage == "embed"]
    assert (embedded.record_id, embedded.reason, embedded.detail) == ("r3", Reason.NON_FINITE, "the text holds work 3")
    assert embedded.position
    rows = first_rejects(bench.output.rejects, 1_000)
    assert len(rows) == 31
    assert rows[:20] == report.first_rejects


def test_extraction_shows_its_own(bench: Bench) -> None:
    bench.put("a.jsonl", [{"id": "a", "title": None}, *works(1)])
    report = bench.extract(strategies=[{"name": "title", "fields": ["title"]}])
    assert [(reject.record_id, reject.stage) for reject in report.first_rejects] == [("a", "extract")]
    assert bench.extract().first_rejects == ()


def test_a_delivery_without_rejects_shows_none(bench: Bench) -> None:
    bench.put("a.jsonl", works(2))
    assert bench.run().embed.first_rejects == ()
    assert first_rejects(bench.output.rejects) == ()


def test_no_more_files_are_opened_than_rows_are_asked_for(tmp_path) -> None:
    """A folder of ten thousand reject files is listed once, and twenty of them are opened."""
    bench = Bench(tmp_path)
    bench.put("a.jsonl", [{"id": None} for _ in range(8)])
    bench.extract(part_texts=1)
    files = sorted(bench.output.rejects.path.rglob("*.parquet"))
    assert len(files) == 8
    for file in files[3:]:
        file.write_bytes(b"broken")
    assert len(first_rejects(bench.output.rejects, 3)) == 3


def test_a_file_that_is_no_rejects_file_is_named(tmp_path) -> None:
    (tmp_path / "embed-x.parquet").write_bytes(b"broken")
    with pytest.raises(VerificationError, match="embed-x.parquet' cannot be read"):
        first_rejects(Location(tmp_path))


def test_rejects_in_a_bucket_are_shown_too(s3_bench) -> None:
    s3_bench.put("a.jsonl", [{"id": None, "title": "lost"}, *works(2)])
    report = s3_bench.run()
    assert [reject.reason for reject in report.embed.first_rejects] == [Reason.NULL_KEY]
    assert report.extract.first_rejects == report.embed.first_rejects
