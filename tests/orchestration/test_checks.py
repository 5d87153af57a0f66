"""The checks of a corpus, on reports as the core makes them; through Dagster in `test_assets`."""

from dataclasses import replace

import dagster as dg
import pytest

from embeddings_pipeline.errors import TooManyRejectsError
from embeddings_pipeline.orchestration.checks import (
    check_specs,
    dataset_results,
    embeddings_results,
    records_results,
    too_many_rejects,
)
from embeddings_pipeline.records import Counts, Delivery, dataset_schema
from embeddings_pipeline.reports import EmbedReport, ExtractReport, PublishReport, VectorFacts
from embeddings_pipeline.settings import CorpusSpec


def spec(**changes) -> CorpusSpec:
    attributes = {
        "name": "small",
        "source": {"kind": "jsonl", "location": "works.jsonl"},
        "strategies": [{"name": "full_record"}],
        "model": {"name": "m"},
        "output": {"location": "out"},
    }
    return CorpusSpec.parse(attributes | changes, "here")


SPEC = spec()
WHOLE = Delivery("small")
GOOD_VECTORS = VectorFacts(rows=6, width=16, min_norm=0.9999, max_norm=1.0001)
REPORT = PublishReport(
    counts=Counts(read=10, embedded=6, skipped=3, rejected=1),
    published_rows=9,
    partial=False,
    files=1,
    files_kept=0,
    files_removed=0,
    rows_by_strategy={"full_record": 9},
    bytes=1000,
    dataset_location="/out/dataset",
    manifest_location="/out/manifests/whole.json",
    schema=dataset_schema("dense", 16),
    model="m",
    fingerprint="0123456789abcdef",
    seconds=0.1,
    vectors=GOOD_VECTORS,
    normalized=True,
)
EXTRACTED = ExtractReport(
    Counts(read=100, rejected=6), 100, 1, 0, 1, 0, {"null_text": 4, "null_key": 2, "blank_text": 0}, "/in", "/out", 0.1
)
EMBEDDED = EmbedReport(
    counts=Counts(read=100, embedded=90, skipped=4, rejected=6),
    parts=(),
    computed=90,
    tokens=900,
    truncated=45,
    seconds=1.0,
    compute_share=0.9,
    device="cpu",
    workers=1,
    application_batch_size=10,
    model_batch_size=4,
    model_batch_tokens=1024,
    model={},
    rejects_by_reason={"null_text": 4, "null_key": 2},
    staging_location="/out/staging",
    rejects_location="/out/rejects",
    events=(),
)


def result(results: list[dg.AssetCheckResult], name: str) -> dg.AssetCheckResult:
    (found,) = [one for one in results if one.check_name == name]
    return found


def values(found: dg.AssetCheckResult) -> dict:
    return {name: value.value for name, value in found.metadata.items()}


def test_each_asset_has_its_checks_and_only_that_of_truncation_does_not_block():
    declared = {stage: check_specs(SPEC, stage) for stage in ("records", "embeddings", "dataset")}
    assert {stage: [(one.name, one.blocking) for one in specs] for stage, specs in declared.items()} == {
        "records": [("rejects", True)],
        "embeddings": [("rejects", True), ("truncated", False)],
        "dataset": [("identities", True), ("vectors", True)],
    }
    for stage, specs in declared.items():
        assert {one.asset_key.to_user_string() for one in specs} == {f"small/{stage}"}
        assert all(one.description for one in specs)


def test_every_check_that_is_declared_is_answered():
    """Dagster fails a step that leaves one out."""
    answered = {
        "records": records_results(SPEC, WHOLE, EXTRACTED),
        "embeddings": embeddings_results(SPEC, WHOLE, EMBEDDED),
        "dataset": dataset_results(SPEC, WHOLE, REPORT),
    }
    for stage, results in answered.items():
        keys = {(one.asset_key, one.check_name) for one in results}
        assert keys == {(one.asset_key, one.name) for one in check_specs(SPEC, stage)}


def test_results_name_their_delivery_where_there_are_several():
    """Dagster shows the latest result of a check, of whichever delivery it was."""
    delivery = Delivery("small", "2026/works.jsonl")
    error = TooManyRejectsError(6, 100, "count: 5", "null_text 6", "/out/rejects")
    for found in (
        *records_results(SPEC, delivery, EXTRACTED),
        *embeddings_results(SPEC, delivery, EMBEDDED),
        *dataset_results(SPEC, delivery, REPORT),
        too_many_rejects(SPEC, delivery, "records", error),
    ):
        assert found.description.startswith("2026/works.jsonl: ")
        assert values(found)["delivery"] == "2026/works.jsonl"


# Identities


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({}, True),
        ({"published_rows": 8}, False),
        ({"published_rows": 10}, False),
        ({"counts": Counts(read=11, embedded=6, skipped=3, rejected=1)}, False),
        ({"partial": True, "published_rows": 20}, True),
        ({"partial": True, "published_rows": 8}, False),
    ],
)
def test_identities_pass_when_both_hold_and_only_then(changes, passed):
    assert result(dataset_results(SPEC, WHOLE, replace(REPORT, **changes)), "identities").passed is passed


def test_identities_show_the_numbers_of_both():
    found = result(dataset_results(SPEC, WHOLE, replace(REPORT, published_rows=8)), "identities")
    assert found.description == "10 read, 10 accounted for; 8 rows published, exactly 9 expected"
    assert values(found) == {
        "read": 10,
        "embedded": 6,
        "skipped": 3,
        "rejected": 1,
        "accounted_for": 10,
        "published_rows": 8,
        "expected_rows": 9,
        "partial_run": False,
    }


