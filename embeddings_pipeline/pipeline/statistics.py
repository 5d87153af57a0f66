"""What the pictures of a run are drawn from, collected while texts are embedded.

What belongs here: counts, rates and samples whose size does not grow with the number of texts, and which change no
vector. What does not: drawing (`orchestration.pictures`) and the counts that the identities rest on (`batches`).
"""

import heapq
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from embeddings_pipeline.pipeline.projection import Vector, project
from embeddings_pipeline.pipeline.wording import readable
from embeddings_pipeline.reports import EmbedStatistics, TopToken

BIN_EDGES: npt.NDArray[np.int64] = np.unique(np.round(2.0 ** (np.arange(-4, 94) / 3))).astype(np.int64)
"""The least token counts of the histogram's bins: three for each doubling, fewer where three whole numbers do not fit.

No int32 reaches the last one.
"""

MOST_SLOTS = 60
"""Time slots of the throughput; when they are full, two become one."""

MOST_POINTS = 500
"""Vectors in the sample: enough for steady axes; a picture draws the first of them."""

MOST_TOKENS = 20


def count_lengths(table: pa.Table) -> dict[int, int]:
    """Count the rows of a dataset table by the least token count of their bin."""
    bins = np.searchsorted(BIN_EDGES, np.asarray(table.column("token_count")), side="right") - 1
    found, texts = np.unique(bins, return_counts=True)
    return {int(BIN_EDGES[at]): int(many) for at, many in zip(found, texts, strict=True)}


