"""Batches, resume and failures: what is computed, what is not, and that nothing is lost on the way."""

import gc
import logging
import threading

import pyarrow.parquet as pq
import pytest

from embeddings_pipeline.errors import BatchFailedError, ManifestError, ModelLoadError, RunConfigError
from embeddings_pipeline.records import Counts, Reason
from tests.fakes import Bench, FakeEncoder, live_batches, vector_of, works


class AliveAtEachLine(logging.Handler):
    """Counts the live application batches whenever the pipeline says that one is written."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.counts.append(live_batches())
        self.lines.append(record.getMessage())


@pytest.fixture
def written():
    """Give the counts of live batches at each written batch."""
    handler = AliveAtEachLine()
    logger = logging.getLogger("embeddings_pipeline")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def staged_groups(bench: Bench) -> list[int]:
    (file,) = bench.output.staging.path.rglob("*.parquet")
    metadata = pq.ParquetFile(file).metadata
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


# Batches


def test_ten_texts_with_batch_three_are_read_embedded_and_written_as_three_three_three_one(bench: Bench) -> None:
    bench.put("a.jsonl", works(10))
    bench.extract()
    report = bench.embed(batch=3)
    assert report.parts[0].batch_sizes == (3, 3, 3, 1)
    assert [len(call) for call in bench.encoder.calls] == [3, 3, 3, 1]
    assert staged_groups(bench) == [3, 3, 3, 1]


def test_at_most_three_batches_are_alive_while_computing_and_while_writing(
    bench: Bench, written: AliveAtEachLine
) -> None:
    """They are counted as objects: a log could say what it likes."""
    bench.put("a.jsonl", works(40))
    bench.encoder = FakeEncoder(count_alive=True, seconds=0.002)
    bench.extract(part_texts=20)
    bench.embed(batch=3, part_texts=20)
    assert len(bench.encoder.alive) == 14
    assert max(bench.encoder.alive) <= 3
    assert max(written.counts) <= 3
    assert 2 in bench.encoder.alive + written.counts
    assert live_batches() == 0


def test_the_log_says_the_sizes_once_and_each_batch(bench: Bench, written: AliveAtEachLine) -> None:
    bench.put("a.jsonl", works(10))
    bench.extract(part_texts=5)
    bench.embed(batch=3, part_texts=5)
    sizes, *batches = [line for line in written.lines if "batch" in line]
    assert sizes == "application batch size: 3, model batch size: 64, workers: 1, device: cpu"
    assert [line.partition(" records,")[0] for line in batches] == [
        f"Embeddings batch {number}: {texts}" for number, texts in enumerate([3, 2, 3, 2], start=1)
    ]


def test_rows_are_in_the_order_of_the_records_with_their_own_vectors(bench: Bench) -> None:
    bench.put("a.jsonl", works(25))
    bench.extract()
    bench.embed(batch=4)
    (file,) = bench.output.staging.path.rglob("*.parquet")
    rows, texts = pq.read_table(file).to_pylist(), bench.record_rows()
    assert [row["record_id"] for row in rows] == [f"r{number}" for number in range(25)]
    for row, text in zip(rows, texts, strict=True):
        assert row["embedding"] == vector_of(text["text"]).tolist()
        assert row["text_hash"] == text["text_hash"]
        assert (row["token_count"], row["truncated"]) == (len(text["text"].split()) + 2, False)


def test_a_row_says_which_model_made_it(bench: Bench) -> None:
    bench.put("a.jsonl", works(1))
    bench.run()
    (row,) = bench.rows()
    assert (row["strategy"], row["delivery"], row["chunk"]) == ("full_record", "whole", 0)
    assert (row["model"], row["revision"]) == ("tests/fake", None)
    assert row["fingerprint"] == bench.resolved().fingerprint
    assert row["embedded_at"].tzinfo is not None


def test_truncated_texts_are_marked_and_counted(bench: Bench) -> None:
    """Case 7: a long text's vector looks fine, but its tail never reached the model."""
    bench.put("a.jsonl", [{"id": "long", "t": "word " * 50}, {"id": "short", "t": "word"}])
    report = bench.run().embed
    assert report.truncated == 1
    assert {row["record_id"]: row["truncated"] for row in bench.rows()} == {"long": True, "short": False}


