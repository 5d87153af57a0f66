"""The verbs of the model cache in Dagster: ops, jobs, tables, and the cache between runs."""

import datetime as dt
import os
import shutil
import signal
import threading

import dagster as dg
import psutil
import pyarrow.dataset as ds
import pytest

from embeddings_pipeline.definitions import defs
from embeddings_pipeline.host.lifecycle import Hosts
from embeddings_pipeline.host.machine import MODEL_COLUMNS
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.settings import Environment, ModelSpec

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
JOBS = (
    "get_loaded_models_job",
    "load_model_job",
    "eject_model_job",
    "get_device_info_job",
    "download_model_job",
)


def run(name, config=None, **resource):
    job = defs().resolve_job_def(name)
    run_config = {"ops": {name.removesuffix("_job"): {"config": config}}} if config else {}
    if resource:
        run_config["resources"] = {"model_cache": {"config": resource}}
    with dg.DagsterInstance.ephemeral() as instance:
        return job.execute_in_process(run_config=run_config, instance=instance, raise_on_error=False)


def tables(result):
    return {
        name: [record.data for record in value.value.records]
        for event in result.all_events
        if event.is_successful_output
        for name, value in event.event_specific_data.metadata.items()
        if isinstance(value, dg.TableMetadataValue)
    }


def model_rows(result):
    """Return the whole rows that are shown beside the table of models."""
    (event,) = [event for event in result.all_events if event.is_successful_output]
    return event.event_specific_data.metadata["model_rows"].value