class Throughput:
    """Texts and tokens over time, in at most `MOST_SLOTS` slots of equal width."""

    def __init__(self) -> None:
        self.width = 1.0
        self._end = 0.0
        self._done = np.zeros((2, MOST_SLOTS))

    def add(self, start: float, end: float, texts: int, tokens: int) -> None:
        """Spread what was computed between two moments, in seconds since the start of the run, evenly over them."""
        while end >= self.width * MOST_SLOTS:
            pairs = self._done.reshape(2, MOST_SLOTS // 2, 2).sum(axis=2)
            self._done = np.concatenate([pairs, np.zeros_like(pairs)], axis=1)
            self.width *= 2
        self._end = max(self._end, end)
        edges = np.arange(MOST_SLOTS + 1) * self.width
        share = np.clip(np.minimum(end, edges[1:]) - np.maximum(start, edges[:-1]), 0, None)
        if not share.any():
            share[int(end / self.width)] = 1
        self._done += np.outer((texts, tokens), share / share.sum())

    def rates(self) -> npt.NDArray[np.float64]:
        """Return texts and tokens per second of each slot up to the last one that has any; float64[2, slots]."""
        used = int(np.ceil(self._end / self.width))
        # The last slot is not over yet; of less than a tenth of it no rate can be told.
        seconds = np.full(used, self.width)
        seconds[-1:] = max(self._end - (used - 1) * self.width, self.width / 10)
        return self._done[:, :used] / seconds


class Sample:
    """The vectors of the texts with the least hashes: always the same ones, in whatever order they come."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most = most
        self._vectors: dict[tuple[str, str], Vector] = {}

    def add(self, strategy: str, table: pa.Table) -> None:
        """Take rows of a dataset table in, each distinct text of a strategy once."""
        worst = max(self._vectors) if len(self._vectors) >= self._most else None
        rows: dict[tuple[str, str], int] = {}
        for row, text_hash in enumerate(table.column("text_hash").to_pylist()):
            key = (text_hash, strategy)
            if (worst is None or key < worst) and key not in self._vectors:
                rows.setdefault(key, row)
        if rows:
            chosen = heapq.nsmallest(self._most, [*self._vectors, *rows])
            self._vectors = {key: _vector(table, rows[key]) if key in rows else self._vectors[key] for key in chosen}

    def vectors(self) -> list[tuple[str, Vector]]:
        """Return the sample as (strategy, vector), in the order of the hashes."""
        return [(key[1], vector) for key, vector in sorted(self._vectors.items(), key=lambda item: item[0])]


class TokenWeights:
    """The sum of the weights of each sparse dimension, and in how many texts it has one: two numbers for each."""

    def __init__(self) -> None:
        self._weights = np.zeros(0)
        self._texts = np.zeros(0, np.int64)
        self._names: dict[int, str] = {}

    def add(self, table: pa.Table) -> None:
        """Add the sparse vectors of a dataset table."""
        indices, values = (_flat(table, name) for name in ("sparse_indices", "sparse_values"))
        if not len(indices):
            return
        size = max(len(self._weights), int(indices.max()) + 1)
        weights = np.bincount(indices, weights=values, minlength=size)
        texts = np.bincount(indices, minlength=size)
        unnamed = np.flatnonzero(np.append(self._texts, np.zeros(size - len(self._texts), np.int64))[indices] == 0)
        fresh, first = np.unique(indices[unnamed], return_index=True)
        strings = _flat_array(table, "sparse_tokens").take(pa.array(unnamed[first]))
        self._names.update(zip(fresh.tolist(), strings.to_pylist(), strict=True))
        weights[: len(self._weights)] += self._weights
        texts[: len(self._texts)] += self._texts
        self._weights, self._texts = weights, texts

    def top(self, most: int = MOST_TOKENS) -> list[TopToken]:
        """Return the heaviest dimensions, as words that a reader understands."""
        # Sums of several threads differ in their last digits.
        rounded = np.round(self._weights, 3)
        order = [int(index) for index in np.lexsort((np.arange(len(rounded)), -rounded))[:most] if self._texts[index]]
        names = readable([self._names[index] or f"dimension {index}" for index in order])
        return [
            TopToken(name, int(self._texts[index]), float(rounded[index]))
            for name, index in zip(names, order, strict=True)
        ]


class PartStatistics:
    """Collects over one part, whose application batches come in order."""

    def __init__(self, run: "Statistics", strategy: str) -> None:
        self.token_lengths: Counter[int] = Counter()
        self._run = run
        self._strategy = strategy
        self._since = time.monotonic()
        self._texts = self._tokens = 0

    def batch(self, table: pa.Table, texts: int, tokens: int) -> None:
        """Take an application batch in that was just written.

        Args:
            table: its rows.
            texts: how many texts of the part are computed by now.
            tokens: how many tokens these have.
        """
        since, self._since = self._since, time.monotonic()
        more_texts, self._texts = texts - self._texts, texts
        more_tokens, self._tokens = tokens - self._tokens, tokens
        self.token_lengths.update(count_lengths(table))
        self._run.batch(self._strategy, table, (since, self._since), more_texts, more_tokens)


class Statistics:
    """Collects over all parts of a run; any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._lengths: Counter[int] = Counter()
        self._max_length = 0
        self._throughput = Throughput()
        self._sample = Sample()
        self._tokens = TokenWeights()

    def of_part(self, strategy: str) -> PartStatistics:
        """Return what collects over a part that is about to begin."""
        return PartStatistics(self, strategy)

    def batch(self, strategy: str, table: pa.Table, between: tuple[float, float], texts: int, tokens: int) -> None:
        """Take rows in, of which some texts were computed between two moments of the monotonic clock."""
        start, end = (moment - self._started for moment in between)
        with self._lock:
            if texts:
                self._throughput.add(start, end, texts, tokens)
            self._sample.add(strategy, table)
            if "sparse_indices" in table.schema.names:
                self._tokens.add(table)

    def part(self, token_lengths: Mapping[int, int], max_length: int) -> None:
        """Take the token lengths of a finished part in, embedded by this attempt or by an earlier one."""
        with self._lock:
            self._lengths.update(token_lengths)
            self._max_length = max(self._max_length, max_length)

    def result(self) -> EmbedStatistics:
        """Return what there is to draw."""
        with self._lock:
            texts, tokens = self._throughput.rates()
            points, explained = project(self._sample.vectors())
            return EmbedStatistics(
                token_lengths=dict(sorted(self._lengths.items())),
                max_length=self._max_length,
                slot_seconds=self._throughput.width,
                texts_per_second=tuple(np.round(texts, 2).tolist()),
                tokens_per_second=tuple(np.round(tokens, 1).tolist()),
                points=points,
                explained=explained,
                top_tokens=tuple(self._tokens.top()),
            )


def _vector(table: pa.Table, row: int) -> Vector:
    """Copy one vector out of a dataset table: an array, or the indices and the values of a sparse one."""
    if "embedding" in table.schema.names:
        return np.array(table.column("embedding")[row].values, dtype=np.float32)
    indices, values = (table.column(name)[row].values for name in ("sparse_indices", "sparse_values"))
    return np.array(indices, dtype=np.int64), np.array(values, dtype=np.float32)


def _flat_array(table: pa.Table, name: str) -> Any:
    column = table.column(name).combine_chunks()
    # A table without rows has no chunk to combine.
    return column.flatten() if len(column) else pa.array([], column.type.value_type)


def _flat(table: pa.Table, name: str) -> npt.NDArray[Any]:
    return _flat_array(table, name).to_numpy(zero_copy_only=False)
