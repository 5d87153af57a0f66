"""A loaded model on one device: `Encoder`, and `load_encoder` which makes one from a folder.

What belongs here: the interface that the pipeline and the cache see, and the choice of path and of
worker numbers. What does not: computing (`engine` and the forwards), finding files (`models.store`),
keeping encoders (`cache`). Importing this module imports no torch.
"""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from embeddings_pipeline.errors import ModelLoadError
from embeddings_pipeline.inference import loading, selection
from embeddings_pipeline.inference.device import canonical_device, require_device, usable_cores
from embeddings_pipeline.inference.engine import Engine
from embeddings_pipeline.inference.forward import Forward, first_module
from embeddings_pipeline.inference.memory import PeriodicTrim
from embeddings_pipeline.inference.options import (
    check_dimensions,
    check_dtype,
    dimensions_are_tokens,
    finished,
    leave_out_normalize,
    prompt_of,
    pruning_of,
)
from embeddings_pipeline.inference.probe import self_test
from embeddings_pipeline.inference.tokens import TextTokenizer
from embeddings_pipeline.models.store import ResolvedModel
from embeddings_pipeline.records import EmbeddedBatch, EmbedOptions
from embeddings_pipeline.settings import Environment

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_OPTIONS = EmbedOptions()

AUTOMATIC_TOKENS = {
    ("cpu", "dense"): 1_024,
    ("cpu", "sparse"): 2_048,
    ("cuda", "dense"): 16_384,
    ("cuda", "sparse"): 8_192,
}
"""Token budgets by device and kind. CPU: with more, activations leave the cache (measured). CUDA: not measured."""

_LOADING = threading.Lock()
"""transformers keeps process-wide state while it builds a model: two loads at once corrupt both (case 29)."""


class Encoder(Protocol):
    """A loaded model on one device; `embed` is the only way to it.

    `kind` is `dense` or `sparse`; `dimensions` the width of a dense vector or the number of sparse
    dimensions; `max_length` the effective limit in tokens, special ones included; `path` is `packed`
    or `padded`, and `path_reason` says why it is padded; `bytes` are those of parameters and buffers.
    """

    model: ResolvedModel
    device: str
    kind: str
    dimensions: int
    max_length: int
    path: str
    path_reason: str
    bytes: int

    def embed(
        self,
        texts: Sequence[str],
        options: EmbedOptions = DEFAULT_OPTIONS,
        cancel: threading.Event | None = None,
    ) -> EmbeddedBatch:
        """Compute the vectors of some texts, in their order; several threads may call at once.

        What is wrong with a single text becomes a row of `failures` and disturbs no other text. A
        vector depends on its text alone, not on its neighbours, the options or the time.

        Args:
            texts: one application batch; equal texts are computed once.
            options: how it is cut into model batches.
            cancel: when set, what has not begun is dropped and the call ends within one model batch.

        Raises:
            EmbeddingCancelledError: `cancel` was set.
            ModelError: the model, the device or a worker failed, for a reason that is no single text's.
        """
        ...

    def workers(self, options: EmbedOptions) -> int:
        """Return how many threads compute a call with these options."""
        ...

    def model_batch_tokens(self, options: EmbedOptions) -> int:
        """Return the token budget of a call with these options, after what memory has taught."""
        ...

    def token_strings(self, indices: npt.NDArray[np.int32]) -> "pa.Array[Any]":
        """Return the vocabulary's string of each sparse dimension, `""` where there is none.

        *Shape:* indices int32[n]; the result has n strings.
        """
        ...

    def close(self) -> None:
        """Stop the workers, wait for them and let go of the model. Idempotent."""
        ...


