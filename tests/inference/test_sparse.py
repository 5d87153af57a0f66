"""Sparse vectors against `SparseEncoder.encode_document`: the same weights in the same places."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddings_pipeline.errors import ConfigurationError
from embeddings_pipeline.inference.encoder import Encoder, load_encoder
from embeddings_pipeline.inference.sparse import ChunkedHead, Pruning, _blocks, sparsify
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.records import EmbedOptions, SparseVectors
from embeddings_pipeline.settings import ModelSpec
from tests.inference.tiny import VOCABULARY, WIDTH, WINDOW, resolved, sparse_folder, texts, transformer_folder

MIXED = texts(1, 2, 3 * WINDOW, 5, 5, 2 * WINDOW + 1, 11, 90)
REAL = ModelSpec(name="splade", source="package:cognition/model")


def to_dense(vectors: SparseVectors, width: int) -> np.ndarray:
    dense = np.zeros((len(vectors.indptr) - 1, width), np.float32)
    rows = np.repeat(np.arange(len(dense)), np.diff(vectors.indptr))
    dense[rows, vectors.indices] = vectors.values
    return dense


def library_vectors(folder: Path, sentences: list[str], **kwargs: Any) -> np.ndarray:
    from sentence_transformers import SparseEncoder

    model = SparseEncoder(str(folder), device="cpu", local_files_only=True)
    return model.encode_document(sentences, batch_size=3, convert_to_sparse_tensor=False, **kwargs).numpy()


def check(encoder: Encoder, expected: np.ndarray, sentences: list[str], atol: float) -> SparseVectors:
    try:
        batch = encoder.embed(sentences, EmbedOptions(model_batch_tokens=60))
    finally:
        encoder.close()
    assert batch.sparse is not None
    assert encoder.dimensions == expected.shape[1]
    dense = to_dense(batch.sparse, encoder.dimensions)
    np.testing.assert_allclose(dense, expected, atol=atol)
    assert ((dense > 0) == (expected > 0)).all()
    return batch.sparse


@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
@pytest.mark.parametrize("strategy", ["max", "sum"])
def test_each_pooling_equals_the_library(tmp_path: Path, strategy: str, activation: str) -> None:
    """Only `max` may be taken before the activation."""
    folder = sparse_folder(tmp_path, "Bert", strategy, activation)
    encoder = load_encoder(resolved(folder), "cpu")
    assert (encoder.kind, encoder.path) == ("sparse", "packed")
    check(encoder, library_vectors(folder, MIXED), MIXED, 1e-5 if strategy == "max" else 1e-4)


@pytest.mark.parametrize("architecture", ["ModernBert", "DistilBert", "XLMRoberta", "Gte", "Electra", "Albert"])
def test_each_vocabulary_head_is_found_and_taken_out(tmp_path: Path, architecture: str) -> None:
    """Every architecture keeps its last layer at another place."""
    folder = sparse_folder(tmp_path, architecture)
    encoder = load_encoder(resolved(folder, max_length=60), "cpu")
    assert encoder.path == "packed", encoder.path_reason
    check(encoder, library_vectors(folder, MIXED[:-1]), MIXED[:-1], 2e-5)


def test_a_padded_model_has_its_head_in_chunks_too(tmp_path: Path) -> None:
    """MPNet cannot be packed; its logits would still be [texts, tokens, vocabulary] (case 40)."""
    folder = sparse_folder(tmp_path, "MPNet")
    encoder = load_encoder(resolved(folder, max_length=60), "cpu")
    assert encoder.path == "padded"
    assert "MPNet" in encoder.path_reason
    check(encoder, library_vectors(folder, MIXED[:-1]), MIXED[:-1], 2e-5)


def test_a_csr_model_goes_the_way_of_the_library(tmp_path: Path) -> None:
    """Its dimensions are no tokens: they have no names, and no special ones to drop."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from sentence_transformers.sparse_encoder.modules import SparseAutoEncoder

    transformer = Transformer(str(transformer_folder(tmp_path, "Bert")))
    folder = tmp_path / "csr"
    coder = SparseAutoEncoder(input_dim=WIDTH, hidden_dim=4 * WIDTH, k=8)
    SparseEncoder(modules=[transformer, Pooling(WIDTH), coder], device="cpu").save(str(folder))
    encoder = load_encoder(resolved(folder), "cpu")
    assert encoder.path == "padded"
    assert set(encoder.token_strings(np.asarray([0, 5], np.int32)).to_pylist()) == {""}
    check(encoder, library_vectors(folder, MIXED), MIXED, 1e-5)
    check(
        load_encoder(resolved(folder, max_active_dims=3), "cpu"),
        library_vectors(folder, MIXED, max_active_dims=3),
        MIXED,
        1e-5,
    )
    with pytest.raises(ConfigurationError, match="special_tokens"):
        load_encoder(resolved(folder, special_tokens="drop"), "cpu")


