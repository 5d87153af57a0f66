"""Real run workers, ended in every way: what is finished stays, nothing runs on, and the next run resumes.

A run worker is a process of the code server's, as under `dagster dev`. Slow, since each starts one.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest
from dagster._core.test_utils import create_test_daemon_workspace_context
from dagster._core.workspace.load_target import ModuleTarget

from tests.orchestration.test_coordinator import submit

ROOT = Path(__file__).parents[2]
PART_TEXTS, PARTS = 200, 40
RETRIES = {"enabled": True, "max_retries": 2, "retry_on_asset_or_op_failure": False}
"""Those of the shipped dagster.yaml."""

PATIENCE = 180.0

# Batch sizes change no part: what a slow run has finished serves a fast one.
FAST = {"ops": {"small__embeddings": {"config": {"application_batch_size": 1000, "model_batch_size": 64}}}}

ISOLATED = {"execution": {"config": {"cpu": {"isolate_steps": True}}}}


def until(what: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Return what is true at last; fail when the time is over."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
    return found


class Running:
    """A corpus of many small parts, and runs of it in real run workers."""

    def __init__(self, workspace: Any, output: Path) -> None:
        self.workspace = workspace
        self.instance: dg.DagsterInstance = workspace.instance
        self.output = output

    def start(self, **more: Any) -> str:
        """Start a run and return once some parts are embedded."""
        run_id = submit(self.workspace, "small_job", **more).run_id
        until(lambda: self.staged() >= 3 or self.finished(run_id))
        assert not self.finished(run_id), "it was over before it could be ended"
        return run_id

    def staged(self) -> int:
        """Return how many parts are embedded and not published."""
        return len(list((self.output / "staging").rglob("part-*.json")))

    def processes(self, run_id: str) -> list[psutil.Process]:
        """Return the run worker and its children."""
        events = [entry.dagster_event for entry in self.instance.all_logs(run_id) if entry.is_dagster_event]
        messages = [event.message or "" for event in events if event and event.is_engine_event]
        (pid,) = {
            message.split("pid: ")[1].split(")")[0] for message in messages if "Started process for run" in message
        }
        worker = psutil.Process(int(pid))
        return [worker, *worker.children(recursive=True)]

    def status(self, run_id: str) -> dg.DagsterRunStatus:
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return run.status

    def finished(self, run_id: str) -> bool:
        return self.status(run_id) in (
            dg.DagsterRunStatus.SUCCESS,
            dg.DagsterRunStatus.FAILURE,
            dg.DagsterRunStatus.CANCELED,
        )

    def resumed(self) -> int:
        """Return how many parts the last run found finished."""
        event = self.instance.get_latest_materialization_event(dg.AssetKey(["small", "embeddings"]))
        assert event is not None
        assert event.asset_materialization is not None
        return int(str(event.asset_materialization.metadata["parts_resumed"].value))

    def ends_well(self, run_id: str, before: int) -> None:
        """Wait for a run and check that it went on where another had stopped, and that nothing is left over."""
        until(lambda: self.finished(run_id))
        assert self.status(run_id) == dg.DagsterRunStatus.SUCCESS
        assert self.resumed() >= before
        manifest = json.loads((self.output / "manifests" / "whole.json").read_text(encoding="utf-8"))
        assert sum(file["rows"] for entry in manifest["sets"] for file in entry["files"]) == PARTS * PART_TEXTS
        assert not (self.output / "scratch").exists()
        assert not (self.output / "staging").exists()


def gone(processes: list[psutil.Process], seconds: float) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def running(corpora, monkeypatch) -> Iterator[Running]:
    corpora.source.write_text(
        "".join(json.dumps({"id": f"r{n}", "title": f"work {n}"}) + "\n" for n in range(PARTS * PART_TEXTS)),
        encoding="utf-8",
    )
    corpora.declare(
        part_texts=PART_TEXTS,
        run_config={"ops": {"small__embeddings": {"config": {"application_batch_size": 10, "model_batch_size": 1}}}},
    )
    # Without the queue no daemon has to run.
    overrides: dict[str, Any] = {"run_retries": RETRIES}
    overrides |= {"run_coordinator": {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"}}
    target = ModuleTarget("embeddings_pipeline.definitions", None, str(ROOT), "embeddings_pipeline")
    with (
        dg.instance_for_test(overrides=overrides) as instance,
        create_test_daemon_workspace_context(target, instance) as workspace,
    ):
        yield Running(workspace, corpora.output)


@pytest.mark.slow
@pytest.mark.parametrize("config", [{}, ISOLATED], ids=["one process", "a process per step"])
def test_terminate_ends_within_15_s_and_the_next_run_resumes(running, config):
    run_id = running.start(run_config=config)
    processes = running.processes(run_id)
    assert running.instance.run_launcher.terminate(run_id)
    until(lambda: running.status(run_id) == dg.DagsterRunStatus.CANCELED, 15)
    # The run is over; its worker still closes what it had open.
    assert gone(processes, 15)
    before = running.staged()
    assert before >= 3
    if not config:
        running.ends_well(submit(running.workspace, "small_job", run_config=FAST).run_id, before)


@pytest.mark.slow
def test_sigterm_as_of_a_spot_machine_ends_within_15_s_and_leaves_nothing_running(running):
    run_id = running.start()
    processes = running.processes(run_id)
    processes[0].send_signal(signal.SIGTERM)
    assert gone(processes, 15)
    until(lambda: running.finished(run_id), 30)
    assert running.status(run_id) != dg.DagsterRunStatus.SUCCESS
    assert running.staged() >= 3


@pytest.mark.slow
def test_a_killed_run_worker_leaves_no_step_process_and_the_next_run_resumes(running):
    run_id = running.start(run_config=ISOLATED)
    processes = running.processes(run_id)
    assert len(processes) > 1
    os.kill(processes[0].pid, signal.SIGKILL)
    assert gone(processes, 15)
    before = running.staged()
    assert before >= 3
    until(lambda: running.status(run_id) == dg.DagsterRunStatus.FAILURE, 60)
    lost = running.instance.get_run_by_id(run_id)
    assert lost is not None
    assert lost.tags.get("dagster/will_retry") == "true", lost.tags
    running.ends_well(submit(running.workspace, "small_job", run_config=FAST).run_id, before)


def test_no_asset_has_a_retry_policy(corpora):
    """With one, Dagster takes Terminate for a reason to try again (dagster-io/dagster#15026)."""
    from embeddings_pipeline.definitions import defs

    policies = [node.op.retry_policy for node in defs().resolve_asset_graph().assets_defs if node.is_executable]
    assert policies
    assert set(policies) == {None}
