"""What people write is checked once, and refused in a sentence that names the field, the value and what is right."""

from typing import Any

import pytest
from pydantic import ValidationError

from embeddings_pipeline.errors import CorpusSpecError, RunConfigError
from embeddings_pipeline.settings import (
    CorpusSpec,
    EmbedSettings,
    Environment,
    ExtractSettings,
    ModelSpec,
    StrategySpec,
)

RIGHT: dict[str, Any] = {
    "name": "catalogue",
    "source": {"kind": "jsonl", "location": "/data/works.jsonl", "id": "id"},
    "strategies": [{"name": "full_record"}],
    "model": {"name": "sentence-transformers/all-MiniLM-L6-v2"},
    "output": {"location": "/data/out"},
}


def refusal(changes: dict[str, Any]) -> str:
    with pytest.raises(CorpusSpecError) as caught:
        CorpusSpec.parse(RIGHT | changes, "catalogue/defs.yaml")
    message = str(caught.value)
    assert message.startswith("corpus file catalogue/defs.yaml: ")
    assert "\n" not in message
    return message.removeprefix("corpus file catalogue/defs.yaml: ")


def source(**changes: Any) -> dict[str, Any]:
    return {"source": RIGHT["source"] | changes}


def strategy(**definition: Any) -> dict[str, Any]:
    return {"strategies": [definition]}


def test_a_right_spec_has_the_defaults_of_the_design() -> None:
    spec = CorpusSpec.parse(RIGHT, "x")
    assert (spec.deliveries, spec.part_texts, spec.output.layout) == ("whole", 10_000, "generic")
    assert (spec.run_config, spec.owners, spec.deps) == ({}, (), ())
    with pytest.raises(ValidationError):
        spec.name = "other"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "minilm"}, 'model: "minilm" has no fields; write {name: …} (fields here: name, source, kind,'),
        (
            {"strategies": ["full_record"]},
            'strategies[0]: "full_record" has no fields; write {name: …} (fields here: name',
        ),
        ({"output": "/data/out"}, 'output: "/data/out" has no fields; write {location: …}'),
        ({"source": None}, "source: null has no fields; write {kind: …}"),
        ({"strategies": "full_record"}, "strategies is \"full_record\"; write a list, one '- …' for each"),
    ],
)
def test_a_value_where_fields_or_a_list_belong_is_refused_with_what_to_write(
    changes: dict[str, Any], message: str
) -> None:
    assert refusal(changes).startswith(message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Catalogue"}, "name: 'Catalogue' does not match ^[a-z][a-z0-9_]*$; use lower-case letters"),
        ({"name": "1st"}, "name: '1st' does not match"),
        ({"name": 7}, "name is 7: input should be a valid string"),
        (source(kind="xml"), "source.kind is \"xml\": input should be 'parquet', 'jsonl', 'csv' or 'timdex'"),
        (source(location=""), 'source.location is "": string should have at least 1 character'),
        (source(location=None), "source.location is null: input should be a valid string"),
        ({"part_texts": 0}, "part_texts is 0: input should be greater than or equal to 1"),
        ({"strategies": []}, "strategies: there is no strategy; add one, such as name: full_record"),
        (
            {"strategies": [{"name": "full_record"}, {"name": "full_record", "ascii": True}]},
            "strategies: the strategy name 'full_record' stands there twice; give each strategy its own name",
        ),
        (
            strategy(name="full_recrod"),
            "strategies[0]: the strategy 'full_recrod' is unknown (did you mean 'full_record'?); use full_record, or "
            'give it fields: [...] or template: "..."',
        ),
        (strategy(name="Bad Name"), "strategies[0]: name is 'Bad Name'; use lower-case letters, digits and _"),
        (strategy(name="t", fields=[]), "strategies[0]: fields of strategy 't' is empty; name at least one field"),
        (strategy(name="t", fields=["a"], template="{a}"), "strategy 't' has both fields and template; keep one"),
        (strategy(name="full_record", fields=["a"]), "'full_record' is built in and takes no fields or template"),
        (strategy(name="t", fields=["a"], ascii=True), "ascii belongs to full_record only; remove it from"),
        (strategy(name="t", template="none"), "template of strategy 't' is 'none', which names no field; write one as"),
        (strategy(name="t", template="{a"), "template of strategy 't' is '{a', which cannot be parsed"),
        (strategy(name="t", template="{}"), "with a format, index or no name; write field names as {title}"),
        (strategy(name="t", template="{a[0]}"), "has the placeholder '{a[0]}'"),
        (strategy(name="t", template="{a:>9}"), "has the placeholder '{a}' with a format"),
        (strategy(name="t", template="{a!r}"), "has the placeholder '{a}' with a format"),
        ({"model": {}}, "model.name is missing; add it"),
        (
            {"model": {"name": "x", "max_length": 2}},
            "model.max_length is 2: input should be greater than or equal to 3",
        ),
        ({"model": {"name": ".."}}, "model.name: '..' has no letter or digit; use the model's name"),
        ({"model": {"name": "x", "kind": "dense", "special_tokens": "drop"}}, "belong to sparse models; remove it"),
        ({"output": {"location": "package:x/y"}}, "output.location: 'package:x/y' is inside an installed package"),
        (source(run_id="x"), "run_id belongs to kind: timdex, and kind is jsonl; remove it"),
        (source(kind="timdex"), "kind: timdex needs run_id (a run) or source (its current records), one"),
        (source(encoding="utf-16"), "'utf-16' does not write a line's end as one byte; convert the files to utf-8"),
        (source(encoding="latyn"), "'latyn' is no encoding that Python knows; use one such as utf-8 or cp1252"),
        (source(delimiter=";"), "delimiter belongs to kind: csv, and kind is jsonl; remove it"),
        ({"output": {"location": "x", "layout": "timdex"}}, "output.layout timdex needs source.kind timdex, not jsonl"),
        (source(location="s3://"), "source.location: 's3://' names no bucket; write s3://bucket/prefix"),
        (source(s3={"region": "eu-west-1"}), "'/data/works.jsonl' is no s3:// location; remove s3, encryption"),
        ({"output": {"location": "x", "encryption": "AES256"}}, "'x' is no s3:// location; remove s3, encryption"),
        ({"output": {"location": "s3://b/x", "kms_key": "k"}}, "kms_key is 'k', which belongs to encryption: aws:kms"),
        ({"max_rejects": {"share": 2}}, "max_rejects.share is 2: input should be less than or equal to 1"),
        ({"max_rejects": 5}, "max_rejects: 5 has no fields; write {count: …}"),
        ({"source": "folder"}, 'source: "folder" has no fields; write {kind: …}'),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_what_is_right(changes: dict[str, Any], message: str) -> None:
    assert message in refusal(changes)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": {"name": "x", "pooling": "cls"}}, "pooling"),
    ],
)
def test_a_field_that_is_not_built_yet_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    """Ignoring it would let a person believe in a schedule, or in fp16, that is not there."""
    assert f"the field '{field}' is not built yet; remove it (fields here: " in refusal(changes)


