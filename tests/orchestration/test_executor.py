"""The executor, through the one path of a test that uses it: `execute_job` of a reconstructable job."""

import functools
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.dataset as ds
import pytest

from embeddings_pipeline.definitions import defs
from embeddings_pipeline.inference.device import cuda_devices
from embeddings_pipeline.orchestration.executor import DEVICE_TAG

CPU = {"execution": {"config": {"cpu": {"workers": 1}}}}


_LOADS = itertools.count()


@functools.cache
def small_job(load: int) -> dg.JobDefinition:
    """Load the code location, once per `load`, of which each run has its own, as each run worker does."""
    return defs().resolve_job_def("small_job")


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as made:
        yield made


def run(instance: dg.DagsterInstance, run_config: dict[str, Any] | None = None, **more: Any) -> dg.JobExecutionResult:
    job = dg.build_reconstructable_job(
        __name__, "small_job", (next(_LOADS),), reconstructor_working_directory=str(Path(__file__).parents[2])
    )
    return dg.execute_job(job, instance=instance, run_config=run_config, **more)


def ops(**configs: dict[str, Any]) -> dict[str, Any]:
    return {"ops": {f"small__{stage}": {"config": config} for stage, config in configs.items()}}


def failure(result: dg.JobExecutionResult) -> str:
    (event,) = [event for event in result.all_events if event.event_type == dg.DagsterEventType.RUN_FAILURE]
    return event.job_failure_data.error.message.strip()


def metadata(instance: dg.DagsterInstance, stage: str) -> dict[str, Any]:
    event = instance.get_latest_materialization_event(dg.AssetKey(["small", stage]))
    return {name: value.value for name, value in event.asset_materialization.metadata.items()}


def test_a_run_without_config_embeds_on_the_cpu(corpora, instance):
    """Automations and "Materialize all" launch with an empty run config."""
    with run(instance) as result:
        assert result.success
    assert instance.get_run_by_id(result.run_id).tags[DEVICE_TAG] == "cpu"
    assert metadata(instance, "embeddings")["device"] == "cpu"
    assert metadata(instance, "embeddings")["workers"] >= 1
    assert ds.dataset(corpora.output / "dataset").count_rows() == 10


def test_batch_sizes_and_workers_come_from_the_run_config(corpora, instance):
    sizes = {"application_batch_size": 3, "model_batch_size": 4, "model_batch_tokens": 64}
    with run(instance, CPU | ops(embeddings=sizes, records={"limit": 7, "offset": 2})) as result:
        assert result.success
    shown = metadata(instance, "embeddings")
    assert {name: shown[name] for name in sizes} == sizes
    assert (shown["workers"], shown["read"], shown["embedded"]) == (1, 7, 7)


