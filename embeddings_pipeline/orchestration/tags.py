"""The run tags of this project, for people, filters and queue limits.

What belongs here: their names, and what can be told of a run from its config and selection alone. What
does not: setting them (`jobs`, `sensors`, `coordinator`, `executor`). Kept small: every process that reads
a Dagster home imports it with the coordinator.
"""

from collections.abc import Iterable, Mapping
from typing import Any

DEVICE_TAG = "embeddings/device"
"""`cpu` or `cuda`."""

DELIVERY_TAG = "embeddings/delivery"
"""`<corpus>/<delivery>`; dagster.yaml lets runs of one delivery take turns by it."""

PARTITION_TAG = "dagster/partition"

STAGES = ("records", "embeddings", "dataset")
"""The assets of a corpus, in the order in which a record passes them."""

JOB_SUFFIX = "_job"

_ARMS = ("cpu", "cuda")


def device_of(run_config: Mapping[str, Any] | None) -> str | None:
    """Return the device that a run's own config names, None where it leaves it to a default."""
    config = ((run_config or {}).get("execution") or {}).get("config") or {}
    return next((device for device in _ARMS if device in config), None)


def device_tags(run_config: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the tag of the device that a config names, if it names one."""
    device = device_of(run_config)
    return {} if device is None else {DEVICE_TAG: device}


def delivery_tags(corpus: str, delivery: str) -> dict[str, str]:
    """Return the tag of a delivery."""
    return {DELIVERY_TAG: f"{corpus}/{delivery}"}


def corpus_of(selected: Iterable[Iterable[str]], job: str) -> str | None:
    """Return the one corpus that a run embeds, by the paths of its assets or by its job; None for several or none."""
    paths = [tuple(path) for path in selected]
    if paths:
        corpora = {path[0] for path in paths if len(path) == 2 and path[1] in STAGES}
        return corpora.pop() if len(corpora) == 1 else None
    is_corpus = job.endswith(JOB_SUFFIX) and not job.startswith("__")
    return job.removesuffix(JOB_SUFFIX) if is_corpus else None