def test_of_a_router_the_document_side_is_taken(tmp_path: Path) -> None:
    """Models with a static query side (OpenSearch) have their transformer on the document side only."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sentence_transformer.modules import Router, Transformer
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

    transformer = Transformer(str(transformer_folder(tmp_path, "Bert", masked=True)), transformer_task="fill-mask")
    static = SparseStaticEmbedding(transformer.tokenizer, frozen=True)
    router = Router.for_query_document([static], [transformer, SpladePooling("max", "log1p_relu")])
    folder = tmp_path / "router"
    SparseEncoder(modules=[router], device="cpu").save(str(folder))
    encoder = load_encoder(resolved(folder), "cpu")
    assert encoder.path == "packed", encoder.path_reason
    check(encoder, library_vectors(folder, MIXED), MIXED, 1e-5)


@pytest.fixture(scope="module")
def real() -> Any:
    encoder = load_encoder(resolve(REAL), "cpu")
    yield encoder
    encoder.close()


def test_a_real_splade_model_equals_the_library_in_any_batch(real: Encoder) -> None:
    """A bare BertForMaskedLM checkpoint (config.json, no modules.json) is SPLADE with max pooling."""
    sentences = [
        "the cat sat on the mat",
        "",
        "?",
        "quantum " * 700,
        "a longer one about libraries and their books",
    ] * 2
    expected = library_vectors(resolve(REAL).path, sentences)
    for options in (EmbedOptions(), EmbedOptions(model_batch_size=2, workers=1), EmbedOptions(model_batch_tokens=9)):
        batch = real.embed(sentences, options)
        assert batch.sparse is not None
        dense = to_dense(batch.sparse, real.dimensions)
        np.testing.assert_allclose(dense, expected, atol=1e-5)
        assert ((dense > 0) == (expected > 0)).all()


def test_rows_fall_and_only_hold_positive_weights(real: Encoder) -> None:
    """Search engines refuse zero and negative weights (case 49); a stable order makes files comparable."""
    vectors = real.embed(["books about libraries", "?", "the history of Venice"]).sparse
    assert vectors is not None
    for start, end in zip(vectors.indptr, vectors.indptr[1:], strict=False):
        row = list(zip(-vectors.values[start:end], vectors.indices[start:end], strict=True))
        assert row == sorted(row)
        assert all(weight < 0 for weight, _ in row)


def test_pruned_vectors_keep_the_largest_weights(real: Encoder) -> None:
    """`max_active_dims` of the spec is the library's."""
    sentences = ["books about libraries", "the history of Venice"]
    encoder = load_encoder(resolve(REAL.model_copy(update={"max_active_dims": 7})), "cpu")
    expected = library_vectors(resolve(REAL).path, sentences, max_active_dims=7)
    vectors = check(encoder, expected, sentences, 1e-5)
    assert np.diff(vectors.indptr).tolist() == [7, 7]


def test_special_tokens_are_dropped_on_request_only(tmp_path: Path) -> None:
    """The library keeps them, and so do we unless the spec says otherwise."""
    folder = sparse_folder(tmp_path, "Bert")
    expected = library_vectors(folder, MIXED)
    assert (expected[:, :5] > 0).any()
    expected[:, :5] = 0
    check(load_encoder(resolved(folder, special_tokens="drop"), "cpu"), expected, MIXED, 1e-5)


def test_names_of_dimensions_come_from_the_vocabulary(tmp_path: Path) -> None:
    """Ids at or beyond the tokenizer's size exist in padded vocabularies and have no name."""
    folder = sparse_folder(tmp_path, "Bert")
    encoder = load_encoder(resolved(folder), "cpu")
    ids = np.asarray([5, VOCABULARY - 1, 1, 5], np.int32)
    assert encoder.token_strings(ids).to_pylist() == ["w0", "w59", "<pad>", "w0"]
    assert encoder.token_strings(np.empty(0, np.int32)).to_pylist() == []
    encoder.close()


@pytest.mark.parametrize("lengths", [[1], [5_000], [512, 512, 1], [1_500, 700, 700, 40, 40, 3], [513], [7] * 900])
@pytest.mark.parametrize("strategy", ["max", "sum"])
def test_blocks_do_not_change_the_pooling(lengths: list[int], strategy: str) -> None:
    """A text of 8,192 tokens spans several blocks, others share one; each text is pooled exactly once."""
    import torch
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    layer = torch.nn.Linear(4, 2_500)
    pooling = SpladePooling(strategy)
    tokens = torch.randn(sum(lengths), 4)
    with torch.inference_mode():
        pooled = ChunkedHead(layer, pooling)(tokens, lengths)
        boundaries = torch.tensor([0, *np.cumsum(lengths)])
        features = {"token_embeddings": layer(tokens)[None], "cu_seq_lens_q": boundaries}
        expected = pooling(features)["sentence_embedding"]
    torch.testing.assert_close(pooled, expected, atol=1e-4, rtol=1e-5)
    assert max(rows.stop - rows.start for rows, _ in _blocks(lengths)) <= 512


def test_equal_weights_stand_by_index_and_broken_rows_are_empty() -> None:
    """Ties must not depend on the sort; NaN and infinity must not hide behind `> 0`."""
    import torch

    scores = torch.tensor(
        [[0.5, 2.0, 0.5, 0.0, 2.0], [float("nan"), 1, 1, 1, 1], [float("inf"), 0, 0, 0, 0], [0.0] * 5]
    )
    vectors = sparsify(scores.clone(), Pruning(most=3))
    assert isinstance(vectors.values, SparseVectors)
    assert vectors.finite.tolist() == [True, False, False, True]
    assert vectors.values.indptr.tolist() == [0, 3, 3, 3, 3]
    assert vectors.values.indices.tolist() == [1, 4, 0]
    assert vectors.values.values.tolist() == [2.0, 2.0, 0.5]
