"""Packed texts against the library's own padded result, for every architecture that is named as supported."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from embeddings_pipeline.inference.encoder import load_encoder
from embeddings_pipeline.inference.packed import packed_attention, segments_of
from embeddings_pipeline.records import EmbedOptions
from tests.inference.tiny import POSITIONS, WINDOW, dense_folder, resolved, texts

ARCHITECTURES = (
    "Bert",
    "Roberta",
    "XLMRoberta",
    "Camembert",
    "Electra",
    "Albert",
    "DistilBert",
    "NomicBert",
    "Gte",
    "JinaEmbeddingsV3",
    "ModernBert",
    "EuroBert",
    "Gemma3Text",
    "Qwen3",
    "Qwen3Window",
)
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
LIMIT = POSITIONS - 2
MIXED = texts(1, 2, 3 * WINDOW, 5, 5, 5, 2 * WINDOW + 1, 11, POSITIONS + 20, WINDOW, 1)


def library_vectors(folder: Path, sentences: list[str]) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    model.max_seq_length = LIMIT
    return model.encode(sentences, batch_size=4, show_progress_bar=False)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_packed_equals_padded(tmp_path: Path, architecture: str) -> None:
    """Each has its own windows, causality, grouped keys or position offset, and each would be wrong in silence."""
    folder = dense_folder(tmp_path, architecture, POOLINGS)
    expected = library_vectors(folder, MIXED)
    encoder = load_encoder(resolved(folder, max_length=LIMIT), "cpu")
    try:
        assert (encoder.path, encoder.path_reason) == ("packed", "")
        batch = encoder.embed(MIXED, EmbedOptions(model_batch_tokens=40))
    finally:
        encoder.close()
    assert batch.dense is not None
    np.testing.assert_allclose(batch.dense, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 8, 300])
@pytest.mark.parametrize("heads", [4, 2])
def test_attention_of_long_texts_equals_one_with_a_whole_mask(causal: bool, window: int | None, heads: int) -> None:
    """Windows are computed in blocks, so that 8,192 tokens need no mask of [8192, 8192]."""
    import torch

    lengths = [700, 513, 513, 256, 9, 9, 1]
    torch.manual_seed(1)
    query, key, value = (torch.randn(1, count, sum(lengths), 6) for count in (4, heads, heads))
    segments = segments_of(lengths, query.device)
    layer = SimpleNamespace(is_causal=causal)
    found, _ = packed_attention(
        layer, query, key, value, None, packed_segments=segments, scaling=0.3, sliding_window=window
    )
    text = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    distance = torch.arange(len(text))[:, None] - torch.arange(len(text))
    mask = text[:, None] == text
    if window is not None:
        mask &= distance.abs() < window
    if causal:
        mask &= distance >= 0
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=0.3, enable_gqa=True
    ).transpose(1, 2)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
