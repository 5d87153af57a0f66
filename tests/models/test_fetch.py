"""From a hub into the store: once, whole, verified, and never again over the network."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embeddings_pipeline.errors import (
    ConfigurationError,
    EmbeddingsError,
    GatedModelError,
    ModelDigestError,
    ModelFetchError,
    ModelNotInStoreError,
    UnsafeModelError,
)
from embeddings_pipeline.models.content import ModelStore
from embeddings_pipeline.models.download import download, spec_of
from embeddings_pipeline.models.fetch import Wanted, fetch
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.settings import Environment, ModelSpec
from tests.models.checkpoints import pickled
from tests.models.conftest import on_hub
from tests.models.hub import COMMIT, TOKEN, StubHub

WEIGHTS = f"/org/model/resolve/{COMMIT}/model.safetensors"

FETCH = """
import sys
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.settings import ModelSpec
print(resolve(ModelSpec(name="org/model", source="hub:org/model", revision=sys.argv[1])).fingerprint)
"""

OFFLINE = """
import json, sys
def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.bind", "socket.sendto"):
        raise RuntimeError(f"a socket was opened: {event} {arguments}")
sys.addaudithook(refuse)
from embeddings_pipeline.inference.encoder import load_encoder
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.settings import ModelSpec
for name in sys.argv[2:]:
    model = resolve(ModelSpec(name=name, source=f"hub:{name}", revision=sys.argv[1]))
    encoder = load_encoder(model, "cpu")
    batch = encoder.embed(["w1 w2 w3 w1", "w5"])
    rows = batch.dense.tolist() if batch.dense is not None else []
    if batch.sparse is not None:
        for start, stop in zip(batch.sparse.indptr[:-1], batch.sparse.indptr[1:]):
            rows.append([0.0] * encoder.dimensions)
            for index, value in zip(batch.sparse.indices[start:stop], batch.sparse.values[start:stop]):
                rows[-1][int(index)] = float(value)
    print(json.dumps({"name": name, "rows": rows, "fingerprint": model.fingerprint}))
    encoder.close()
"""


def test_of_twenty_processes_one_downloads_and_all_find_the_same_model(
    hub: StubHub, environment: Environment, bert: Path
) -> None:
    """Case 43: the hub throttles and cuts an answer short, and still each file is fetched once and nobody fails."""
    hub.models["org/model"] = bert
    hub.throttle, hub.cut = 5, {"model.safetensors": 5_000}
    variables = os.environ | {
        "EMBEDDINGS_MODEL_STORE": environment.model_store,
        "EMBEDDINGS_MODEL_DOWNLOAD": "allowed",
        "HF_ENDPOINT": hub.endpoint,
        "HF_HUB_OFFLINE": "0",
    }
    command = [sys.executable, "-c", FETCH, COMMIT]
    running = [
        subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(20)
    ]
    done = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0] * 20, done[0][1]
    assert len({out for out, _ in done}) == 1
    files = Counter(path for method, path, _ in hub.calls if method == "GET" and "/resolve/" in path)
    # Its first answer came from two addresses and was cut; the rest of it came the same way.
    assert files.pop(WEIGHTS) == 4
    assert set(files.values()) - {2} in (set(), {1})
    assert sum(hub.calls.count(call) for call in set(hub.calls) if "/tree/" in call[1]) <= 10


def test_a_fetched_model_loads_without_a_socket_and_gives_the_vectors_of_the_one_it_was_saved_from(
    hub: StubHub, environment: Environment, bert: Path, splade: Path, gte: Path, tmp_path: Path
) -> None:
    """Cases 41 and 42: also one in Alibaba's layout, with HF_HUB_OFFLINE unset and a home that cannot be written."""
    from sentence_transformers import SentenceTransformer, SparseEncoder

    originals = {"org/bert": bert, "org/splade": splade, "org/gte": gte.parent / "Gte-sparse"}
    hub.models = originals | {"org/gte": gte}
    for name in originals:
        download(on_hub(name), environment)
    variables = {
        "PATH": os.environ["PATH"],
        "EMBEDDINGS_MODEL_STORE": environment.model_store,
        "HF_ENDPOINT": hub.endpoint,
        "HOME": "/nonexistent",
        "TMPDIR": str(tmp_path),
    }
    hub.calls.clear()
    command = [sys.executable, "-c", OFFLINE, COMMIT, *originals]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert hub.calls == []
    texts = ["w1 w2 w3 w1", "w5"]
    for line in done.stdout.splitlines():
        found = json.loads(line)
        kind = SentenceTransformer if found["name"] == "org/bert" else SparseEncoder
        library = kind(str(originals[found["name"]]), device="cpu")
        if kind is SentenceTransformer:
            expected = library.encode(texts)
        else:
            expected = library.encode_document(texts, convert_to_sparse_tensor=False).numpy()
        np.testing.assert_allclose(np.asarray(found["rows"]), expected, atol=1e-4)


