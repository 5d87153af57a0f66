"""What a person is shown after a run."""

from pathlib import Path

import pytest

from embeddings_pipeline.errors import ConfigurationError, ManifestError
from embeddings_pipeline.pipeline import inspection
from embeddings_pipeline.records import Counts
from tests.fakes import Bench, FakeEncoder, works

TITLES = [{"name": "titles", "fields": ["title"]}]


def test_the_summary_speaks_of_the_last_run_and_of_all_that_is_published(bench: Bench) -> None:
    bench.put("a.jsonl", works(5))
    bench.run(part_texts=2)
    bench.put("a.jsonl", works(6))
    bench.run(part_texts=2)
    found = inspection.summary(bench.spec(), bench.delivery)
    assert found.counts == Counts(read=6, embedded=1, skipped=5)
    assert (found.rows, found.files, found.dimensions, found.model) == (6, 3, 8, "tests/fake")
    assert found.bytes == sum(len(content) for content in bench.dataset_files().values())
    assert found.records_per_second > 0


def test_nothing_published_says_what_to_run(bench: Bench) -> None:
    with pytest.raises(ManifestError, match=r"nothing is published of delivery 'bench/whole' .*; run bench_job first"):
        inspection.summary(bench.spec(), bench.delivery)


def test_the_nearest_texts_come_best_first_with_their_words(bench: Bench) -> None:
    bench.put("a.jsonl", works(30))
    bench.run(part_texts=7, batch=3, strategies=TITLES)
    queries = ["work 4", "work 22"]
    found = inspection.nearest(bench.spec(strategies=TITLES), bench.delivery, queries, bench.cache())
    for query, neighbours in zip(queries, found, strict=True):
        assert len(neighbours) == 3
        assert (neighbours[0].text, neighbours[0].record_id) == (query, f"r{query.split()[1]}")
        assert neighbours[0].similarity == pytest.approx(1.0, abs=1e-6)
        similarities = [neighbour.similarity for neighbour in neighbours]
        assert similarities == sorted(similarities, reverse=True)


def test_fewer_texts_than_asked_for_are_all_there_is(bench: Bench) -> None:
    bench.put("a.jsonl", works(2))
    bench.run()
    (found,) = inspection.nearest(bench.spec(), bench.delivery, ["x"], bench.cache())
    assert len(found) == 2


def test_the_words_are_left_out_where_the_records_are_gone(bench: Bench) -> None:
    bench.put("a.jsonl", works(2))
    bench.run()
    bench.output.records_manifest.path.unlink()
    (found,) = inspection.nearest(bench.spec(), bench.delivery, ["x"], bench.cache())
    assert {neighbour.text for neighbour in found} == {""}


def test_queries_of_a_sparse_corpus_are_refused(bench: Bench) -> None:
    bench.put("a.jsonl", works(2))
    bench.encoder = FakeEncoder(kind="sparse")
    bench.changes["model"] = {"name": "tests/fake", "source": str(bench.model), "kind": "sparse"}
    bench.run()
    assert inspection.summary(bench.spec(), bench.delivery).rows == 2
    with pytest.raises(ConfigurationError, match="has sparse vectors; queries are for dense ones"):
        inspection.nearest(bench.spec(), bench.delivery, ["x"], bench.cache())


def test_looking_changes_nothing(bench: Bench, tmp_path: Path) -> None:
    bench.put("a.jsonl", works(2))
    bench.run()
    before = {path: path.stat().st_mtime_ns for path in bench.out.rglob("*")}
    inspection.summary(bench.spec(), bench.delivery)
    inspection.nearest(bench.spec(), bench.delivery, ["x"], bench.cache())
    assert {path: path.stat().st_mtime_ns for path in bench.out.rglob("*")} == before
