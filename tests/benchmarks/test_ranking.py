"""The metrics of `benchmarks.quality`, on examples worked out by hand."""

import math

import numpy as np
import pytest

from benchmarks.ranking import evaluate, ndcg, rank, recall


def test_the_best_ranking_has_ndcg_1() -> None:
    assert ndcg(["a", "b", "x"], {"a": 2, "b": 1}, 10) == pytest.approx(1)


def test_a_relevant_document_counts_less_further_down() -> None:
    assert ndcg(["x", "y", "a"], {"a": 1}, 10) == pytest.approx(1 / math.log2(4))


def test_grades_weigh_and_the_ideal_is_of_all_judged() -> None:
    """One of two is found, at place 1: 1 over (2 + 1 / log2(3))."""
    assert ndcg(["b"], {"a": 2, "b": 1}, 10) == pytest.approx(1 / (2 + 1 / math.log2(3)))


def test_what_stands_below_the_depth_does_not_count() -> None:
    assert ndcg(["x", "a"], {"a": 1}, 1) == 0
    assert recall(["x", "a"], {"a": 1}, 1) == 0


def test_recall_is_the_share_of_the_relevant_that_is_found() -> None:
    assert recall(["a", "x", "b"], {"a": 1, "b": 1, "c": 1, "d": 0}, 100) == pytest.approx(2 / 3)


def test_a_judged_query_without_a_ranking_counts_as_zero() -> None:
    found = evaluate({"q1": ["a"]}, {"q1": {"a": 1}, "q2": {"b": 1}})
    assert found == {"ndcg@10": 0.5, "recall@100": 0.5}


def test_ranking_is_by_score_and_ties_keep_their_order() -> None:
    assert rank(np.array([0.1, 0.7, 0.1, 0.9]), ["a", "b", "c", "d"], 3) == ["d", "b", "a"]