@pytest.mark.parametrize(
    "changes",
    [
        source(location="gs://bucket/x"),
        {"output": {"location": "gs://bucket/x"}},
    ],
)
def test_a_remote_location_is_refused_by_its_scheme(changes: dict[str, Any]) -> None:
    assert ":// locations are not built yet; use a local path" in refusal(changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"strategy": []},
            "attributes: the field 'strategy' is unknown (did you mean 'strategies'?); fields here: name,",
        ),
        (
            source(locaton="x"),
            "source: the field 'locaton' is unknown (did you mean 'location' or 'action' or 'optional'?); ",
        ),
        (strategy(name="t", template="{a}", field=["a"]), "strategies[0]: the field 'field' is unknown"),
        (
            {"model": {"name": "x", "max_lenght": 5}},
            "model: the field 'max_lenght' is unknown (did you mean 'max_length'",
        ),
        ({7: 8}, "attributes: the field '7' is unknown; fields here"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_one(changes: dict[str, Any], message: str) -> None:
    assert message in refusal(changes)


@pytest.mark.parametrize("attributes", [None, [], "text", 7])
def test_attributes_that_are_no_mapping_are_refused(attributes: Any) -> None:
    with pytest.raises(CorpusSpecError, match="corpus file x: attributes: .* has no fields; write {name: …}"):
        CorpusSpec.parse(attributes, "x")


def test_all_problems_of_a_file_are_named_at_once() -> None:
    message = refusal({"name": "Bad", "part_texts": 0})
    assert "name: 'Bad'" in message
    assert "; part_texts is 0" in message


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(refusal({"source": "x" * 10_000})) < 300


def test_the_fields_that_a_strategy_needs_are_told_once_each() -> None:
    assert StrategySpec(name="full_record").needed_fields() is None
    assert StrategySpec(name="t", fields=("b", "a", "b")).needed_fields() == ("b", "a")
    assert StrategySpec(name="t", template="{b} {a} {b} {{c}}").needed_fields() == ("b", "a")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {"source": "https://example.org/x"},
            "https:// is no source; use a folder, a .zip, s3://bucket/prefix, package",
        ),
        ({"source": "s3://bucket"}, "'s3://bucket' names no bucket and prefix; write s3://bucket/prefix"),
        (
            {"source": "hub:a/b/c", "revision": "0" * 40},
            "'hub:a/b/c' names no model of a hub; write hub:organisation/mod",
        ),
        ({"source": "hub:a/b"}, "has the revision None, which is no commit of 40 hexadecimal digits, so that it could"),
        ({"source": "hub:a/b", "revision": "main"}, "has the revision 'main', which is no commit"),
        (
            {"trust_remote_code": True},
            "'trust_remote_code' does not exist, since code of a model's folder is never run",
        ),
        ({"prompt": "a", "prompt_name": "b"}, "prompt and prompt_name 'b' are both given; keep one of them"),
        (
            {"kind": "sparse", "truncate_dim": 8},
            "truncate_dim is set, but truncate_dim, normalize and precision belong",
        ),
        (
            {"kind": "dense", "prune_ratio": 0.1},
            "prune_ratio is set, but max_active_dims, prune_ratio and special_token",
        ),
        ({"prune_ratio": 1.0}, "model.prune_ratio is 1.0: input should be less than 1"),
        ({"prune_ratio": 0}, "model.prune_ratio is 0: input should be greater than 0"),
        ({"truncate_dim": 0}, "model.truncate_dim is 0: input should be greater than or equal to 1"),
        ({"dtype": "int8"}, "model.dtype is \"int8\": input should be 'float32', 'float16' or 'bfloat16'"),
        ({"precision": "bfloat16"}, "model.precision is \"bfloat16\": input should be 'float32' or 'float16'"),
    ],
)
def test_a_model_option_that_cannot_be_is_named_with_what_is_right(model: dict[str, Any], message: str) -> None:
    assert message in refusal({"model": {"name": "x", **model}})


