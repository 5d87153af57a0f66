"""How repeated measurements are summed up.

What belongs here: medians and their spread. What does not: taking the measurements (`clock`,
`processes`) and showing them (`report`).
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with its spread; `mad` is the median absolute deviation from it."""

    median: float
    least: float
    most: float
    mad: float
    count: int

    def keys(self, name: str) -> dict[str, float]:
        """Return the flat entries of a result: the median under the plain name, the rest behind it."""
        return {
            name: self.median,
            f"{name}_min": self.least,
            f"{name}_max": self.most,
            f"{name}_mad": self.mad,
        }

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.least:.3g} to {self.most:.3g}, MAD {self.mad:.2g})"


def spread(values: Sequence[float]) -> Spread:
    """Sum up at least one value."""
    median = statistics.median(values)
    deviations = [abs(value - median) for value in values]
    return Spread(median, min(values), max(values), statistics.median(deviations), len(values))
