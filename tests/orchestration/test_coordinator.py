"""The run coordinator, in an instance that is configured as the shipped dagster.yaml is, and Dagster's own queue."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.remote_representation.external import RemoteJob
from dagster._core.test_utils import create_test_daemon_workspace_context
from dagster._core.workspace.load_target import ModuleTarget
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon

from embeddings_pipeline.orchestration.coordinator import DeviceRunCoordinator
from tests.fakes import make_model

SHIPPED = Path(__file__).parents[2] / "dagster.yaml"
CPU, CUDA = ({"execution": {"config": {device: {}}}} for device in ("cpu", "cuda"))


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Give a code location that is loaded as the daemon loads it, and an instance whose runs are never started."""
    root = tmp_path_factory.mktemp("coordinator")
    attributes = {
        "name": "small",
        "source": {"kind": "jsonl", "location": str(root), "id": "id"},
        "deliveries": "files",
        "strategies": [{"name": "full_record"}],
        "model": {"name": "tests/fake", "source": str(make_model(root / "model"))},
        "output": {"location": str(root / "out")},
        "run_config": CUDA,
    }
    document = {"type": "embeddings_pipeline.orchestration.corpus.Corpus", "attributes": attributes}
    file = root / "corpora" / "small" / "defs.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    shipped = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    overrides = {name: shipped[name] for name in ("run_coordinator", "concurrency")}
    overrides["run_coordinator"]["config"] = {"device_tags": {"cuda": {"ecs/memory": "30000"}}}
    overrides["run_launcher"] = {"module": "dagster._core.test_utils", "class": "MockedRunLauncher"}
    target = ModuleTarget("embeddings_pipeline.definitions", None, str(SHIPPED.parent), "embeddings_pipeline")
    with (
        pytest.MonkeyPatch.context() as patch,
        dg.instance_for_test(overrides=overrides) as instance,
    ):
        patch.setenv("EMBEDDINGS_CORPORA", str(root / "corpora"))
        with create_test_daemon_workspace_context(target, instance) as context:
            yield context


@pytest.fixture
def workspace(location: Any) -> Iterator[Any]:
    """Give that location with an empty queue."""
    yield location
    for run in location.instance.get_runs():
        if not run.is_finished:
            location.instance.report_run_failed(run)
    location.instance.run_launcher.queue().clear()


def job_of(workspace, name: str) -> RemoteJob:
    location = workspace.create_request_context().get_code_location("embeddings_pipeline")
    (repository,) = location.get_repositories().values()
    return repository.get_full_job(name)


def submit(workspace, name: str, **more: Any) -> dg.DagsterRun:
    """Queue a run as the webserver does."""
    job = job_of(workspace, name)
    run = workspace.instance.create_run(
        **{
            "job_name": name,
            "run_id": None,
            "run_config": {},
            "status": dg.DagsterRunStatus.NOT_STARTED,
            "tags": {},
            "remote_job_origin": job.get_remote_origin(),
            "job_code_origin": job.get_python_origin(),
            **dict.fromkeys(
                ("resolved_op_selection", "step_keys_to_execute", "root_run_id", "parent_run_id", "job_snapshot")
            ),
            **dict.fromkeys(("execution_plan_snapshot", "parent_job_snapshot", "asset_selection", "op_selection")),
            "asset_check_selection": None,
            "asset_graph": None,
            **more,
        }
    )
    return workspace.instance.submit_run(run.run_id, workspace.create_request_context())


def started(workspace) -> list[str]:
    """Let the daemon dequeue once, and return the runs that it has handed to the launcher so far."""
    list(QueuedRunCoordinatorDaemon(interval_seconds=0).run_iteration(workspace))
    return [run.run_id for run in workspace.instance.run_launcher.queue()]


def test_cuda_runs_take_turns_while_cpu_runs_go_on(workspace):
    tags = [{"embeddings/delivery": f"small/{number}"} for number in range(4)]
    first, second = (submit(workspace, "small_job", run_config=CUDA, tags=tags[number]).run_id for number in (0, 1))
    cpu = [submit(workspace, "small_job", run_config=CPU, tags=tags[number]).run_id for number in (2, 3)]
    assert started(workspace) == [first, *cpu]
    instance = workspace.instance
    instance.report_run_failed(instance.get_run_by_id(first))
    assert started(workspace) == [first, *cpu, second]


def test_runs_of_one_delivery_take_turns(workspace):
    runs = [submit(workspace, "small_job", run_config=CPU, tags={"dagster/partition": "a"}).run_id for _ in range(2)]
    other = submit(workspace, "small_job", run_config=CPU, tags={"dagster/partition": "b"}).run_id
    assert started(workspace) == [runs[0], other]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"run_config": CPU}, {"embeddings/device": "cpu"}),
        ({"run_config": CUDA}, {"embeddings/device": "cuda", "ecs/memory": "30000"}),
        ({"tags": {"embeddings/device": "cuda"}}, {"embeddings/device": "cuda", "ecs/memory": "30000"}),
        ({"tags": {"embeddings/device": "cuda"}, "run_config": CPU}, {"embeddings/device": "cpu"}),
        ({"tags": {"dagster/partition": "x/y"}}, {"embeddings/delivery": "small/x/y"}),
        ({}, {}),
        (
            {"run_config": CUDA, "tags": {"ecs/memory": "1"}},
            {"embeddings/device": "cuda", "ecs/memory": "1"},
        ),
    ],
)
def test_a_run_is_tagged_by_its_own_config_before_it_is_queued(workspace, more, expected):
    tags = submit(workspace, "small_job", **more).tags
    names = ("embeddings/device", "embeddings/delivery", "ecs/memory")
    assert {name: tags[name] for name in names if name in tags} == expected


def test_a_selection_of_assets_names_its_delivery(workspace):
    """ "Materialize" in the asset graph runs a job of Dagster's own, which has no tags of ours."""
    keys = frozenset(dg.AssetKey(["small", stage]) for stage in ("records", "embeddings"))
    run = submit(workspace, "__ASSET_JOB", asset_selection=keys, tags={"dagster/partition": "a.jsonl"})
    assert run.tags["embeddings/delivery"] == "small/a.jsonl"
    run = submit(workspace, "__ASSET_JOB", asset_selection=frozenset([dg.AssetKey(["demo", "records"])]))
    assert run.tags["embeddings/delivery"] == "demo/whole"
    both = frozenset([dg.AssetKey(["demo", "records"]), dg.AssetKey(["small", "records"])])
    assert "embeddings/delivery" not in submit(workspace, "__ASSET_JOB", asset_selection=both).tags


def test_the_jobs_own_device_is_on_its_runs_tags(workspace):
    """A run request without a config carries `{}`, and runs with the job's default: the tag says so beforehand."""
    assert job_of(workspace, "small_job").run_tags["embeddings/device"] == "cuda"


def test_reading_a_dagster_home_imports_nothing_of_the_core():
    """The webserver and the daemon import the coordinator, and need neither pyarrow nor torch for it."""
    code = (
        "import sys; import embeddings_pipeline.orchestration.coordinator; "
        "print([name for name in ('pyarrow', 'torch', 'embeddings_pipeline.pipeline') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert issubclass(DeviceRunCoordinator, dg.QueuedRunCoordinator)