def test_a_model_that_is_kept_is_found_in_a_store_where_nothing_can_be_written(
    hub: StubHub, environment: Environment, bert: Path
) -> None:
    hub.models["org/model"] = bert
    first = download(on_hub(), environment)
    root = Path(environment.model_store)
    before = {path: path.lstat().st_mtime_ns for path in (root, *root.rglob("*"))}
    for path in (*root.rglob("*"), root):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        hub.calls.clear()
        assert resolve(on_hub(), environment).fingerprint == first.fingerprint
    finally:
        for path in (root, *root.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert {path: path.lstat().st_mtime_ns for path in (root, *root.rglob("*"))} == before
    assert hub.calls == []


def test_what_has_arrived_is_kept_and_a_second_attempt_goes_on_from_there(
    hub: StubHub, environment: Environment, bert: Path
) -> None:
    hub.models["org/model"] = bert
    size = (bert / "model.safetensors").stat().st_size
    incoming = _part_of(environment, (bert / "model.safetensors").read_bytes()[: size // 2])
    fetch(Wanted(on_hub()), ModelStore(environment.model_store), environment)
    assert hub.ranges == [f"bytes={size // 2}-"] * 2
    assert not incoming.exists()
    assert resolve(on_hub(), environment).path.joinpath("model.safetensors").stat().st_size == size


def _part_of(environment: Environment, content: bytes) -> Path:
    with ModelStore(environment.model_store).lock("hub:org/model", COMMIT, "org/model") as incoming:
        (incoming / "model.safetensors.part").write_bytes(content)
        (incoming / "left-over.json").write_text("{}", encoding="utf-8")
    return incoming


def test_a_part_that_is_not_the_files_beginning_is_found_out(
    hub: StubHub, environment: Environment, bert: Path
) -> None:
    hub.models["org/model"] = bert
    _part_of(environment, b"something else")
    with pytest.raises(ModelDigestError, match="file 'model.safetensors' of model 'org/model' .*run it again"):
        fetch(Wanted(on_hub()), ModelStore(environment.model_store), environment)
    fetch(Wanted(on_hub()), ModelStore(environment.model_store), environment)
    assert resolve(on_hub(), environment).spec.kind == "dense"


def test_other_bytes_than_the_hub_lists_are_refused(hub: StubHub, environment: Environment, bert: Path) -> None:
    hub.models["org/model"] = bert
    hub.lies["config.json"] = (bert / "config.json").read_bytes().replace(b"1", b"2")
    with pytest.raises(ModelDigestError, match="file 'config.json' of model 'org/model' does not have the bytes"):
        download(on_hub(), environment)
    with pytest.raises(ModelNotInStoreError):
        resolve(on_hub(), environment)


def test_a_model_that_is_not_in_the_store_is_not_fetched_in_silence(environment: Environment, hub: StubHub) -> None:
    with pytest.raises(
        ModelNotInStoreError,
        match=rf"model 'org/model' \(hub:org/model at {COMMIT}\) is not in the model store .*run `embeddings "
        rf"download-model --model org/model --source hub:org/model --revision {COMMIT}` where .*--to model.zip",
    ):
        resolve(on_hub(), environment)
    assert hub.calls == []


def test_it_is_fetched_on_first_use_where_the_environment_allows_it(
    hub: StubHub, environment: Environment, bert: Path
) -> None:
    hub.models["org/model"] = bert
    allowed = replace(environment, model_download=True)
    first = resolve(on_hub(), allowed)
    hub.calls.clear()
    assert resolve(on_hub(), allowed) == first
    assert hub.calls == []


@pytest.mark.parametrize(("token", "words"), [(None, "there is none in the environment"), ("hf_other", "not of an")])
def test_a_gated_model_says_whose_licence_has_to_be_accepted(
    hub: StubHub, environment: Environment, splade: Path, token: str | None, words: str
) -> None:
    hub.models["naver/splade-v3"], hub.gated = splade, {"naver/splade-v3"}
    with pytest.raises(GatedModelError, match="is gated or private, .*/naver/splade-v3.*") as caught:
        download(ModelSpec(name="naver/splade-v3"), replace(environment, hub_token=token))
    assert words in str(caught.value)
    assert "hf_other" not in str(caught.value)


def test_the_token_goes_to_the_hub_only_and_is_written_nowhere(
    hub: StubHub, environment: Environment, bert: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    hub.models["org/model"] = bert
    # The address from which large files come is another host, which has no business with the token.
    with_token = replace(environment, hub_token=TOKEN)
    done = download(on_hub(), with_token)
    seen = {token for _, path, token in hub.calls if path == WEIGHTS}
    assert seen == {f"Bearer {TOKEN}", None}
    assert TOKEN not in repr(with_token) + caplog.text + repr(done)
    for file in Path(environment.model_store).rglob("*"):
        assert not file.is_file() or TOKEN.encode() not in file.read_bytes()


def test_a_gated_model_is_fetched_with_the_token_of_an_account_that_may_have_it(
    hub: StubHub, environment: Environment, splade: Path
) -> None:
    hub.models["org/model"], hub.gated = splade, {"org/model"}
    # The stub's other address does not know who was let in here; the real one has an address that does.
    hub.here = {"model.safetensors", "tokenizer.json"}
    assert download(on_hub(), replace(environment, hub_token=TOKEN)).kind == "sparse"


def test_a_branch_becomes_the_commit_that_it_is_now(hub: StubHub, environment: Environment, bert: Path) -> None:
    hub.models["org/model"] = bert
    assert spec_of("org/model", "hub:org/model", "main", environment).revision == COMMIT
    assert spec_of("org/model", "hub:org/model", None, environment) == on_hub()


@pytest.mark.parametrize(
    ("model", "revision", "message"),
    [
        ("org/none", COMMIT, "model.source 'hub:org/none' of 'org/none' is not on http"),
        ("org/model", "f" * 40, "model.revision of 'org/model' is not on the hub; use a commit"),
    ],
)
def test_what_the_hub_does_not_have_is_named(
    hub: StubHub, environment: Environment, bert: Path, model: str, revision: str, message: str
) -> None:
    hub.models["org/model"] = bert
    with pytest.raises(ConfigurationError, match=message):
        download(on_hub(model).model_copy(update={"revision": revision}), environment)


def test_a_hub_that_does_not_answer_is_named_and_what_has_arrived_is_kept(environment: Environment) -> None:
    from embeddings_pipeline.models.hub import Hub

    waits: list[float] = []
    with (
        Hub("http://127.0.0.1:9", None, wait=waits.append) as closed,
        pytest.raises(ModelFetchError, match="ConnectError: .*, 8 times; check the network and HF_ENDPOINT"),
    ):
        closed.files("org/model", "org/model", COMMIT)
    assert waits == sorted(waits)
    assert sum(waits) > 60


def test_a_hub_that_throttles_for_ever_is_given_up(hub: StubHub, environment: Environment, bert: Path) -> None:
    hub.models["org/model"], hub.throttle = bert, 10_000
    with pytest.raises(ModelFetchError, match="the hub answered 429, 8 times; check the network"):
        download(on_hub(), environment)


def test_a_disk_that_is_too_small_is_seen_before_the_download(
    hub: StubHub, environment: Environment, bert: Path
) -> None:
    hub.models["org/model"] = bert
    hub.sizes = {"model.safetensors": 1 << 52}
    with pytest.raises(ModelFetchError, match="4,503,599,.* bytes are to come, and .* bytes free; free space or set"):
        download(on_hub(), environment)
    assert hub.downloads() == {}


def test_a_write_that_fails_is_a_sentence(hub: StubHub, environment: Environment, bert: Path) -> None:
    """A limit on the size of files stands for a full disk: the same call of the system fails."""
    hub.models["org/model"] = bert
    script = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))\n" + FETCH
    variables = os.environ | {
        "EMBEDDINGS_MODEL_STORE": environment.model_store,
        "EMBEDDINGS_MODEL_DOWNLOAD": "allowed",
        "HF_ENDPOINT": hub.endpoint,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-c", script, COMMIT]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert "ModelFetchError: model 'org/model' could not be fetched" in done.stderr
    assert "cannot be written (File too large)" in done.stderr


def test_weights_as_a_pickle_are_not_even_downloaded(
    hub: StubHub, environment: Environment, bert: Path, tmp_path: Path
) -> None:
    hub.models["org/model"] = pickled(Path(shutil.copytree(bert, tmp_path / "pickled")))
    with pytest.raises(
        UnsafeModelError, match=r"only \(pytorch_model.bin\).*run `embeddings models convert --model org"
    ):
        download(on_hub(), environment)
    assert hub.downloads() == {}


def test_only_what_loading_needs_is_fetched(hub: StubHub, environment: Environment, bert: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bert, tmp_path / "much"))
    for name in (
        "pytorch_model.bin",
        "onnx/model.onnx",
        "tf_model.h5",
        "custom.py",
        "picture.png",
        "LICENSE",
        ".git/x",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x", encoding="utf-8")
    hub.models["org/model"] = folder
    path = Path(download(on_hub(), environment).path)
    names = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    assert names == {file.relative_to(bert).as_posix() for file in bert.rglob("*") if file.is_file()} - {
        "README.md"
    } | {"LICENSE"}


def test_a_file_name_that_climbs_out_of_the_folder_is_refused(
    hub: StubHub, environment: Environment, bert: Path
) -> None:
    hub.models["org/model"], hub.extra = bert, ["../../evil.json"]
    with pytest.raises(UnsafeModelError, match="holds a file called '../../evil.json', which would be written outside"):
        download(on_hub(), environment)


def test_huggingface_hub_itself_finds_the_same_files_on_this_hub(hub: StubHub, bert: Path) -> None:
    """What the tests serve is what a hub serves."""
    from huggingface_hub import HfApi

    hub.models["org/model"] = bert
    api = HfApi(endpoint=hub.endpoint, token=False)
    assert api.model_info("org/model", revision="main").sha == COMMIT
    listed = api.list_repo_tree("org/model", revision=COMMIT, recursive=True)
    tree = {item.path: item.size for item in listed if hasattr(item, "size")}
    assert tree["model.safetensors"] == (bert / "model.safetensors").stat().st_size


def test_a_forced_download_fetches_again_and_repairs(hub: StubHub, environment: Environment, bert: Path) -> None:
    hub.models["org/model"] = bert
    done = download(on_hub(), environment)
    (Path(done.path) / "model.safetensors").write_bytes(b"other bytes")
    with pytest.raises(
        ModelDigestError, match="model.safetensors' of model 'org/model' .*run `embeddings download-model"
    ):
        resolve(on_hub(), environment)
    assert download(on_hub(), environment, force=True) == done
    assert resolve(on_hub(), environment).fingerprint == done.fingerprint


def test_errors_of_fetching_are_of_our_tree() -> None:
    for kind in (GatedModelError, UnsafeModelError, ModelFetchError, ModelDigestError, ModelNotInStoreError):
        assert issubclass(kind, EmbeddingsError)
