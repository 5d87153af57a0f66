"""Encoders from folders: the library's vectors, whatever the options, and refusals that say what is right."""

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddings_pipeline.errors import ConfigurationError, DeviceUnavailableError, ModelLoadError
from embeddings_pipeline.inference.device import cuda_devices, usable_cores
from embeddings_pipeline.inference.encoder import Encoder, load_encoder
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.records import EmbedOptions, Reason
from embeddings_pipeline.settings import ModelSpec
from tests.inference.tiny import POSITIONS, WIDTH, dense_folder, resolved, sparse_folder, texts, transformer_folder

MINILM = ModelSpec(name="sentence-transformers/all-MiniLM-L6-v2")
SENTENCES = [
    "the cat sat on the mat",
    "",
    "x" * 3_000,
    "library " * 300,
    "Grüße aus 東京 😀",
    "one [SEP] two",
    "the cat sat on the mat",
]


@pytest.fixture(scope="module")
def minilm() -> Any:
    encoder = load_encoder(resolve(MINILM), "cpu")
    yield encoder
    encoder.close()


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(resolve(MINILM).path), device="cpu", local_files_only=True).encode(SENTENCES)


def test_minilm_equals_the_library(minilm: Encoder, expected: np.ndarray) -> None:
    assert (minilm.path, minilm.kind, minilm.dimensions, minilm.max_length) == ("packed", "dense", 384, 256)
    batch = minilm.embed(SENTENCES)
    assert batch.dense is not None
    assert batch.dense.dtype == np.float32
    np.testing.assert_allclose(batch.dense, expected, atol=1e-5)
    assert batch.token_count.tolist()[1:4] == [2, 3, 302]
    assert batch.truncated.tolist() == [False, False, False, True, False, False, False]
    assert batch.token_count_exact.all()


def test_vectors_do_not_depend_on_order_workers_or_budgets(minilm: Encoder) -> None:
    """A vector that changed with its neighbours would change with every retry."""
    first = minilm.embed(SENTENCES).dense
    assert first is not None
    for options in (EmbedOptions(1, 0, 1), EmbedOptions(64, 64, 2), EmbedOptions(64, 9_999, 3)):
        batch = minilm.embed(SENTENCES[::-1], options)
        assert batch.dense is not None
        np.testing.assert_allclose(batch.dense[::-1], first, atol=1e-6)


def test_sixteen_threads_get_their_own_vectors(minilm: Encoder) -> None:
    """Case 37, with a real tokenizer and model."""
    alone = {number: minilm.embed([f"text {number}", "shared"]).dense for number in range(16)}
    wrong: list[int] = []

    def call(number: int) -> None:
        found = minilm.embed([f"text {number}", "shared"]).dense
        if found is None or not np.allclose(found, alone[number], atol=1e-6):
            wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_lone_surrogate_fails_alone(minilm: Encoder) -> None:
    """Case 1: its neighbours equal their vectors without it."""
    batch = minilm.embed(["fine", "ok\ud800bad", "good"])
    assert [(failure.row, failure.reason) for failure in batch.failures] == [(1, Reason.LONE_SURROGATE)]
    assert batch.dense is not None
    np.testing.assert_allclose(batch.dense[[0, 2]], minilm.embed(["fine", "good"]).dense, atol=1e-6)
    assert not batch.dense[1].any()


def test_no_text_at_all_is_an_empty_batch(minilm: Encoder) -> None:
    batch = minilm.embed([])
    assert len(batch) == 0
    assert batch.dense is not None
    assert batch.dense.shape == (0, 384)


def test_numbers_of_workers_and_tokens_are_told(minilm: Encoder) -> None:
    assert minilm.workers(EmbedOptions(workers=5)) == 5
    assert minilm.workers(EmbedOptions()) in (usable_cores(), 1)
    assert minilm.model_batch_tokens(EmbedOptions()) == 1_024
    assert minilm.model_batch_tokens(EmbedOptions(model_batch_tokens=77)) == 77
    assert minilm.bytes > 90_000_000


def test_thread_variables_of_the_environment_win() -> None:
    """A user who set OMP_NUM_THREADS has said how many threads one parallel region gets."""
    code = """if True:
        import torch
        from embeddings_pipeline.inference.encoder import _threads_per_worker
        from embeddings_pipeline.settings import Environment
        print(_threads_per_worker(Environment.read()))
    """
    for value, threads in (("3", "3"), ("2,1", "2"), ("nonsense", "1")):
        environment = {"OMP_NUM_THREADS": value, "PATH": ""}
        done = subprocess.run(
            [sys.executable, "-c", code.replace("import torch\n", "\n")],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == threads


def test_each_worker_computes_with_one_torch_thread_and_leaves_others_alone(tmp_path: Path) -> None:
    """Torch's number is kept per thread; two workers with two threads each would oversubscribe two cores."""
    import torch

    encoder = load_encoder(resolved(dense_folder(tmp_path)), "cpu")
    seen: set[int] = set()
    forward = encoder._engine._forward  # type: ignore[attr-defined]
    forward._body._transformer.register_forward_pre_hook(lambda *_: seen.add(torch.get_num_threads()))
    before = torch.get_num_threads()
    encoder.embed(texts(*range(1, 30)), EmbedOptions(model_batch_size=2, workers=2))
    encoder.close()
    assert seen == {1}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"dimensions": 17}, r"model.dimensions is 17, but .* has 16"),
        ({"kind": "sparse"}, r"model.kind is 'sparse', .* dense model"),
        ({"max_length": POSITIONS + 1}, rf"model.max_length is {POSITIONS + 1}, but .* has {POSITIONS} positions"),
    ],
)
def test_a_spec_that_disagrees_with_the_model_is_refused(tmp_path: Path, spec: dict[str, Any], message: str) -> None:
    """Each would otherwise give vectors that nobody asked for: an untrained head, an index out of range."""
    with pytest.raises(ConfigurationError, match=message):
        load_encoder(resolved(dense_folder(tmp_path), **spec), "cpu")


