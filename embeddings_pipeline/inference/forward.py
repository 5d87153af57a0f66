"""What the engine asks of a model, and the padded way to do it.

What belongs here: the `Forward` protocol (small, so that tests pass in a fake one), and the forward
pass through the library's own modules on padded texts, which every model supports. What does not:
packed texts (`packed`), sparse heads (`sparse`), batches and trouble (`engine`).
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from embeddings_pipeline.inference.tokens import Ids
from embeddings_pipeline.records import BoolVector, FloatMatrix, SparseVectors

if TYPE_CHECKING:
    import torch

Features = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Vectors:
    """What one forward pass yields for n texts; `finite` is False where a vector has NaN or infinity.

    *Shape:* values float32[n, dimensions] or n sparse rows; finite bool[n].
    """

    values: FloatMatrix | SparseVectors
    finite: BoolVector


class Forward(Protocol):
    """One model on one device, as the engine sees it; called by several threads at once."""

    padded: bool
    """Whether a text costs as much as the longest of its batch."""

    sparse: bool
    """Whether the vectors are sparse."""

    def __call__(self, texts: Sequence[str], ids: Sequence[Ids]) -> Vectors:
        """Compute the vectors of one model batch.

        Args:
            texts: the texts, for models that have tokens of another kind.
            ids: the tokens of each text, one or more.
        """
        ...


class PaddedForward:
    """The library's own modules on texts that are padded to the longest of the batch."""

    padded = True
    sparse = False

    def __init__(self, model: Any, *, task: str | None, max_active_dims: int | None = None) -> None:
        """Wrap a loaded `SentenceTransformer` or `SparseEncoder`.

        Args:
            model: the library's model, in evaluation mode.
            task: the route to take, where the model has routes.
            max_active_dims: for the modules that prune by themselves.
        """
        self.model = model
        self._kwargs = {"task": task, "max_active_dims": max_active_dims}
        self._transformer = first_module(model, task)

    def __call__(self, texts: Sequence[str], ids: Sequence[Ids]) -> Vectors:  # noqa: ARG002 (the protocol's)
        """Compute dense vectors; see `Forward`."""
        return dense_vectors(self.embeddings(ids))

    def embeddings(self, ids: Sequence[Ids]) -> "torch.Tensor":
        """Return the library's embeddings of tokenised texts.

        *Shape:* float[n, dimensions].
        """
        import torch

        with torch.inference_mode():
            features: Features = self.model(pad(ids, self._transformer, self.model.device), **_given(self._kwargs))
        embeddings: torch.Tensor = features["sentence_embedding"]
        return embeddings


class LibraryForward:
    """The library's own tokens and modules, for models whose tokens are not plain ids of one tokenizer."""

    padded = True
    sparse = False

    def __init__(self, model: Any, *, task: str | None, prompt: str, max_active_dims: int | None = None) -> None:
        """Wrap a loaded model as `PaddedForward` does; `prompt` is put before every text."""
        self.model = model
        self._task = {"task": task}
        self._kwargs = {"task": task, "max_active_dims": max_active_dims}
        self._prompt = prompt or None
        # The library sets padding and truncation on its one tokenizer anew for every batch.
        self._tokenizing = threading.Lock()

    def __call__(self, texts: Sequence[str], ids: Sequence[Ids]) -> Vectors:  # noqa: ARG002 (the protocol's)
        """Compute dense vectors; see `Forward`."""
        return dense_vectors(self.embeddings(texts))

    def embeddings(self, texts: Sequence[str]) -> "torch.Tensor":
        """Return the library's embeddings of some texts.

        *Shape:* float[n, dimensions].
        """
        import torch
        from sentence_transformers.util import batch_to_device

        with self._tokenizing:
            features = self.model.preprocess(list(texts), prompt=self._prompt, **_given(self._task))
        with torch.inference_mode():
            output = self.model(batch_to_device(features, self.model.device), **_given(self._kwargs))
        embeddings: torch.Tensor = output["sentence_embedding"]
        return embeddings


def pad(ids: Sequence[Ids], transformer: Any, device: "torch.device") -> Features:
    """Return the features that the library's `preprocess` makes of the same texts."""
    import torch

    tokenizer = transformer.tokenizer
    width = max(len(row) for row in ids)
    input_ids = np.full((len(ids), width), tokenizer.pad_token_id or 0, np.int64)
    mask = np.zeros((len(ids), width), np.int64)
    for number, row in enumerate(ids):
        place = slice(width - len(row), width) if tokenizer.padding_side == "left" else slice(0, len(row))
        input_ids[number, place] = row
        mask[number, place] = 1
    features: Features = {
        "input_ids": torch.from_numpy(input_ids).to(device),
        "attention_mask": torch.from_numpy(mask).to(device),
        "modality": "text",
    }
    if "token_type_ids" in tokenizer.model_input_names:
        features["token_type_ids"] = torch.zeros_like(features["input_ids"])
    return features


def _given(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if value is not None}


def dense_vectors(embeddings: "torch.Tensor") -> Vectors:
    """Bring dense embeddings to the host; a vector of zeros is finite, whatever its norm.

    *Shape:* embeddings float[n, dimensions].
    """
    values = embeddings.float().cpu().numpy()
    return Vectors(values, np.asarray(np.isfinite(values).all(axis=1)))


def first_module(model: Any, task: str | None) -> Any:
    """Return the module that takes the tokens: the first one, inside the router if there is one."""
    return applied_modules(model, task)[0]


def applied_modules(model: Any, task: str | None) -> list[Any]:
    """Return the modules that a text goes through, with the router replaced by its route."""
    modules: list[Any] = []
    for module in model.children():
        if type(module).__name__ == "Router":
            modules.extend(module.sub_modules[module._resolve_route(task=task, modality="text")])
        else:
            modules.append(module)
    return modules


def position_offset(transformer_model: Any) -> int:
    """Return the position of a text's first token: RoBERTa and its kin count from padding_idx + 1."""
    import torch

    for module in transformer_model.modules():
        padding = getattr(module, "padding_idx", None)
        if isinstance(padding, int) and isinstance(getattr(module, "position_embeddings", None), torch.nn.Embedding):
            return padding + 1
    return 0
