"""The model cache as a resource, and which device a run uses."""

import subprocess
import sys
from pathlib import Path

import dagster as dg
import psutil
import pytest

from embeddings_pipeline.errors import RunConfigError
from embeddings_pipeline.orchestration.resources import ModelCacheResource, device_for_run, workers_for_run

ROOT = Path(__file__).parents[2]

DECISIONS = {
    "nothing said": ({}, {}, "cpu", 0),
    "run config": ({}, {"cuda": {"workers": 2}}, "cuda", 2),
    "empty arm": ({}, {"cpu": None}, "cpu", 0),
    "executor": ({"EMBEDDINGS_DEVICE": "cpu", "EMBEDDINGS_WORKERS": "3"}, {}, "cpu", 3),
    "executor over run config": ({"EMBEDDINGS_DEVICE": "cpu"}, {"cuda": {"workers": 2}}, "cpu", 0),
}


@pytest.mark.parametrize(("environment", "arms", "device", "workers"), DECISIONS.values(), ids=DECISIONS)
def test_the_executors_word_counts_and_the_run_config_where_it_was_bypassed(
    environment, arms, device, workers, monkeypatch
):
    for name in ("EMBEDDINGS_DEVICE", "EMBEDDINGS_WORKERS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    run = dg.DagsterRun(job_name="j", run_config={"execution": {"config": arms}} if arms else {})
    assert (device_for_run(run), workers_for_run(run)) == (device, workers)


def test_a_resource_outside_a_run_is_on_the_cpu(monkeypatch):
    monkeypatch.delenv("EMBEDDINGS_DEVICE", raising=False)
    assert device_for_run(None) == "cpu"


def test_all_steps_of_a_run_get_one_cache_and_its_end_closes_it(monkeypatch):
    """In-process steps share the resource; the model is loaded once."""
    monkeypatch.delenv("EMBEDDINGS_DEVICE", raising=False)
    resource = ModelCacheResource()
    context = dg.build_init_resource_context()
    resource.setup_for_execution(context)
    first = resource.get()
    assert resource.get() is first
    assert first.device == "cpu"
    assert first.rows() == []
    resource.teardown_after_execution(context)
    assert resource.get() is not first


def test_a_resource_that_no_step_used_has_nothing_to_close():
    """Dagster sets resources up and tears them down once more after `dagster job execute`."""
    resource = ModelCacheResource()
    context = dg.build_init_resource_context()
    resource.setup_for_execution(context)
    resource.teardown_after_execution(context)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"memory_budget": "much"}, "resources.model_cache.config.memory_budget is 'much', which is no size; use one"),
        (
            {"idle_timeout_s": -1},
            "resources.model_cache.config.idle_timeout_s is -1.0; use seconds, or 0",
        ),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_what_is_right(fields, message):
    with pytest.raises(RunConfigError) as caught:
        ModelCacheResource(**fields).settings()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4 GiB", 4 * 2**30),
        ("500MB", 500_000_000),
        ("1.5 kib", 1536),
        ("1000000", 1_000_000),
        ("2TiB", 2**41),
    ],
)
def test_a_budget_is_written_as_people_write_sizes(text, size):
    assert ModelCacheResource(memory_budget=text).settings().memory_budget == size


def test_a_host_is_not_started_by_set_up(monkeypatch, tmp_path):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.delenv("EMBEDDINGS_DEVICE", raising=False)
    resource = ModelCacheResource(mode="host")
    context = dg.build_init_resource_context()
    resource.setup_for_execution(context)
    assert resource.get().rows() == []
    assert resource.get() is resource.get()
    resource.teardown_after_execution(context)
    assert list(tmp_path.iterdir()) == []


def test_a_run_on_several_devices_gets_a_cache_for_each(monkeypatch):
    monkeypatch.setenv("EMBEDDINGS_DEVICE", "cuda:0,cuda:1")
    assert [cache.device for cache in ModelCacheResource().caches()] == ["cuda:0", "cuda:1"]
    assert device_for_run(None) == "cuda:0"


CHILD = """
import os, signal, sys, time
if "ignoring" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
from embeddings_pipeline.orchestration.resources import _die_with_run_worker
from embeddings_pipeline.settings import Environment
_die_with_run_worker(Environment.read())
print(os.getpid(), flush=True)
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys
os.environ["EMBEDDINGS_RUN_WORKER"] = sys.argv[2] or str(os.getpid())
subprocess.run([sys.executable, "-c", sys.argv[1], *sys.argv[3:]])
"""


@pytest.mark.parametrize(
    ("arguments", "dies"),
    [(("",), True), (("", "ignoring"), True), (("1",), False)],
    ids=["a step of its own", "one that ignores SIGTERM", "another"],
)
def test_a_steps_process_dies_with_its_run_worker(arguments, dies):
    """FACTS 2.2: otherwise it goes on for long after the run counts as failed."""
    command = [sys.executable, "-c", PARENT, CHILD, *arguments]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    gone, _ = psutil.wait_procs([child], timeout=20 if dies else 0.5)
    zombie = child.is_running() and child.status() == psutil.STATUS_ZOMBIE
    assert (bool(gone) or zombie) is dies
    if not dies:
        child.kill()