def test_a_text_that_repeats_is_computed_once_and_written_for_every_key(bench: Bench) -> None:
    """Within a batch and across batches of a part, failures included."""
    titles = ["a", "b", "a", "a", "bad", "b", "c", "bad", "a"]
    bench.put("a.jsonl", [{"id": f"r{n}", "title": title} for n, title in enumerate(titles)])
    bench.encoder = FakeEncoder(bad={"bad": Reason.NON_FINITE})
    strategies = [{"name": "titles", "fields": ["title"]}]
    run = bench.run(batch=2, strategies=strategies)
    assert sorted(bench.encoder.texts) == ["a", "b", "bad", "c"]
    assert run.embed.counts == Counts(read=9, embedded=7, rejected=2)
    assert [row["embedding"] for row in bench.rows()] == [
        vector_of(title).tolist() for title in titles if title != "bad"
    ]
    assert [row["record_id"] for row in bench.rejects()] == ["r4", "r7"]


def test_sparse_vectors_are_written_with_their_tokens(bench: Bench) -> None:
    bench.put("a.jsonl", works(3))
    bench.encoder = FakeEncoder(kind="sparse")
    bench.changes["model"] = {"name": "tests/fake", "source": str(bench.model), "kind": "sparse"}
    bench.run(batch=2)
    for row, text in zip(bench.rows(), bench.record_rows(), strict=True):
        assert row["sparse_values"] == vector_of(text["text"]).tolist()
        assert row["sparse_tokens"] == [f"token{index}" for index in row["sparse_indices"]]


# Failures


def test_failed_texts_become_rejects_and_the_rest_is_embedded(bench: Bench) -> None:
    """Case 9."""
    records = works(10)
    records[4]["title"] = "poison"
    records[7]["title"] = "huge"
    bench.put("a.jsonl", [*records, {"id": None}])
    bench.encoder = FakeEncoder(bad={"poison": Reason.MODEL_ERROR, "huge": Reason.TOO_LARGE})
    run = bench.run(batch=3)
    assert run.embed.counts == Counts(read=11, embedded=8, rejected=3)
    assert run.embed.rejects_by_reason == {"null_key": 1, "model_error": 1, "too_large": 1}
    assert run.publish.identities_hold
    assert [(row["record_id"], row["stage"], row["position"]) for row in bench.rejects()] == [
        (None, "extract", "a.jsonl line 11"),
        ("r4", "embed", "a.jsonl line 5"),
        ("r7", "embed", "a.jsonl line 8"),
    ]
    assert "poison" in bench.rejects()[1]["detail"]


def test_a_part_in_which_every_text_fails_publishes_nothing_and_accounts_for_all(bench: Bench) -> None:
    bench.put("a.jsonl", works(4))
    bench.encoder = FakeEncoder(bad={"work": Reason.NON_FINITE})
    run = bench.run()
    assert run.embed.counts == Counts(read=4, rejected=4)
    assert (run.publish.published_rows, run.publish.files, run.publish.identities_hold) == (0, 0, True)


def test_texts_that_failed_are_tried_again_by_the_next_run(bench: Bench) -> None:
    bench.put("a.jsonl", works(4))
    bench.encoder = FakeEncoder(bad={"work 2": Reason.MODEL_ERROR})
    bench.run()
    assert bench.reasons() == [("r2", "model_error")]
    bench.encoder = FakeEncoder()
    run = bench.run()
    assert run.embed.counts == Counts(read=4, embedded=1, skipped=3)
    assert (bench.reasons(), bench.keys()) == ([], ["r0", "r1", "r2", "r3"])


