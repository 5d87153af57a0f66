"""What the options of a model spec do to a loaded model and to its vectors.

What belongs here: prompt, dtype, normalising, truncating, rounding and sparse pruning, each checked
against the loaded model. What does not: the options themselves (`settings.model`), and the maximum
length, which is the tokenizer's (`loading`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embeddings_pipeline.errors import ConfigurationError
from embeddings_pipeline.inference.forward import Forward, Vectors, applied_modules, first_module
from embeddings_pipeline.inference.sparse import Pruning
from embeddings_pipeline.inference.tokens import Ids
from embeddings_pipeline.models.store import ResolvedModel
from embeddings_pipeline.records import FloatMatrix, SparseVectors
from embeddings_pipeline.settings import ModelSpec


def check_dtype(spec: ModelSpec, device: str) -> None:
    """Refuse half precision where it is 5 to 100 times slower than float32.

    Raises:
        ConfigurationError: the spec's dtype is not for that device.
    """
    if spec.dtype != "float32" and device.partition(":")[0] == "cpu":
        raise ConfigurationError(
            f"model.dtype of '{spec.name}' is {spec.dtype}, which a CPU computes 5 to 100 times slower than float32; "
            "remove the field (precision: float16 stores half as much), or run it with execution: {config: {cuda: {}}}"
        )


def prompt_of(model: ResolvedModel, library: Any) -> str:
    """Return what is put before every text: the spec's prompt, the named one, or the library's own.

    The library's own is what its `encode` (sparse: `encode_document`) puts there.

    Raises:
        ConfigurationError: the model has no prompt of that name.
    """
    spec, prompts = model.spec, library.prompts
    if spec.prompt is not None:
        return spec.prompt
    if spec.prompt_name is not None:
        if spec.prompt_name not in prompts:
            there = ", ".join(sorted(prompts)) or "none"
            raise ConfigurationError(
                f"model.prompt_name is '{spec.prompt_name}', but the prompts of '{model.name}' are: {there}; name one "
                "of these, or give the text itself as prompt"
            )
        return prompts[spec.prompt_name] or ""
    name = library.default_prompt_name
    if type(library).__name__ == "SparseEncoder":
        name = next((candidate for candidate in ("document", "passage", "corpus") if candidate in prompts), name)
    return prompts.get(name) or "" if name is not None else ""


def leave_out_normalize(model: ResolvedModel, library: Any) -> None:
    """Take the model's own scaling to length 1 away, where the spec says `normalize: false`."""
    if model.spec.normalize is not False:
        return
    for parent in list(library.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "Normalize" and type(child).__module__.startswith("sentence_transformers."):
                del parent._modules[name]


def dimensions_are_tokens(library: Any, task: str | None) -> bool:
    """Tell whether a sparse dimension is a token of the vocabulary."""
    return type(applied_modules(library, task)[-1]).__name__ in ("SpladePooling", "SparseStaticEmbedding")


def pruning_of(model: ResolvedModel, library: Any, task: str | None) -> Pruning | None:
    """Return what is left out of a sparse vector, by the spec or by the model itself; None for a dense model.

    Raises:
        ConfigurationError: special tokens are to be dropped where dimensions are no tokens.
    """
    if model.spec.kind != "sparse":
        return None
    dropped: tuple[int, ...] = ()
    if model.spec.special_tokens == "drop":
        if not dimensions_are_tokens(library, task):
            raise ConfigurationError(
                f"model.special_tokens is 'drop', but the dimensions of '{model.name}' are no tokens; remove the field"
            )
        dropped = tuple(first_module(library, task).tokenizer.all_special_ids)
    return Pruning(model.spec.max_active_dims or library.max_active_dims, dropped, model.spec.prune_ratio)


def check_dimensions(model: ResolvedModel, dimensions: int) -> None:
    """Compare the width of a computed vector with what the corpus says.

    Raises:
        ConfigurationError: they disagree, or the vector is to be cut to more than it has.
    """
    given, kept = model.spec.dimensions, model.spec.truncate_dim
    if given is not None and given != dimensions:
        raise ConfigurationError(
            f"model.dimensions is {given}, but '{model.name}' has {dimensions}; remove the field or correct it"
        )
    if kept is not None and kept > dimensions:
        raise ConfigurationError(
            f"model.truncate_dim is {kept}, but '{model.name}' has {dimensions} dimensions; use {dimensions} or less"
        )


@dataclass(frozen=True, slots=True)
class Finish:
    """What is done with a dense vector after the model: cut, then scaled to length 1, then rounded."""

    width: int
    normalize: bool
    half: bool

    def __call__(self, values: FloatMatrix) -> FloatMatrix:
        """Finish vectors; one of zeros stays as it is.

        *Shape:* values float32[n, dimensions]; result float32[n, width].
        """
        values = values[:, : self.width]
        if self.normalize:
            lengths = np.sqrt((values.astype(np.float64) ** 2).sum(axis=1, keepdims=True))
            values = (values / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
        if self.half:
            with np.errstate(over="ignore"):
                # What is too large for half precision becomes infinite, and so a reject.
                values = values.astype(np.float16).astype(np.float32)
        return np.ascontiguousarray(values)


class FinishedForward:
    """A dense model whose vectors are finished as the spec says."""

    sparse = False

    def __init__(self, forward: Forward, finish: Finish) -> None:
        """Wrap a forward pass."""
        self.padded = forward.padded
        self._forward = forward
        self._finish = finish

    def __call__(self, texts: Sequence[str], ids: Sequence[Ids]) -> Vectors:
        """Compute dense vectors; see `Forward`."""
        values = self._forward(texts, ids).values
        if isinstance(values, SparseVectors):
            return Vectors(values, np.ones(len(ids), np.bool_))
        finished = self._finish(values)
        return Vectors(finished, np.asarray(np.isfinite(finished).all(axis=1)))


def finished(model: ResolvedModel, forward: Forward, dimensions: int) -> tuple[Forward, int]:
    """Return the forward pass that gives the vectors as they are stored, and their width."""
    spec = model.spec
    if spec.kind == "sparse":
        return forward, dimensions
    width = spec.truncate_dim or dimensions
    # A vector that was cut is scaled again, unless the corpus wants it as the model gives it.
    normalize = spec.normalize if spec.normalize is not None else spec.truncate_dim is not None
    finish = Finish(width, normalize, spec.precision == "float16")
    if finish == Finish(dimensions, normalize=False, half=False):
        return forward, dimensions
    return FinishedForward(forward, finish), width
