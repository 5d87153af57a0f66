"""Tiny models as makers publish them: Alibaba's layout of GTE, pickled weights, code of their own."""

import json
from pathlib import Path
from typing import Any

from tests.inference.tiny import sparse_folder

NTK = {"type": "ntk", "factor": 8.0}
BASE = 500.0

_RENAMED = (
    ("gte.", "new."),
    (".layers.", ".encoder.layer."),
    (".self_attn.", ".attention."),
    ("post_attention_layernorm", "attn_ln"),
    ("post_mlp_layernorm", "mlp_ln"),
    ("lm_head.layer_norm", "lm_head.norm"),
)


def alibaba_folder(root: Path, *, scaling: dict[str, Any] | None = NTK, prefix: bool = True, **config: Any) -> Path:
    """Save a sparse GTE as transformers has it, and beside it the same in Alibaba's layout; return the latter's folder.

    Packed qkv and up_gate weights, `model_type: new`, an auto_map to another repository, and a tokenizer whose class is
    not named.
    """
    import torch
    from safetensors.torch import load_file, save_file

    theta, native = (BASE, None)
    if scaling:
        theta = BASE * scaling["factor"]
        native = {"rope_type": "linear", "rope_theta": theta, "factor": scaling["factor"] ** (2 / 4)}
    original = sparse_folder(root, "Gte", rope_parameters=native or {"rope_type": "default", "rope_theta": BASE})
    tensors = load_file(original / "model.safetensors")
    packed: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if ".k_proj." in name or ".v_proj." in name or ".gate_proj." in name:
            continue
        if ".q_proj." in name:
            tensor = torch.cat([tensors[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")])
            name = name.replace("q_proj", "qkv_proj")
        elif ".up_proj." in name:
            tensor = torch.cat([tensors[name], tensors[name.replace("up_proj", "gate_proj")]])
            name = name.replace("up_proj", "up_gate_proj")
        for old, new in _RENAMED:
            name = name.replace(old, new)
        packed[name if prefix else name.removeprefix("new.")] = tensor.contiguous()
    folder = root / "alibaba"
    folder.mkdir()
    for file in original.rglob("*"):
        if file.is_file():
            (folder / file.relative_to(original)).parent.mkdir(parents=True, exist_ok=True)
            (folder / file.relative_to(original)).write_bytes(file.read_bytes())
    save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
    made = json.loads((original / "config.json").read_text(encoding="utf-8"))
    for gone in ("rope_parameters", "transformers_version", "tokenizer_class"):
        made.pop(gone, None)
    made |= {
        "model_type": "new",
        "architectures": ["NewForMaskedLM"],
        "auto_map": {"AutoConfig": "Alibaba-NLP/new-impl--configuration.NewConfig"},
        "rope_theta": BASE,
        "rope_scaling": scaling,
        "position_embedding_type": "rope",
        "layer_norm_type": "layer_norm",
        "logn_attention_scale": False,
        "logn_attention_clip1": False,
        "pack_qkv": True,
        "unpad_inputs": False,
        "use_memory_efficient_attention": False,
    } | config
    (folder / "config.json").write_text(json.dumps(made), encoding="utf-8")
    return folder


def pickled(folder: Path) -> Path:
    """Rewrite the safetensors of a model as the pickles that they once were, and return its folder."""
    import torch
    from safetensors.torch import load_file

    for file in list(folder.rglob("model.safetensors")):
        torch.save(load_file(file), file.with_name("pytorch_model.bin"))
        file.unlink()
    return folder


def routed_alibaba_folder(root: Path) -> Path:
    """Save a model with a look-up table for queries and a GTE in Alibaba's layout for documents, as OpenSearch's v3."""
    import torch
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sentence_transformer.modules import Router
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding

    alibaba = alibaba_folder(root)
    transformer, pooling = SparseEncoder(str(root / "Gte-sparse"), device="cpu").children()
    queries = SparseStaticEmbedding(tokenizer=transformer.tokenizer, weight=torch.rand(65))
    router = Router.for_query_document(query_modules=[queries], document_modules=[transformer, pooling])
    folder = root / "routed"
    SparseEncoder(modules=[router], device="cpu").save(str(folder))
    for name in ("config.json", "model.safetensors"):
        (folder / "document_0_Transformer" / name).write_bytes((alibaba / name).read_bytes())
    return folder