class ModelEncoder:
    """The `Encoder` of this package; built by `load_encoder`."""

    def __init__(
        self,
        model: ResolvedModel,
        device: str,
        tokenizer: TextTokenizer,
        forward: Forward,
        *,
        dimensions: int,
        max_length: int,
        path_reason: str,
        named_dimensions: bool,
        size: int,
        threads: int,
    ) -> None:
        """Put an encoder together from loaded parts.

        Args:
            model: where it comes from.
            device: where it is.
            tokenizer: its tokenizer.
            forward: its way to compute.
            dimensions: width of a dense vector, or number of sparse dimensions.
            max_length: its limit in tokens.
            path_reason: why it is padded; empty where it is packed.
            named_dimensions: whether a sparse dimension is a token of the vocabulary.
            size: bytes of parameters and buffers.
            threads: torch threads of one worker on a CPU.
        """
        self.model = model
        self.device = device
        self.kind = "sparse" if forward.sparse else "dense"
        self.dimensions = dimensions
        self.max_length = max_length
        self.path = "padded" if path_reason else "packed"
        self.path_reason = path_reason
        self.bytes = size
        self._threads = threads
        self._tokenizer = tokenizer
        self._named_dimensions = named_dimensions
        self._vocabulary: pa.Array[Any] | None = None
        self._engine = Engine(
            f"embed-{model.name}-{device}",
            tokenizer,
            forward,
            dimensions=dimensions,
            max_length=max_length,
            automatic_tokens=AUTOMATIC_TOKENS[device.partition(":")[0], self.kind],
            prepare_worker=self._prepare_worker,
            free_memory=self._free_memory,
            after_batch=PeriodicTrim() if device == "cpu" else lambda: None,
        )

    def embed(
        self,
        texts: Sequence[str],
        options: EmbedOptions = DEFAULT_OPTIONS,
        cancel: threading.Event | None = None,
    ) -> EmbeddedBatch:
        """Compute the vectors of some texts; see `Encoder.embed`."""
        return self._engine.embed(texts, options, self.workers(options), cancel)

    def workers(self, options: EmbedOptions) -> int:
        """Return how many threads compute; see `Encoder.workers`.

        By default one per usable core. Where OMP_NUM_THREADS or MKL_NUM_THREADS is set, each worker
        has that many torch threads and there are as many fewer workers.
        """
        if options.workers:
            return options.workers
        return max(1, usable_cores() // self._threads) if self.device == "cpu" else 1

    def model_batch_tokens(self, options: EmbedOptions) -> int:
        """Return the token budget; see `Encoder.model_batch_tokens`."""
        return self._engine.budget(options)

    def token_strings(self, indices: npt.NDArray[np.int32]) -> "pa.Array[Any]":
        """Return the vocabulary's strings; see `Encoder.token_strings`."""
        import pyarrow as pa

        vocabulary = self._vocabulary
        if vocabulary is None:
            strings = self._tokenizer.strings(self.dimensions) if self._named_dimensions else [""] * self.dimensions
            # Two threads may both come here; they make the same.
            vocabulary = self._vocabulary = pa.array(strings, pa.string())
        return vocabulary.take(pa.array(indices, pa.int32()))

    def close(self) -> None:
        """Stop the workers and let go of the model; see `Encoder.close`."""
        self._engine.close()

    def _prepare_worker(self) -> None:
        import torch

        if self.device == "cpu":
            # OpenMP keeps this number per thread: the rest of the process is not touched.
            torch.set_num_threads(self._threads)
        else:
            torch.cuda.set_device(self.device)

    def _free_memory(self) -> None:
        if self.device != "cpu":
            import torch

            torch.cuda.empty_cache()


def load_encoder(model: ResolvedModel, device: str) -> Encoder:
    """Load a model onto a device; of all threads of the process, one loads at a time.

    Raises:
        ConfigurationError: kind, dimensions, max_length or another option of the spec disagree with the model.
        DeviceUnavailableError: the device cannot be used here.
        ModelLoadError: no encoder can be built from the folder.
        ModelSelfTestError: one was built, and its vectors are not what they have to be.
    """
    require_device(device)
    check_dtype(model.spec, device)
    with _LOADING:
        return _load(model, canonical_device(device))


def _load(model: ResolvedModel, device: str) -> ModelEncoder:
    library = loading.load_library_model(model, device)
    task = loading.task_of(library)
    prompt = prompt_of(model, library)
    leave_out_normalize(model, library)
    max_length = loading.effective_max_length(model, library, task)
    loading.set_max_length(library, task, max_length)
    tokenizer = _tokenizer(model, library, task, max_length, prompt)
    size = loading.loaded_bytes(library)
    choice = selection.choose(library, task, tokenizer, prompt, pruning_of(model, library, task))
    check_dimensions(model, choice.dimensions)
    forward, width = finished(model, choice.forward, choice.dimensions)
    encoder = ModelEncoder(
        model,
        device,
        tokenizer,
        forward,
        dimensions=width,
        max_length=max_length,
        path_reason=choice.reason,
        named_dimensions=dimensions_are_tokens(library, task),
        size=size,
        threads=_threads_per_worker(Environment.read()),
    )
    try:
        self_test(encoder)
    except BaseException:
        encoder.close()
        raise
    return encoder


def _tokenizer(model: ResolvedModel, library: Any, task: str | None, max_length: int, prompt: str) -> TextTokenizer:
    """Copy the tokenizer of the module that takes the texts."""
    module = first_module(library, task)
    tokenizer: Any = getattr(module, "tokenizer", None)
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        special = not type(module).__name__.endswith("StaticEmbedding")
        cut_left = tokenizer.truncation_side == "left"
        return TextTokenizer(backend, max_length, cut_left=cut_left, prompt=prompt, special=special)
    if hasattr(tokenizer, "encode_batch_fast"):
        return TextTokenizer(tokenizer, max_length, prompt=prompt, special=False)
    raise ModelLoadError(
        model.name,
        f"its module {type(module).__name__} has no fast (Rust) tokenizer, which counts the tokens of texts",
        "use a model whose folder has a tokenizer.json",
    )


def _threads_per_worker(environment: Environment) -> int:
    """Return the torch threads of one CPU worker: 1, unless the environment sets another number."""
    for value in environment.thread_variables.values():
        first = value.partition(",")[0].strip()
        if first.isdigit() and int(first) > 0:
            return int(first)
    return 1
