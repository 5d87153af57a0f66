"""How close vectors are to a reference.

What belongs here: comparing saved vectors. What does not: computing them (`ways`).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class SparseDifference:
    """How two sets of sparse vectors differ; `stray` is the largest weight that only one of them has."""

    max_abs_diff: float
    same_support: bool
    rows_with_other_support: int
    stray: float
    mean_active: float


def cosines(vectors: npt.NDArray[np.float32], reference: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the cosine of each vector to its reference.

    *Shape:* both float32[n, dimensions]; result float64[n].
    """
    if vectors.shape != reference.shape:
        raise ValueError(f"vectors have the shape {vectors.shape}, their reference {reference.shape}")
    one, other = vectors.astype(np.float64), reference.astype(np.float64)
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return (one * other).sum(axis=1) / norms


def compare_dense(file: Path, reference: Path) -> npt.NDArray[np.float64]:
    """Return the cosines of the vectors that two ways saved."""
    with np.load(file) as ours, np.load(reference) as theirs:
        return cosines(ours["dense"], theirs["dense"])


def compare_sparse(file: Path, reference: Path) -> SparseDifference:
    """Compare the sparse vectors that two ways saved."""
    with np.load(file) as ours, np.load(reference) as theirs:
        one, other = ({name: saved[name] for name in ("indptr", "indices", "values")} for saved in (ours, theirs))
    return sparse_difference(one, other)


def sparse_difference(one: dict[str, npt.NDArray], other: dict[str, npt.NDArray]) -> SparseDifference:
    """Compare sparse vectors in CSR form; the order of weights within a row does not matter.

    *Shape:* each has indptr int[n + 1], indices int[nnz], values float[nnz].
    """
    rows = len(one["indptr"]) - 1
    if rows != len(other["indptr"]) - 1:
        raise ValueError(f"there are {rows} vectors, but {len(other['indptr']) - 1} references")
    largest = stray = 0.0
    differing = 0
    for row in range(rows):
        mine, theirs = (_row(vectors, row) for vectors in (one, other))
        differing += mine.keys() != theirs.keys()
        for index in mine.keys() | theirs.keys():
            difference = abs(mine.get(index, 0.0) - theirs.get(index, 0.0))
            largest = max(largest, difference)
            if index not in mine or index not in theirs:
                stray = max(stray, difference)
    return SparseDifference(largest, not differing, differing, stray, len(one["indices"]) / max(1, rows))


def _row(vectors: dict[str, npt.NDArray], row: int) -> dict[int, float]:
    part = slice(vectors["indptr"][row], vectors["indptr"][row + 1])
    return dict(zip(vectors["indices"][part].tolist(), vectors["values"][part].tolist(), strict=True))
