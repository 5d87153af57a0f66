"""A sample of vectors in two dimensions, for a picture.

What belongs here: the projection onto the two directions in which the sample differs most (PCA). What does not:
choosing the sample (`statistics`) and drawing it (`orchestration.pictures`).
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatVector: TypeAlias = npt.NDArray[np.float32]
Vector: TypeAlias = FloatVector | tuple[npt.NDArray[np.int64], FloatVector]
"""A dense vector, or the indices and the values of a sparse one."""

_BLOCK = 2048
"""Dimensions of sparse vectors that are unfolded at once: 4 MB for 500 vectors."""


def project(sample: Sequence[tuple[str, Vector]]) -> tuple[tuple[tuple[str, float, float], ...], float]:
    """Return a point (strategy, x, y) for each vector, and the share of the variance that the points show.

    Both axes have one scale, which puts the farthest point at 1 or -1. No points where fewer than three
    vectors, or no two different ones, are there.

    Args:
        sample: strategies and vectors, all dense with one width or all sparse.
    """
    if len(sample) < 3:
        return (), 0.0
    products = np.zeros((len(sample), len(sample)))
    for block in _blocks([vector for _, vector in sample]):
        products += block @ block.T
    # Centred products have the eigenvectors of the covariance, and are no larger for wide vectors.
    means = products.mean(axis=0)
    centred = products - means[:, None] - means[None, :] + means.mean()
    variance = float(np.trace(centred))
    if variance <= 1e-9 * max(float(np.trace(products)), 1e-30):
        return (), 0.0
    values, directions = np.linalg.eigh(centred)
    values, directions = np.clip(values[:-3:-1], 0, None), directions[:, :-3:-1]
    # The sign of a direction means nothing; this one is always the same.
    directions = directions * np.sign(directions[np.abs(directions).argmax(axis=0), (0, 1)])
    points = directions * np.sqrt(values)
    points = np.round(points / np.abs(points).max(), 3) + 0.0
    placed = tuple((name, float(x), float(y)) for (name, _), (x, y) in zip(sample, points, strict=True))
    return placed, round(float(values.sum()) / variance, 4)


def _blocks(vectors: Sequence[Vector]) -> Iterator[npt.NDArray[np.float64]]:
    """Yield the vectors as dense matrices of one row each, side by side some dimensions of all of them."""
    if not isinstance(vectors[0], tuple):
        yield np.stack([vector for vector in vectors if not isinstance(vector, tuple)]).astype(np.float64)
        return
    sparse = [vector for vector in vectors if isinstance(vector, tuple)]
    rows = np.repeat(np.arange(len(sparse)), [len(indices) for indices, _ in sparse])
    active, columns = np.unique(np.concatenate([indices for indices, _ in sparse]), return_inverse=True)
    values = np.concatenate([values for _, values in sparse])
    for start in range(0, len(active), _BLOCK):
        inside = (columns >= start) & (columns < start + _BLOCK)
        block = np.zeros((len(sparse), _BLOCK))
        block[rows[inside], columns[inside] - start] = values[inside]
        yield block
