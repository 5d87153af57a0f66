"""Alibaba's "new" checkpoints as transformers' own GTE, so that no code of theirs is run.

What belongs here: rewriting their config.json, and refusing what the native model would compute
otherwise. What does not: fetching (`fetch`), and comparing weights and tokens afterwards (`gte_check`).

Their `ntk` rope scaling of factor f over base b and head width d is inv_freq[i] = (b·f)^(-2i/d) · f^(-2/d),
which is transformers' `linear` rope with rope_theta = b·f and factor = f^(2/d).
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from embeddings_pipeline.errors import UnsafeModelError
from embeddings_pipeline.models.conversion import CHILD_ENVIRONMENT
from embeddings_pipeline.models.folder import read_json

_DROPPED = {
    *("auto_map", "model_type", "rope_theta", "rope_scaling", "position_embedding_type", "layer_norm_type"),
    *("logn_attention_scale", "logn_attention_clip1", "pack_qkv", "unpad_inputs", "use_memory_efficient_attention"),
    *("_name_or_path", "transformers_version"),
}


def native_config(config: dict[str, Any], model: str) -> dict[str, Any]:
    """Return the config of transformers' GTE that computes the same.

    Raises:
        UnsafeModelError: the native model lacks something that this checkpoint needs; it would load
            without an error and give other vectors.
    """
    scaling = config.get("rope_scaling") or {}
    lacking = {
        "logn_attention_scale": config.get("logn_attention_scale", False) is not False,
        "rope_scaling.mixed_b": scaling.get("mixed_b") is not None,
        "layer_norm_type": config.get("layer_norm_type", "layer_norm") != "layer_norm",
        "position_embedding_type": config.get("position_embedding_type", "rope") != "rope",
        "hidden_act": config.get("hidden_act", "gelu") != "gelu",
        "rope_scaling.type": bool(scaling) and scaling.get("type", scaling.get("rope_type")) != "ntk",
    }
    for name, lacks in lacking.items():
        if lacks:
            value = scaling.get(name.partition(".")[2]) if "." in name else config.get(name)
            raise UnsafeModelError(
                model,
                f"has {name} {value!r} in its config.json, which needs code of Alibaba-NLP/new-impl",
                "code of a model's folder is never run here, and transformers' own GTE lacks it: use another model",
            )
    base = float(config.get("rope_theta", 10_000.0))
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": base}
    if scaling:
        factor = float(scaling["factor"])
        width = config["hidden_size"] // config["num_attention_heads"]
        rope = {"rope_type": "linear", "rope_theta": base * factor, "factor": factor ** (2 / width)}
    kept = {name: value for name, value in config.items() if name not in _DROPPED}
    architectures = [f"Gte{name.removeprefix('New').removeprefix('Gte')}" for name in config.get("architectures") or ()]
    return kept | {"model_type": "gte", "architectures": architectures, "rope_parameters": rope}


def rewrite(folder: Path, model: str) -> None:
    """Rewrite a folder with such a checkpoint in place, and check weights and tokens of what came out.

    Raises:
        UnsafeModelError: the native model lacks something, a weight finds no place in it, or the
            library makes other tokens than the folder's own tokenizer.
    """
    config = native_config(read_json(folder / "config.json"), model)
    settings_file = folder / "tokenizer_config.json"
    settings = read_json(settings_file) if settings_file.is_file() else {}
    config["tokenizer_class"] = settings["tokenizer_class"] = _tokenizer_class(folder, settings, model)
    settings.pop("auto_map", None)
    for file, content in ((folder / "config.json", config), (settings_file, settings)):
        file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _check(folder, model)


def _tokenizer_class(folder: Path, settings: dict[str, Any], model: str) -> str:
    """Return the tokenizer's class, without which AutoTokenizer takes that of another GTE."""
    if stated := settings.get("tokenizer_class"):
        return str(stated)
    file = folder / "tokenizer.json"
    kind = (read_json(file).get("model") or {}).get("type") if file.is_file() else None
    if kind == "WordPiece" or (kind is None and (folder / "vocab.txt").is_file()):
        return "BertTokenizer"
    if kind == "Unigram":
        return "XLMRobertaTokenizer"
    raise UnsafeModelError(
        model,
        f"has a tokenizer of the kind {kind!r} and names no class for it",
        "use a revision that has tokenizer_class",
    )


def _check(folder: Path, model: str) -> None:
    """Compare weights and tokens in a process of its own: loads in one process must not meet (case 29)."""
    command = [sys.executable, "-I", "-m", "embeddings_pipeline.models.gte_check", str(folder)]
    done = subprocess.run(command, env=CHILD_ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    said = done.stdout.strip() or (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
    raise UnsafeModelError(
        model,
        f"does not become transformers' own GTE: {said[:300]}",
        "it would give other vectors here: use another revision",
    )
