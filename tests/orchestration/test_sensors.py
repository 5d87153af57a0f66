"""The sensor of a corpus, its ticks evaluated by Dagster against an instance and real files."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from embeddings_pipeline.definitions import defs
from embeddings_pipeline.orchestration import sensors
from embeddings_pipeline.orchestration.executor import DEVICE_TAG
from embeddings_pipeline.orchestration.tags import DELIVERY_TAG

RUNNING = dg.DefaultSensorStatus.RUNNING


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as made:
        yield made


@pytest.fixture
def watched(corpora):
    """Declare `small` over a folder of files, each a delivery, with a sensor; the files are added by `put`."""
    folder = corpora.source.parent / "incoming"
    folder.mkdir()
    declare(corpora)
    return corpora


def declare(corpora, **changes):
    folder = corpora.source.parent / "incoming"
    attributes = {
        "source": {"kind": "jsonl", "location": str(folder), "id": "id"},
        "deliveries": "files",
        "sensor": {"settle_seconds": 60},
    }
    corpora.declare(**(attributes | changes))


def incoming(corpora) -> Path:
    return corpora.source.parent / "incoming"


def put(corpora, name: str, title: str = "a work", age: float = 3600) -> None:
    file = incoming(corpora) / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"id": name, "title": title}) + "\n", encoding="utf-8")
    os.utime(file, (time.time() - age,) * 2)


@pytest.fixture(autouse=True)
def times_are_sure(monkeypatch) -> None:
    """Take a file's times as sure at once, as two seconds later they are."""
    monkeypatch.setattr("embeddings_pipeline.storage.location._SETTLED_NS", -1)


def tick(instance, cursor=None):
    """Evaluate the sensor, and add its partitions as the daemon does before it makes runs."""
    definitions = defs()
    sensor = definitions.get_repository_def().get_sensor_def("small_sensor")
    with dg.SensorEvaluationContext(instance_ref=instance.get_ref(), cursor=cursor, definitions=definitions) as context:
        made = sensor.evaluate_tick(context)
    for group in made.dynamic_partitions_requests or ():
        instance.add_dynamic_partitions(group.partitions_def_name, group.partition_keys)
    return made


def run(instance, request) -> bool:
    """Execute what a tick asks for, in this process."""
    job = defs().resolve_job_def("small_job")
    done = job.execute_in_process(
        run_config=request.run_config,
        partition_key=request.partition_key,
        tags={name: value for name, value in request.tags.items() if name != "dagster/partition"},
        instance=instance,
        raise_on_error=False,
    )
    return done.success


def test_a_declared_sensor_is_running_and_asks_for_a_run_per_new_delivery(watched, instance):
    declare(watched, run_tags={"team": "search"}, run_config={"execution": {"config": {"cuda": {}}}})
    for name in ("a.jsonl", "2024/b.jsonl"):
        put(watched, name)
    assert defs().get_repository_def().get_sensor_def("small_sensor").default_status == RUNNING
    made = tick(instance)
    assert {request.partition_key for request in made.run_requests} == {"a.jsonl", "2024/b.jsonl"}
    assert set(instance.get_dynamic_partitions("small_deliveries")) == {"a.jsonl", "2024/b.jsonl"}
    first = next(request for request in made.run_requests if request.partition_key == "2024/b.jsonl")
    assert first.tags["team"] == "search"
    assert (first.tags[DELIVERY_TAG], first.tags[DEVICE_TAG]) == ("small/2024/b.jsonl", "cuda")
    assert first.run_config == {"execution": {"config": {"cuda": {}}}}


def test_what_was_asked_for_is_not_asked_for_again_and_what_is_published_leaves_the_cursor(watched, instance):
    put(watched, "a.jsonl")
    first = tick(instance)
    again = tick(instance, first.cursor)
    assert not again.run_requests
    assert "1 asked for before" in str(again.skip_message)
    assert run(instance, first.run_requests[0])
    done = tick(instance, again.cursor)
    assert "1 published" in str(done.skip_message)
    assert json.loads(str(done.cursor)) == {"asked": []}


