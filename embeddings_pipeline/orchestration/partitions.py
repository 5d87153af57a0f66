"""Deliveries as Dagster's partitions.

What belongs here: a corpus's partitions, their keys, and reading from a step which delivery it is about.
What does not: which deliveries there are (`pipeline.discover`) and when one is embedded (`sensors`,
`schedules`).
"""

from collections.abc import Iterable, Sequence

import dagster as dg

from embeddings_pipeline.errors import RunConfigError
from embeddings_pipeline.records import Delivery
from embeddings_pipeline.settings import CorpusSpec

_MOST_AT_ONCE = 1000
"""Keys in one statement: SQLite takes only so many variables."""


def partitions_name(corpus: str) -> str:
    """Return the name of a corpus's dynamic partitions."""
    return f"{corpus}_deliveries"


def partitions_of(spec: CorpusSpec) -> dg.DynamicPartitionsDefinition | None:
    """Return the partitions of a corpus, one per delivery; None for a `whole` one."""
    return None if spec.deliveries == "whole" else dg.DynamicPartitionsDefinition(name=partitions_name(spec.name))


def new_keys(instance: dg.DagsterInstance, spec: CorpusSpec, names: Iterable[str]) -> list[list[str]]:
    """Return the names that are no partitions yet, in groups that a database takes at once."""
    if spec.deliveries == "whole":
        return []
    known = set(instance.get_dynamic_partitions(partitions_name(spec.name)))
    new = [name for name in names if name not in known]
    return [new[start : start + _MOST_AT_ONCE] for start in range(0, len(new), _MOST_AT_ONCE)]


def add_partitions(instance: dg.DagsterInstance, spec: CorpusSpec, names: Sequence[str]) -> int:
    """Add the deliveries that are no partitions yet; return how many."""
    groups = new_keys(instance, spec, names)
    for group in groups:
        instance.add_dynamic_partitions(partitions_name(spec.name), group)
    return sum(map(len, groups))


def delivery_of(spec: CorpusSpec, context: dg.AssetExecutionContext) -> Delivery:
    """Return the delivery that a step is about.

    Raises:
        RunConfigError: a corpus that comes in deliveries, and a run without one, or with several.
    """
    if spec.deliveries == "whole":
        return Delivery(spec.name)
    if not context.has_partition_key:
        raise RunConfigError(
            f"corpus '{spec.name}' comes in deliveries, and this run names none, or a range of them; choose one "
            f"partition, or start a backfill, which makes a run for each (the job {spec.name}_discover adds new ones)"
        )
    return Delivery(spec.name, context.partition_key)
