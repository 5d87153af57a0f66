"""A source file that is as it was is not read again, and nothing else changes by that."""

import logging
import os
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from embeddings_pipeline import pipeline
from embeddings_pipeline.errors import OutputUnwritableError, PublishConflictError, TooManyRejectsError
from embeddings_pipeline.records import Counts
from embeddings_pipeline.settings import EmbedSettings
from embeddings_pipeline.storage.location import FileEntry
from embeddings_pipeline.storage.sources import JsonlReader
from tests.fakes import Bench, FakeEncoder, works

LONG_AGO = 1_700_000_000


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the names of the files that are read."""
    names: list[str] = []
    original = JsonlReader.read

    def noted(self: JsonlReader, file: FileEntry):
        names.append(file.name)
        return original(self, file)

    monkeypatch.setattr(JsonlReader, "read", noted)
    monkeypatch.setattr(JsonlReader, "check", lambda *_: None)
    return names


def put(bench: Bench, name: str, records: list[dict]) -> Path:
    """Write a file that was changed long enough ago for its times to tell another change."""
    file = bench.put(name, records)
    os.utime(file, (LONG_AGO, LONG_AGO))
    return file


def test_an_unchanged_source_is_not_read_again(bench: Bench, read: list[str]) -> None:
    for number in range(3):
        put(bench, f"{number}.jsonl", [*works(5, 5 * number), {"id": f"blank{number}", "title": None}])
    strategies = [{"name": "title", "fields": ["title"]}]
    first = bench.run(part_texts=2, strategies=strategies)
    read.clear()
    again = bench.run(part_texts=2, strategies=strategies, run_id="second")
    assert read == []
    assert (again.extract.files_reused, again.extract.files) == (3, 3)
    assert (again.extract.counts, again.extract.records) == (first.extract.counts, 18)
    assert again.extract.rejects_by_reason == {"null_text": 3}
    assert again.embed.counts == Counts(read=18, skipped=15, rejected=3)
    assert again.publish.identities_hold
    assert len(bench.rejects()) == 3


def test_of_changed_new_and_removed_files_only_the_changed_and_new_ones_are_read(bench: Bench, read: list[str]) -> None:
    for name, start in (("b", 0), ("c", 5), ("d", 10)):
        put(bench, f"{name}.jsonl", works(5, start))
    bench.run(part_texts=2)
    read.clear()
    put(bench, "a.jsonl", works(2, 100))
    put(bench, "c.jsonl", [*works(4, 5), {"id": "r9", "title": "changed"}])
    (bench.source / "d.jsonl").unlink()
    run = bench.run(part_texts=2)
    assert read == ["a.jsonl", "c.jsonl"]
    assert run.embed.counts == Counts(read=12, embedded=3, skipped=9)
    assert bench.keys() == sorted([f"r{number}" for number in range(10)] + ["r100", "r101"])


def test_a_key_that_comes_a_second_time_through_another_file_is_found_without_reading_both(
    bench: Bench, read: list[str]
) -> None:
    """An unchanged file's rejects may change: what it says first, a new file before it may say earlier."""
    put(bench, "b.jsonl", works(3))
    put(bench, "c.jsonl", works(3, 2))
    bench.run()
    assert bench.reasons() == [("r2", "duplicate_key")]
    read.clear()
    put(bench, "a.jsonl", works(1))
    run = bench.run()
    assert read == ["a.jsonl", "b.jsonl"]
    assert sorted(bench.reasons()) == [("r0", "duplicate_key"), ("r2", "duplicate_key")]
    assert (run.publish.published_rows, run.publish.identities_hold) == (5, True)
    (bench.source / "a.jsonl").unlink()
    assert bench.run().publish.published_rows == 5
    assert bench.reasons() == [("r2", "duplicate_key")]


def test_what_is_changed_within_the_grain_of_a_clock_is_read_again(bench: Bench, read: list[str]) -> None:
    bench.put("a.jsonl", works(2))
    bench.run()
    bench.put("a.jsonl", [{"id": "r0", "title": "work X"}, *works(1, 1)])
    assert bench.run().embed.counts == Counts(read=2, embedded=1, skipped=1)
    assert len(read) == 2


@pytest.mark.parametrize(
    "gone", ["records/*/*/part-*.parquet", "records/*/keys-*.bin", "rejects/*/*/extract-*.parquet"]
)
def test_what_was_written_for_a_file_and_is_gone_is_written_again(bench: Bench, read: list[str], gone: str) -> None:
    put(bench, "a.jsonl", [*works(3), {"id": "bad", "title": " "}])
    strategies = [{"name": "title", "fields": ["title"]}]
    bench.run(strategies=strategies)
    read.clear()
    next(bench.out.glob(gone)).unlink()
    assert bench.run(strategies=strategies).embed.counts == Counts(read=4, skipped=3, rejected=1)
    assert read == ["a.jsonl"]
    assert len(bench.rejects()) == 1


