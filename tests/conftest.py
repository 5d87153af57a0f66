"""What all tests share: models small enough to build in a second, so that no test needs a network."""

import json
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

TINY_DIMENSIONS = 16
TINY_MAX_LENGTH = 32


@pytest.fixture(scope="session", autouse=True)
def models_in_process() -> Iterator[None]:
    """Let no test start a model host by itself, however DAGSTER_HOME is set; those of the host say so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMBEDDINGS_MODEL_CACHE", "in_process")
        yield


@pytest.fixture(scope="session")
def tiny_dense_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a random BERT `SentenceTransformer` (16 dimensions, 32 tokens) and return its folder."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    root = tmp_path_factory.mktemp("tiny-dense")
    bert = root / "bert"
    bert.mkdir()
    letters = string.ascii_lowercase + string.digits + ".,:;!?\"'-[]{}()"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{sign}" for sign in letters)]
    (bert / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=TINY_DIMENSIONS,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertModel(config).eval().save_pretrained(bert)
    BertTokenizerFast(str(bert / "vocab.txt"), model_max_length=64).save_pretrained(bert)
    transformer = Transformer(str(bert), max_seq_length=TINY_MAX_LENGTH)
    model = SentenceTransformer(modules=[transformer, Pooling(TINY_DIMENSIONS, "mean"), Normalize()], device="cpu")
    folder = root / "model"
    model.save(str(folder))
    assert json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    return folder
