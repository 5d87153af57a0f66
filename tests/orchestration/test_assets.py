"""The assets, run without the executor: `execute_in_process` replaces it, so steps check for themselves."""

import json

import dagster as dg
import numpy as np
import pyarrow.dataset as ds
import pytest

from embeddings_pipeline.definitions import defs


def run(run_config=None, raise_on_error=True):
    with dg.DagsterInstance.ephemeral() as instance:
        job = defs().resolve_job_def("small_job")
        return job.execute_in_process(run_config=run_config, instance=instance, raise_on_error=raise_on_error)


def failure_of(result, step):
    (event,) = [event for event in result.all_events if event.is_step_failure and event.step_key == step]
    return event.step_failure_data


def shown(result, stage):
    (event,) = result.asset_materializations_for_node(f"small__{stage}")
    return {name: value.value for name, value in event.metadata.items()}


def test_records_become_a_dataset_with_the_vectors_of_the_library(corpora, tiny_dense_model):
    from sentence_transformers import SentenceTransformer

    result = run()
    assert result.success
    rows = ds.dataset(corpora.output / "dataset").to_table().sort_by("record_id").to_pylist()
    assert [row["record_id"] for row in rows] == [f"r{number}" for number in range(10)]
    texts = [f'id: "r{n}"\ntitle: "work {n}"\nyear: {1900 + n}\n' for n in range(10)]
    expected = SentenceTransformer(str(tiny_dense_model), device="cpu").encode(texts)
    np.testing.assert_allclose([row["embedding"] for row in rows], expected, atol=1e-5)
    assert shown(result, "dataset")["published_rows"] == 10
    assert shown(result, "dataset")["dagster/column_schema"].columns


def test_the_checks_ride_on_the_assets(corpora):
    found = {(one.asset_key.path[-1], one.check_name): one for one in run().get_asset_check_evaluations()}
    assert {key: (one.passed, one.blocking) for key, one in found.items()} == {
        ("records", "rejects"): (True, True),
        ("embeddings", "rejects"): (True, True),
        ("embeddings", "truncated"): (True, False),
        ("dataset", "identities"): (True, True),
        ("dataset", "vectors"): (True, True),
    }
    assert found["dataset", "vectors"].metadata["normalized"].value
    assert found["dataset", "vectors"].metadata["rows"].value == 10


def test_truncated_texts_over_the_limit_are_a_warning_and_the_run_goes_on(corpora):
    corpora.declare(max_truncated=0.5)
    corpora.source.write_text(json.dumps({"id": "long", "title": "word " * 100}) + "\n", encoding="utf-8")
    result = run()
    assert result.success
    (found,) = [one for one in result.get_asset_check_evaluations() if one.check_name == "truncated"]
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert shown(result, "embeddings")["truncated_share"] == 1.0


def test_too_many_rejects_fail_their_check_and_their_step_and_nothing_follows(corpora):
    """Who looks at the asset's checks is to see the same as who looks at the run."""
    corpora.declare(max_rejects={"count": 0})
    with corpora.source.open("a", encoding="utf-8") as file:
        file.write("no json\n")
    result = run(raise_on_error=False)
    (found,) = result.get_asset_check_evaluations()
    assert (found.check_name, found.passed, found.blocking) == ("rejects", False, True)
    assert found.asset_key.path == ["small", "records"]
    sentence = failure_of(result, "small__records").user_failure_data.description
    assert sentence.startswith("1 of 11 texts were rejected (unparsable 1), more than max_rejects allows (count: 0)")
    assert found.description == sentence
    assert not result.asset_materializations_for_node("small__embeddings")


def test_pictures_and_the_first_rejects_are_shown(corpora):
    with corpora.source.open("a", encoding="utf-8") as file:
        file.write("no json\n")
    result = run()
    seen = shown(result, "embeddings")
    for name in ("token_lengths", "throughput", "projection"):
        assert seen[name].startswith("![")
    (event,) = result.asset_materializations_for_node("small__records")
    (row,) = event.metadata["first_rejects"].records
    assert (row.data["reason"], row.data["position"]) == ("unparsable", "works.jsonl line 11")
    second = shown(run(), "embeddings")
    assert second["token_lengths"].startswith("Nothing to draw: no text went through the model  \n(10 were")


