"""A sample of vectors in two dimensions, against the library's own decomposition."""

import numpy as np
import pytest

from embeddings_pipeline.pipeline.projection import project

RANDOM = np.random.default_rng(5)


def places(points: tuple) -> np.ndarray:
    return np.array([point[1:] for point in points])


def test_the_two_axes_are_those_along_which_the_vectors_differ_most() -> None:
    vectors = RANDOM.normal(size=(100, 3)) @ np.diag([9, 4, 0.5]) @ np.linalg.qr(RANDOM.normal(size=(12, 3)))[0].T
    points, explained = project([("a", vector.astype(np.float32)) for vector in vectors])
    centred = vectors - vectors.mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    expected = left[:, :2] * values[:2]
    expected = expected / np.abs(expected).max()
    np.testing.assert_allclose(np.abs(places(points)), np.abs(expected), atol=2e-3)
    assert explained == pytest.approx(float((values[:2] ** 2).sum() / (values**2).sum()), abs=1e-3)
    assert np.abs(places(points)).max() == 1


def test_sparse_vectors_are_placed_as_the_same_dense_ones_are() -> None:
    """Also where more dimensions are active than are unfolded at once."""
    width = 7_000
    dense = np.where(RANDOM.random((40, width)) < 0.3, RANDOM.random((40, width)), 0).astype(np.float32)
    sparse = [(np.flatnonzero(row), row[np.flatnonzero(row)]) for row in dense]
    assert project([("a", row) for row in dense]) == project([("a", row) for row in sparse])


def test_points_keep_strategy_and_order() -> None:
    vectors = np.eye(5, dtype=np.float32)
    points, _ = project([(f"s{number}", vector) for number, vector in enumerate(vectors)])
    assert [name for name, _, _ in points] == ["s0", "s1", "s2", "s3", "s4"]


@pytest.mark.parametrize("vectors", [[], [[1, 0]], [[1, 0], [0, 1]], [[0.1, 0.3]] * 30, [[0, 0]] * 4])
def test_too_few_or_equal_vectors_give_no_points(vectors: list[list[float]]) -> None:
    assert project([("a", np.array(vector, np.float32)) for vector in vectors]) == ((), 0.0)


def test_vectors_on_a_line_lie_on_a_line() -> None:
    points, explained = project([("a", np.array([number, 2 * number], np.float32)) for number in range(5)])
    assert explained == pytest.approx(1)
    assert np.abs(places(points)[:, 1]).max() == 0
    assert np.abs(places(points)[:, 0]).tolist() == [1, 0.5, 0, 0.5, 1]


def test_empty_sparse_vectors_are_no_trouble() -> None:
    empty = (np.zeros(0, np.int64), np.zeros(0, np.float32))
    one = (np.array([3]), np.array([1.0], np.float32))
    assert len(project([("a", empty), ("a", empty), ("a", one)])[0]) == 3
    assert project([("a", empty)] * 3) == ((), 0.0)
