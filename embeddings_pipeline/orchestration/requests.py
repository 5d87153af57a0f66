"""Run requests for deliveries that are due: what schedules and sensors have in common.

What belongs here: looking what is due, and one request for a delivery. What does not: how many at a time
(`schedules`, `sensors`).
"""

from dataclasses import dataclass

import dagster as dg

from embeddings_pipeline import pipeline
from embeddings_pipeline.errors import EmbeddingsError
from embeddings_pipeline.orchestration.tags import delivery_tags, device_tags
from embeddings_pipeline.pipeline import Due
from embeddings_pipeline.records import Discovery
from embeddings_pipeline.settings import CorpusSpec


@dataclass(frozen=True, slots=True)
class Look:
    """What a tick saw; `problem` is a sentence where the source or the output cannot be looked at now."""

    found: Discovery
    due: tuple[Due, ...] = ()
    problem: str | None = None


def look(spec: CorpusSpec) -> Look:
    """Return what the source has and what of it is due.

    A source that is away is no failure of the tick: the next one looks again.
    """
    try:
        found = pipeline.discover(spec)
        if found.missing is not None:
            return Look(found, problem=found.missing)
        return Look(found, tuple(pipeline.due(spec, found)))
    except EmbeddingsError as error:
        return Look(Discovery(spec.source.location, ()), problem=str(error))


def request(spec: CorpusSpec, waiting: Due) -> dg.RunRequest:
    """Return the request for a run of one delivery, with the run config and tags of the corpus."""
    partition = None if spec.deliveries == "whole" else waiting.delivery.name
    tags = delivery_tags(spec.name, waiting.delivery.name) | device_tags(spec.run_config) | spec.run_tags
    return dg.RunRequest(run_key=waiting.key, run_config=spec.run_config, tags=tags, partition_key=partition)
