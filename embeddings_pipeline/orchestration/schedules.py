"""The schedule of a corpus.

What belongs here: what its tick asks for. What does not: when it ticks (the corpus YAML's `schedule`).

A tick lists the source, adds partitions, and requests a run for each delivery that is due: new or
changed, made by another spec, or failed the last time. Of a `whole` corpus that is one run at every tick,
since its run finds out what changed.
"""

from typing import Any

import dagster as dg

from embeddings_pipeline.orchestration.partitions import add_partitions
from embeddings_pipeline.orchestration.requests import look, request
from embeddings_pipeline.pipeline import Due
from embeddings_pipeline.settings import CorpusSpec, ScheduleSpec

MOST_PER_TICK = 1000
"""Runs that a tick asks for: the daemon makes about twenty a second, and other schedules wait for it."""


def schedule_name(corpus: str) -> str:
    """Return the name of a corpus's schedule."""
    return f"{corpus}_schedule"


def build_schedule(spec: CorpusSpec, schedule: ScheduleSpec, job: Any) -> dg.ScheduleDefinition:
    """Return the schedule of a corpus; it runs as soon as it is declared."""

    @dg.schedule(
        name=schedule_name(spec.name),
        job=job,
        cron_schedule=schedule.cron,
        execution_timezone=schedule.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Embed what is new or changed in corpus '{spec.name}'.",
    )
    def tick(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        seen = look(spec)
        if seen.problem is not None:
            return dg.SkipReason(seen.problem)
        if spec.deliveries == "whole":
            moment = context.scheduled_execution_time.isoformat()
            return [request(spec, Due(delivery, "", moment)) for delivery in seen.found.deliveries]
        add_partitions(context.instance, spec, [delivery.name for delivery in seen.found.deliveries])
        if not seen.due:
            return dg.SkipReason(f"all {len(seen.found.deliveries)} deliveries of {seen.found.location} are published")
        if len(seen.due) > MOST_PER_TICK:
            context.log.info(
                f"{len(seen.due)} deliveries are due; the first {MOST_PER_TICK} are requested now, the others at "
                "the next ticks; a backfill of the job takes them all"
            )
        return [request(spec, waiting) for waiting in seen.due[:MOST_PER_TICK]]

    return tick
