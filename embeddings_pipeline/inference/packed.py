"""The forward pass without padding: the texts of a model batch stand one after the other in one row.

What belongs here: the attention that keeps the texts of such a row apart, registered with
transformers under one name, and the forward pass around it. What does not: copies of model code (the
models stay the library's) and the decision whether a model may take this path (`selection`).
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddings_pipeline.inference.forward import (
    Features,
    Vectors,
    applied_modules,
    dense_vectors,
    position_offset,
)
from embeddings_pipeline.inference.linear import onednn_product, rounded_up
from embeddings_pipeline.inference.tokens import Ids

if TYPE_CHECKING:
    import torch

ATTENTION = "embeddings_packed"
"""The name under which the attention and the (absent) mask are registered."""

SEGMENTS = "embeddings_packed_segments"
"""The same without torch's varlen attention, so that `benchmarks/gpu.sh` can compare the two."""


_LEAST_BLOCK = 256
"""Queries that a windowed attention takes at a time, at least: with fewer the calls would cost more than they save."""


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring texts of equal length, which one attention call serves: tokens `[start, end)`."""

    start: int
    end: int
    texts: int
    length: int


@dataclass(frozen=True, slots=True)
class Segments:
    """Where the texts of a packed row lie.

    *Shape:* boundaries int32[texts + 1].
    """

    groups: tuple[Group, ...]
    boundaries: "torch.Tensor"
    longest: int


def segments_of(lengths: Sequence[int], device: "torch.device") -> Segments:
    """Describe a packed row of texts with these lengths."""
    import torch

    groups: list[Group] = []
    start = 0
    for length, run in itertools.groupby(lengths):
        texts = sum(1 for _ in run)
        groups.append(Group(start, start + texts * length, texts, length))
        start += texts * length
    boundaries = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    return Segments(tuple(groups), torch.from_numpy(boundaries).to(device), max(lengths))


@functools.cache
def register() -> None:
    """Make the packed attention known to transformers; once per process."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    for name, attention in (
        (ATTENTION, packed_attention),
        (SEGMENTS, functools.partial(packed_attention, use_varlen=False)),
    ):
        AttentionInterface.register(name, attention)
        AttentionMaskInterface.register(name, _no_mask)


def _no_mask(*_: Any, **__: Any) -> None:
    """Build no mask: the segments say which tokens belong together."""


def packed_attention(
    module: Any,
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    attention_mask: "torch.Tensor | None",  # noqa: ARG001 (the interface's; `_no_mask` makes it None)
    *,
    packed_segments: Segments,
    scaling: float | None = None,
    sliding_window: int | None = None,
    use_varlen: bool = True,
    **_: Any,
) -> "tuple[torch.Tensor, None]":
    """Attend within each text of a packed row, as transformers' attention functions do for padded rows.

    Causal heads, sliding windows (a token sees those less than `sliding_window` away) and fewer key
    heads than query heads are honoured.

    *Shape:* query float[1, heads, tokens, head]; key, value float[1, key heads, tokens, head]; result
    float[1, tokens, heads, head].
    """
    causal = bool(getattr(module, "is_causal", False))
    window = sliding_window if sliding_window and packed_segments.longest > sliding_window else None
    if use_varlen and query.is_cuda and (varlen := _varlen(query.dtype)) is not None:
        reach = -1 if window is None else window - 1
        joined = varlen(
            *(tensor[0].transpose(0, 1) for tensor in (query, key, value)),
            *(packed_segments.boundaries, packed_segments.boundaries),
            *(packed_segments.longest, packed_segments.longest),
            scale=scaling,
            window_size=(reach, 0 if causal else reach),
            enable_gqa=key.shape[1] != query.shape[1],
        )
        return joined[None], None
    result = query.new_empty(1, query.shape[2], query.shape[1], value.shape[-1])
    # The row may be longer than its texts (`PackedBody`); nobody reads what becomes of the rest.
    result[0, packed_segments.groups[-1].end :].zero_()
    for group in packed_segments.groups:
        part = _attend(group, query, key, value, causal=causal, window=window, scaling=scaling)
        result[0, group.start : group.end].view(group.texts, group.length, query.shape[1], -1).copy_(part)
    return result, None