@pytest.mark.parametrize("failing", [1, 2, 4])
def test_a_failing_batch_names_its_keys_and_leaves_no_thread_and_no_scratch(bench: Bench, failing: int) -> None:
    """Case 19 and 35: nothing half-written under a final name, nothing that hangs."""
    bench.put("a.jsonl", works(15))
    first = 3 * (failing - 1)
    bench.encoder = FakeEncoder(fail_call=lambda texts: f'"r{first}"' in texts[0])
    bench.extract()
    threads = threading.active_count()
    with pytest.raises(
        BatchFailedError, match=rf"of records 'r{first}' to 'r{first + 2}' could not be embedded: the f"
    ):
        bench.embed(batch=3)
    assert threading.active_count() == threads
    assert not (bench.out / "scratch").exists()
    assert not bench.output.staging.exists()
    gc.collect()
    assert live_batches() == 0
    bench.encoder = FakeEncoder()
    assert bench.run(batch=3).publish.counts == Counts(read=15, embedded=15)


def test_finished_parts_stay_when_a_later_one_fails_and_the_next_attempt_resumes(bench: Bench) -> None:
    """Case 20 to 22, 59: what is done costs nothing the second time."""
    bench.changes["part_texts"] = 5
    bench.put("a.jsonl", works(20))
    bench.encoder = FakeEncoder(fail_call=lambda texts: any('"r12"' in text for text in texts))
    bench.extract()
    with pytest.raises(BatchFailedError, match="'r12' to 'r13'"):
        bench.embed(batch=2, run_id="first")
    bench.encoder = FakeEncoder()
    bench.extract()
    report = bench.embed(batch=2, run_id="second")
    assert [part.resumed for part in report.parts] == [True, True, False, False]
    assert (report.counts, report.computed) == (Counts(read=20, embedded=20), 10)
    assert len(bench.encoder.texts) == 10
    published = bench.publish()
    assert (published.published_rows, published.identities_hold) == (20, True)


def test_a_forced_part_that_ends_half_way_leaves_no_manifest_of_another_file(bench: Bench) -> None:
    """Names are the same for every attempt, so an old manifest beside a new file would block every later run."""
    bench.put("a.jsonl", works(4))
    bench.encoder = FakeEncoder(bad={"work 2": Reason.MODEL_ERROR})
    bench.extract()
    bench.embed(run_id="one")
    (rejects,) = bench.output.rejects.path.rglob("embed-*.parquet")
    rejects.unlink()
    rejects.mkdir()
    with pytest.raises(OSError, match="directory"):
        bench.embed(run_id="two", force=True)
    assert not list(bench.output.staging.path.rglob("*.json"))
    rejects.rmdir()
    run = bench.run(run_id="three")
    assert run.publish.counts == Counts(read=4, embedded=3, rejected=1)


def test_other_batch_sizes_and_workers_redo_nothing(bench: Bench) -> None:
    """Neither changes a vector, so neither is part of any identity."""
    bench.put("a.jsonl", works(9))
    bench.extract()
    bench.embed(batch=2)
    calls = len(bench.encoder.calls)
    assert bench.embed(batch=7, workers=3, run_id="other").computed == 0
    bench.publish()
    assert bench.run(batch=1).embed.counts == Counts(read=9, skipped=9)
    assert len(bench.encoder.calls) == calls


def test_a_model_that_cannot_be_loaded_leaves_no_scratch(bench: Bench) -> None:
    from embeddings_pipeline import pipeline
    from embeddings_pipeline.inference.cache import ModelCache
    from embeddings_pipeline.settings import EmbedSettings

    def fail(model: object, device: str) -> FakeEncoder:
        raise ModelLoadError("tests/fake", "it is a fake", "use a real one")

    bench.put("a.jsonl", works(1))
    bench.extract()
    with pytest.raises(ModelLoadError):
        pipeline.embed(bench.spec(), bench.delivery, EmbedSettings(), ModelCache("cpu", load=fail), run_id="x")
    assert not (bench.out / "scratch").exists()


# What is not computed


def test_nothing_is_computed_and_no_model_loaded_when_all_is_published(bench: Bench) -> None:
    """Case 27: unchanged, or touched, is 0; each skip is counted."""
    bench.put("a.jsonl", works(12))
    bench.run(part_texts=5)
    bench.loads = 0
    report = bench.run(part_texts=5).embed
    assert (report.counts, report.computed, report.workers) == (Counts(read=12, skipped=12), 0, 0)
    assert bench.loads == 0


