"""Alibaba's checkpoints as transformers' own GTE: the same numbers, or a refusal."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddings_pipeline.errors import UnsafeModelError
from embeddings_pipeline.models.folder import is_alibaba
from embeddings_pipeline.models.gte import native_config, rewrite
from embeddings_pipeline.models.gte_check import PROBE, problem
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.settings import ModelSpec
from tests.models.checkpoints import NTK, alibaba_folder

CONFIG = {
    "model_type": "new",
    "architectures": ["NewModel"],
    "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
    "hidden_size": 768,
    "num_attention_heads": 12,
    "hidden_act": "gelu",
    "rope_theta": 160_000,
    "rope_scaling": {"type": "ntk", "factor": 2.0},
    "position_embedding_type": "rope",
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "type_vocab_size": 0,
}


@pytest.mark.parametrize(("base", "factor"), [(160_000, 2.0), (500_000, 8.0), (10_000, None)])
def test_the_rope_of_the_native_model_has_their_frequencies(base: float, factor: float | None) -> None:
    """Their code: inv_freq[i] = (b·f)^(-2i/d) · f^(-2/d); without scaling b^(-2i/d)."""
    from transformers import GteConfig
    from transformers.models.gte.modeling_gte import GteRotaryEmbedding

    scaling = None if factor is None else {"type": "ntk", "factor": factor}
    made = native_config(CONFIG | {"rope_theta": base, "rope_scaling": scaling}, "m")
    rope = GteRotaryEmbedding(GteConfig(**made))
    width, f = 64, factor or 1.0
    theirs = (base * f) ** (-np.arange(0, width, 2) / width) * f ** (-2 / width)
    np.testing.assert_allclose(rope.inv_freq.numpy(), theirs, rtol=1e-6)
    assert rope.attention_scaling == 1.0


@pytest.mark.parametrize("like", [{}, {"model_type": "gte", "architectures": ["GteModel"]}])
def test_what_belongs_to_their_code_is_gone_and_the_rest_stays(like: dict[str, Any]) -> None:
    """Snowflake's copy of that code calls itself gte already."""
    assert is_alibaba(CONFIG | like)
    made = native_config(CONFIG | like, "m")
    assert not is_alibaba(made)
    assert made["model_type"] == "gte"
    assert made["architectures"] == ["GteModel"]
    assert made["type_vocab_size"] == 0
    assert not {"auto_map", "rope_theta", "rope_scaling", "layer_norm_type"} & set(made)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"logn_attention_scale": True}, "logn_attention_scale True"),
        ({"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.5}}, "rope_scaling.mixed_b 0.5"),
        ({"layer_norm_type": "rms_norm"}, "layer_norm_type 'rms_norm'"),
        ({"position_embedding_type": "absolute"}, "position_embedding_type 'absolute'"),
        ({"hidden_act": "silu"}, "hidden_act 'silu'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.type 'dynamic'"),
    ],
)
def test_what_the_native_model_lacks_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    """It would load without an error or a missing weight, and give other vectors."""
    with pytest.raises(UnsafeModelError, match=f"model 'm' has {named} in its config.json.*use another model"):
        native_config(CONFIG | change, "m")


@pytest.mark.parametrize(
    "case",
    ["as published", *(pytest.param(case, marks=pytest.mark.slow) for case in ("no prefix", "no scaling"))],
)
def test_a_rewritten_checkpoint_loads_with_all_its_weights_and_tokens(tmp_path: Path, case: str) -> None:
    folder = alibaba_folder(tmp_path, prefix=case != "no prefix", scaling=None if case == "no scaling" else NTK)
    original = _logits(tmp_path / "Gte-sparse")
    rewrite_here(folder)
    assert problem(folder) == ""
    np.testing.assert_allclose(_logits(folder), original, atol=1e-5)


def rewrite_here(folder: Path) -> None:
    """Rewrite without the second process, whose start would be most of the time."""
    config = native_config(json.loads((folder / "config.json").read_text(encoding="utf-8")), "m")
    (folder / "config.json").write_text(json.dumps(config | {"tokenizer_class": "TokenizersBackend"}), encoding="utf-8")


def _logits(folder: Path) -> np.ndarray:
    import torch
    from transformers import AutoModelForMaskedLM

    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.arange(5, 50)[None]).logits.numpy()


def test_a_weight_that_finds_no_place_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = alibaba_folder(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["new.encoder.layer.0.strange.weight"] = tensors["lm_head.decoder.bias"].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    rewrite_here(folder)
    assert "it has weights for which GTE has no place (" in problem(folder)
    del tensors["new.encoder.layer.0.strange.weight"], tensors["lm_head.dense.bias"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert problem(folder) == "it lacks weights that GTE has (lm_head.dense.bias)"


def test_a_tokenizer_of_which_the_library_makes_other_ids_is_refused(tmp_path: Path) -> None:
    """With the class of another GTE and only a vocab.txt, transformers would make every id unknown in silence."""
    folder = alibaba_folder(tmp_path)
    rewrite_here(folder)
    (folder / "tokenizer.json").unlink()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PROBE[0].lower().split(), "lamp", "##s", "a", "b"]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(words)) + "\n", encoding="utf-8")
    settings = {"tokenizer_class": "XLMRobertaTokenizer", "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    found = _problem_or_error(folder)
    assert "the library makes other tokens than the folder's own tokenizer, of 'The lamp" in found or "vocab" in found
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": "BertTokenizer"}), "utf-8")
    assert problem(folder) == ""


def _problem_or_error(folder: Path) -> str:
    try:
        return problem(folder)
    except (OSError, ValueError, TypeError) as error:
        return str(error)


@pytest.mark.slow
def test_the_rewriting_checks_in_a_process_of_its_own_and_says_what_is_wrong(tmp_path: Path) -> None:
    folder = alibaba_folder(tmp_path)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings.pop("tokenizer_class")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(UnsafeModelError, match="has a tokenizer of the kind 'WordLevel' and names no class for it"):
        rewrite(Path(shutil.copytree(folder, tmp_path / "one")), "m")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | {"intermediate_size": 24}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    settings["tokenizer_class"] = "TokenizersBackend"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(
        UnsafeModelError, match="model 'm' does not become transformers' own GTE: .*use another revision"
    ):
        rewrite(folder, "m")


def test_a_folder_in_their_layout_is_refused_where_it_lies(gte: Path) -> None:
    with pytest.raises(
        UnsafeModelError,
        match=rf"is in config.json a checkpoint for code of Alibaba-NLP/new-impl, which is not run; run `embeddings "
        rf"download-model --model m --source {gte} --to FOLDER`",
    ):
        resolve(ModelSpec(name="m", source=str(gte)))
