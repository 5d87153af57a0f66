"""The batch plan: every text exactly once, budgets kept, nothing but the arguments decides."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from embeddings_pipeline.inference.batching import cost, plan

LENGTHS = st.lists(st.integers(1, 600), max_size=120)


@given(LENGTHS, st.integers(1, 20), st.integers(1, 1_500), st.booleans())
def test_each_text_stands_in_one_batch_and_budgets_are_kept(
    lengths: list[int], texts: int, tokens: int, padded: bool
) -> None:
    batches = plan(lengths, texts, tokens, padded=padded)
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    for batch in batches:
        assert 1 <= len(batch) <= texts
        assert len(batch) == 1 or cost([lengths[position] for position in batch], padded=padded) <= tokens


@given(LENGTHS, st.integers(1, 20), st.integers(1, 1_500), st.booleans())
def test_the_longest_come_first_and_equal_lengths_together(
    lengths: list[int], texts: int, tokens: int, padded: bool
) -> None:
    order = [lengths[position] for batch in plan(lengths, texts, tokens, padded=padded) for position in batch]
    assert order == sorted(lengths, reverse=True)


@given(LENGTHS, st.integers(1, 20), st.integers(1, 1_500))
def test_no_two_neighbouring_batches_would_fit_into_one(lengths: list[int], texts: int, tokens: int) -> None:
    """A wasteful plan would be correct and slow."""
    batches = plan(lengths, texts, tokens, padded=False)
    for one, next_one in itertools.pairwise(batches):
        joined = [lengths[position] for position in [*one, next_one[0]]]
        assert len(joined) > texts or cost(joined, padded=False) > tokens


def test_no_text_makes_no_batch() -> None:
    assert plan([], 8, 100, padded=True) == []
    assert cost([], padded=True) == 0
