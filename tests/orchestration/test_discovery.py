"""The job that lists deliveries, as CI uses it: no verb of Dagster's command line adds a dynamic partition."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from embeddings_pipeline.definitions import defs


@pytest.fixture
def folder(corpora):
    folder = corpora.source.parent / "incoming"
    (folder / "2024").mkdir(parents=True)
    for name in ("a", "2024/b"):
        (folder / f"{name}.jsonl").write_text(json.dumps({"id": name, "title": name}) + "\n", encoding="utf-8")
    corpora.declare(source={"kind": "jsonl", "location": str(folder), "id": "id"}, deliveries="files")
    return folder


def discover(instance):
    done = defs().resolve_job_def("small_discover").execute_in_process(instance=instance, raise_on_error=False)
    (output,) = [event for event in done.all_node_events if event.is_successful_output] or [None]
    return done, output and output.step_output_data.metadata


def test_it_makes_partitions_of_new_deliveries_and_lists_all_with_their_state(corpora, folder, monkeypatch):
    monkeypatch.setattr("embeddings_pipeline.storage.location._SETTLED_NS", -1)
    with dg.instance_for_test() as instance:
        done, shown = discover(instance)
        assert sorted(instance.get_dynamic_partitions("small_deliveries")) == ["2024/b.jsonl", "a.jsonl"]
        assert (shown["deliveries"].value, shown["due"].value, shown["partitions_added"].value) == (2, 2, 2)
        job = defs().resolve_job_def("small_job")
        assert job.execute_in_process(partition_key="2024/b.jsonl", instance=instance).success
        assert job.execute_in_process(partition_key="a.jsonl", instance=instance).success
        (folder / "2024/b.jsonl").unlink()
        done, shown = discover(instance)
        assert [(row["delivery"], row["state"]) for row in done.output_for_node("small__discover")] == [
            ("a.jsonl", "published"),
            ("2024/b.jsonl", "withdrawn"),
        ]
        assert shown["partitions_added"].value == 0
        assert [record.data["state"] for record in shown["table"].records] == ["published", "withdrawn"]


def test_a_vanished_source_fails_it_with_the_place(folder):
    shutil.rmtree(folder)
    with dg.instance_for_test() as instance:
        done, _ = discover(instance)
    assert not done.success
    (event,) = [event for event in done.all_node_events if event.is_step_failure]
    assert str(folder) in event.step_failure_data.user_failure_data.description


def test_a_run_without_a_delivery_says_what_to_choose(folder):
    """`dagster job execute` has no option for a partition."""
    with dg.instance_for_test() as instance:
        done = defs().resolve_job_def("small_job").execute_in_process(instance=instance, raise_on_error=False)
    (event,) = [event for event in done.all_node_events if event.is_step_failure]
    assert "comes in deliveries, and this run names none" in event.step_failure_data.user_failure_data.description


@pytest.mark.slow
def test_ci_discovers_and_embeds_one_delivery_with_dagsters_command_line(corpora, folder, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))

    def dagster(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "dagster"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    module = ("-m", "embeddings_pipeline.definitions")
    found = dagster("job", "execute", *module, "-j", "small_discover")
    assert found.returncode == 0, found.stderr
    assert "2 deliveries, 2 of them new partitions; 2 due: 2024/b.jsonl, a.jsonl" in found.stderr + found.stdout
    done = dagster("asset", "materialize", *module, "--select", "group:small", "--partition", "2024/b.jsonl")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (corpora.output / "manifests").glob("*.json")] == ["2024@2Fb.jsonl.json"]