def test_no_model_is_loaded_for_records_that_give_no_text(bench: Bench) -> None:
    bench.put("a.jsonl", [{"id": None}, {"id": ""}])
    run = bench.run()
    assert run.embed.counts == Counts(read=2, rejected=2)
    assert run.publish.identities_hold
    assert bench.loads == 0


def test_no_model_is_loaded_for_an_empty_source(bench: Bench) -> None:
    run = bench.run()
    assert (run.embed.counts, run.publish.counts, run.publish.published_rows) == (Counts(), Counts(), 0)
    assert run.publish.identities_hold
    assert bench.loads == 0


def test_the_model_is_loaded_once_for_many_parts(bench: Bench) -> None:
    """Case 50."""
    for number in range(20):
        bench.put(f"{number:02}.jsonl", works(3, 3 * number))
    bench.run(part_texts=2)
    assert bench.loads == 1


def test_force_computes_all_again(bench: Bench) -> None:
    bench.put("a.jsonl", works(6))
    bench.run(run_id="one")
    before = {row["record_id"]: row["embedded_at"] for row in bench.rows()}
    run = bench.run(run_id="two", force=True)
    assert run.embed.counts == Counts(read=6, embedded=6)
    assert all(row["embedded_at"] > before[row["record_id"]] for row in bench.rows())
    assert bench.keys() == list(before)


def test_a_forced_run_that_is_retried_keeps_its_own_finished_parts_only(bench: Bench) -> None:
    bench.changes["part_texts"] = 3
    bench.put("a.jsonl", works(6))
    bench.extract()
    bench.embed(run_id="earlier")
    bench.encoder = FakeEncoder(fail_call=lambda texts: '"r3"' in texts[0])
    with pytest.raises(BatchFailedError):
        bench.embed(run_id="forced", force=True)
    bench.encoder = FakeEncoder()
    report = bench.embed(run_id="forced", force=True)
    assert [part.resumed for part in report.parts] == [True, False]


@pytest.mark.parametrize("change", [{"max_length": 10}, {"revision": "abc"}])
def test_a_change_of_the_model_spec_computes_all_again(bench: Bench, change: dict) -> None:
    """Case 27: a text's hash alone would call the old vectors right."""
    bench.put("a.jsonl", works(4))
    bench.run()
    bench.changes["model"] = {"name": "tests/fake", "source": str(bench.model), "kind": "dense", **change}
    run = bench.run()
    assert run.embed.counts == Counts(read=4, embedded=4)
    assert {row["fingerprint"] for row in bench.rows()} == {bench.resolved().fingerprint}
    assert len(bench.rows()) == 4


def test_embedding_before_extracting_says_what_to_do(bench: Bench) -> None:
    with pytest.raises(ManifestError, match="the records of delivery 'bench/whole' are not extracted.*bench/records"):
        bench.embed()
    with pytest.raises(ManifestError, match="are not extracted"):
        bench.publish()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 0}, "application_batch_size is 0, but has to be at least 1"),
        ({"workers": -1}, "workers is -1, but has to be at least 0"),
    ],
)
def test_settings_out_of_bounds_are_refused(bench: Bench, settings: dict, message: str) -> None:
    bench.put("a.jsonl", works(1))
    bench.extract()
    with pytest.raises(RunConfigError, match=message):
        bench.embed(**settings)


def test_the_report_has_the_effective_numbers(bench: Bench) -> None:
    bench.put("a.jsonl", works(10))
    bench.extract()
    report = bench.embed(batch=4, workers=2)
    assert (report.application_batch_size, report.model_batch_size, report.model_batch_tokens) == (4, 64, 512)
    assert (report.workers, report.device, report.tokens) == (
        2,
        "cpu",
        sum(len(t.split()) + 2 for t in bench.encoder.texts),
    )
    assert report.model["dimensions"] == 8
    assert report.records_per_second > 0
    assert report.tokens_per_second > report.records_per_second