# Vectors


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        ({}, None),
        ({"non_finite": 2}, "2 are not finite"),
        ({"width": 8}, "the width is 8, and the model has 16"),
        ({"min_norm": 0.0}, "some are zero"),
        ({"max_norm": 1.02}, "the lengths are 0.9999 to 1.02, and the model's vectors have length 1"),
        ({"min_norm": 0.5}, "the lengths are 0.5 to 1, and the model's vectors have length 1"),
        ({"constant": True}, "all are the same, though the texts differ"),
    ],
)
def test_vectors_fail_for_what_no_good_model_gives(seen, problem):
    found = result(dataset_results(SPEC, WHOLE, replace(REPORT, vectors=replace(GOOD_VECTORS, **seen))), "vectors")
    assert found.passed is (problem is None)
    assert (problem or "6 new rows: finite") in found.description
    if problem:
        assert found.description.endswith("look at the model, then run with force: true")


def test_vectors_of_a_model_that_does_not_normalise_may_have_any_length_but_none():
    report = replace(REPORT, normalized=False, vectors=replace(GOOD_VECTORS, min_norm=3.0, max_norm=40.0))
    assert result(dataset_results(SPEC, WHOLE, report), "vectors").passed
    report = replace(report, vectors=replace(GOOD_VECTORS, min_norm=0.0, max_norm=40.0))
    assert not result(dataset_results(SPEC, WHOLE, report), "vectors").passed


def test_half_precision_gets_the_tolerance_of_half_precision():
    report = replace(REPORT, vectors=replace(GOOD_VECTORS, max_norm=1.004))
    assert not result(dataset_results(SPEC, WHOLE, report), "vectors").passed
    half = spec(model={"name": "m", "precision": "float16"})
    assert result(dataset_results(half, WHOLE, report), "vectors").passed


def test_a_sparse_vector_may_be_empty():
    sparse = replace(
        REPORT,
        schema=dataset_schema("sparse", 0),
        normalized=False,
        vectors=VectorFacts(rows=6, width=0, min_norm=0.0, max_norm=7.5),
    )
    assert result(dataset_results(SPEC, WHOLE, sparse), "vectors").passed
    constant = replace(sparse, vectors=replace(sparse.vectors, constant=True))
    assert not result(dataset_results(SPEC, WHOLE, constant), "vectors").passed


def test_vectors_that_were_there_before_are_not_judged_again():
    found = result(dataset_results(SPEC, WHOLE, replace(REPORT, vectors=VectorFacts())), "vectors")
    assert found.passed
    assert found.description == "no new file; the 9 rows were looked at when they were published"


# Rejects


@pytest.mark.parametrize(
    ("limits", "passed"),
    [
        (None, True),
        ({"count": 6}, True),
        ({"count": 5}, False),
        ({"share": 0.06}, True),
        ({"share": 0.05}, False),
        ({"count": 100, "share": 0.01}, False),
    ],
)
def test_rejects_fail_over_the_corpuss_limit(limits, passed):
    limited = spec(max_rejects=limits) if limits else SPEC
    assert result(records_results(limited, WHOLE, EXTRACTED), "rejects").passed is passed
    assert result(embeddings_results(limited, WHOLE, EMBEDDED), "rejects").passed is passed


def test_rejects_say_why_and_what_is_allowed():
    found = result(records_results(spec(max_rejects={"count": 10, "share": 0.1}), WHOLE, EXTRACTED), "rejects")
    assert found.description == (
        "6 of 100 texts rejected (null_key 2, null_text 4); max_rejects allows 10 texts and 10.00% of the texts"
    )
    assert values(found)["share"] == 0.06


def test_a_step_that_stopped_because_of_its_rejects_has_a_failed_check_with_its_sentence():
    error = TooManyRejectsError(6, 100, "count: 5", "null_text 6", "/out/rejects")
    found = too_many_rejects(spec(max_rejects={"count": 5}), WHOLE, "records", error)
    assert (found.passed, found.check_name, found.description) == (False, "rejects", str(error))
    assert values(found) == {"rejected": 6, "read": 100, "allowed": "max_rejects allows 5 texts"}


# Truncation


@pytest.mark.parametrize(("limit", "passed"), [(None, True), (0.5, True), (0.49, False), (0.0, False)])
def test_truncation_warns_over_the_corpuss_limit_and_blocks_nothing(limit, passed):
    found = result(embeddings_results(spec(max_truncated=limit), WHOLE, EMBEDDED), "truncated")
    assert found.passed is passed
    assert found.severity == dg.AssetCheckSeverity.WARN
    assert found.description.startswith("45 of 90 texts are longer than the model takes (50.00%); max_truncated ")
    assert found.description.endswith("a strategy that gives shorter ones") is not passed
    assert values(found) == {"truncated": 45, "embedded": 90, "share": 0.5}


def test_a_run_that_embeds_nothing_truncates_nothing():
    report = replace(EMBEDDED, counts=Counts(read=4, skipped=4), truncated=0)
    found = result(embeddings_results(spec(max_truncated=0.0), WHOLE, report), "truncated")
    assert (found.passed, found.description) == (True, "no text was embedded")


@pytest.mark.parametrize("share", [-0.1, 1.5, "half"])
def test_a_limit_that_is_no_share_is_refused_by_name(share):
    with pytest.raises(Exception, match="max_truncated"):
        spec(max_truncated=share)
