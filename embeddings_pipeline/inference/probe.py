"""The self-test of a loaded model: some fixed texts go through it before anybody uses it.

What belongs here: the texts and what their vectors have to be. What does not: comparing the packed
with the padded path (`selection`), which looks at tokens and not at texts.
"""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from embeddings_pipeline.errors import ModelSelfTestError
from embeddings_pipeline.models import registry
from embeddings_pipeline.records import EmbeddedBatch, FloatMatrix
from embeddings_pipeline.settings import ModelSpec

if TYPE_CHECKING:
    from embeddings_pipeline.inference.encoder import Encoder

TEXTS = (
    "A lighthouse keeper finds a letter in a bottle.",
    "Annual report of the Geological Survey, 1998, volume 3.",
    "東京の図書館 — каталог книг — مكتبة",
)
"""Prose, a catalogue entry, and scripts that a model may not know."""

_TOLERANCE = 1e-3
"""Of a stored number; float32 differs by about 1e-6 between machines and versions, other weights by about 1e-1."""


_SAME = 1e-5
"""Of the largest number: vectors that differ by less are one vector, rounded in several ways."""


def self_test(encoder: "Encoder") -> EmbeddedBatch:
    """Embed the texts and check their vectors: finite, of the right width, different, and as stored.

    Raises:
        ModelSelfTestError: they are not.
    """
    batch = encoder.embed(TEXTS)
    if batch.failures:
        failure = batch.failures[0]
        raise ModelSelfTestError(encoder.model.name, f"it gives no vector ({failure.reason}: {failure.detail})")
    problem = _dense_problem(encoder, batch.dense) if batch.dense is not None else _sparse_problem(encoder, batch)
    if problem:
        raise ModelSelfTestError(encoder.model.name, problem)
    return batch


def _dense_problem(encoder: "Encoder", values: FloatMatrix) -> str:
    if values.shape[1] != encoder.dimensions:
        return f"its vectors have {values.shape[1]} numbers instead of {encoder.dimensions}"
    if not np.isfinite(values).all():
        return "its vectors are not finite"
    if not values.any(axis=1).all():
        return "a vector is nothing but zeros"
    if np.ptp(values, axis=0).max() <= _SAME * np.abs(values).max():
        return "its vectors are all the same"
    for row, stored in zip(values, stored_results(encoder.model.spec), strict=False):
        difference = np.abs(row[: len(stored)] - np.asarray(stored, np.float32)).max()
        if not difference <= _TOLERANCE:
            return f"a vector differs by {difference:.1e} from the one that is stored for these weights"
    return ""


def _sparse_problem(encoder: "Encoder", batch: EmbeddedBatch) -> str:
    sparse = batch.sparse
    if sparse is None:
        return "it gives neither dense nor sparse vectors"
    if len(sparse.indices) and int(sparse.indices.max()) >= encoder.dimensions:
        return f"it has a dimension {int(sparse.indices.max())} beyond its {encoder.dimensions}"
    rows = [
        dict(zip(sparse.indices[start:stop].tolist(), sparse.values[start:stop].tolist(), strict=True))
        for start, stop in itertools.pairwise(sparse.indptr.tolist())
    ]
    if not any(rows):
        return "its vectors are all empty"
    largest = float(sparse.values.max())
    if all(
        row.keys() == rows[0].keys() and all(abs(row[at] - rows[0][at]) <= _SAME * largest for at in row)
        for row in rows
    ):
        return "its vectors are all the same"
    return ""


def stored_results(spec: ModelSpec) -> Sequence[Sequence[float]]:
    """Return the first numbers of the texts' vectors where they are known; none for a spec with options of its own."""
    known = registry.known_models().get(spec.name)
    plain = registry.complete(ModelSpec(name=spec.name)) if known is not None else None
    if known is None or plain is None or known.revision != spec.revision:
        return ()
    if any(getattr(spec, name) != getattr(plain, name) for name in ("prompt", "prompt_name", "truncate_dim", "dtype")):
        return ()
    if spec.normalize is not None:
        return ()
    return known.stored_results