def test_another_definition_reads_again_and_says_why(
    bench: Bench, read: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    put(bench, "a.jsonl", works(3))
    bench.run(strategies=[{"name": "title", "fields": ["title"]}])
    caplog.set_level(logging.INFO, "embeddings_pipeline")
    read.clear()
    run = bench.run(strategies=[{"name": "title", "template": "{title}"}], part_texts=2)
    assert read == ["a.jsonl"]
    (line,) = [record.getMessage() for record in caplog.records if "read again" in record.getMessage()]
    assert "part_texts (10000 -> 2), strategy title (" in line
    assert run.embed.counts == Counts(read=3, skipped=3)


def test_a_limited_run_and_the_whole_one_after_it_do_not_take_each_others_parts_for_theirs(
    bench: Bench, read: list[str]
) -> None:
    put(bench, "a.jsonl", works(5))
    bench.run()
    assert bench.run(limit=2).embed.counts == Counts(read=2, skipped=2)
    assert bench.run().embed.counts == Counts(read=5, skipped=5)
    assert len(bench.rows()) == 5


def test_a_restart_on_many_finished_parts_takes_no_time_and_no_model(bench: Bench) -> None:
    for number in range(40):
        put(bench, f"{number:02d}.jsonl", works(50, 50 * number))
    bench.run(part_texts=10)
    bench.loads = 0
    started = time.monotonic()
    run = bench.run(part_texts=10)
    assert (run.embed.counts, bench.loads) == (Counts(read=2000, skipped=2000), 0)
    assert time.monotonic() - started < 10


# Parts without new texts


def test_parts_that_are_only_cut_anew_load_no_model(bench: Bench) -> None:
    bench.put("a.jsonl", works(10))
    bench.run(part_texts=5)
    bench.encoder, bench.loads = FakeEncoder(), 0
    run = bench.run(part_texts=3)
    assert (run.embed.counts, bench.loads, bench.encoder.texts) == (Counts(read=10, skipped=10), 0, [])
    assert len(bench.rows()) == run.publish.published_rows == 10


@pytest.mark.parametrize("where", ["whole file", "one page"])
def test_a_published_file_that_was_overwritten_with_garbage_is_computed_again(bench: Bench, where: str) -> None:
    bench.put("a.jsonl", works(6))
    bench.run(part_texts=3)
    file = sorted(bench.output.dataset.path.rglob("*.parquet"))[0]
    data = file.read_bytes()
    file.write_bytes(b"x" * len(data) if where == "whole file" else data[:4] + b"\xff" * 600 + data[604:])
    bench.put("a.jsonl", [{"id": "new", "title": "new"}, *works(6)])
    run = bench.run(part_texts=3)
    assert run.publish.identities_hold
    assert len(bench.rows()) == 7
    assert run.embed.counts.embedded in (4, 1)


def test_a_limited_run_with_another_model_version_is_refused(bench: Bench) -> None:
    """It would leave vectors of two models, perhaps of two widths, in one folder."""
    bench.put("a.jsonl", works(4))
    bench.run()
    (bench.model / "model.safetensors").write_bytes(b"other weights")
    bench.extract(limit=2)
    with pytest.raises(Exception, match="run once without limit and offset"):
        bench.embed()
    assert bench.run().embed.counts == Counts(read=4, embedded=4)


# Limits


def test_more_rejects_than_allowed_fail_the_run_before_anything_is_published(bench: Bench) -> None:
    bench.put("a.jsonl", [*works(8), {"id": "a", "title": None}, {"id": "b", "title": " "}])
    strategies = [{"name": "title", "fields": ["title"]}]
    with pytest.raises(TooManyRejectsError, match=r"2 of 10 texts were rejected \(blank_text 1, null_text 1\), more"):
        bench.run(strategies=strategies, max_rejects={"count": 1})
    assert bench.rows() == []
    assert len(bench.rejects()) == 2
    with pytest.raises(TooManyRejectsError, match=r"allows \(share: 0.1\); look at them in '.*/rejects/whole'"):
        bench.run(strategies=strategies, max_rejects={"share": 0.1})
    run = bench.run(strategies=strategies, max_rejects={"share": 0.2, "count": 2})
    assert run.publish.counts == Counts(read=10, embedded=8, rejected=2)
    bench.put("a.jsonl", [*works(8), {"id": "a", "title": "repaired"}, {"id": "b", "title": "repaired"}])
    assert bench.run(strategies=strategies, max_rejects={"count": 0}).embed.counts == Counts(
        read=10, embedded=2, skipped=8
    )


def test_a_disk_that_takes_no_more_is_one_sentence(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put("a.jsonl", works(3))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "/out/x")

    with monkeypatch.context() as patched:
        patched.setattr(pq.ParquetWriter, "write_table", full)
        with pytest.raises(
            OutputUnwritableError, match=r"'/out/x' cannot be written \(No space left on device\); free"
        ):
            bench.extract()
    assert bench.run().publish.published_rows == 3


def test_a_run_does_not_go_on_with_the_records_that_another_limit_gave(bench: Bench) -> None:
    """Two runs with different limits at once: the one would report as whole what the other has cut."""
    bench.put("a.jsonl", works(5))
    mine = bench.extract(run_id="whole").extraction
    bench.extract(run_id="limited", limit=2)
    cache = bench.cache()
    with pytest.raises(PublishConflictError, match="run 'limited' has read other records, .*; run the job again"):
        pipeline.embed(bench.spec(), bench.delivery, EmbedSettings(), cache, run_id="whole", extraction=mine)
    with pytest.raises(PublishConflictError, match="run 'limited' has read other records"):
        pipeline.publish(bench.spec(), bench.delivery, run_id="whole", extraction=mine)
    cache.close()
