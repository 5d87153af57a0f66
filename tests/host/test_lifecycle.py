"""One host per device: started once, found, replaced, stopped, and gone without a trace."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from embeddings_pipeline.errors import ConfigurationError, HostUnavailableError
from embeddings_pipeline.host import lifecycle
from embeddings_pipeline.host.client import RemoteCache
from embeddings_pipeline.host.files import HostFiles, held, is_locked
from embeddings_pipeline.host.lifecycle import Hosts, physical_device, suits
from embeddings_pipeline.host.wire import Build, this_build
from embeddings_pipeline.settings import CacheSettings, Environment
from tests.host.conftest import LIMITS, processes_of
from tests.host.fake_host import MODULE

ROOT = Path(__file__).parents[2]
STARTER = f"""
import sys
from pathlib import Path
from embeddings_pipeline.host.lifecycle import Hosts
from embeddings_pipeline.settings import CacheSettings, Environment
hosts = Hosts(Path(sys.argv[1]), Environment.read(), module={MODULE!r})
print(hosts.ensure("cpu", CacheSettings())["pid"], flush=True)
"""


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def gone(pid):
    """Tell whether a process has ended, whoever still has to fetch its exit code."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_eight_starters_start_one_host(home):
    """And all of them learn who it is."""
    command = [sys.executable, "-c", STARTER, str(home)]
    starters = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(8)]
    pids = {starter.communicate(timeout=120)[0].strip() for starter in starters}
    assert [starter.returncode for starter in starters] == [0] * 8
    assert pids == {str(process.pid) for process in processes_of(home)}
    assert len(pids) == 1


def test_files_are_private_from_their_first_moment_on(hosts):
    info = hosts.ensure("cpu", None)
    files = hosts.files("cpu")
    assert stat.S_IMODE(files.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(hosts.folder.stat().st_mode) == 0o700
    assert json.loads(files.info.read_text())["pid"] == info["pid"]
    assert hosts.devices() == ["cpu"]


def test_a_host_is_nobodys_child_and_keeps_nothing_of_its_starter(hosts, monkeypatch):
    """Neither the run's descriptors, nor its environment, nor its session: it is not to end with it."""
    monkeypatch.setenv("DAGSTER_RUN_JOB_NAME", "x")
    monkeypatch.setenv("EMBEDDINGS_DEVICE", "cuda")
    started = Hosts(hosts.folder.parent, Environment.read(), LIMITS, MODULE)
    process = psutil.Process(started.ensure("cpu", None)["pid"])
    assert process.pid not in {child.pid for child in psutil.Process().children(recursive=True)}
    assert os.getsid(process.pid) != os.getsid(0)
    environment = process.environ()
    assert not {"DAGSTER_RUN_JOB_NAME", "EMBEDDINGS_DEVICE"} & environment.keys()
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    log = str(hosts.files("cpu").log)
    targets = {str(Path(f"/proc/{process.pid}/fd/{number}").readlink()) for number in (1, 2)}
    assert targets == {log}
    assert str(Path(f"/proc/{process.pid}/fd/0").readlink()) == "/dev/null"
    assert process.cwd() == "/"


def test_the_end_of_its_starter_and_ctrl_c_leave_it_alone(home, hosts):
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER + "\nimport time; time.sleep(60)", str(home)],
        stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
    )  # fmt: skip
    pid = int(starter.stdout.readline())
    os.killpg(starter.pid, signal.SIGKILL)
    starter.communicate()
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGHUP)
    time.sleep(0.3)
    assert hosts.ask("cpu")["pid"] == pid


def test_a_stopped_host_leaves_no_file(hosts):
    hosts.ensure("cpu", None)
    assert hosts.stop("cpu")
    assert not hosts.folder.exists()
    assert not hosts.stop("cpu")
    assert not hosts.folder.exists()
    assert hosts.ask("cpu") is None


def test_sigterm_is_a_stop(hosts):
    os.kill(hosts.ensure("cpu", None)["pid"], signal.SIGTERM)
    wait_for(lambda: not hosts.folder.exists())


def test_a_host_that_nobody_uses_leaves_by_itself(hosts):
    hosts.ensure("cpu", CacheSettings(idle_timeout_s=0.7))
    wait_for(lambda: not hosts.folder.exists())


def test_a_host_whose_home_was_removed_leaves(hosts):
    pid = hosts.ensure("cpu", CacheSettings(idle_timeout_s=0))["pid"]
    shutil.rmtree(hosts.folder)
    wait_for(lambda: gone(pid))


def test_the_next_host_takes_over_from_one_that_was_killed(hosts):
    """The lock is the sign of life; files say nothing, and process ids come again."""
    first = hosts.ensure("cpu", None)
    os.kill(first["pid"], signal.SIGKILL)
    wait_for(lambda: not is_locked(hosts.files("cpu").lock))
    assert hosts.files("cpu").socket.exists()
    assert (hosts.devices(), hosts.ask("cpu")) == ([], None)
    second = hosts.ensure("cpu", None)
    assert second["pid"] != first["pid"]
    os.kill(second["pid"], signal.SIGKILL)
    wait_for(lambda: not is_locked(hosts.files("cpu").lock))
    assert not hosts.stop("cpu")
    assert not hosts.folder.exists()


