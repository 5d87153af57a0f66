"""The schedule of a corpus, its ticks evaluated by Dagster."""

import datetime as dt
import json
import shutil
from collections.abc import Iterator

import dagster as dg
import pytest

from embeddings_pipeline.definitions import defs
from embeddings_pipeline.orchestration import schedules
from embeddings_pipeline.orchestration.executor import DEVICE_TAG
from embeddings_pipeline.orchestration.tags import DELIVERY_TAG

CUDA = {"execution": {"config": {"cuda": {}}}}


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as made:
        yield made


@pytest.fixture
def folder(corpora):
    """Give the folder of a source with two deliveries, which a schedule looks at."""
    folder = corpora.source.parent / "incoming"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.jsonl").write_text(json.dumps({"id": name, "title": name}) + "\n", encoding="utf-8")
    declare(corpora)
    return folder


def declare(corpora, **changes):
    attributes = {
        "source": {"kind": "jsonl", "location": str(corpora.source.parent / "incoming"), "id": "id"},
        "deliveries": "files",
        "schedule": {"cron": "0 3 * * *", "timezone": "Europe/Berlin"},
    }
    corpora.declare(**(attributes | changes))


def tick(instance, moment=dt.datetime(2026, 1, 2, 2, tzinfo=dt.UTC)):
    repository = defs().get_repository_def()
    schedule = repository.get_schedule_def("small_schedule")
    with dg.build_schedule_context(
        instance=instance, scheduled_execution_time=moment, repository_def=repository
    ) as context:
        return schedule.evaluate_tick(context)


def test_a_declared_schedule_is_running_at_its_time_in_its_time_zone(folder):
    schedule = defs().get_repository_def().get_schedule_def("small_schedule")
    assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("0 3 * * *", "Europe/Berlin")


def test_a_tick_lists_the_source_adds_partitions_and_asks_for_partitioned_runs(corpora, folder, instance):
    declare(corpora, run_config=CUDA, run_tags={"team": "search"})
    requests = tick(instance).run_requests
    assert [request.partition_key for request in requests] == ["a.jsonl", "b.jsonl"]
    assert sorted(instance.get_dynamic_partitions("small_deliveries")) == ["a.jsonl", "b.jsonl"]
    assert requests[0].run_config == CUDA
    tags = requests[0].tags
    assert (tags[DELIVERY_TAG], tags[DEVICE_TAG], tags["team"]) == ("small/a.jsonl", "cuda", "search")
    assert tags["dagster/partition"] == "a.jsonl"


def test_the_next_tick_asks_for_what_failed_or_changed_and_not_for_what_is_published(
    corpora, folder, instance, monkeypatch
):
    monkeypatch.setattr("embeddings_pipeline.storage.location._SETTLED_NS", -1)
    job = defs().resolve_job_def("small_job")
    instance.add_dynamic_partitions("small_deliveries", ["a.jsonl", "b.jsonl"])
    assert job.execute_in_process(partition_key="a.jsonl", instance=instance).success
    assert [request.partition_key for request in tick(instance).run_requests] == ["b.jsonl"]
    assert job.execute_in_process(partition_key="b.jsonl", instance=instance).success
    assert f"all 2 deliveries of {folder} are published" in tick(instance).skip_message


def test_more_than_a_tick_asks_for_wait_for_the_next(folder, instance, monkeypatch):
    monkeypatch.setattr(schedules, "MOST_PER_TICK", 1)
    assert len(tick(instance).run_requests) == 1
    assert len(instance.get_dynamic_partitions("small_deliveries")) == 2


def test_a_whole_corpus_gets_one_run_at_every_tick(corpora, folder, instance):
    """Its run finds out what changed, which costs little where nothing did."""
    declare(corpora, deliveries="whole")
    (first,) = tick(instance).run_requests
    (second,) = tick(instance, dt.datetime(2026, 1, 3, 2, tzinfo=dt.UTC)).run_requests
    assert first.partition_key is None
    assert first.run_key != second.run_key
    assert first.tags[DELIVERY_TAG] == "small/whole"


def test_a_vanished_source_is_a_reason_to_skip(folder, instance):
    shutil.rmtree(folder)
    skipped = tick(instance)
    assert not skipped.run_requests
    assert str(folder) in skipped.skip_message
