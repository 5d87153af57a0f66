"""The component: from YAML files to corpora, and the one sentence that a wrong file gives."""

import pytest
import yaml

from embeddings_pipeline.definitions import defs
from embeddings_pipeline.errors import CorpusSpecError, LocationNotFoundError

WRONG = {
    "unknown field": ({"modle": {}}, "the field 'modle' is unknown (did you mean 'model'"),
    "cron": ({"schedule": {"cron": "99 3 * * *"}}, "invalid cron schedule"),
    "deliveries": ({"deliveries": "runs"}, "deliveries: runs needs source.kind timdex, not jsonl"),
    "missing field": ({"model": None}, "model is missing; add it"),
    "unknown strategy": ({"strategies": [{"name": "full_recrod"}]}, "the strategy 'full_recrod' is unknown"),
    "hyphen in name": ({"name": "small-works"}, "name: 'small-works' does not match ^[a-z][a-z0-9_]*$"),
    "later location": ({"output": {"location": "gs://b/o"}}, "gs:// locations are not built yet"),
    "owner": ({"owners": ["nobody"]}, "Invalid owner 'nobody'"),
    "upstream": ({"deps": ["raw works"]}, "is not a valid name in Dagster"),
    "run config": (
        {"run_config": {"execution": {"config": {"gpu": {}}}}},
        'run_config does not fit small_job: Received unexpected config entry "gpu"',
    ),
}


@pytest.mark.parametrize(("changes", "sentence"), WRONG.values(), ids=WRONG)
def test_a_wrong_yaml_gives_one_sentence_with_the_files_path(corpora, changes, sentence):
    corpora.declare(**changes)
    with pytest.raises(CorpusSpecError) as raised:
        defs()
    message = str(raised.value)
    assert sentence in message
    assert message.startswith(f"corpus file {corpora.file}: ")
    assert "\n" not in message
    assert raised.value.__cause__ is None


def test_a_yaml_without_attributes_says_which_are_missing(corpora):
    corpora.file.write_text("type: embeddings_pipeline.orchestration.corpus.Corpus\n", encoding="utf-8")
    with pytest.raises(CorpusSpecError, match="name is missing; add it; source is missing"):
        defs()


def test_environment_variables_are_filled_in_at_any_depth(corpora, monkeypatch):
    monkeypatch.setenv("WHERE", str(corpora.source))
    corpora.declare(source={"kind": "jsonl", "location": "{{ env.WHERE }}", "id": "id"})
    (spec,) = [spec for spec in defs().resolve_all_asset_specs() if spec.key.to_user_string() == "small/records"]
    assert spec.metadata["source"] == str(corpora.source)


def test_an_environment_variable_that_is_not_set_is_named(corpora, monkeypatch):
    """Dagster itself would make a folder called None of it."""
    monkeypatch.delenv("WHERE", raising=False)
    corpora.declare(output={"location": "{{ env.WHERE }}/out"})
    with pytest.raises(CorpusSpecError, match=r"defs.yaml: \{\{ env.WHERE \}\}/out: .*WHERE.*; set the variable"):
        defs()


def test_two_corpora_of_one_name_are_refused_with_both_files(corpora):
    file = corpora.declare(name="demo")
    with pytest.raises(CorpusSpecError) as raised:
        defs()
    assert f"corpus file {file}: name 'demo' is taken by " in str(raised.value)
    assert str(raised.value).endswith("defs/demo/defs.yaml; give each corpus its own name")


def test_a_folder_of_corpora_that_does_not_exist_is_named(corpora, monkeypatch):
    monkeypatch.setenv("EMBEDDINGS_CORPORA", "/no/such/folder")
    with pytest.raises(LocationNotFoundError, match="EMBEDDINGS_CORPORA '/no/such/folder' does not exist"):
        defs()


def test_a_folder_that_holds_no_corpus_yet_is_fine(corpora):
    corpora.file.unlink()
    assert defs().resolve_job_def("demo_job").name == "demo_job"
    corpora.file.parent.rmdir()
    assert defs().resolve_job_def("demo_job").name == "demo_job"


def test_a_folder_may_hold_many_corpora_and_other_files(corpora):
    document = yaml.safe_load(corpora.file.read_text(encoding="utf-8"))
    document["attributes"]["name"] = "second"
    (corpora.folder / "second").mkdir()
    (corpora.folder / "second" / "defs.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    (corpora.folder / "README.md").write_text("corpora of the search team", encoding="utf-8")
    keys = {spec.key.to_user_string() for spec in defs().resolve_all_asset_specs()}
    assert {"small/dataset", "second/dataset", "demo/dataset"} <= keys
