"""Sparse vectors without the tensor of [texts, tokens, vocabulary] that makes others run out of memory.

What belongs here: the vocabulary head in bounded chunks with SPLADE pooling, and rows of weights from
pooled scores by tensor operations. What does not: the transformer below the head (`packed`,
`forward`), and the choice of path (`selection`).
"""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from embeddings_pipeline.inference.forward import Vectors, applied_modules, pad
from embeddings_pipeline.inference.linear import product_for, rounded_up
from embeddings_pipeline.inference.packed import PackedBody
from embeddings_pipeline.inference.tokens import Ids
from embeddings_pipeline.records import SparseVectors

if TYPE_CHECKING:
    import torch

_VOCABULARY_CHUNK = 2_048
_TOKEN_BLOCK = 512
"""One worker's buffer of logits is [_TOKEN_BLOCK, _VOCABULARY_CHUNK] float32, however long a text is: 4 MiB, which
stays in the cache (2,048 tokens took 4 to 16 % longer)."""


@dataclass(frozen=True, slots=True)
class Pruning:
    """What is left out of a vector, in this order.

    The dimensions `dropped`; then weights below the share `ratio` of the text's largest weight; then all
    but the `most` largest.
    """

    most: int | None = None
    dropped: tuple[int, ...] = ()
    ratio: float | None = None


class LibrarySparseForward:
    """Sparse vectors from the library's own dense result; for models whose head is not a plain one."""

    padded = True
    sparse = True

    def __init__(self, embeddings: "Callable[[Sequence[str], Sequence[Ids]], torch.Tensor]", pruning: Pruning) -> None:
        """Wrap a function from texts and tokens to embeddings."""
        self._embeddings = embeddings
        self._pruning = pruning

    def __call__(self, texts: Sequence[str], ids: Sequence[Ids]) -> Vectors:
        """Compute sparse vectors; see `Forward`."""
        return sparsify(self._embeddings(texts, ids), self._pruning)


class SpladeForward:
    """A masked language model with SPLADE pooling, its vocabulary head computed in chunks."""

    sparse = True

    def __init__(
        self, body: "Callable[[Sequence[Ids]], torch.Tensor]", head: "ChunkedHead", pruning: Pruning, *, padded: bool
    ) -> None:
        """Put a model together.

        Args:
            body: from the tokens of texts to what the head's last layer takes, float[tokens, width].
            head: that last layer and the pooling.
            pruning: what is left out of the vectors.
            padded: whether `body` pads.
        """
        self.padded = padded
        self._body = body
        self._head = head
        self._pruning = pruning

    def __call__(self, texts: Sequence[str], ids: Sequence[Ids]) -> Vectors:  # noqa: ARG002 (the protocol's)
        """Compute sparse vectors; see `Forward`."""
        return sparsify(self.pooled(ids), self._pruning)

    def pooled(self, ids: Sequence[Ids]) -> "torch.Tensor":
        """Return the scores of all dimensions; *Shape:* float32[texts, vocabulary]."""
        import torch

        with torch.inference_mode():
            return self._head(self._body(ids), [len(row) for row in ids])


class PackedTokens:
    """The transformer on packed rows, as the body of a `SpladeForward`."""

    def __init__(self, library: Any, task: str | None) -> None:
        """Wrap a model whose attention is packed and whose vocabulary layer is taken out."""
        self._body = PackedBody(library, task)

    def __call__(self, ids: Sequence[Ids]) -> "torch.Tensor":
        """Return the vectors of all tokens; *Shape:* float[tokens, width]."""
        features, _ = self._body(ids)
        tokens: torch.Tensor = features["token_embeddings"][0]
        return tokens


class PaddedTokens:
    """The transformer on padded texts, as the body of a `SpladeForward`."""

    def __init__(self, library: Any, task: str | None) -> None:
        """Wrap a model whose vocabulary layer is taken out."""
        self._library = library
        self._transformer = applied_modules(library, task)[0]

    def __call__(self, ids: Sequence[Ids]) -> "torch.Tensor":
        """Return the vectors of all real tokens; *Shape:* float[tokens, width]."""
        features = pad(ids, self._transformer, self._library.device)
        real = features["attention_mask"].bool()
        tokens: torch.Tensor = self._transformer(features)["token_embeddings"][real]
        return tokens