def test_the_environment_is_as_before_after_a_run(corpora, instance, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    before = dict(os.environ)
    with run(instance, CPU, asset_selection=[dg.AssetKey(["small", "records"])]) as result:
        assert result.success
    assert dict(os.environ) == before


def test_isolated_steps_run_in_processes_of_their_own(corpora, instance):
    config = {"execution": {"config": {"cpu": {"isolate_steps": True, "max_concurrent": 2}}}}
    with run(instance, config, asset_selection=[dg.AssetKey(["small", "records"])]) as result:
        assert result.success
    events = [record.event_log_entry for record in instance.get_records_for_run(result.run_id).records]
    started = [entry.dagster_event for entry in events if entry.is_dagster_event and entry.dagster_event.is_step_start]
    assert [event.step_key for event in started] == ["small__records"]
    assert str(os.getpid()) not in {event.pid for event in started}


REFUSED = {
    "application_batch_size 0": (
        ops(embeddings={"application_batch_size": 0}),
        "ops.small__embeddings.config.application_batch_size is 0, but has to be at least 1",
    ),
    "model_batch_size 0": (
        ops(embeddings={"model_batch_size": 0}),
        "ops.small__embeddings.config.model_batch_size is 0, but has to be at least 1",
    ),
    "model_batch_tokens -1": (
        ops(embeddings={"model_batch_tokens": -1}),
        "ops.small__embeddings.config.model_batch_tokens is -1, but has to be at least 0",
    ),
    "limit -1": (ops(records={"limit": -1}), "ops.small__records.config.limit is -1, but has to be at least 0"),
    "offset -1": (ops(records={"offset": -1}), "ops.small__records.config.offset is -1, but has to be at least 0"),
    "workers -1": (
        {"execution": {"config": {"cpu": {"workers": -1}}}},
        "execution.config.cpu.workers is -1, but has to be at least 0",
    ),
    "max_concurrent 0": (
        {"execution": {"config": {"cpu": {"max_concurrent": 0}}}},
        "execution.config.cpu.max_concurrent is 0, but has to be at least 1",
    ),
    "max_concurrent without processes": (
        {"execution": {"config": {"cpu": {"max_concurrent": 4}}}},
        "set isolate_steps: true, or max_concurrent: 1",
    ),
    "device -1": (
        {"execution": {"config": {"cuda": {"devices": [-1]}}}},
        "execution.config.cuda.devices has -1; use numbers from 0 on",
    ),
    "a device twice": (
        {"execution": {"config": {"cuda": {"devices": [1, 1]}}}},
        "execution.config.cuda.devices has 1 twice; name each device once",
    ),
    "model cache": (
        {"resources": {"model_cache": {"config": {"memory_budget": "much"}}}},
        "resources.model_cache.config.memory_budget is 'much', which is no size; use one such as 4 GiB",
    ),
}


@pytest.mark.parametrize(("run_config", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_fails_the_run_before_any_step(corpora, instance, run_config, sentence):
    with run(instance, run_config) as result:
        assert not result.success
        assert not [event for event in result.all_events if event.is_step_event]
    assert sentence in failure(result)
    assert "\n" not in failure(result)


@pytest.mark.skipif(cuda_devices().count > 0, reason="this machine has a CUDA device")
def test_cuda_on_a_machine_without_it_is_refused_with_the_reason(corpora, instance):
    """Nothing falls back in silence: whoever asks for cuda waits for cuda's speed."""
    with run(instance, {"execution": {"config": {"cuda": {}}}}) as result:
        assert not [event for event in result.all_events if event.is_step_event]
    assert "execution.config selects 'cuda', but this machine has no usable CUDA device" in failure(result)
    assert "choose execution: {config: {cpu: {}}}" in failure(result)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"model": {"name": "sentence-transformers/all-MiniLM-L6"}},
            "did you mean 'sentence-transformers/all-MiniLM-L6-v2'",
        ),
        (
            {"source": {"kind": "jsonl", "location": "/no/such.jsonl"}},
            "source.location '/no/such.jsonl' does not exist",
        ),
        ({"model": {"name": "mine", "source": "/no/model"}}, "model.source '/no/model' does not exist"),
        ({"output": {"location": f"{__file__}/out"}}, f"output.location '{__file__}/out'"),
    ],
)
def test_what_the_corpus_names_and_is_not_there_fails_the_run_before_any_step(corpora, instance, changes, sentence):
    corpora.declare(**changes)
    with run(instance) as result:
        assert not [event for event in result.all_events if event.is_step_event]
    assert sentence in failure(result)


def test_a_run_that_is_refused_is_not_started_again(corpora, instance):
    """The home's run retries are for lost processes; a wrong run config is as wrong the next time."""
    with run(instance, ops(records={"limit": -1}), tags={"dagster/max_retries": "2"}) as result:
        assert not result.success
    tags = instance.get_run_by_id(result.run_id).tags
    assert tags["dagster/max_retries"] == "0"
    assert tags.get("dagster/will_retry", "false") == "false"


def test_the_jobs_own_default_is_checked_where_the_run_has_none(corpora, instance):
    """Sensors and schedules launch with an empty run config, and the job's default holds."""
    corpora.declare(run_config=ops(embeddings={"application_batch_size": 0}))
    with run(instance) as result:
        assert "application_batch_size is 0" in failure(result)


def test_a_runs_config_wins_over_the_jobs_default(corpora, instance):
    default = CPU | ops(embeddings={"application_batch_size": 5, "model_batch_size": 2})
    corpora.declare(run_config=default)
    with run(instance) as result:
        assert result.success
    shown = metadata(instance, "embeddings")
    assert (shown["application_batch_size"], shown["model_batch_size"], shown["workers"]) == (5, 2, 1)
    with run(instance, CPU | ops(embeddings={"application_batch_size": 4})) as result:
        assert result.success
    assert metadata(instance, "embeddings")["application_batch_size"] == 4


def test_only_the_corpora_of_the_run_are_checked(corpora, instance):
    """A corpus whose source is away must not stop the runs of the others."""
    file = corpora.declare(name="other", source={"kind": "jsonl", "location": "/no/such.jsonl"})
    (corpora.folder / "other").mkdir()
    file.rename(corpora.folder / "other" / "defs.yaml")
    corpora.declare()
    with run(instance, asset_selection=[dg.AssetKey(["small", "records"])]) as result:
        assert result.success
