"""What is collected for a run's pictures: it is right, it stays small, and it does not depend on the order."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from embeddings_pipeline.pipeline.statistics import (
    BIN_EDGES,
    MOST_POINTS,
    MOST_SLOTS,
    Sample,
    Statistics,
    Throughput,
    TokenWeights,
    count_lengths,
)
from embeddings_pipeline.storage.strategies import hash_text
from tests.fakes import Bench, FakeEncoder, works


def dense(numbers: range, dimensions: int = 4) -> pa.Table:
    """Return rows whose vectors and hashes follow from their numbers."""
    values = np.stack([np.full(dimensions, number, np.float32) for number in numbers])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), dimensions)
    hashes = [hash_text(str(number).encode()) for number in numbers]
    return pa.table({"text_hash": hashes, "token_count": pa.array(list(numbers), pa.int32()), "embedding": vectors})


def sparse(*rows: dict[int, float], names: str = "token{}") -> pa.Table:
    return pa.table(
        {
            "text_hash": [hash_text(str(sorted(row.items())).encode()) for row in rows],
            "token_count": pa.array([len(row) for row in rows], pa.int32()),
            "sparse_indices": pa.array([list(row) for row in rows], pa.list_(pa.int32())),
            "sparse_values": pa.array([list(row.values()) for row in rows], pa.list_(pa.float32())),
            "sparse_tokens": [[names.format(index) for index in row] for row in rows],
        }
    )


# Token lengths


def test_every_text_is_in_the_bin_of_its_length_up_to_the_longest_that_can_be() -> None:
    counts = [0, 1, 7, 8, 9, 255, 256, 257, 2**31 - 1]
    found = count_lengths(pa.table({"token_count": pa.array(counts, pa.int32())}))
    assert found == {0: 1, 1: 1, 6: 1, 8: 2, 203: 1, 256: 2, 1704458901: 1}
    assert int(BIN_EDGES[-1]) > 2**31 - 1
    assert len(BIN_EDGES) < 100


def test_the_bins_get_wider_evenly() -> None:
    """Else the picture would show steps that are in the bins and not in the texts."""
    edges = BIN_EDGES[BIN_EDGES >= 8].astype(float)
    ratios = edges[1:] / edges[:-1]
    assert ratios.min() >= 1.2
    assert ratios.max() <= 1.31


def test_a_table_without_rows_has_no_lengths() -> None:
    assert count_lengths(pa.table({"token_count": pa.array([], pa.int32())})) == {}


# Throughput


def test_what_a_batch_computed_is_spread_over_its_time() -> None:
    rates = Throughput()
    rates.add(0.5, 2.5, 100, 4_000)
    texts, tokens = rates.rates()
    assert texts.tolist() == [25, 50, 50]
    assert tokens.tolist() == [1_000, 2_000, 2_000]


def test_loading_the_model_shows_as_a_time_without_texts() -> None:
    rates = Throughput()
    rates.add(3.0, 4.0, 10, 100)
    assert rates.rates()[0].tolist() == [0, 0, 0, 10]


@pytest.mark.parametrize("seconds", [0.3, 61, 3_600, 1_000_000])
def test_a_run_of_any_length_has_few_slots_and_loses_no_text(seconds: float) -> None:
    rates = Throughput()
    batches = 500
    for number in range(batches):
        rates.add(seconds * number / batches, seconds * (number + 1) / batches, 10, 100)
    texts, tokens = rates.rates()
    assert len(texts) <= MOST_SLOTS
    covered = np.full(len(texts), rates.width)
    covered[-1] = seconds - (len(texts) - 1) * rates.width
    assert (texts * covered).sum() == pytest.approx(5_000)
    assert (tokens * covered).sum() == pytest.approx(50_000)
    assert texts == pytest.approx(np.full(len(texts), 5_000 / seconds), rel=1e-3)


def test_a_batch_that_took_no_time_counts() -> None:
    rates = Throughput()
    rates.add(1.0, 1.0, 10, 100)
    rates.add(1.5, 2.0, 10, 100)
    assert rates.rates()[0].sum() == 20


def test_no_batch_has_no_rates() -> None:
    assert Throughput().rates().shape == (2, 0)


# The sample


def test_the_sample_is_the_same_in_whatever_order_and_batches_the_texts_come() -> None:
    """Several devices finish parts in an order of their own; the picture is to be the same."""
    first, second = Sample(50), Sample(50)
    first.add("title", dense(range(1_000)))
    order = list(range(0, 1_000, 10))
    random.Random(4).shuffle(order)
    for start in order:
        second.add("title", dense(range(start, start + 10)))
    assert [key for key, _ in first.vectors()] == ["title"] * 50
    for (_, one), (_, other) in zip(first.vectors(), second.vectors(), strict=True):
        assert one.tolist() == other.tolist()
    least = sorted(range(1_000), key=lambda number: hash_text(str(number).encode()))[:50]
    assert [int(vector[0]) for _, vector in first.vectors()] == least


def test_equal_texts_are_in_the_sample_once_for_each_strategy() -> None:
    sample = Sample()
    for strategy in ("title", "card", "title"):
        sample.add(strategy, pa.concat_tables([dense(range(3)), dense(range(3))]))
    assert sorted(name for name, _ in sample.vectors()) == ["card"] * 3 + ["title"] * 3


def test_the_sample_keeps_no_more_vectors_than_it_says_and_none_of_the_batch() -> None:
    sample = Sample()
    before = pa.total_allocated_bytes()
    for start in range(0, 20_000, 1_000):
        sample.add("title", dense(range(start, start + 1_000), dimensions=64))
    assert len(sample.vectors()) == MOST_POINTS
    assert all(vector.base is None and vector.nbytes == 256 for _, vector in sample.vectors())
    assert pa.total_allocated_bytes() == before


def test_half_precision_and_sparse_vectors_can_be_in_the_sample() -> None:
    halves = pa.FixedSizeListArray.from_arrays(pa.array(np.array([1, 2], np.float16)), 2)
    sample = Sample()
    sample.add("a", pa.table({"text_hash": ["x"], "embedding": halves}))
    assert sample.vectors()[0][1].tolist() == [1, 2]
    sample = Sample()
    sample.add("a", sparse({3: 0.5, 9: 0.25}))
    indices, values = sample.vectors()[0][1]
    assert (indices.tolist(), values.tolist()) == ([3, 9], [0.5, 0.25])


# Top tokens


def test_the_heaviest_tokens_come_first_with_their_texts() -> None:
    weights = TokenWeights()
    weights.add(sparse({5: 1.0, 7: 0.5}, {5: 0.25}, {}))
    weights.add(sparse({900: 3.0, 7: 0.5}))
    assert [(top.token, top.texts, top.weight) for top in weights.top(3)] == [
        ("token900", 1, 3.0),
        ("token5", 2, 1.25),
        ("token7", 2, 1.0),
    ]
    assert [top.token for top in weights.top(1)] == ["token900"]


def test_tokens_are_words_and_a_dimension_without_a_name_is_called_by_its_number() -> None:
    weights = TokenWeights()
    weights.add(sparse({5: 1.0}, names="##ing"))
    weights.add(sparse({6: 0.5}, names=""))
    assert [top.token for top in weights.top()] == ["…ing", "dimension 6"]


@pytest.mark.parametrize("table", [sparse(), sparse({}, {})])
def test_empty_sparse_vectors_have_no_tokens(table: pa.Table) -> None:
    weights = TokenWeights()
    weights.add(table)
    assert weights.top() == []


# The run


def run(bench: Bench, **changes: Any):
    bench.put("a.jsonl", works(40))
    bench.extract(**changes)
    return bench.embed(batch=4, **changes)


def test_a_run_shows_all_texts_that_it_embedded(bench: Bench) -> None:
    report = run(bench, part_texts=10, strategies=[{"name": "full_record"}, {"name": "title", "fields": ["title"]}])
    statistics = report.statistics
    assert sum(statistics.token_lengths.values()) == report.counts.embedded
    assert report.counts.embedded == 80
    assert statistics.max_length == 16
    assert len(statistics.points) == 80
    assert {name for name, _, _ in statistics.points} == {"full_record", "title"}
    assert max(statistics.texts_per_second) > 0
    assert statistics.top_tokens == ()


def test_the_pictures_of_two_runs_differ_in_nothing_but_time(bench: Bench) -> None:
    first = run(bench, part_texts=10).statistics
    second = bench.embed(batch=7, part_texts=10, force=True, run_id="again").statistics
    assert first.points == second.points
    assert (first.token_lengths, first.explained) == (second.token_lengths, second.explained)


def test_a_resumed_run_shows_the_lengths_of_the_parts_that_were_done_before(bench: Bench) -> None:
    """Two thirds of a night's texts are not to vanish from the histogram because a run was killed."""
    bench.put("a.jsonl", works(40))
    bench.extract(part_texts=10)
    bench.encoder = FakeEncoder(fail_call=lambda texts: any("work 25" in text for text in texts))
    with pytest.raises(Exception, match="told to fail"):
        bench.embed(batch=4, part_texts=10)
    bench.encoder = FakeEncoder()
    report = bench.embed(batch=4, part_texts=10)
    assert sum(part.resumed for part in report.parts) == 2
    assert sum(report.statistics.token_lengths.values()) == 40
    assert report.statistics.max_length == 16
    assert len(report.statistics.points) == 20


def test_a_run_that_embeds_nothing_has_nothing_to_show(bench: Bench) -> None:
    run(bench)
    bench.publish()
    bench.extract()
    statistics = bench.embed().statistics
    assert statistics == Statistics().result()
    assert statistics.token_lengths == {}
    assert statistics.points == ()
    assert statistics.texts_per_second == ()


def test_a_sparse_run_shows_its_heaviest_tokens(bench: Bench) -> None:
    bench.encoder = FakeEncoder(kind="sparse")
    bench.changes["model"] = {"name": "tests/fake", "source": str(bench.model), "kind": "sparse"}
    statistics = run(bench).statistics
    assert len(statistics.top_tokens) == 8
    assert {top.texts for top in statistics.top_tokens} == {40}
    weights = [top.weight for top in statistics.top_tokens]
    assert weights == sorted(weights, reverse=True)
    assert len(statistics.points) == 40


def test_texts_beyond_the_limit_are_in_the_histogram_with_their_whole_length(bench: Bench) -> None:
    bench.put("a.jsonl", [{"id": "long", "title": "word " * 200}, *works(1)])
    bench.extract()
    report = bench.embed()
    assert max(report.statistics.token_lengths) >= 200
    assert report.truncated == 1
    assert report.truncated_share == 0.5
