"""Homes whose hosts end with the test, and a look for what they leave."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from embeddings_pipeline.host.client import RemoteCache
from embeddings_pipeline.host.lifecycle import Hosts
from embeddings_pipeline.models.store import ResolvedModel, resolve
from embeddings_pipeline.settings import CacheSettings, Environment, HostLimits, ModelSpec
from tests.host.fake_host import MODULE, fake_model

LIMITS = HostLimits(request_bytes=4 << 20, requests=4, start_s=60, drain_s=30, eject_s=10)


def processes_of(home: Path) -> list[psutil.Process]:
    """Return the host processes of a home."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(home) in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Return an empty Dagster home; afterwards no host and no file of one is there."""
    folder = tmp_path / "home"
    folder.mkdir()
    yield folder
    environment = Environment.read()
    stopper = Hosts(folder, environment, LIMITS)
    # A host that was killed is none of `devices`, but its socket may lie outside the home.
    dead = {path.stem.replace("-", ":") for path in stopper.folder.glob("*.json")}
    for device in {*stopper.devices(), *dead}:
        stopper.stop(device)
    left = [path.name for path in folder.rglob("*") if path.suffix not in (".log", ".json")]
    alive = processes_of(folder)
    for process in alive:
        process.kill()
    assert [process.cmdline() for process in alive if process.is_running() and process.status() != "zombie"] == []
    assert [name for name in left if name.endswith(".lock")] in ([], ["cpu.lock"])


@pytest.fixture
def hosts(home: Path) -> Hosts:
    """Return the hosts of the home, whose encoders are fakes."""
    return Hosts(home, Environment.read(), LIMITS, MODULE)


@pytest.fixture
def cache(hosts: Hosts) -> Iterator[RemoteCache]:
    """Return the cache of the CPU's host."""
    made = RemoteCache("cpu", hosts, CacheSettings(idle_timeout_s=60))
    yield made
    made.close()


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., ResolvedModel]:
    """Make fake models: `model("name", seconds=0.1)`."""

    def make(name: str = "fake", **behaviour: Any) -> ResolvedModel:
        folder = fake_model(tmp_path / "models" / name, **behaviour)
        kind = behaviour.get("kind", "dense")
        return resolve(ModelSpec(name=f"tests/{name}", source=str(folder), kind=kind))

    return make