def test_a_second_run_embeds_nothing(corpora):
    run()
    second = run()
    assert (shown(second, "embeddings")["embedded"], shown(second, "embeddings")["skipped"]) == (0, 10)
    forced = run({"ops": {"small__embeddings": {"config": {"force": True}}}})
    assert shown(forced, "embeddings")["embedded"] == 10


def test_rejects_are_shown_by_reason_and_the_run_goes_on(corpora):
    with corpora.source.open("a", encoding="utf-8") as file:
        file.write('{"id": null, "title": "no key"}\nno json\n')
    result = run()
    assert result.success
    rows = [
        record.data
        for record in result.asset_materializations_for_node("small__records")[0].metadata["rejects_by_reason"].records
    ]
    assert rows == [{"reason": "null_key", "texts": 1}, {"reason": "unparsable", "texts": 1}]


@pytest.mark.parametrize(
    ("step", "config", "sentence"),
    [
        ("records", {"limit": -1}, "ops.small__records.config.limit is -1, but has to be at least 0"),
        ("embeddings", {"model_batch_size": 0}, "ops.small__embeddings.config.model_batch_size is 0"),
    ],
)
def test_a_step_refuses_a_wrong_config_itself(corpora, step, config, sentence):
    """Runs that bypass the executor have no preflight of their own."""
    result = run({"ops": {f"small__{step}": {"config": config}}}, raise_on_error=False)
    failure = failure_of(result, f"small__{step}")
    assert sentence in failure.user_failure_data.description
    assert "\n" not in failure.user_failure_data.description


def test_a_missing_column_fails_its_step_with_a_sentence_and_is_not_retried(corpora):
    corpora.declare(strategies=[{"name": "card", "template": "{titel}"}])
    with pytest.raises(dg.Failure) as raised:
        run()
    assert "'titel'" in raised.value.description
    assert not raised.value.allow_retries


def test_a_file_that_is_not_what_the_corpus_declares_fails_its_step_with_a_sentence(corpora):
    corpora.source.with_suffix(".parquet").write_bytes(b"no parquet")
    corpora.declare(source={"kind": "parquet", "location": str(corpora.source.with_suffix(".parquet")), "id": "id"})
    with pytest.raises(dg.Failure, match="cannot be read as parquet") as raised:
        run()
    assert raised.value.allow_retries


def test_a_limited_run_adds_and_removes_nothing(corpora):
    run()
    corpora.source.write_text(json.dumps({"id": "new", "title": "new"}) + "\n", encoding="utf-8")
    result = run({"ops": {"small__records": {"config": {"limit": 1}}}})
    assert result.success
    assert shown(result, "dataset")["published_rows"] == 11


def test_assets_show_group_owner_kinds_and_upstream_from_the_yaml(corpora):
    corpora.declare(owners=["team:search"], kinds=["catalogue"], deps=["raw/works"], description="Ten works.")
    specs = {spec.key.to_user_string(): spec for spec in defs().resolve_all_asset_specs()}
    records, dataset = specs["small/records"], specs["small/dataset"]
    assert {dep.asset_key.to_user_string() for dep in records.deps} == {"raw/works"}
    assert {dep.asset_key.to_user_string() for dep in dataset.deps} == {"small/embeddings"}
    assert (records.group_name, list(records.owners), records.kinds) == ("small", ["team:search"], {"catalogue"})
    assert records.description.endswith("Ten works.")
    assert records.code_version.startswith("1-")
    assert dataset.code_version == specs["small/embeddings"].code_version != records.code_version


def test_the_code_version_follows_what_the_yaml_says_of_texts_and_model_and_nothing_else(corpora, tiny_dense_model):
    """Dagster shows assets as outdated when it changes: so it changes with what makes them so."""

    def versions(**changes):
        corpora.declare(**changes)
        specs = {spec.key.path[-1]: spec for spec in defs().resolve_all_asset_specs() if spec.key.path[0] == "small"}
        return specs["records"].code_version, specs["dataset"].code_version

    records, dataset = versions()
    model = {"name": "tests/tiny", "source": str(tiny_dense_model)}
    assert versions(owners=["team:search"], max_truncated=0.1, run_tags={"a": "b"}) == (records, dataset)
    assert versions(model={**model, "max_length": 16})[0] == records
    assert versions(model={**model, "max_length": 16})[1] != dataset
    assert versions(strategies=[{"name": "title", "fields": ["title"]}])[0] != records
