"""The sensor of a corpus: it asks for a run for each delivery that is new or changed.

What belongs here: what a tick asks for, and how much of it. What does not: what is due (`pipeline.due`), and
the sensor for failed runs (`failures`).

A run key is the delivery, the version of its files, the hash of the corpus's spec and the commit that is
published of it. Dagster makes one run for a key, for ever; so an overwritten file gets another, also when it
comes back as it was, and a run that failed stays as it is until somebody executes it again or something
changes. The cursor holds what was asked for and is still due, so that ticks go on behind it.
"""

import hashlib
import json
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

import dagster as dg

from embeddings_pipeline.orchestration.jobs import job_name
from embeddings_pipeline.orchestration.partitions import new_keys, partitions_name
from embeddings_pipeline.orchestration.requests import Look, look, request
from embeddings_pipeline.pipeline import Due
from embeddings_pipeline.records import FoundDelivery
from embeddings_pipeline.settings import CorpusSpec, SensorSpec

MOST_PER_TICK = 50
"""Runs that a tick asks for: the daemon makes about twenty a second, and other sensors wait for it."""

MOST_WAITING = 100
"""Runs of a corpus that are queued or running while the sensor asks for more: the others wait in the source."""

INTERVAL_SECONDS = 30

_UNFINISHED = (
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)

_log = logging.getLogger(__name__)


def sensor_name(corpus: str) -> str:
    """Return the name of a corpus's sensor."""
    return f"{corpus}_sensor"


def build_sensor(spec: CorpusSpec, sensor: SensorSpec, job: Any) -> dg.SensorDefinition:
    """Return the sensor of a corpus; it runs as soon as it is declared."""

    @dg.sensor(
        name=sensor_name(spec.name),
        job=job,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Embed each new or changed delivery of corpus '{spec.name}' once its files have not changed for "
        f"{sensor.settle_seconds:g} s. A tick asks for {MOST_PER_TICK} runs at most, and for none while {MOST_WAITING} "
        "are queued or running.",
    )
    def tick(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        seen = look(spec)
        if seen.problem is not None:
            return dg.SkipReason(seen.problem)
        return _ask(spec, sensor, context, seen)

    return tick


def _ask(spec: CorpusSpec, sensor: SensorSpec, context: dg.SensorEvaluationContext, seen: Look) -> dg.SensorResult:
    asked = _asked(context.cursor)
    now = time.time()
    fresh = [waiting for waiting in seen.due if _mark(waiting) not in asked]
    ready = [waiting for waiting in fresh if _settled(waiting.delivery, now, sensor.settle_seconds)]
    ready.sort(key=lambda waiting: (_modified(waiting.delivery), waiting.delivery.name))
    unfinished = context.instance.get_runs_count(dg.RunsFilter(job_name=job_name(spec.name), statuses=_UNFINISHED))
    now_asked = ready[: max(0, min(MOST_PER_TICK, MOST_WAITING - unfinished))]
    marks = [mark for waiting in seen.due if (mark := _mark(waiting)) in asked] + [_mark(one) for one in now_asked]
    names = [delivery.name for delivery in seen.found.deliveries]
    partitions = [
        dg.AddDynamicPartitionsRequest(partitions_name(spec.name), group)
        for group in new_keys(context.instance, spec, names)
    ]
    skip = None if now_asked else dg.SkipReason(_why_not(seen, len(fresh), len(ready), unfinished))
    return dg.SensorResult(
        run_requests=[request(spec, waiting) for waiting in now_asked],
        skip_reason=skip,
        cursor=json.dumps({"asked": marks}),
        dynamic_partitions_requests=partitions,
    )


def _why_not(seen: Look, fresh: int, ready: int, unfinished: int) -> str:
    """Say where the deliveries are that no run is asked for."""
    asked = len(seen.due) - fresh
    words = [f"{len(seen.found.deliveries)} deliveries in {seen.found.location}"]
    words.append(f"{len(seen.found.deliveries) - len(seen.due)} published")
    if asked:
        words.append(f"{asked} asked for before and queued, running or failed; execute failed runs again")
    if fresh > ready:
        words.append(f"{fresh - ready} changed just now and wait until they settle")
    if ready:
        words.append(f"{ready} wait, since {unfinished} runs are queued or running")
    return ": ".join([words[0], ", ".join(words[1:])])


def _settled(delivery: FoundDelivery, now: float, seconds: float) -> bool:
    """Tell whether the files have been as they are for so long; a time in the future is some clock's mistake."""
    return bool(delivery.version) and abs(now - _modified(delivery)) >= seconds


def _modified(delivery: FoundDelivery) -> float:
    return 0.0 if delivery.modified is None else delivery.modified.timestamp()


def _mark(waiting: Due) -> str:
    """Return a short form of what is asked for: not of the run key, which is another after each publish.

    Else a run that reads other files or another YAML than the sensor does would be asked for without end.
    """
    return hashlib.sha256(f"{waiting.delivery.name}\n{waiting.made_from}".encode()).hexdigest()[:16]


def _asked(cursor: str | None) -> set[str]:
    """Return the marks of what was asked for; none where a person has reset the cursor or written one."""
    try:
        marks: Any = json.loads(cursor)["asked"] if cursor else []
        return _texts(marks)
    except (ValueError, KeyError, TypeError):
        _log.warning(
            "the cursor %r is not one of this sensor's; it starts anew, and run keys keep it from repeating", cursor
        )
        return set()


def _texts(marks: Iterable[Any] | Sequence[Any]) -> set[str]:
    return {mark for mark in marks if isinstance(mark, str)}
