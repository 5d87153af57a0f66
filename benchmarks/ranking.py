"""How good a ranking is: nDCG and recall, as trec_eval's `ndcg_cut` and `recall` have them.

What belongs here: metrics and ranking by score. What does not: where scores come from (`quality`).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt


def rank(scores: npt.NDArray[np.floating], ids: Sequence[str], most: int) -> list[str]:
    """Return the ids with the highest scores, best first; of equal ones the earlier first.

    *Shape:* scores float[len(ids)].
    """
    return [ids[number] for number in np.argsort(-scores, kind="stable")[:most]]


def ndcg(ranking: Sequence[str], grades: Mapping[str, int], depth: int) -> float:
    """Return the discounted gain of a query's ranking over that of the best possible one.

    Args:
        ranking: document ids, best first.
        grades: what the judged documents are worth; others are worth nothing.
        depth: how many places count.
    """
    ideal = _gain(sorted(grades.values(), reverse=True)[:depth])
    return _gain([grades.get(document, 0) for document in ranking[:depth]]) / ideal if ideal else 0.0


def recall(ranking: Sequence[str], grades: Mapping[str, int], depth: int) -> float:
    """Return the share of a query's relevant documents that are among the first ones."""
    relevant = {document for document, grade in grades.items() if grade > 0}
    return len(relevant.intersection(ranking[:depth])) / len(relevant) if relevant else 0.0


def evaluate(rankings: Mapping[str, Sequence[str]], judgements: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """Return nDCG@10 and recall@100, means over all judged queries; one without a ranking counts 0."""
    count = len(judgements)
    found = [(rankings.get(query, ()), grades) for query, grades in judgements.items()]
    return {
        "ndcg@10": sum(ndcg(ranking, grades, 10) for ranking, grades in found) / count,
        "recall@100": sum(recall(ranking, grades, 100) for ranking, grades in found) / count,
    }


def _gain(grades: Sequence[int]) -> float:
    return math.fsum(grade / math.log2(place + 2) for place, grade in enumerate(grades))