def test_positions_of_roberta_start_later(tmp_path: Path) -> None:
    """Its limit is smaller than max_position_embeddings; at 64 the library itself would fail."""
    folder = dense_folder(tmp_path, "Roberta")
    with pytest.raises(ConfigurationError, match=r"has 62 positions"):
        load_encoder(resolved(folder, max_length=63), "cpu")
    encoder = load_encoder(resolved(folder), "cpu")
    assert encoder.max_length == POSITIONS - 2
    assert encoder.embed(texts(200)).truncated.tolist() == [True]
    encoder.close()


def test_a_sparse_model_is_not_loaded_as_a_dense_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"model.kind is 'dense', .* sparse model"):
        load_encoder(resolved(sparse_folder(tmp_path, "Bert"), kind="dense"), "cpu")


def test_a_broken_folder_says_what_is_wrong(tmp_path: Path) -> None:
    folder = dense_folder(tmp_path)
    (folder / "model.safetensors").write_bytes(b"no weights at all")
    with pytest.raises(ModelLoadError, match=r"check the files in"):
        load_encoder(resolved(folder), "cpu")


@pytest.mark.parametrize(
    ("kind", "lost"), [("sparse", "cls.predictions.transform.dense"), ("dense", "layer.1.output.dense")]
)
def test_weights_that_are_missing_are_not_made_up(tmp_path: Path, kind: str, lost: str) -> None:
    """The library fills them with random numbers and says so in a log line that nobody reads."""
    from safetensors.torch import load_file, save_file

    folder = transformer_folder(tmp_path, "Bert", masked=True)
    weights = {name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if lost not in name}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"its files lack .* weights"):
        load_encoder(resolved(folder, kind=kind), "cpu")


def test_code_in_a_model_folder_is_not_run(tmp_path: Path) -> None:
    """A folder may name remote code; nothing of it is trusted."""
    folder = dense_folder(tmp_path)
    (folder / "evil.py").write_text("raise SystemExit('ran')", encoding="utf-8")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelLoadError):
        load_encoder(resolved(folder), "cpu")


def test_half_precision_checkpoints_are_loaded_in_float32(tmp_path: Path) -> None:
    """float16 is 5 to 100 times slower on a CPU, whatever the checkpoint says."""
    from safetensors.torch import load_file, save_file

    folder = dense_folder(tmp_path)
    weights = {name: tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | {"dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    encoder = load_encoder(resolved(folder), "cpu")
    assert encoder.bytes >= sum(4 * tensor.nelement() for tensor in weights.values())
    assert not encoder.embed(texts(3)).failures
    encoder.close()


def test_the_prompt_of_the_model_is_that_of_encode(tmp_path: Path) -> None:
    """The library's `encode` puts the default prompt before texts, so we do."""
    from sentence_transformers import SentenceTransformer

    folder = dense_folder(tmp_path)
    file = folder / "config_sentence_transformers.json"
    config = json.loads(file.read_text(encoding="utf-8")) | {"prompts": {"p": "w7 w8 "}, "default_prompt_name": "p"}
    file.write_text(json.dumps(config), encoding="utf-8")
    sentences = texts(1, 5, 90)
    wanted = SentenceTransformer(str(folder), device="cpu", local_files_only=True).encode(sentences)
    encoder = load_encoder(resolved(folder), "cpu")
    batch = encoder.embed(sentences)
    encoder.close()
    assert batch.dense is not None
    np.testing.assert_allclose(batch.dense, wanted, atol=2e-5 * np.abs(wanted).max())
    assert batch.token_count.tolist() == [5, 9, 94]


def test_a_bare_transformer_is_pooled_as_the_library_pools_it(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = transformer_folder(tmp_path, "Bert")
    sentences = texts(1, 5, 30)
    encoder = load_encoder(resolved(folder), "cpu")
    batch = encoder.embed(sentences)
    encoder.close()
    assert batch.dense is not None
    assert batch.dense.shape == (3, WIDTH)
    wanted = SentenceTransformer(str(folder), device="cpu", local_files_only=True).encode(sentences)
    np.testing.assert_allclose(batch.dense, wanted, atol=2e-5 * np.abs(wanted).max())


def test_loading_is_silent_and_opens_no_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Cases 42, 43 and 51: an air-gapped host works, the hub is asked nothing, the log has no bars."""
    folder = dense_folder(tmp_path)
    capfd.readouterr()

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    encoder = load_encoder(resolved(folder), "cpu")
    encoder.embed(texts(3, 4))
    encoder.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(cuda_devices().count > 0, reason="this machine has CUDA")
def test_cuda_without_a_device_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    """Case 45: nothing falls back to the CPU."""
    with pytest.raises(DeviceUnavailableError, match="CUDA"):
        load_encoder(resolve(MINILM), "cuda")
