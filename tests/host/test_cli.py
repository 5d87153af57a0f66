"""`embeddings models`, `devices` and `host`: the same data as everywhere, as text and as JSON."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from embeddings_pipeline.cli.main import embeddings, main
from embeddings_pipeline.host.lifecycle import Hosts
from tests.fakes import make_model
from tests.host.conftest import LIMITS
from tests.host.fake_host import MODULE
from tests.host.test_lifecycle import ROOT


@pytest.fixture
def command(home, monkeypatch):
    """Run a command on hosts with fake encoders."""
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    make = lambda home, environment: Hosts(home, environment, LIMITS, MODULE)  # noqa: E731
    for module in ("models", "hosts"):
        monkeypatch.setattr(f"embeddings_pipeline.cli.{module}.Hosts", make)

    def run(*words, code=0):
        done = CliRunner().invoke(embeddings, list(words), catch_exceptions=False)
        assert done.exit_code == code, done.output
        return json.loads(done.output) if "--json" in words else done.output

    return run


def test_a_model_is_loaded_listed_and_ejected(command, model):
    chosen = model("a")
    assert command("models", "list") == "no model is loaded\n"
    assert command("models", "list", "--json") == {"models": []}
    loaded = command("models", "load", "tests/a", "--source", str(chosen.path), "--device", "cpu", "--json")
    assert loaded["message"] == "successfully loaded model `tests/a` on device `cpu`"
    listed = command("models", "list", "--json")["models"]
    assert [(row["model_name"], row["fingerprint"]) for row in listed] == [("tests/a", loaded["model"]["fingerprint"])]
    assert command("models", "list", "--device", "cpu", "--json")["models"] == listed
    assert "tests/a" in command("models", "list")
    (device,) = command("devices", "--json")["devices"]
    assert (device["device"], device["models"], device["models_bytes"]) == ("cpu", 1, 100)
    assert command("devices").splitlines()[1].split()[:1] == ["cpu"]
    done = command("models", "eject", "tests/a", "--device", "CPU", "--json")
    assert done["message"] == "successfully ejected model `tests/a` from device `cpu`"
    assert command("models", "list", "--json") == {"models": []}
    command("models", "load", "tests/a", "--source", str(chosen.path))
    assert "successfully ejected model `tests/a`" in command("models", "eject", "tests/a")


def test_a_host_is_started_shown_and_stopped(command):
    assert command("host", "status") == "no host runs\n"
    started = command(
        "host", "start", "--idle-timeout", "50", "--memory-budget", "1 GiB", "--on-full", "evict", "--json"
    )
    assert started["settings"] == {"memory_budget": 2**30, "on_full": "evict", "idle_timeout_s": 50.0}
    (shown,) = command("host", "status", "--json")["hosts"]
    assert shown["pid"] == started["pid"]
    assert str(shown["pid"]) in command("host", "status")
    assert "listens on" in command("host", "logs")
    assert command("host", "logs", "--json")["device"] == "cpu"
    assert command("host", "stop", "--json") == {"stopped": ["cpu"]}
    assert command("host", "stop") == "no host runs\n"


def test_looking_starts_no_host(command, home):
    for words in (["models", "list"], ["devices"], ["host", "status"]):
        command(*words)
    assert list(home.iterdir()) == []


def cli(home, *words):
    """Run the command as a person does, with its exit code."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home)} | ({"DAGSTER_HOME": str(home)} if home else {})
    code = "from embeddings_pipeline.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    return done.returncode, done.stdout, done.stderr


def test_an_error_is_the_hosts_body_with_json_and_a_sentence_without(home):
    code, out, err = cli(home, "models", "eject", "x", "--json")
    assert (code, json.loads(out)["code"], list(json.loads(out))) == (
        1, "model_not_in_cache", ["message", "code", "type", "link"],
    )  # fmt: skip
    code, out, err = cli(home, "models", "eject", "x", "--device", "cpu")
    assert (code, out) == (1, "")
    assert err.startswith("Error: model 'x' is not loaded on device 'cpu' (loaded there: nothing); name one of these")
    code, out, _ = cli(home, "devices", "--device", "tpu", "--json")
    assert (code, json.loads(out)["code"]) == (2, "unknown_device")


@pytest.mark.parametrize("words", [["models", "list"], ["host", "start"], ["devices"]])
def test_without_a_home_the_message_says_what_to_set(words, monkeypatch, capsys):
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setattr(sys, "argv", ["embeddings", *words])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "DAGSTER_HOME is not set, and model hosts live below it; set it to a folder" in capsys.readouterr().err


def test_loading_on_a_device_that_is_not_there_says_so(home, tmp_path):
    folder = make_model(tmp_path / "m")
    code, out, _ = cli(home, "models", "load", "x", "--source", str(folder), "--device", "cuda:7", "--json")
    assert (code, json.loads(out)["code"]) == (2, "device_unavailable")
