"""The event log of a run: it is kept for good and each row costs 26 to 54 ms, so its length follows from no number."""

import functools
import itertools
import json
from collections import Counter
from pathlib import Path

import dagster as dg
import pytest

from embeddings_pipeline.definitions import defs

MOST = 40
"""Events of a run beside those that Dagster writes for any job of three steps."""

OURS = {
    dg.DagsterEventType.ASSET_MATERIALIZATION,
    dg.DagsterEventType.ASSET_OBSERVATION,
    dg.DagsterEventType.ASSET_CHECK_EVALUATION,
    dg.DagsterEventType.ENGINE_EVENT,
}

_LOADS = itertools.count()


@functools.cache
def small_job(load: int) -> dg.JobDefinition:
    """Load the code location, once per `load`, of which each run has its own, as each run worker does."""
    return defs().resolve_job_def("small_job")


def events_of_a_run(corpora, records: int) -> list[dg.EventLogEntry]:
    """Run the job over so many records, each a part of its own, and return the whole event log."""
    corpora.declare(part_texts=1, output={"location": str(corpora.output / str(records))})
    lines = (json.dumps({"id": f"r{number}", "title": f"work {number}"}) + "\n" for number in range(records))
    corpora.source.write_text("".join(lines), encoding="utf-8")
    job = dg.build_reconstructable_job(
        __name__, "small_job", (next(_LOADS),), reconstructor_working_directory=str(Path(__file__).parents[2])
    )
    with dg.instance_for_test() as instance:
        with dg.execute_job(job, instance=instance) as result:
            assert result.success
        event = instance.get_latest_materialization_event(dg.AssetKey(["small", "embeddings"]))
        assert event.asset_materialization.metadata["parts"].value == records
        return instance.all_logs(result.run_id)


def kinds(events: list[dg.EventLogEntry]) -> Counter:
    return Counter(entry.dagster_event.event_type if entry.is_dagster_event else "a log line" for entry in events)


@pytest.mark.slow
def test_a_run_of_a_thousand_parts_has_as_many_events_as_one_of_two(corpora):
    many, few = events_of_a_run(corpora, 1_000), events_of_a_run(corpora, 2)
    assert kinds(many) == kinds(few)
    ours = [entry for entry in many if not entry.is_dagster_event or entry.dagster_event.event_type in OURS]
    assert 8 <= len(ours) <= MOST
    assert len(json.dumps([entry.to_json() for entry in many])) < 200_000


def test_a_run_writes_no_log_line_of_its_own_into_the_event_log(corpora):
    """Batches and progress go to the step's log, at a hundredth of a millisecond each."""
    found = kinds(events_of_a_run(corpora, 3))
    assert "a log line" not in found
    assert found[dg.DagsterEventType.ASSET_MATERIALIZATION] == 3
    assert found[dg.DagsterEventType.ASSET_CHECK_EVALUATION] == 5
