"""Interleaved rounds: every way once a round, the order turned by one each time.

What belongs here: the order, and ratios within a round. What does not: processes (`processes`) and
what the ways are (`inference`, `scale`, `peers`). The machine drifts by tens of percent within
minutes, so only what was measured side by side is compared.
"""

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.spread import Spread, spread

Rounds = dict[str, list[dict[str, Any]]]
"""For each way, its figures round by round."""


def interleave(ways: Mapping[str, Callable[[], dict[str, Any]]], count: int, say: Callable[[str], None]) -> Rounds:
    """Run each way once in each round.

    Args:
        ways: what to run, by name.
        count: of rounds.
        say: shown what a round gave.
    """
    rounds: Rounds = {name: [] for name in ways}
    names = list(ways)
    for number in range(count):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            rounds[name].append(ways[name]())
        last = ", ".join(f"{name} {rounds[name][-1]['seconds']:.2f} s" for name in names)
        say(f"round {number + 1} of {count}: {last}")
    return rounds


def figure(rounds: Rounds, way: str, name: str) -> Spread:
    """Sum up one figure of one way over all rounds."""
    return spread([entry[name] for entry in rounds[way]])


def ratio(rounds: Rounds, slow: str, fast: str, name: str = "seconds") -> Spread:
    """Sum up how many times as much of a figure one way took as another, within each round."""
    pairs = zip(rounds[slow], rounds[fast], strict=True)
    return spread([one[name] / other[name] if other[name] else float("nan") for one, other in pairs])
