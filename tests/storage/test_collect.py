"""What dead attempts and published deliveries leave is swept by age at the next run, and what is alive is not."""

import os
import time
from pathlib import Path

import pytest

from embeddings_pipeline.storage import collect
from embeddings_pipeline.storage.collect import ORPHAN_SECONDS, collect_work, keep_from_collection
from embeddings_pipeline.storage.location import Location
from embeddings_pipeline.storage.scratch import Scratch
from embeddings_pipeline.storage.verify import verify
from tests.fakes import Bench, works
from tests.s3 import S3Bench

OLD = time.time() - 2 * ORPHAN_SECONDS


def age(folder: Path, seconds: float = OLD) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            os.utime(file, (seconds, seconds))


@pytest.fixture
def deliveries(bench: Bench) -> Bench:
    """Give a corpus with two deliveries: `a.jsonl` is published, of `b.jsonl` only one part is embedded."""
    bench.changes |= {"deliveries": "files", "part_texts": 2}
    bench.put("a.jsonl", works(4))
    bench.put("b.jsonl", works(4, 10))
    bench.put("c.jsonl", works(1, 20))
    bench.chosen = "a.jsonl"
    bench.run()
    bench.chosen = "b.jsonl"
    bench.extract()
    bench.embed()
    return bench


def folders(bench: Bench, kind: str) -> list[str]:
    return sorted(path.name for path in (bench.out / kind).iterdir()) if (bench.out / kind).exists() else []


def test_the_next_run_removes_old_staging_and_published_records_of_other_deliveries(deliveries: Bench) -> None:
    age(deliveries.out / "staging")
    age(deliveries.out / "records")
    deliveries.chosen = "c.jsonl"
    deliveries.run()
    assert folders(deliveries, "staging") == []
    assert folders(deliveries, "records") == ["b.jsonl", "c.jsonl"]
    assert verify(deliveries.output.root).passed
    deliveries.chosen = "b.jsonl"
    assert deliveries.run().publish.published_rows == 4


def test_a_delivery_with_one_new_file_keeps_all_its_old_ones(deliveries: Bench) -> None:
    """A part that is finished shows that its attempt is at work, however long ago the first one was."""
    for kind in ("staging", "records"):
        age(deliveries.out / kind)
        for folder in (deliveries.out / kind).iterdir():
            os.utime(next(file for file in folder.rglob("*") if file.is_file()))
    before = {kind: sorted((deliveries.out / kind).rglob("*")) for kind in ("staging", "records")}
    deliveries.chosen = "c.jsonl"
    done = collect_work(deliveries.output)
    assert (done.staging, done.records) == (0, 0)
    assert before == {kind: sorted((deliveries.out / kind).rglob("*")) for kind in ("staging", "records")}


def test_nothing_goes_while_an_attempt_is_alive(deliveries: Bench) -> None:
    age(deliveries.out)
    deliveries.chosen = "c.jsonl"
    with Scratch(Location(deliveries.out / "scratch")):
        assert collect_work(deliveries.output).staging == 0
    assert collect_work(deliveries.output).staging > 0


def test_its_own_work_stays_however_old(deliveries: Bench) -> None:
    """A run that goes on after weeks still finds the parts that are finished."""
    age(deliveries.out)
    deliveries.chosen = "b.jsonl"
    report = deliveries.embed()
    assert collect_work(deliveries.output).staging == 0
    assert report.finished_before == 4


def test_an_unpublished_delivery_keeps_its_records(deliveries: Bench) -> None:
    age(deliveries.out)
    deliveries.chosen = "c.jsonl"
    collect_work(deliveries.output)
    deliveries.chosen = "b.jsonl"
    assert deliveries.output.records_manifest.exists()


def test_in_an_object_store_the_next_run_sweeps_as_well(s3_bench: S3Bench) -> None:
    s3_bench.changes |= {"deliveries": "files", "part_texts": 2}
    for number, name in enumerate(("a.jsonl", "b.jsonl", "c.jsonl")):
        s3_bench.put(name, works(3, 10 * number))
    s3_bench.chosen = "a.jsonl"
    s3_bench.run()
    s3_bench.chosen = "b.jsonl"
    s3_bench.extract()
    s3_bench.embed()
    s3_bench.chosen = "c.jsonl"
    done = collect_work(s3_bench.output, older_than=3600)
    assert (done.staging, done.records) == (0, 0)
    done = collect_work(s3_bench.output, older_than=-3600)
    assert (done.staging, done.records) == (4, 4)
    assert s3_bench.keys_below("out/staging/") == []
    s3_bench.run()
    assert len(s3_bench.rows()) == 6


def test_records_that_an_attempt_begins_with_look_new_in_an_object_store(
    s3_bench: S3Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only age protects them there from the sweep of another delivery's run."""
    s3_bench.put("a.jsonl", works(3))
    s3_bench.run()
    place, before = s3_bench.output.records_manifest, s3_bench.records_manifest()
    first = place.files()[0].modified
    time.sleep(1.1)
    keep_from_collection(s3_bench.output, before)
    assert place.files()[0].modified == first
    monkeypatch.setattr(collect, "ORPHAN_SECONDS", -3600.0)
    keep_from_collection(s3_bench.output, before)
    assert place.files()[0].modified > first
    assert s3_bench.records_manifest() == before


def test_a_file_on_its_way_into_the_dataset_stays_while_its_attempt_is_alive(bench: Bench) -> None:
    """It keeps the age that it had in staging, and no manifest names it before the commit."""
    bench.put("a.jsonl", works(3))
    bench.run()
    moved = bench.output.published("tests--fake", "full_record").path / "part-00001-moved.parquet"
    moved.write_bytes(b"x")
    os.utime(moved, (1_700_000_000, 1_700_000_000))
    with Scratch(bench.output.scratch):
        assert collect.collect(bench.output, 86400).dataset == 0
    assert moved.exists()
    assert collect.collect(bench.output, 86400).dataset == 1
    assert not moved.exists()
