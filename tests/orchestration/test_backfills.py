"""A backfill from the command line: a run per delivery, and a bad one that costs only itself."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.test_utils import create_test_daemon_workspace_context
from dagster._core.workspace.load_target import ModuleTarget
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon

from embeddings_pipeline.definitions import defs

ROOT = Path(__file__).parents[2]
NAMES = [f"delivery {number:02}.jsonl" for number in range(20)]


def backfill(home: Path, names: list[str]) -> None:
    """Queue a run for each delivery, as CI does."""
    module = ("-m", "embeddings_pipeline.definitions")
    arguments = ("job", "backfill", *module, "-j", "small_job", "--noprompt", "--partitions", ",".join(names))
    command = [str(Path(sys.executable).parent / "dagster"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr


def work_off(workspace: Any, instance: dg.DagsterInstance) -> dict[str, list[dg.DagsterRun]]:
    """Let the daemon's dequeuing start what is queued, in this process, until nothing is; return runs by delivery."""
    daemon = QueuedRunCoordinatorDaemon(interval_seconds=0)
    while instance.get_runs_count(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED])):
        list(daemon.run_iteration(workspace))
    runs: dict[str, list[dg.DagsterRun]] = {}
    for run in reversed(instance.get_runs(dg.RunsFilter(job_name="small_job"))):
        runs.setdefault(run.tags["dagster/partition"], []).append(run)
    return runs


@pytest.mark.slow
def test_of_twenty_deliveries_one_is_bad_and_its_repair_costs_one_run(corpora, tmp_path, monkeypatch):
    folder, home = tmp_path / "incoming", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    for number, name in enumerate(NAMES):
        (folder / name).write_text(json.dumps({"id": f"r{number}", "title": name}) + "\n", encoding="utf-8")
    bad = folder / NAMES[7]
    bad.write_text("no json\n", encoding="utf-8")
    corpora.declare(
        source={"kind": "jsonl", "location": str(folder), "id": "id"},
        deliveries="files",
        max_rejects={"count": 0},
        run_config={"ops": {"small__embeddings": {"config": {"model_batch_size": 3}}}},
        run_tags={"team": "search"},
    )
    settings = yaml.safe_load((ROOT / "dagster.yaml").read_text(encoding="utf-8"))
    settings["run_launcher"] = {
        "module": "dagster._core.launcher.sync_in_memory_run_launcher",
        "class": "SyncInMemoryRunLauncher",
    }
    (home / "dagster.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    target = ModuleTarget("embeddings_pipeline.definitions", None, str(ROOT), "embeddings_pipeline")
    with (
        dg.DagsterInstance.from_config(str(home)) as instance,
        create_test_daemon_workspace_context(target, instance) as workspace,
    ):
        assert defs().resolve_job_def("small_discover").execute_in_process(instance=instance).success
        backfill(home, NAMES)
        runs = work_off(workspace, instance)
        assert sorted(runs) == NAMES
        statuses = {name: run.status for name, (run,) in runs.items()}
        assert [name for name in NAMES if statuses[name] != dg.DagsterRunStatus.SUCCESS] == [bad.name]
        (failed,) = runs[bad.name]
        assert "1 of 1 texts" in reason(instance, failed)
        (good,) = runs[NAMES[0]]
        assert (good.tags["team"], good.tags["embeddings/delivery"]) == ("search", f"small/{NAMES[0]}")
        assert good.run_config["ops"]["small__embeddings"]["config"]["model_batch_size"] == 3
        bad.write_text(json.dumps({"id": "r7", "title": "repaired"}) + "\n", encoding="utf-8")
        backfill(home, [bad.name])
        again = work_off(workspace, instance)
    assert [run.status.value for run in again[bad.name]] == ["FAILURE", "SUCCESS"]
    assert sum(map(len, again.values())) == 21
    assert len(list((corpora.output / "manifests").glob("*.json"))) == 20


def reason(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """Return what the run's failed step says."""
    events = [entry.dagster_event for entry in instance.all_logs(run.run_id) if entry.is_dagster_event]
    (failure,) = [event for event in events if event and event.is_step_failure]
    return str(failure.step_failure_data.user_failure_data.description)
