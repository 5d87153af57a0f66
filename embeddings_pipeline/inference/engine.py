"""The engine: texts in, vectors out, whatever single texts or the memory do.

What belongs here: batching of one call, the worker pool's use, bisection, back-off and the assembly of
results in input order. What does not: the model itself, which is a `Forward` and is passed in.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from embeddings_pipeline.errors import EmbeddingCancelledError, EmbeddingsError, ModelError
from embeddings_pipeline.inference.batching import cost, plan
from embeddings_pipeline.inference.forward import Forward, Vectors
from embeddings_pipeline.inference.tokens import Ids, TokenizedTexts
from embeddings_pipeline.inference.workers import WorkerPool
from embeddings_pipeline.records import (
    EmbeddedBatch,
    EmbedOptions,
    FloatMatrix,
    Reason,
    SparseVectors,
    TextFailure,
)

_ENOUGH_TO_BLAME_THE_MODEL = 8
"""If the model raises on every single text of a batch this large, it is the model's fault, not theirs."""

_MEMORY_WORDS = ("out of memory", "not enough memory", "can't allocate memory", "defaultcpuallocator")
_DEVICE_WORDS = ("cuda error", "cublas_status", "cudnn_status", "device-side assert")


class Tokens(Protocol):
    """What the engine asks of a tokenizer."""

    def encode(self, texts: Sequence[str]) -> TokenizedTexts:
        """Tokenise texts, each on its own; called by several threads at once."""
        ...


@dataclass(slots=True)
class _Computed:
    """What became of one model batch; `pieces` are texts (their numbers) and their vectors."""

    pieces: list[tuple[list[int], FloatMatrix | SparseVectors]] = field(default_factory=list)
    failures: dict[int, tuple[Reason, str]] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Job:
    """The distinct texts of one call, and how to give it up."""

    texts: list[str]
    ids: Sequence[Ids]
    most_texts: int

    def lengths(self, batch: Sequence[int]) -> list[int]:
        """Return the tokens of each text of a batch."""
        return [len(self.ids[number]) for number in batch]


@dataclass(slots=True)
class _Closed:
    """Stands where the model was; never called, since the pool is closed before."""

    padded: bool
    sparse: bool

    def __call__(self, texts: Sequence[str], ids: Sequence[Ids]) -> Vectors:
        raise ModelError("the encoder is closed; load the model again")


