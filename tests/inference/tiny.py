"""Models small enough to be built in a second: random weights, every architecture, every pooling.

The weights are larger than a fresh model's, so that a wrong mask, position or window changes a vector
by far more than the tolerance.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embeddings_pipeline.models.store import ResolvedModel, resolve
from embeddings_pipeline.settings import ModelSpec

WORDS = [f"w{number}" for number in range(60)]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
VOCABULARY = len(SPECIAL) + len(WORDS)
WINDOW = 8
POSITIONS = 64
WIDTH = 16


def tokenizer(*, types: bool = False, words: Sequence[str] = WORDS) -> Any:
    """Build a tokenizer of whole words with special tokens around a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {word: number for number, word in enumerate([*SPECIAL, *words])}
    rust = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    rust.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=rust,
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_max_length=POSITIONS,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"]
        if types
        else ["input_ids", "attention_mask"],
    )


def _common(**more: Any) -> dict[str, Any]:
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.5,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "cls_token_id": 0,
        "sep_token_id": 2,
    }
    return sizes | more


def _config(architecture: str) -> Any:
    import transformers

    decoder = {"num_key_value_heads": 2, "head_dim": 4}
    match architecture:
        case "DistilBert":
            sizes = {"dim": WIDTH, "hidden_dim": 32, "n_layers": 3, "n_heads": 4}
            return transformers.DistilBertConfig(**_common(**sizes))
        case "Albert" | "Electra":
            return getattr(transformers, f"{architecture}Config")(**_common(embedding_size=8))
        case "ModernBert":
            layers = {"local_attention": 2 * WINDOW, "global_attn_every_n_layers": 3, "initializer_cutoff_factor": 2.0}
            return transformers.ModernBertConfig(**_common(**layers))
        case "Gemma3Text":
            layers = {"sliding_window": WINDOW, "query_pre_attn_scalar": 4}
            kinds = ["sliding_attention", "full_attention", "sliding_attention"]
            return transformers.Gemma3TextConfig(
                **_common(**decoder, **layers, layer_types=kinds, use_bidirectional_attention=True)
            )
        case "Qwen3" | "EuroBert":
            return getattr(transformers, f"{architecture}Config")(**_common(**decoder))
        case "Qwen3Window":
            kinds = ["sliding_attention", "full_attention", "sliding_attention"]
            layers = {"sliding_window": WINDOW, "use_sliding_window": True, "layer_types": kinds}
            return transformers.Qwen3Config(**_common(**decoder, **layers))
        case "T5":
            sizes = {"d_model": WIDTH, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4}
            return transformers.T5Config(vocab_size=VOCABULARY, pad_token_id=1, eos_token_id=2, **sizes)
        case _:
            return getattr(transformers, f"{architecture}Config")(**_common())


def transformer_folder(root: Path, architecture: str, *, masked: bool = False, **config: Any) -> Path:
    """Save a random transformer and its tokenizer and return their folder; `masked` gives it a vocabulary head."""
    import torch
    import transformers

    folder = root / f"{architecture}-transformer"
    torch.manual_seed(11)
    made = _config(architecture)
    for name, value in config.items():
        setattr(made, name, value)
    auto = transformers.AutoModelForMaskedLM if masked else transformers.AutoModel
    model = auto.from_config(made, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    tokenizer(types=architecture in ("Bert", "Electra", "Albert")).save_pretrained(folder)
    return folder


def dense_folder(
    root: Path, architecture: str = "Bert", modes: Sequence[str] = ("mean",), last: Sequence[Any] = (), **config: Any
) -> Path:
    """Save a `SentenceTransformer` of a random transformer, a pooling and what comes after it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    transformer = Transformer(str(transformer_folder(root, architecture, **config)))
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode=tuple(modes))
    folder = root / f"{architecture}-dense"
    SentenceTransformer(modules=[transformer, pooling, *last], device="cpu").save(str(folder))
    return folder


def sparse_folder(
    root: Path, architecture: str = "Bert", strategy: str = "max", activation: str = "relu", **config: Any
) -> Path:
    """Save a `SparseEncoder` of a random masked language model with SPLADE pooling."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sentence_transformer.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    transformer = Transformer(
        str(transformer_folder(root, architecture, masked=True, **config)), transformer_task="fill-mask"
    )
    pooling = SpladePooling(pooling_strategy=strategy, activation_function=activation)
    folder = root / f"{architecture}-sparse"
    SparseEncoder(modules=[transformer, pooling], device="cpu").save(str(folder))
    return folder


def resolved(folder: Path, **spec: Any) -> ResolvedModel:
    """Resolve a folder as a corpus would name it."""
    return resolve(ModelSpec(name=folder.name, source=str(folder), **spec))


def texts(*lengths: int, seed: int = 3) -> list[str]:
    """Return texts of so many words each."""
    import random

    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS, k=length)) for length in lengths]
