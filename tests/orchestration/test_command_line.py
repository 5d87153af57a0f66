"""The `dagster` command line, as CI and people use it: exit codes, and sentences that are read last."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest
import yaml

import embeddings_pipeline

ROOT = Path(embeddings_pipeline.__file__).parents[1]
MODULE = ["-m", "embeddings_pipeline.definitions"]


@pytest.fixture
def dagster(corpora, tmp_path):
    """Run a `dagster` command in an empty folder with a home of its own."""
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(ROOT / "dagster.yaml", home)
    environment = {**os.environ, "DAGSTER_HOME": str(home), "HOME": str(home), "PYTHONPATH": str(ROOT)}

    def call(*arguments, config=None):
        command = [sys.executable, "-m", "dagster", *arguments]
        if config is not None:
            file = tmp_path / "run.yaml"
            file.write_text(yaml.safe_dump(config), encoding="utf-8")
            command += ["-c", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120)
        return done.returncode, done.stdout + done.stderr

    return call


def test_a_job_runs_with_the_batch_sizes_of_a_file_and_shows_its_batches(dagster, corpora):
    config = {
        "execution": {"config": {"cpu": {"workers": 1}}},
        "ops": {"small__embeddings": {"config": {"application_batch_size": 3, "model_batch_size": 4}}},
    }
    code, output = dagster("job", "execute", *MODULE, "-j", "small_job", config=config)
    assert code == 0
    assert "application batch size: 3, model batch size: 4, workers: 1, device: cpu" in output
    for batch, texts in enumerate([3, 3, 3, 1], 1):
        assert f"Embeddings batch {batch}: {texts} records, elapsed: " in output
    assert ds.dataset(corpora.output / "dataset").count_rows() == 10


def test_the_three_assets_materialize_by_selection(dagster, corpora):
    selection = 'key:"small/records" or key:"small/embeddings" or key:"small/dataset"'
    config = {"ops": {"small__embeddings": {"config": {"application_batch_size": 5}}}}
    code, output = dagster("asset", "materialize", *MODULE, "--select", selection, config=config)
    assert code == 0
    assert "application batch size: 5, model batch size: 64" in output
    assert ds.dataset(corpora.output / "dataset").count_rows() == 10


def test_a_refused_run_has_an_exit_code_and_a_sentence_near_its_end(dagster):
    config = {"ops": {"small__embeddings": {"config": {"application_batch_size": 0}}}}
    code, output = dagster("job", "execute", *MODULE, "-j", "small_job", config=config)
    assert code == 1
    assert "ops.small__embeddings.config.application_batch_size is 0, but has to be at least 1" in output[-1500:]
    assert "Traceback" not in output


def test_a_wrong_yaml_ends_validation_with_its_sentence(dagster, corpora):
    file = corpora.declare(sensro={"settle_seconds": 60})
    code, output = dagster("definitions", "validate", *MODULE)
    assert code == 1
    assert f"corpus file {file}: attributes: the field 'sensro' is unknown (did you mean 'sensor'" in output[-2500:]


def test_a_wrong_yaml_is_the_last_line_of_other_commands(dagster, corpora):
    corpora.declare(strategies=[{"name": "full_recrod"}])
    code, output = dagster("job", "execute", *MODULE, "-j", "small_job")
    assert code == 1
    assert "the strategy 'full_recrod' is unknown (did you mean 'full_record'?)" in output.strip().splitlines()[-1]


def test_the_home_of_the_repository_is_one_that_dagster_takes(dagster):
    """An unknown key in dagster.yaml fails every command."""
    code, output = dagster("asset", "list", *MODULE)
    assert code == 0
    assert "small/dataset" in output