def test_the_models_identity_leaves_out_where_its_files_are() -> None:
    assert "source" not in ModelSpec(name="x", source="/a").identity()
    assert ModelSpec(name="x", source="/a").identity() == ModelSpec(name="x", source="/b").identity()


# A run's config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            EmbedSettings(application_batch_size=0),
            "p.application_batch_size is 0, but has to be at least 1; use 1 or more",
        ),
        (EmbedSettings(application_batch_size=-3), "p.application_batch_size is -3"),
        (EmbedSettings(model_batch_size=0), "p.model_batch_size is 0, but has to be at least 1; use 1 or more (64 is"),
        (EmbedSettings(model_batch_tokens=-1), "p.model_batch_tokens is -1, but has to be at least 0; use 0 for an"),
        (ExtractSettings(limit=-1), "p.limit is -1, but has to be at least 0; use 0 for no limit"),
        (ExtractSettings(offset=-1), "p.offset is -1, but has to be at least 0; use 0 to start"),
    ],
)
def test_a_number_out_of_bounds_is_named_with_its_path(settings: EmbedSettings | ExtractSettings, message: str) -> None:
    with pytest.raises(RunConfigError) as caught:
        settings.check("p")
    assert message in str(caught.value)


def test_the_defaults_are_in_bounds() -> None:
    EmbedSettings().check("")
    ExtractSettings().check("")
    assert not ExtractSettings().partial
    assert ExtractSettings(limit=1).partial
    assert ExtractSettings(offset=1).partial


# The environment


def test_the_environment_is_read_once_into_plain_values(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"EMBEDDINGS_DEVICE": "", "EMBEDDINGS_WORKERS": "3", "OMP_NUM_THREADS": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setenv("EMBEDDINGS_CORPORA", "/corpora")
    found = Environment.read()
    assert (found.device, found.workers, found.corpora) == (None, 3, "/corpora")
    assert found.thread_variables == {"OMP_NUM_THREADS": "2"}
    assert ", variables=" not in repr(found)


@pytest.mark.parametrize("value", ["two", "-1", "1.5"])
def test_a_number_of_workers_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("EMBEDDINGS_WORKERS", value)
    with pytest.raises(RunConfigError, match=f"EMBEDDINGS_WORKERS is '{value}', which is no whole number; use 0"):
        Environment.read()


@pytest.mark.parametrize(
    ("variables", "mode"),
    [
        ({}, "in_process"),
        ({"DAGSTER_HOME": "/home"}, "host"),
        ({"DAGSTER_HOME": "/home", "EMBEDDINGS_MODEL_CACHE": "in_process"}, "in_process"),
        ({"EMBEDDINGS_MODEL_CACHE": "host"}, "host"),
    ],
)
def test_models_live_in_a_host_where_a_home_outlives_the_run(
    variables: dict[str, str], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DAGSTER_HOME", "EMBEDDINGS_MODEL_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Environment.read().mode == mode


def test_an_unknown_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDDINGS_MODEL_CACHE", "gpu")
    with pytest.raises(RunConfigError, match="EMBEDDINGS_MODEL_CACHE is 'gpu'; use host or in_process"):
        Environment.read()