def _attend(
    group: Group,
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    *,
    causal: bool,
    window: int | None,
    scaling: float | None,
) -> "torch.Tensor":
    """Attend in one group of equally long texts; *Shape:* float[texts, length, heads, head]."""
    import torch

    query, key, value = (
        tensor[0, :, group.start : group.end].unflatten(1, (group.texts, group.length)).transpose(0, 1)
        for tensor in (query, key, value)
    )
    grouped = key.shape[1] != query.shape[1]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    if window is None or group.length <= window:
        return sdpa(query, key, value, is_causal=causal, scale=scaling, enable_gqa=grouped).transpose(1, 2)
    parts: list[torch.Tensor] = []
    for first in range(0, group.length, block := max(_LEAST_BLOCK, window)):
        last = min(first + block, group.length)
        # Only the keys that some query of the block can see: neither time nor a mask of [length, length].
        near = slice(max(0, first - window + 1), last if causal else min(group.length, last + window - 1))
        queries = torch.arange(first, last, device=query.device)[:, None]
        distance = queries - torch.arange(near.start, near.stop, device=query.device)
        mask = (distance < window) & (distance >= 0 if causal else distance > -window)
        seen = (query[:, :, first:last], key[:, :, near], value[:, :, near])
        parts.append(sdpa(*seen, attn_mask=mask, scale=scaling, enable_gqa=grouped))
    return torch.cat(parts, dim=2).transpose(1, 2)


@functools.cache
def _varlen(dtype: "torch.dtype") -> Any:
    """Return torch's attention over segments where it exists for this type of number, else None."""
    import torch

    if dtype not in (torch.float16, torch.bfloat16):
        return None
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn


class PackedBody:
    """The transformer of a loaded model, run on packed rows."""

    def __init__(self, library: Any, task: str | None) -> None:
        """Wrap a model whose attention has been set to `ATTENTION`."""
        self._library = library
        self._transformer, *self.rest = applied_modules(library, task)
        self._offset = position_offset(self._transformer.model)
        self._types = "token_type_ids" in self._transformer.tokenizer.model_input_names

    def __call__(self, ids: Sequence[Ids]) -> tuple[Features, Segments]:
        """Return the features after the transformer; the later modules find the texts by `cu_seq_lens_q`.

        *Shape:* token_embeddings float[1, tokens, width].
        """
        import torch

        device = self._library.device
        lengths = [len(row) for row in ids]
        tokens = sum(lengths)
        # Tokens of no text fill the row up, where the linear layers want it (`linear.ROWS`).
        filling = rounded_up(tokens) - tokens if device.type == "cpu" and onednn_product() is not None else 0
        segments = segments_of(lengths, device)
        positions = np.concatenate([*(np.arange(n) for n in lengths), np.zeros(filling, np.int64)])
        features: Features = {
            "input_ids": torch.from_numpy(np.concatenate([*ids, np.repeat(ids[0][:1], filling)])[None]).to(device),
            "position_ids": torch.from_numpy(positions[None] + self._offset).to(device),
            "packed_segments": segments,
            "modality": "text",
        }
        if self._types:
            features["token_type_ids"] = torch.zeros_like(features["input_ids"])
        features = self._transformer(features)
        features["token_embeddings"] = features["token_embeddings"][:, :tokens]
        features["cu_seq_lens_q"] = segments.boundaries
        return features, segments


class PackedForward:
    """A dense model on packed rows, finished by the library's own pooling and later modules."""

    padded = False
    sparse = False

    def __init__(self, library: Any, task: str | None) -> None:
        """Wrap a model whose attention has been set to `ATTENTION`."""
        self._body = PackedBody(library, task)

    def __call__(self, texts: Sequence[str], ids: Sequence[Ids]) -> Vectors:  # noqa: ARG002 (the protocol's)
        """Compute dense vectors; see `Forward`."""
        import torch

        with torch.inference_mode():
            features, _ = self._body(ids)
            for module in self._body.rest:
                features = module(features)
            return dense_vectors(features["sentence_embedding"])
