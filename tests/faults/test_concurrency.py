"""Several runs of one corpus at once: slower, never wrong, and nobody has to clean up after them."""

import random

from tests.fakes import Bench
from tests.faults.plan import comparable, prepare
from tests.faults.test_kills import check, run_whole, start


def test_three_runs_of_one_corpus_at_once_all_succeed_with_the_dataset_of_one(bench: Bench) -> None:
    """They share part names, staging and scratch; a file of one must never meet the manifest of another."""
    alone = Bench(bench.root / "alone")
    run_whole(alone, 1)
    expected = comparable(alone)
    prepare(bench, 1)
    chance = random.Random(7)
    for _ in range(2):
        runs = [start(bench.root, 1, chance.uniform(0.0, 0.003)) for _ in range(3)]
        ended = [(run.communicate()[1], run.returncode) for run in runs]
        assert [code for _, code in ended] == [0, 0, 0], ended
        assert comparable(bench) == expected
    check(bench, 1, expected)