class ChunkedHead:
    """The vocabulary layer and SPLADE pooling over packed tokens.

    Rectifier and logarithm are monotone, so that `max` pooling takes the maximum of the bare products
    and does everything else on [texts, vocabulary]. `sum` has no such way and works on the buffer.
    """

    def __init__(self, layer: Any, pooling: Any) -> None:
        """Take over the layer's parameters and the pooling's strategy.

        Args:
            layer: a `torch.nn.Linear` from the model's width to the vocabulary.
            pooling: the library's `SpladePooling`.
        """
        self._weight: torch.Tensor = layer.weight
        self._bias: torch.Tensor | None = layer.bias
        self._sum = pooling.pooling_strategy == "sum"
        self._logarithms = 2 if pooling.activation_function == "log1p_relu" else 1
        self._local = threading.local()

    def __call__(self, tokens: "torch.Tensor", lengths: Sequence[int]) -> "torch.Tensor":
        """Return the pooled scores.

        *Shape:* tokens float[sum(lengths), width]; result float[len(lengths), vocabulary].
        """
        vocabulary = len(self._weight)
        pooled = tokens.new_full((len(lengths), vocabulary), 0.0 if self._sum else float("-inf"))
        blocks = list(_blocks(lengths))
        buffer = self._buffer(tokens)
        for start in range(0, vocabulary, _VOCABULARY_CHUNK):
            chunk = slice(start, min(start + _VOCABULARY_CHUNK, vocabulary))
            for rows, pieces in blocks:
                logits = _product(tokens, rows, self._weight[chunk], buffer)
                if self._sum:
                    self._activate(logits, chunk)
                for piece in pieces:
                    self._pool(pooled[piece.texts, chunk], piece.of(logits))
        if not self._sum:
            self._activate(pooled, slice(None))
        return pooled

    def _pool(self, pooled: "torch.Tensor", logits: "torch.Tensor") -> None:
        """Pool the logits of some texts, or of a part of one, into their scores.

        *Shape:* pooled float[texts, chunk]; logits float[texts, tokens, chunk].
        """
        import torch

        if self._sum:
            pooled += logits.sum(dim=1)
        else:
            torch.maximum(pooled, logits.amax(dim=1), out=pooled)

    def _activate(self, scores: "torch.Tensor", chunk: slice) -> None:
        """Add the bias, rectify and take the logarithm, in place."""
        if self._bias is not None:
            scores += self._bias[chunk]
        scores.relu_()
        for _ in range(self._logarithms):
            scores.log1p_()

    def _buffer(self, tokens: "torch.Tensor") -> "torch.Tensor":
        """Return this worker's buffer, made once per thread and of the full size."""
        buffer: torch.Tensor | None = getattr(self._local, "buffer", None)
        if buffer is None:
            buffer = self._local.buffer = tokens.new_empty(_TOKEN_BLOCK * _VOCABULARY_CHUNK)
        return buffer


@dataclass(frozen=True, slots=True)
class _Piece:
    """Equally long texts inside a block, or a part of one; `start` counts from the block's first token."""

    texts: slice
    start: int
    length: int

    def of(self, logits: "torch.Tensor") -> "torch.Tensor":
        """Return the logits of this piece; *Shape:* float[texts, length, chunk]."""
        texts = self.texts.stop - self.texts.start
        return logits[self.start : self.start + texts * self.length].view(texts, self.length, -1)