class Engine:
    """Computes the vectors of texts with one model on one device.

    Calls from several threads share the workers. A vector depends on its text alone.
    """

    def __init__(
        self,
        name: str,
        tokens: Tokens,
        forward: Forward,
        *,
        dimensions: int,
        max_length: int,
        automatic_tokens: int,
        prepare_worker: Callable[[], None] = lambda: None,
        free_memory: Callable[[], None] = lambda: None,
        after_batch: Callable[[], None] = lambda: None,
    ) -> None:
        """Put an engine together; nothing is loaded or started here.

        Args:
            name: names the worker threads.
            tokens: the tokenizer.
            forward: the model.
            dimensions: width of a dense vector or number of sparse dimensions.
            max_length: the model's limit in tokens, special ones included.
            automatic_tokens: the token budget where a call names none.
            prepare_worker: run first in each worker thread.
            free_memory: gives cached memory back to the device before an attempt is repeated.
            after_batch: run by the worker after each model batch.
        """
        self._tokens = tokens
        self._forward: Forward = forward
        self._dimensions = dimensions
        self._max_length = max_length
        self._automatic_tokens = automatic_tokens
        self._free_memory = free_memory
        self._after_batch = after_batch
        self._pool = WorkerPool(name, prepare_worker)
        self._learned_tokens: int | None = None
        self._learning = threading.Lock()

    def budget(self, options: EmbedOptions) -> int:
        """Return the tokens of a model batch: what is asked for, cut by what memory has taught."""
        wanted = options.model_batch_tokens or self._automatic_tokens
        return min(wanted, self._learned_tokens or wanted)

    def embed(
        self, texts: Sequence[str], options: EmbedOptions, workers: int, cancel: threading.Event | None
    ) -> EmbeddedBatch:
        """Compute one application batch; see `Encoder.embed`."""
        if cancel is not None and cancel.is_set():
            raise EmbeddingCancelledError
        ticket = self._pool.ticket()
        # Sorted, so that the plan does not depend on the order in which the texts came.
        distinct = sorted(set(texts), key=str)
        tokenized = self._tokens.encode(distinct)
        job = _Job(distinct, tokenized.ids, options.model_batch_size)
        usable = [number for number in range(len(distinct)) if number not in tokenized.failures]
        batches = self._plan(job, usable, self.budget(options))

        def compute(batch: list[int], stopped: Callable[[], bool]) -> _Computed:
            computed = _Computed()
            self._compute(job, batch, computed, stopped)
            self._check_blame(batch, computed)
            self._after_batch()
            return computed

        done = self._pool.run(compute, batches, workers, cancel, ticket)
        failures = dict(tokenized.failures)
        for computed in done:
            failures.update(computed.failures)
        rows = _rows(distinct, texts)
        values = self._assemble([piece for computed in done for piece in computed.pieces], len(distinct), rows)
        count = tokenized.count[rows]
        return EmbeddedBatch(
            token_count=count,
            token_count_exact=tokenized.exact[rows],
            truncated=(count > self._max_length) | ~tokenized.exact[rows],
            dense=None if isinstance(values, SparseVectors) else values,
            sparse=values if isinstance(values, SparseVectors) else None,
            failures=[
                TextFailure(row, *failures[number]) for row, number in enumerate(rows.tolist()) if number in failures
            ],
            events=list(dict.fromkeys(event for computed in done for event in computed.events)),
            compute_seconds=sum(computed.seconds for computed in done),
        )

    def close(self) -> None:
        """Stop and join the worker threads and let go of the model; calls under way end with `ModelError`."""
        self._pool.close()
        # Whoever still holds this engine shall not hold the weights.
        self._forward = _Closed(self._forward.padded, self._forward.sparse)

    def _plan(self, job: _Job, numbers: list[int], tokens: int) -> list[list[int]]:
        batches = plan(job.lengths(numbers), job.most_texts, tokens, padded=self._forward.padded)
        return [[numbers[position] for position in batch] for batch in batches]

    def _compute(self, job: _Job, batch: list[int], computed: _Computed, stopped: Callable[[], bool]) -> None:
        """Compute one model batch, in smaller pieces where it has to be."""
        if stopped():
            raise EmbeddingCancelledError
        learned = self._learned_tokens
        if learned is not None and len(batch) > 1 and self._cost(job, batch) > learned:
            for piece in self._plan(job, batch, learned):
                self._compute(job, piece, computed, stopped)
            return
        error = self._attempt(job, batch, computed, retry=False)
        if error is None:
            return
        if is_out_of_memory(error):
            self._free_memory()
            self._back_off(job, batch, computed, error)
            if len(batch) > 1:
                self._compute(job, batch, computed, stopped)
            return
        if isinstance(error, EmbeddingsError) or is_device_error(error):
            raise ModelError(
                f"the model's forward pass failed: {_words(error)}; run again, on another device if it stays"
            )
        if len(batch) == 1:
            computed.failures[batch[0]] = (Reason.MODEL_ERROR, _words(error))
            return
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            self._compute(job, half, computed, stopped)

    def _attempt(self, job: _Job, batch: list[int], computed: _Computed, *, retry: bool) -> Exception | None:
        """Run the model once and keep its finite vectors; return what it raised instead of raising.

        The caller acts outside the handler, where the traceback no longer holds the batch's tensors.
        """
        started = time.perf_counter()
        try:
            vectors = self._forward([job.texts[number] for number in batch], [job.ids[number] for number in batch])
        except Exception as error:  # noqa: BLE001 (sorted by `_compute`; a single text must not end the run)
            return error.with_traceback(None)
        finally:
            computed.seconds += time.perf_counter() - started
        if vectors.finite.all():
            computed.pieces.append((batch, vectors.values))
            return None
        finite = np.flatnonzero(vectors.finite)
        kept = _take(vectors.values, finite) if isinstance(vectors.values, SparseVectors) else vectors.values[finite]
        computed.pieces.append(([batch[position] for position in finite.tolist()], kept))
        for position in np.flatnonzero(~vectors.finite).tolist():
            number = batch[position]
            if retry:
                computed.failures[number] = (Reason.NON_FINITE, "the vector has NaN or infinity, computed alone too")
            elif error := self._attempt(job, [number], computed, retry=True):
                computed.failures[number] = (Reason.MODEL_ERROR, _words(error))
        return None

    def _back_off(self, job: _Job, batch: list[int], computed: _Computed, error: Exception) -> None:
        """Learn from a lack of memory: a smaller budget, or that a text is too large even alone."""
        tokens = self._cost(job, batch)
        if len(batch) == 1:
            computed.failures[batch[0]] = (
                Reason.TOO_LARGE,
                f"{tokens} tokens do not fit into memory, even alone ({_words(error)})",
            )
            return
        with self._learning:
            # At least one batch of two becomes smaller, whatever another worker has learned meanwhile.
            self._learned_tokens = min(self._learned_tokens or tokens, max(1, tokens // 2))
            computed.events.append(
                f"out of memory at {tokens} tokens in a model batch; "
                f"model_batch_tokens is {self._learned_tokens} from here on"
            )

    def _check_blame(self, batch: list[int], computed: _Computed) -> None:
        raised = [computed.failures.get(number) for number in batch]
        if len(batch) >= _ENOUGH_TO_BLAME_THE_MODEL and all(why and why[0] is Reason.MODEL_ERROR for why in raised):
            first = raised[0]
            raise ModelError(
                f"the model raised on each of {len(batch)} texts, alone too ({first[1] if first else ''}); "
                "the texts are not the cause: check the model and the installed versions"
            )

    def _cost(self, job: _Job, batch: Sequence[int]) -> int:
        return cost(job.lengths(batch), padded=self._forward.padded)

    def _assemble(
        self, pieces: list[tuple[list[int], FloatMatrix | SparseVectors]], count: int, rows: npt.NDArray[np.int64]
    ) -> FloatMatrix | SparseVectors:
        """Put the vectors of all model batches into input order; failed texts hold zeros or nothing."""
        if self._forward.sparse:
            sparse = [(numbers, values) for numbers, values in pieces if isinstance(values, SparseVectors)]
            return _assemble_sparse(sparse, count, rows)
        dense = np.zeros((count, self._dimensions), np.float32)
        for numbers, values in pieces:
            if not isinstance(values, SparseVectors):
                dense[numbers] = values
        return dense[rows]


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception of torch or Python means that memory did not suffice."""
    message = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and any(words in message for words in _MEMORY_WORDS))
    )


def is_device_error(error: BaseException) -> bool:
    """Tell whether the device has failed, so that no further text can succeed on it."""
    message = str(error).lower()
    return type(error).__name__ == "AcceleratorError" or any(words in message for words in _DEVICE_WORDS)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _rows(distinct: Sequence[str], texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return for each text the number of its equal in `distinct`."""
    numbers = {text: number for number, text in enumerate(distinct)}
    return np.fromiter((numbers[text] for text in texts), np.int64, len(texts))


def _take(values: SparseVectors, rows: npt.NDArray[np.int64]) -> SparseVectors:
    """Return some rows of sparse vectors, in the given order.

    *Shape:* rows int64[m].
    """
    starts, lengths = values.indptr[:-1][rows], np.diff(values.indptr)[rows]
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    source = np.repeat(starts - indptr[:-1], lengths) + np.arange(indptr[-1])
    return SparseVectors(indptr, values.indices[source], values.values[source])


def _assemble_sparse(
    pieces: list[tuple[list[int], SparseVectors]], count: int, rows: npt.NDArray[np.int64]
) -> SparseVectors:
    """Join the rows of all pieces and bring them into input order, without a loop over rows."""
    place = np.full(count, sum(len(numbers) for numbers, _ in pieces), np.int64)
    lengths: list[npt.NDArray[np.int64]] = []
    start = 0
    for numbers, values in pieces:
        place[numbers] = np.arange(start, start + len(numbers))
        start += len(numbers)
        lengths.append(np.diff(values.indptr))
    # One empty row at the end, for the texts that failed.
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate([*lengths, np.zeros(1, np.int64)]))])
    joined = SparseVectors(
        indptr,
        np.concatenate([np.empty(0, np.int32), *(values.indices for _, values in pieces)]),
        np.concatenate([np.empty(0, np.float32), *(values.values for _, values in pieces)]),
    )
    return _take(joined, place[rows])
