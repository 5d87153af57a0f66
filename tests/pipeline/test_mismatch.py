"""What finished work does not serve, and why: every difference, and what to do; and what never makes it useless."""

from typing import Any

import pytest

from embeddings_pipeline.errors import ModelError
from embeddings_pipeline.pipeline.mismatch import differences
from embeddings_pipeline.records import Counts
from tests.fakes import Bench, FakeEncoder, works


def spec_of(bench: Bench, **changes: Any) -> dict[str, Any]:
    return {"model": {"name": "tests/fake", "source": str(bench.model), "kind": "dense"} | changes}


@pytest.fixture
def staged(bench: Bench) -> Bench:
    """Give a corpus of 20 texts in 4 parts, of which a run that died has finished 3 and published none."""
    bench.put("a.jsonl", works(20))
    bench.extract(part_texts=5)
    bench.encoder = FakeEncoder(fail_call=lambda texts: "work 17" in "".join(texts))
    with pytest.raises(ModelError):
        bench.embed(part_texts=5, run_id="died")
    bench.encoder = FakeEncoder()
    return bench


def test_every_difference_is_listed_in_order() -> None:
    before, now = {"b": "1", "c": "same", "gone": "x"}, {"a": "new", "b": "2", "c": "same"}
    assert differences(before, now) == "a (not recorded -> new), b (1 -> 2), gone (x -> not recorded)"
    assert differences(now, now) == ""


def test_parts_that_another_model_finished_are_named_with_all_that_differs_and_what_to_do(staged: Bench) -> None:
    changed = spec_of(staged, revision="r2", max_length=100, prompt="query: ")
    report = staged.embed(part_texts=5, run_id="next", **changed)
    (event,) = report.events
    assert event.startswith(
        "3 parts of strategy 'full_record' that run 'died' has finished and not published do not serve, since these "
        "differ: fingerprint ("
    )
    for part in (
        "model.max_length (None -> 100)",
        "model.revision (None -> r2)",
        "model.prompt (not recorded -> query: )",
    ):
        assert part in event
    assert "weights" not in event
    assert event.endswith("set these back and run again before anything else is published, which removes them")
    assert report.counts == Counts(read=20, embedded=20)


def test_parts_of_another_model_serve_again_once_the_corpus_is_set_back(staged: Bench) -> None:
    staged.embed(part_texts=5, **spec_of(staged, revision="r2"))
    staged.encoder = FakeEncoder()
    report = staged.embed(part_texts=5)
    assert (len(staged.encoder.texts), report.counts) == (5, Counts(read=20, embedded=20))


def test_parts_that_were_cut_otherwise_are_named(staged: Bench) -> None:
    staged.extract(part_texts=4)
    (event,) = staged.embed(part_texts=4).events
    assert event.startswith("3 parts of strategy 'full_record' that an earlier run has finished and not published do")
    assert "(part_texts, limit, offset)" in event


def test_other_weights_than_those_of_what_is_published_are_named(bench: Bench) -> None:
    bench.put("a.jsonl", works(6))
    bench.run()
    (bench.model / "model.safetensors").write_bytes(b"other")
    (event,) = bench.run().embed.events
    assert event.startswith("the 6 published texts of strategy 'full_record' are embedded again, since these differ: ")
    assert "weights (" in event
    assert "model." not in event
    assert event.endswith("; set them back to keep what is published")
    assert bench.run().embed.events == ()


def test_nothing_is_redone_for_other_batches_workers_runs_or_new_files(staged: Bench) -> None:
    """Item by item what changes no vector: neither finished nor published parts are computed again."""
    staged.put("b.jsonl", works(3, 100))
    staged.extract(part_texts=5)
    report = staged.embed(part_texts=5, run_id="other", batch=2, workers=3)
    assert (len(staged.encoder.texts), report.counts, report.events) == (8, Counts(read=23, embedded=23), ())
    staged.publish(part_texts=5)
    staged.put("0.jsonl", works(2, 200))
    staged.encoder = FakeEncoder()
    run = staged.run(part_texts=5, run_id="later", batch=7)
    assert (len(staged.encoder.texts), run.embed.counts) == (2, Counts(read=25, embedded=2, skipped=23))


def test_force_redoes_all_but_what_the_same_run_has_finished(staged: Bench) -> None:
    assert staged.embed(part_texts=5, force=True, run_id="forced").computed == 20
    assert staged.embed(part_texts=5, force=True, run_id="forced").computed == 0
    staged.publish(part_texts=5)
    assert staged.run(part_texts=5, run_id="again").embed.counts == Counts(read=20, skipped=20)
    assert staged.run(part_texts=5, force=True, run_id="forced again").publish.counts == Counts(read=20, embedded=20)


def test_what_a_forced_run_that_died_has_finished_is_not_shown_as_another_runs_skips(bench: Bench) -> None:
    """Of two manifests for one part, what is reported and what is published have to be the same."""
    bench.put("a.jsonl", works(10))
    bench.run(part_texts=5)
    bench.encoder = FakeEncoder(fail_call=lambda texts: "work 7" in "".join(texts))
    with pytest.raises(ModelError):
        bench.embed(part_texts=5, force=True, run_id="forced")
    bench.encoder = FakeEncoder()
    run = bench.run(part_texts=5, run_id="plain")
    assert run.embed.counts == run.publish.counts == Counts(read=10, skipped=10)
    assert bench.leftovers() == []