def _blocks(lengths: Sequence[int]) -> Iterator[tuple[slice, list[_Piece]]]:
    """Cut a packed row into blocks of at most `_TOKEN_BLOCK` tokens, and these into pieces."""
    pieces: list[_Piece] = []
    first = filled = text = 0
    for length, run in itertools.groupby(lengths):
        left = sum(1 for _ in run)
        while left:
            whole = min(left, (_TOKEN_BLOCK - filled) // length)
            if whole:
                pieces.append(_Piece(slice(text, text + whole), filled, length))
                filled += whole * length
                text += whole
                left -= whole
                continue
            done = 0
            if filled:
                yield slice(first, first + filled), pieces
                first, filled, pieces = first + filled, 0, []
            if length <= _TOKEN_BLOCK:
                continue
            while length - done > _TOKEN_BLOCK:
                yield slice(first, first + _TOKEN_BLOCK), [_Piece(slice(text, text + 1), 0, _TOKEN_BLOCK)]
                first += _TOKEN_BLOCK
                done += _TOKEN_BLOCK
            pieces.append(_Piece(slice(text, text + 1), 0, length - done))
            filled = length - done
            text += 1
            left -= 1
    if filled:
        yield slice(first, first + filled), pieces


def _product(tokens: "torch.Tensor", rows: slice, weight: "torch.Tensor", buffer: "torch.Tensor") -> "torch.Tensor":
    """Return `tokens[rows] @ weight.T`, in the buffer unless oneDNN computes it, which takes none.

    *Shape:* tokens float[n, width]; weight float[m, width]; buffer float[rows * m or more]; result float[rows, m].
    """
    import torch

    count = rows.stop - rows.start
    # oneDNN wants a round number of rows; what is computed of the next block's is thrown away.
    wide = tokens[rows.start : rows.start + rounded_up(count)]
    if (product := product_for(wide, weight)) is not None:
        return product(wide, weight, None, False)[:count]
    logits = buffer[: count * len(weight)].view(count, len(weight))
    return torch.mm(tokens[rows], weight.T, out=logits)


def take_out_head(model: Any) -> tuple[Any, Callable[[], None]] | None:
    """Replace the vocabulary layer of a masked language model by nothing at all.

    Returns:
        The layer and a function that puts it back, or None where the model's logits are not plainly
        those of one linear layer.
    """
    import torch

    layer = model.get_output_embeddings()
    if not isinstance(layer, torch.nn.Linear):
        return None
    places = [(parent, name) for parent in model.modules() for name, child in parent.named_children() if child is layer]

    def put(module: torch.nn.Module) -> None:
        for parent, name in places:
            setattr(parent, name, module)

    if not places:
        return None
    put(torch.nn.Identity())
    return layer, lambda: put(layer)


def sparsify(scores: "torch.Tensor", pruning: Pruning) -> Vectors:
    """Make rows of positive weights, falling, equal ones by index.

    *Shape:* scores float[texts, dimensions]. A row with NaN or infinity becomes an empty row.
    """
    import torch

    with torch.inference_mode():
        finite = torch.isfinite(scores).all(dim=1)
        if pruning.dropped:
            scores[:, list(pruning.dropped)] = 0
        kept = (scores > 0) & finite[:, None]
        if pruning.ratio is not None:
            kept &= scores >= scores.amax(dim=1, keepdim=True) * pruning.ratio
        found = torch.nonzero(kept)
        weights = scores[found[:, 0], found[:, 1]].float().cpu().numpy()
    rows, indices = found.cpu().numpy().T
    # nonzero yields rows and, within them, indices in order; the sort is stable, so equal weights stay by index.
    order = np.lexsort((-weights, rows))
    rows, indices, weights = rows[order], indices[order], weights[order]
    starts = _starts(rows, len(scores))
    if pruning.most is not None:
        largest = np.arange(len(rows)) - starts[rows] < pruning.most
        rows, indices, weights = rows[largest], indices[largest], weights[largest]
        starts = _starts(rows, len(scores))
    return Vectors(SparseVectors(starts, indices.astype(np.int32), weights), finite.cpu().numpy())


def _starts(rows: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Return where each row begins; *Shape:* rows int64[n], sorted; result int64[count + 1]."""
    return np.searchsorted(rows, np.arange(count + 1)).astype(np.int64)
