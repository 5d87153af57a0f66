"""The `dagster` verbs that CI uses, in one script, with a daemon and without."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.corpora import declare, records, write_lines
from tests.e2e.stage import ROOT, Stage

SCRIPT = """
set -euo pipefail
dagster definitions validate -w "$WORKSPACE"
dagster asset materialize -m embeddings_pipeline.definitions --select 'key:"ci/*"'
dagster job execute -m embeddings_pipeline.definitions -j ci_job -c run.yaml
dagster job launch -w "$WORKSPACE" -j ci_job -c run.yaml --run-id "$RUN_ID" --tags '{"from": "ci"}'
"""
CONFIG = """
execution: {config: {cpu: {workers: 1}}}
ops: {ci__embeddings: {config: {application_batch_size: 2, force: true}}}
"""

STATUSES = """
import json, dagster as dg
with dg.DagsterInstance.get() as instance:
    runs = {run.run_id: run.status.value for run in instance.get_runs()}
launched = next(name for name in runs if name.startswith("11111111"))
print(json.dumps({launched: runs.pop(launched), "others": sorted(runs.values())}))
"""


def script(folder: Path, environment: dict[str, str], run_id: str) -> subprocess.CompletedProcess[str]:
    """Run the script as CI does: bash, the environment's programs, an exit code."""
    (folder / "run.yaml").write_text(CONFIG, encoding="utf-8")
    variables = {
        **environment,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}",
        "WORKSPACE": str(ROOT / "workspace.yaml"),
        "RUN_ID": run_id,
        "EMBEDDINGS_MODEL_CACHE": "in_process",
    }
    return subprocess.run(
        ["bash", "-c", SCRIPT], cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture
def corpus(stage: Stage) -> Path:
    """Declare the corpus `ci` and return the folder that the script runs in."""
    folder = stage.data / "ci"
    write_lines(folder / "works.jsonl", records("ci", 5))
    declare(stage.corpora, "ci", folder / "works.jsonl", folder / "out")
    return folder


def test_all_four_verbs_work_with_a_daemon_which_carries_out_what_was_launched(corpus, stage, graphql):
    graphql.reload()
    run_id = "11111111-0000-4000-8000-000000000001"
    done = script(corpus, stage.environment(), run_id)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    run = graphql.finish(run_id, 120)
    assert run.status == "SUCCESS", graphql.errors(run_id)
    assert (run.tags["from"], run.tags["embeddings/device"]) == ("ci", "cpu")
    assert graphql.materialization(run_id, "ci/embeddings")["application_batch_size"] == 2
    assert len([found for found in graphql.runs("ci_job") if found.status == "SUCCESS"]) == 2


def test_without_a_daemon_a_launched_run_waits_in_the_queue_and_the_others_are_done(corpus, stage):
    home = stage.folder / "home-without-daemon"
    home.mkdir()
    shutil.copy(ROOT / "dagster.yaml", home)
    environment = {**stage.environment(), "DAGSTER_HOME": str(home)}
    run_id = "11111111-0000-4000-8000-000000000002"
    done = script(corpus, environment, run_id)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    asked = subprocess.run(
        [sys.executable, "-c", STATUSES], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(asked.stdout) == {run_id: "QUEUED", "others": ["SUCCESS", "SUCCESS"]}
