"""Run as a process of its own: does a rewritten folder load as transformers' GTE with all its weights and tokens?

What belongs here: the comparison. What does not: the rewriting (`gte`). It prints what is wrong and ends
with 1, or ends with 0.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from embeddings_pipeline.models.folder import read_json

_UNUSED_WEIGHTS = ("pooler.", "inv_freq", "position_ids")
"""Parts of weights' names that no vector of ours needs."""

PROBE = (
    "The lamp stood on the third shelf, 1998.",
    "Überraschend déjà vu: naïve café, ÉCOLE",
    "東京タワー 서울 Москва Αθήνα القاهرة दिल्ली",
    "a-b_c/d (e) [f] {g} #1 50% €3.99 🙂",
    "",
)
"""Texts in several scripts whose tokens are compared."""


def problem(folder: Path) -> str:
    """Return what is wrong with a rewritten folder, or an empty string."""
    return _tokens_problem(folder) or _weights_problem(folder)


def _tokens_problem(folder: Path) -> str:
    from transformers import AutoTokenizer

    own = _own_tokens(folder)
    loaded: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    for text in PROBE:
        if list(own(text)) != list(loaded(text)["input_ids"]):
            return f"the library makes other tokens than the folder's own tokenizer, of {text!r}"
    return ""


def _own_tokens(folder: Path) -> Callable[[str], Sequence[int]]:
    """Return the folder's own way from a text to ids, read from its files without transformers."""
    from tokenizers import BertWordPieceTokenizer, Tokenizer

    if (folder / "tokenizer.json").is_file():
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return lambda text: tokenizer.encode(text).ids
    settings = read_json(folder / "tokenizer_config.json")
    names = {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    }
    options = {ours: settings[theirs] for theirs, ours in names.items() if settings.get(theirs) is not None}
    pieces = BertWordPieceTokenizer(str(folder / "vocab.txt"), **options)
    return lambda text: pieces.encode(text).ids


def _weights_problem(folder: Path) -> str:
    """Load the native model once, and compare names and shapes of all weights."""
    import torch
    import transformers

    names = [name for name in read_json(folder / "config.json")["architectures"] if hasattr(transformers, name)]
    library = getattr(transformers, names[0]) if names else transformers.AutoModel
    _, report = library.from_pretrained(
        str(folder),
        output_loading_info=True,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        dtype=torch.float32,
    )
    for what, words in (
        ("missing_keys", "it lacks weights that GTE has"),
        ("unexpected_keys", "it has weights for which GTE has no place"),
        ("mismatched_keys", "it has weights of other shapes than GTE"),
    ):
        wrong = sorted(str(name) for name in report[what] if not any(part in str(name) for part in _UNUSED_WEIGHTS))
        if wrong:
            return f"{words} ({', '.join(wrong[:3])})"
    return ""


if __name__ == "__main__":
    found = problem(Path(sys.argv[1]))
    sys.stdout.write(found)
    sys.exit(1 if found else 0)
