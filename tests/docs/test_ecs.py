"""The settings for AWS that come with the package: Dagster takes them, and builds from them what they name."""

import json
import os
from pathlib import Path

import dagster as dg
import pytest
import yaml

import embeddings_pipeline
from embeddings_pipeline.orchestration.tags import DELIVERY_TAG, DEVICE_TAG

FILE = Path(embeddings_pipeline.__file__).parent / "deploy" / "dagster_ecs.yaml"


@pytest.fixture
def instance(tmp_path, monkeypatch):
    """Load the file as a home, but for the database, which would be asked at once."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "DAGSTER_")):
            monkeypatch.delenv(name)
    # Whoever builds a client needs a region and keys; nothing is sent.
    for name, value in {
        "AWS_REGION": "eu-central-1",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "DAGSTER_LOGS_BUCKET": "logs",
    }.items():
        monkeypatch.setenv(name, value)
    settings = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    assert settings.pop("storage")["postgres"]["postgres_db"]["password"] == {"env": "DAGSTER_PG_PASSWORD"}
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    with dg.DagsterInstance.from_config(str(tmp_path)) as made:
        yield made


def test_runs_become_tasks_on_fargate(instance):
    launcher = instance.run_launcher
    assert type(launcher).__name__ == "EcsRunLauncher"
    assert launcher.run_task_kwargs["launchType"] == "FARGATE"
    assert launcher.run_resources == {"cpu": "4096", "memory": "16384"}
    assert launcher.supports_resume_run
    assert not launcher.use_current_ecs_task_config


def test_logs_go_to_the_bucket_of_the_environment(instance):
    assert type(instance.compute_log_manager).__name__ == "S3ComputeLogManager"
    assert instance.compute_log_manager.inst_data.config_dict["upload_interval"] == 30


def test_killed_tasks_are_resumed_and_runs_on_cuda_take_turns(instance):
    assert instance.run_monitoring_enabled
    assert instance.run_monitoring_max_resume_run_attempts == 2
    limits = instance.get_concurrency_config().run_queue_config.tag_concurrency_limits
    assert {(limit["key"], str(limit["value"]), limit["limit"]) for limit in limits} == {
        (DEVICE_TAG, "cuda", 1),
        (DELIVERY_TAG, "{'applyLimitPerUniqueValue': True}", 1),
    }


def test_runs_on_cuda_ask_for_a_task_with_a_gpu(instance):
    coordinator = instance.run_coordinator
    assert type(coordinator).__name__ == "DeviceRunCoordinator"
    tags = yaml.safe_load(FILE.read_text(encoding="utf-8"))["run_coordinator"]["config"]["device_tags"]
    assert (
        json.loads(tags["cuda"]["ecs/run_task_kwargs"])["capacityProviderStrategy"][0]["capacityProvider"] == "gpu-asg"
    )
    assert json.loads(tags["cuda"]["ecs/container_overrides"])["resourceRequirements"][0]["type"] == "GPU"
    assert "ecs/ephemeral_storage" not in tags["cuda"]


def test_every_place_to_change_is_marked():
    text = FILE.read_text(encoding="utf-8")
    invented = [line for line in text.splitlines() if "111122223333" in line or "0a1b2c3d" in line]
    assert len(invented) == 4
    assert all(line.endswith("# CHANGE") for line in invented)


def test_the_other_settings_are_those_of_one_machine():
    """What one of the two files learns about retries or records of ticks, the other should know."""
    here = yaml.safe_load((FILE.parents[2] / "dagster.yaml").read_text(encoding="utf-8"))
    there = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    for name in ("telemetry", "nux", "run_retries", "retention", "python_logs"):
        assert there[name] == here[name]