def test_a_host_that_does_not_answer_is_ended_by_force(hosts):
    pid = hosts.ensure("cpu", None)["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert hosts.stop("cpu", force=True)
    wait_for(lambda: gone(pid))
    assert not hosts.folder.exists()


def test_other_settings_replace_an_idle_host_and_none_take_it_as_it_is(hosts):
    first = hosts.ensure("cpu", CacheSettings())
    assert hosts.ensure("cpu", None)["pid"] == first["pid"]
    assert hosts.ensure("cpu", CacheSettings())["pid"] == first["pid"]
    second = hosts.ensure("cpu", CacheSettings(memory_budget=5))
    assert second["pid"] != first["pid"]
    assert second["settings"]["memory_budget"] == 5
    wait_for(lambda: gone(first["pid"]))


def test_a_busy_host_of_older_code_finishes_before_it_is_replaced(hosts, model, monkeypatch):
    cache = RemoteCache("cpu", hosts, CacheSettings())
    results = []
    with cache.lease(model("slow", seconds=0.3)) as encoder:
        first = hosts.ask("cpu")
        thread = threading.Thread(target=lambda: results.append(encoder.embed([f"t{n}" for n in range(32)])))
        thread.start()
        wait_for(lambda: hosts.ask("cpu")["in_flight"] == 1)
        build = this_build()
        monkeypatch.setattr(lifecycle, "this_build", lambda: Build("9", "newer", build.written_at + 1))
        # What is started has the code of this checkout, so the newer client finds it old again: it is used once.
        second = hosts.ensure("cpu", CacheSettings())
        thread.join()
    cache.close()
    assert second["pid"] != first["pid"]
    assert len(results[0]) == 32
    assert list(results[0].events) == []


@pytest.mark.parametrize(
    ("info", "right"),
    [
        ({}, True),
        ({"build": "other", "written_at": 1.0}, False),
        ({"build": "other", "written_at": 9e12}, True),
        ({"build": "other", "written_at": 9e12, "protocol": 0}, False),
        ({"settings": {"memory_budget": 1, "on_full": "error", "idle_timeout_s": 600.0}}, False),
    ],
)
def test_an_older_host_is_replaced_and_a_newer_one_is_used(info, right):
    """Otherwise an old run and a new one would replace each other's host in turn."""
    build = this_build()
    same = {"build": build.digest, "written_at": build.written_at, "protocol": 1}
    same["settings"] = {"memory_budget": 0, "on_full": "error", "idle_timeout_s": 600.0}
    assert suits(same | info, CacheSettings()) is right


def test_a_path_that_is_too_long_for_a_socket_gets_a_short_one(tmp_path):
    long = tmp_path / ("x" * 100)
    hosts = Hosts(long, Environment.read(), LIMITS, MODULE)
    try:
        hosts.ensure("cpu", None)
        socket = hosts.files("cpu").socket
        assert socket.parent == Path(f"/tmp/embeddings-{os.getuid()}")
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    finally:
        hosts.stop("cpu")
    assert not socket.exists()
    assert not hosts.folder.exists()


def test_a_host_that_does_not_start_is_reported_with_its_last_words(home):
    hosts = Hosts(home, Environment.read(), LIMITS, "tests.host.no_such_module")
    with pytest.raises(HostUnavailableError, match="No module named tests.host.no_such_module") as caught:
        hosts.ensure("cpu", None)
    assert f"`DAGSTER_HOME={home} embeddings host start --device cpu`" in str(caught.value)
    assert caught.value.log


def test_a_folder_of_another_user_is_refused(hosts, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(ConfigurationError, match="belongs to another user; choose another DAGSTER_HOME"):
        hosts.ensure("cpu", None)


def test_a_lock_is_held_by_one_and_removed_after_it(tmp_path):
    path = tmp_path / "folder" / "x.lock"
    with held(path, 0):
        assert is_locked(path)
        with pytest.raises(TimeoutError), held(path, 0.05):
            pass
    assert not path.parent.exists()
    assert not is_locked(path)


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [
        ("cpu", "2,3", ("cpu", "")),
        ("cuda", None, ("cuda:0", "0")),
        ("cuda:1", None, ("cuda:1", "1")),
        ("cuda", "2,3", ("cuda:2", "2")),
        ("CUDA:1", "2, 3", ("cuda:3", "3")),
        ("cuda:0", "GPU-abc", ("cuda:0", "GPU-abc")),
    ],
)
def test_a_card_has_one_name_whatever_a_run_calls_it(device, visible, expected):
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    environment = Environment(None, 0, None, {}, variables)
    assert physical_device(device, environment) == expected


def test_files_of_a_card_are_named_without_a_colon(tmp_path):
    assert HostFiles(tmp_path, "cuda:1").lock.name == "cuda-1.lock"
