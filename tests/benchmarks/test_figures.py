"""How measurements become figures: spread, ratios, arithmetic, differences, tables and plots."""

import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest

from benchmarks.compare import cosines, sparse_difference
from benchmarks.flops import flops_of, linear_products
from benchmarks.plot import Panel, draw
from benchmarks.readme import fill
from benchmarks.rounds import interleave, ratio
from benchmarks.scale import figures_of, plot, table
from benchmarks.spread import spread

MINILM = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "vocab_size": 30522}


def test_a_spread_has_median_extremes_and_median_deviation() -> None:
    assert spread([1.0, 2.0, 9.0]).keys("x") == {"x": 2.0, "x_min": 1.0, "x_max": 9.0, "x_mad": 1.0}


def test_every_way_runs_once_a_round_and_each_is_first_in_turn() -> None:
    order: list[str] = []

    def way(name: str) -> Any:
        return lambda: order.append(name) or {"seconds": float(len(order))}

    rounds = interleave({name: way(name) for name in "abc"}, 3, lambda _: None)
    assert order == list("abcbcacab")
    assert all(len(runs) == 3 for runs in rounds.values())


def test_ratios_are_taken_within_a_round() -> None:
    """The machine was twice as slow in the second round; the ratio does not see it."""
    rounds = {"slow": [{"seconds": 3.0}, {"seconds": 6.0}], "fast": [{"seconds": 1.0}, {"seconds": 2.0}]}
    assert (ratio(rounds, "slow", "fast").least, ratio(rounds, "slow", "fast").most) == (3.0, 3.0)


def test_a_token_of_minilm_costs_21_mflop_and_attention_comes_on_top() -> None:
    linear = sum(product.flops_per_token for product in linear_products(MINILM, head=False))
    assert linear == 2 * 6 * (4 * 384**2 + 2 * 384 * 1536)
    assert flops_of(MINILM, [10], head=False) == 10 * linear + 4 * 384 * 6 * 100
    assert flops_of(MINILM, [1], head=True) - flops_of(MINILM, [1], head=False) == 2 * 384 * (384 + 30522)


def test_cosines_ignore_length_and_see_direction() -> None:
    one = np.array([[1, 0], [1, 1]], np.float32)
    other = np.array([[5, 0], [0, 2]], np.float32)
    assert cosines(one, other) == pytest.approx([1, 0.5**0.5])


def _rows(*rows: dict[int, float]) -> dict[str, Any]:
    return {
        "indptr": np.cumsum([0, *map(len, rows)]),
        "indices": np.array([index for row in rows for index in row]),
        "values": np.array([value for row in rows for value in row.values()]),
    }


def test_sparse_vectors_are_compared_whatever_the_order_of_their_weights() -> None:
    same = sparse_difference(_rows({1: 0.5, 7: 0.25}, {}), _rows({7: 0.25, 1: 0.75}, {}))
    assert (same.max_abs_diff, same.same_support, same.stray) == (0.25, True, 0.0)
    assert same.mean_active == 1


def test_a_dimension_that_only_one_has_is_another_support() -> None:
    found = sparse_difference(_rows({1: 0.5}, {2: 1.0}), _rows({1: 0.5, 3: 0.125}, {2: 1.0}))
    assert (found.same_support, found.rows_with_other_support, found.stray) == (False, 1, 0.125)


def _scale_rounds() -> dict[str, list[dict[str, Any]]]:
    def run(rss: float, time: float) -> dict[str, Any]:
        figures = {"_us": time, "whole__us": time, "cpu__us": time, "rss_mb": rss}
        return figures | {"stolen_seconds": 0.0, "other_seconds": 0.0}

    return {"10": [run(90, 12)], "30": [run(100, 10)], "300": [run(102, 11)]}


def test_growth_is_from_the_second_count_to_the_last() -> None:
    figures = figures_of(_scale_rounds(), [10, 30, 300])
    assert figures["rss_growth"] == pytest.approx(0.02)
    assert figures["time_growth"] == pytest.approx(0.1)
    assert "| 300 | 11.0 (11.0 to 11.0) | 11.0 | 102 |" in table(figures)


def test_the_plot_is_an_svg_with_a_point_for_each_count() -> None:
    tree = ET.fromstring(plot(figures_of(_scale_rounds(), [10, 30, 300])))
    assert len([element for element in tree.iter() if element.tag.endswith("circle")]) == 6
    assert draw([Panel("a < b", [1], [0.0], [0.0], [0.0])], "n").count("a &lt; b") == 1


def test_results_go_between_their_markers_and_quick_ones_are_marked() -> None:
    figures = figures_of(_scale_rounds(), [10, 30, 300])
    facts = {"date": "today", "cores": 2, "cpu": "a CPU", "commit": "abc", "quick": True}
    page = "before\n<!-- results:scale -->\nold\n<!-- end -->\nafter\n<!-- results:peers -->\nkept\n<!-- end -->\n"
    filled = fill(page, {"scale": {**facts, **figures}})
    assert "Run on today, 2 cores (a CPU), revision abc **with --quick" in filled
    assert "memory +2.0%" in filled
    assert "old" not in filled
    assert "kept" in filled
    assert fill(filled, {"scale": {**facts, **figures}}) == filled