def test_an_overwritten_file_runs_again_under_another_key_also_when_it_comes_back_as_it_was(watched, instance):
    """Dagster makes one run for a run key, for ever: a key that was used is a run that never comes."""
    put(watched, "a.jsonl", "first")
    keys, cursor = [], None
    stamps = (incoming(watched) / "a.jsonl").stat()
    for title in ("first", "second", "first"):
        put(watched, "a.jsonl", title)
        os.utime(incoming(watched) / "a.jsonl", ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
        made = tick(instance, cursor)
        assert run(instance, made.run_requests[0])
        keys.append(made.run_requests[0].run_key)
        cursor = made.cursor
    assert len(set(keys)) == 3
    assert not tick(instance, cursor).run_requests


def test_a_changed_spec_asks_for_all_again_and_a_lost_cursor_for_the_same_keys(watched, instance):
    put(watched, "a.jsonl")
    made = tick(instance)
    assert tick(instance, None).run_requests[0].run_key == made.run_requests[0].run_key
    assert tick(instance, "{no cursor").run_requests[0].run_key == made.run_requests[0].run_key
    declare(watched, strategies=[{"name": "title", "fields": ["title"]}])
    changed = tick(instance, made.cursor)
    assert changed.run_requests[0].run_key != made.run_requests[0].run_key


def test_files_younger_than_the_settle_time_wait_for_a_later_tick(watched, instance):
    put(watched, "old.jsonl")
    put(watched, "young.jsonl", age=5)
    put(watched, "clock-ahead.jsonl", age=-86400)
    made = tick(instance)
    assert {request.partition_key for request in made.run_requests} == {"old.jsonl", "clock-ahead.jsonl"}
    waiting = tick(instance, made.cursor)
    assert "1 changed just now and wait until they settle" in str(waiting.skip_message)
    os.utime(incoming(watched) / "young.jsonl", (time.time() - 61,) * 2)
    assert [request.partition_key for request in tick(instance, waiting.cursor).run_requests] == ["young.jsonl"]


def test_many_deliveries_are_spread_over_ticks_the_oldest_first(watched, instance):
    for number in range(120):
        put(watched, f"{number:03}.jsonl", age=10_000 - number)
    seen, cursor, sizes = [], None, []
    for _ in range(3):
        made = tick(instance, cursor)
        seen += [request.partition_key for request in made.run_requests]
        sizes.append(len(made.run_requests))
        cursor = made.cursor
    assert sizes == [sensors.MOST_PER_TICK, sensors.MOST_PER_TICK, 20]
    assert seen == [f"{number:03}.jsonl" for number in range(120)]
    assert len(instance.get_dynamic_partitions("small_deliveries")) == 120


def test_nothing_more_is_asked_for_while_many_runs_wait_in_the_queue(watched, instance, monkeypatch):
    """A queue of 10,000 runs helps nobody: the source is the queue."""
    monkeypatch.setattr(sensors, "MOST_WAITING", 3)
    for number in range(5):
        put(watched, f"{number}.jsonl")
    job = defs().resolve_job_def("small_job")
    for _ in range(2):
        instance.create_run_for_job(job, status=dg.DagsterRunStatus.NOT_STARTED)
    made = tick(instance)
    assert len(made.run_requests) == 1
    instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    full = tick(instance, made.cursor)
    assert "4 wait, since 3 runs are queued or running" in str(full.skip_message)


def test_a_failed_delivery_is_not_asked_for_again_until_it_changes_or_a_person_executes_it_again(watched, instance):
    declare(watched, max_rejects={"count": 0})
    put(watched, "good.jsonl")
    (incoming(watched) / "bad.jsonl").write_text("no json\n", encoding="utf-8")
    os.utime(incoming(watched) / "bad.jsonl", (1, 1))
    made = tick(instance)
    outcome = {request.partition_key: run(instance, request) for request in made.run_requests}
    assert outcome == {"bad.jsonl": False, "good.jsonl": True}
    after = tick(instance, made.cursor)
    assert not after.run_requests
    assert "1 asked for before and queued, running or failed; execute failed runs again" in str(after.skip_message)
    put(watched, "bad.jsonl", "repaired")
    (request,) = tick(instance, after.cursor).run_requests
    assert request.partition_key == "bad.jsonl"
    assert run(instance, request)


def test_a_vanished_source_is_a_reason_to_skip_that_names_it_and_nothing_is_forgotten(watched, instance):
    put(watched, "a.jsonl")
    made = tick(instance)
    folder = incoming(watched)
    shutil.move(folder, folder.with_name("away"))
    gone = tick(instance, made.cursor)
    assert str(folder) in str(gone.skip_message)
    assert "does not exist" in str(gone.skip_message)
    assert gone.cursor in (None, made.cursor)
    shutil.move(folder.with_name("away"), folder)
    assert not tick(instance, made.cursor).run_requests


def test_a_run_that_embeds_something_else_than_was_asked_for_is_not_asked_for_without_end(watched, instance):
    """As when a run worker's environment gives the YAML another source than the code server's does."""
    put(watched, "a.jsonl")
    made = tick(instance)
    run(instance, made.run_requests[0])
    place = watched.output / "manifests" / "a.jsonl.json"
    manifest = json.loads(place.read_text(encoding="utf-8"))
    place.write_text(json.dumps(manifest | {"made_from": "other:files"}), encoding="utf-8")
    assert not tick(instance, made.cursor).run_requests


def test_an_unreadable_manifest_is_no_end_of_the_sensor(watched, instance):
    put(watched, "a.jsonl")
    run(instance, tick(instance).run_requests[0])
    (watched.output / "manifests" / "a.jsonl.json").write_text("{", encoding="utf-8")
    put(watched, "b.jsonl")
    assert {request.partition_key for request in tick(instance).run_requests} == {"a.jsonl", "b.jsonl"}


def test_a_whole_corpus_gets_one_run_when_any_of_its_files_changes(watched, instance):
    declare(watched, deliveries="whole")
    for name in ("a.jsonl", "b.jsonl"):
        put(watched, name)
    made = tick(instance)
    (request,) = made.run_requests
    assert (request.partition_key, request.tags[DELIVERY_TAG]) == (None, "small/whole")
    assert run(instance, request)
    assert not tick(instance, made.cursor).run_requests
    put(watched, "b.jsonl", "changed")
    assert len(tick(instance, made.cursor).run_requests) == 1


def test_ten_thousand_deliveries_cost_a_tick_seconds(watched, instance):
    for number in range(10_000):
        (incoming(watched) / f"{number:05}.jsonl").write_text("{}\n", encoding="utf-8")
    time.sleep(0.01)
    declare(watched, sensor={"settle_seconds": 0})
    started = time.monotonic()
    made = tick(instance)
    first = time.monotonic() - started
    started = time.monotonic()
    again = tick(instance, made.cursor)
    second = time.monotonic() - started
    assert len(instance.get_dynamic_partitions("small_deliveries")) == 10_000
    assert len(str(again.cursor)) < 5_000
    assert first < 20
    assert second < 10
