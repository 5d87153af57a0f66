"""Compact look-up tables over millions of keys, in numpy.

What belongs here: answering "was this key seen" and "where is this row" in a few bytes per key. What
does not: deciding what follows from the answer (`pipeline`).
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]


class SeenKeys:
    """The keys of a delivery so far, 16 bytes each.

    Keys are compared by 128 bits of BLAKE2b: among 10^9 keys the probability that any two differ
    and are taken for the same is below 10^-20 (birthday bound n^2 / 2^129).
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Hashes, Hashes]] = []

    def add(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Add keys; return for each whether it had been there before, earlier in `keys` included.

        *Shape:* bool[len(keys)]
        """
        return self.add_hashes(key_hashes(keys))

    def add_hashes(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Add keys by their hashes.

        *Shape:* hashes uint64[n, 2]; bool[n]
        """
        repeated = self.repeated(hashes)
        fresh = ~repeated
        if fresh.any():
            high, low = hashes[fresh, 0], hashes[fresh, 1]
            order = np.argsort(high)
            self._runs.append((high[order], low[order]))
            self._merge()
        return repeated

    def repeated(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Tell for each key whether it had been there before, and add none.

        *Shape:* hashes uint64[n, 2]; bool[n]
        """
        high, low = hashes[:, 0].copy(), hashes[:, 1].copy()
        order = np.lexsort((low, high))
        same = (high[order][1:] == high[order][:-1]) & (low[order][1:] == low[order][:-1])
        repeated = np.zeros(len(hashes), dtype=np.bool_)
        # lexsort is stable, so that of equal ones the first in the input comes first.
        repeated[order[1:][same]] = True
        for run_high, run_low in self._runs:
            at = np.minimum(np.searchsorted(run_high, high), len(run_high) - 1)
            repeated |= (run_high[at] == high) & (run_low[at] == low)
        return repeated

    def _merge(self) -> None:
        """Keep the runs' lengths falling by halves, so that there are few and each key moves rarely."""
        while len(self._runs) > 1 and len(self._runs[-2][0]) <= 2 * len(self._runs[-1][0]):
            (high_a, low_a), (high_b, low_b) = self._runs.pop(), self._runs.pop()
            high, low = np.concatenate([high_a, high_b]), np.concatenate([low_a, low_b])
            order = np.argsort(high)
            self._runs.append((high[order], low[order]))


def key_hashes(keys: Sequence[str]) -> Hashes:
    """Hash keys to 128 bits each.

    *Shape:* uint64[n, 2]
    """
    data = b"".join([hashlib.blake2b(key.encode("utf-8"), digest_size=16).digest() for key in keys])
    return np.frombuffer(data, dtype=np.uint64).reshape(-1, 2)


class RowIndex:
    """Where the rows with given keys are: 12 bytes per row, and at most 20 while they are sorted.

    A row is a 64-bit hash and its number among all that were added, from which file and row follow. A
    hit is a candidate: whoever uses it compares the row's own key, so that two keys with one hash cost a
    missed hit at worst, never a wrong row.
    """

    def __init__(self) -> None:
        self._added: list[Hashes] = []
        self._known: Hashes | None = None
        self._order: npt.NDArray[np.uint32] = np.empty(0, dtype=np.uint32)
        self._starts: list[int] = []
        self._files: list[int] = []
        self._first_rows: list[int] = []
        self._rows = 0

    def add(self, hashes: Hashes, file: int, first_row: int) -> None:
        """Add the rows of a file from `first_row` on, one hash each."""
        if self._known is not None:
            restored = np.empty_like(self._known)
            restored[self._order] = self._known
            self._added, self._known = [restored], None
        self._added.append(hashes)
        self._starts.append(self._rows)
        self._files.append(file)
        self._first_rows.append(first_row)
        self._rows += len(hashes)

    def find(self, hashes: Hashes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return file and row for each hash, -1 where there is none.

        *Shape:* int64[n], int64[n]
        """
        none = np.full(len(hashes), -1, dtype=np.int64)
        known = self._sorted()
        if not len(known):
            return none, none.copy()
        at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        hit = known[at] == hashes
        number = self._order[at].astype(np.int64)
        starts = np.array(self._starts, dtype=np.int64)
        segment = np.searchsorted(starts, number, side="right") - 1
        files = np.array(self._files, dtype=np.int64)[segment]
        rows = number - starts[segment] + np.array(self._first_rows, dtype=np.int64)[segment]
        return np.where(hit, files, none), np.where(hit, rows, none)

    def _sorted(self) -> Hashes:
        if self._known is None:
            known = np.concatenate(self._added) if self._added else np.empty(0, dtype=np.uint64)
            self._added = []
            self._order = np.argsort(known).astype(np.uint32)
            self._known = known[self._order]
        return self._known


def row_hashes(record_ids: Sequence[str], chunks: Sequence[int], text_hashes: Sequence[str]) -> Hashes:
    """Hash (record_id, chunk, text_hash) to 64 bits each.

    *Shape:* uint64[n]
    """
    data = b"".join(
        hashlib.blake2b(f"{text_hash}{chunk}:{record_id}".encode(), digest_size=8).digest()
        for record_id, chunk, text_hash in zip(record_ids, chunks, text_hashes, strict=True)
    )
    return np.frombuffer(data, dtype=np.uint64)