def failure(result):
    (event,) = [event for event in result.all_events if event.is_step_failure]
    return event.step_failure_data.user_failure_data


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A Dagster home whose hosts end with the test."""
    folder = tmp_path / "dagster_home"
    folder.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(folder))
    monkeypatch.delenv("EMBEDDINGS_MODEL_CACHE", raising=False)
    yield folder
    hosts = Hosts(folder, Environment.read())
    for device in hosts.devices():
        hosts.stop(device)
    assert not hosts.folder.exists()


def test_each_verb_is_a_job_with_defaults(corpora):
    jobs = {job.name for job in defs().get_repository_def().get_all_jobs()}
    assert set(JOBS) <= jobs
    for name in JOBS:
        assert dg.validate_run_config(defs().resolve_job_def(name), {})


def test_in_process_the_verbs_speak_of_the_runs_own_process(corpora, tiny_dense_model):
    loaded = run("load_model_job", {"model_name": "tests/tiny", "source": str(tiny_dense_model)}, mode="in_process")
    assert loaded.success
    (row,) = model_rows(loaded)
    assert list(row) == list(MODEL_COLUMNS)
    assert row["model_name"] == "tests/tiny"
    (shown,) = tables(loaded)["models"]
    assert shown == {
        **{name: row[name] for name in ("model_name", "device", "uses", "in_use")},
        "memory": f"{row['bytes'] / 2**20:.1f} MiB",
        "last_used": dt.datetime.fromisoformat(row["last_used_at"]).strftime("%d %b %H:%M"),
    }
    listed = run("get_loaded_models_job", mode="in_process")
    assert listed.output_for_node("get_loaded_models") == []
    assert tables(listed) == {"models": []}
    assert model_rows(listed) == []


def test_an_eject_of_what_is_not_loaded_fails_with_the_sentence_of_the_host(corpora):
    failed = failure(run("eject_model_job", {"model_name": "x"}, mode="in_process"))
    assert failed.description.startswith("model 'x' is not loaded on device 'all' (loaded there: nothing); name one")
    assert failed.metadata["code"].value == "model_not_in_cache"


def test_a_device_is_described_without_starting_a_host(corpora, home):
    result = run("get_device_info_job", mode="host")
    (row,) = result.output_for_node("get_device_info")
    assert (row["device"], row["models"]) == ("cpu", 0)
    assert tables(result)["devices"][0]["total_device_memory"] == row["total_device_memory"]
    assert run("get_loaded_models_job", mode="host").output_for_node("get_loaded_models") == []
    assert list(home.iterdir()) == []


@pytest.mark.slow
def test_a_second_run_starts_at_once_and_an_ejected_model_is_loaded_again(corpora, home, capfd):
    """The model is the real MiniLM, so that its memory can be seen to come back."""
    corpora.declare(model={"name": MINILM})
    times, told = [], []

    def embed():
        job = defs().resolve_job_def("small_job")
        config = {"ops": {"small__embeddings": {"config": {"force": True}}}}
        with dg.DagsterInstance.ephemeral() as instance:
            selection = [dg.AssetKey(["small", stage]) for stage in ("records", "embeddings", "dataset")]
            result = job.execute_in_process(run_config=config, instance=instance, asset_selection=selection)
        assert result.success
        (shown,) = result.asset_materializations_for_node("small__embeddings")
        told.append(capfd.readouterr().err)
        times.append(shown.metadata["seconds"].value)

    embed()
    (row,) = model_rows(run("get_loaded_models_job"))
    assert (row["model_name"], row["device"], row["in_use"]) == (MINILM, "cpu", 0)
    assert row["bytes"] > 90_000_000
    assert row["uses"] == 1
    embed()
    assert f"model {MINILM} loaded on cpu by its model host" in told[0]
    assert f"model {MINILM} is loaded already on cpu by its model host" in told[1]
    assert times[1] <= 0.2 * times[0]
    (again,) = model_rows(run("get_loaded_models_job"))
    assert (again["loaded_at"], again["uses"]) == (row["loaded_at"], 2)
    pid = Hosts(home, Environment.read()).ask("cpu")["pid"]
    before = psutil.Process(pid).memory_info().rss
    (ejected,) = tables(run("eject_model_job", {"model_name": MINILM, "device": "cpu"}))["ejected"]
    assert ejected["freed_bytes"] == row["bytes"]
    assert before - psutil.Process(pid).memory_info().rss >= 0.7 * row["bytes"]
    assert tables(run("get_loaded_models_job"))["models"] == []
    embed()
    assert f"model {MINILM} loaded on cpu by its model host" in told[2]
    with capfd.disabled():
        os.write(1, f"\nembed step: {times} s\n".encode())


@pytest.mark.slow
def test_a_host_that_is_killed_during_a_run_changes_nothing(corpora, home, tiny_dense_model):
    def rows():
        table = ds.dataset(corpora.output / "dataset").to_table().sort_by("record_id")
        return table.select(["record_id", "text_hash", "embedding", "fingerprint"]).to_pylist()

    def job():
        config = {"application_batch_size": 1, "force": True}
        with dg.DagsterInstance.ephemeral() as instance:
            return (
                defs()
                .resolve_job_def("small_job")
                .execute_in_process(run_config={"ops": {"small__embeddings": {"config": config}}}, instance=instance)
            )

    job()
    before = rows()
    hosts = Hosts(home, Environment.read())
    pid = hosts.ask("cpu")["pid"]
    threading.Timer(0.0, lambda: os.kill(pid, signal.SIGKILL)).start()
    result = job()
    assert result.success
    assert rows() == before
    assert all(check.passed for check in result.get_asset_check_evaluations())
    assert hosts.ask("cpu")["pid"] != pid


def test_a_model_is_brought_into_the_store_by_a_job(tmp_path, tiny_dense_model, monkeypatch):
    monkeypatch.setenv("EMBEDDINGS_MODEL_STORE", str(tmp_path / "store"))
    archive = shutil.make_archive(str(tmp_path / "tiny"), "zip", tiny_dense_model)
    result = run("download_model_job", {"model_name": "my/tiny", "source": archive, "to": str(tmp_path / "copy")})
    assert result.success
    facts = result.output_for_node("download_model")
    assert facts["path"] == str(tmp_path / "copy")
    model = resolve(ModelSpec(name="my/tiny", source=str(tmp_path / "copy")))
    assert model.fingerprint == facts["fingerprint"] == resolve(ModelSpec(name="my/tiny", source=archive)).fingerprint


def test_a_download_that_cannot_be_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("EMBEDDINGS_MODEL_STORE", str(tmp_path / "store"))
    result = run("download_model_job", {"model_name": "my/tiny", "source": str(tmp_path / "nothing.zip")})
    assert "nothing.zip' does not exist; name a .zip with the model's files" in failure(result).description
