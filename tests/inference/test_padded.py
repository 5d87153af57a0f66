"""Models that cannot take packed texts: they say why, and their vectors are the library's all the same."""

from pathlib import Path

import numpy as np
import pytest

from embeddings_pipeline.inference.encoder import load_encoder
from embeddings_pipeline.inference.selection import _compare
from tests.inference.tiny import WIDTH, WORDS, dense_folder, resolved, texts, tokenizer

MIXED = texts(1, 2, 30, 5, 5, 17, 100)


def check(folder: Path, reason: str) -> None:
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(str(folder), device="cpu", local_files_only=True).encode(MIXED, batch_size=3)
    encoder = load_encoder(resolved(folder), "cpu")
    try:
        assert encoder.path == "padded"
        assert reason in encoder.path_reason
        batch = encoder.embed(MIXED)
    finally:
        encoder.close()
    assert batch.dense is not None
    np.testing.assert_allclose(batch.dense, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("architecture", ["MPNet", "DebertaV2", "T5"])
def test_a_model_without_the_attention_interface_is_padded(tmp_path: Path, architecture: str) -> None:
    """They add their positions inside the attention, where a registered function cannot do it."""
    config = {} if architecture == "T5" else {"max_position_embeddings": 66}
    check(dense_folder(tmp_path, architecture, **config), "does not use the attention interface")


def test_a_module_that_would_be_wrong_in_silence_is_padded(tmp_path: Path) -> None:
    """WordWeights reads the padded mask and would weigh nothing at all in a packed row."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer, WordWeights

    from tests.inference.tiny import transformer_folder

    transformer = Transformer(str(transformer_folder(tmp_path, "Bert")))
    vocabulary = list(tokenizer().get_vocab())
    weights = WordWeights(vocabulary, {word: 1 + number % 5 for number, word in enumerate(WORDS)})
    folder = tmp_path / "weighted"
    SentenceTransformer(modules=[transformer, weights, Pooling(WIDTH)], device="cpu").save(str(folder))
    check(folder, "WordWeights")


def test_a_static_model_leaves_its_tokens_to_the_library(tmp_path: Path) -> None:
    """It has no transformer; its texts are bags of tokens without any limit."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    folder = tmp_path / "static"
    # Two words of the self-test's texts, which are all one to a bag of tokens that knows none of them.
    tokens = tokenizer(words=[*WORDS, "Annual", "keeper"])
    SentenceTransformer(modules=[StaticEmbedding(tokens, embedding_dim=WIDTH)], device="cpu").save(str(folder))
    check(folder, "StaticEmbedding")


def test_the_self_test_sees_a_wrong_vector() -> None:
    """A model that takes packed rows and answers wrongly must not be trusted with them."""
    reference = np.ones((2, 3), np.float32)
    assert _compare(lambda: [reference[:1], reference[1:]], reference) == ""
    assert "differed" in _compare(lambda: [reference * 1.001], reference)
    assert "differed" in _compare(lambda: [reference * np.nan], reference)

    def broken() -> list[np.ndarray]:
        raise TypeError("no such argument")

    assert "TypeError" in _compare(broken, reference)
