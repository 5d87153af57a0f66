"""The Dagster resource that hands model caches to the steps of a run.

What belongs here: the resource's configuration and life cycle, and reading from a run which devices
it uses. What does not: loading and ejecting models (`inference.cache`, `host`) and choosing or
refusing a device (`executor`).
"""

import ctypes
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import dagster as dg
from pydantic import Field, PrivateAttr

from embeddings_pipeline.host.client import open_cache
from embeddings_pipeline.host.lifecycle import Hosts, home_of
from embeddings_pipeline.host.machine import Machine, of_hosts
from embeddings_pipeline.inference.cache import Cache
from embeddings_pipeline.inference.device import canonical_device
from embeddings_pipeline.settings import DEVICES, CacheSettings, Environment, parse_bytes

MODEL_CACHE = "model_cache"
"""The resource's key: the name of the parameter by which an asset asks for it."""

_PR_SET_PDEATHSIG = 1


class ModelCacheResource(dg.ConfigurableResource):
    """Gives the steps of a run the model caches of its devices: a host's, or one of the run's own process.

    Nothing is loaded or started when a step starts: the first text needs the model, not the resource.
    Dagster sets resources up again after `dagster job execute`, and for ticks, where both would be waste.
    """

    mode: Literal["host", "in_process"] = Field(
        default="in_process",
        description="Where models live: host = in a process per device that outlives the run; "
        "in_process = in the process of the run, gone when it ends. The default is host where DAGSTER_HOME is set; "
        "EMBEDDINGS_MODEL_CACHE gives another.",
    )
    idle_timeout_s: float = Field(
        default=CacheSettings().idle_timeout_s,
        description="A model that nobody uses for so many seconds is ejected, and a host leaves; 0 = never.",
    )
    memory_budget: str = Field(
        default="0", description="Most memory for weights on a device, such as 4 GiB; 0 = what the device has."
    )
    on_full: Literal["error", "evict"] = Field(
        default="error",
        description="When a model does not fit the budget: error = refuse it; evict = eject idle models, "
        "the least recently used first.",
    )

    _run: dg.DagsterRun | None = PrivateAttr(default=None)
    _home: Path | None = PrivateAttr(default=None)
    _caches: dict[str, Cache] = PrivateAttr(default_factory=dict)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Remember the run and its home; end with the run worker, where this is a step's own process."""
        self._run = context.run
        self._home = Path(context.instance.root_directory) if context.instance is not None else None
        _die_with_run_worker(Environment.read())

    def settings(self) -> CacheSettings:
        """Return budget, policy and idle time, checked.

        Raises:
            RunConfigError: naming the field of the run's config.
        """
        path = f"resources.{MODEL_CACHE}.config"
        budget = parse_bytes(self.memory_budget, f"{path}.memory_budget")
        settings = CacheSettings(budget, self.on_full, self.idle_timeout_s)
        settings.check(path)
        return settings

    def get(self) -> Cache:
        """Return the cache of the run's first device, the same one at each call."""
        return self.caches()[0]

    def caches(self) -> list[Cache]:
        """Return the caches of all devices of the run, the same ones at each call."""
        return [self._cache_of(device) for device in devices_for_run(self._run)]

    def machine(self) -> Machine:
        """Return the verbs over all devices: those of hosts, or those that this process has used."""
        if self.mode == "host":
            return of_hosts(Hosts(self._host_home(), Environment.read()))
        return Machine(self._cache_of, lambda: list(self._caches))

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Close the caches that a step has used; a host and its models stay."""
        for cache in self._caches.values():
            cache.close()
        self._caches.clear()

    def _cache_of(self, device: str) -> Cache:
        name = canonical_device(device)
        if name not in self._caches:
            home = self._host_home() if self.mode == "host" else None
            self._caches[name] = open_cache(
                name, Environment.read(), mode=self.mode, home=home, settings=self.settings()
            )
        return self._caches[name]

    def _host_home(self) -> Path:
        """Return DAGSTER_HOME, or where else the run's instance has its files."""
        environment = Environment.read()
        return self._home if environment.dagster_home is None and self._home is not None else home_of(environment)


def check_model_cache(config: Mapping[str, Any]) -> None:
    """Check the resource's part of a run's config, before any step.

    Raises:
        RunConfigError: naming the field, its value and what would be right.
    """
    ModelCacheResource(**config).settings()


def device_for_run(run: dg.DagsterRun | None) -> str:
    """Return the device that the executor chose, or that the run's config names where it was bypassed.

    `execute_in_process` replaces the executor with one of Dagster's own, so that nobody sets the
    environment; the run's config still holds what was asked for. Of several devices it is the first.
    """
    return devices_for_run(run)[0]


def devices_for_run(run: dg.DagsterRun | None) -> list[str]:
    """Return all devices of the run; see `device_for_run`."""
    chosen = Environment.read().device
    return chosen.split(",") if chosen else [_arm(run)[0]]


def workers_for_run(run: dg.DagsterRun | None) -> int:
    """Return the run's number of workers, 0 for automatic; like `device_for_run`."""
    environment = Environment.read()
    return environment.workers if environment.device else int(_arm(run)[1].get("workers", 0))


def _arm(run: dg.DagsterRun | None) -> tuple[str, Mapping[str, Any]]:
    run_config: Mapping[str, Any] = run.run_config if run else {}
    config = (run_config.get("execution") or {}).get("config") or {}
    return next(((device, config[device] or {}) for device in DEVICES if device in config), (DEVICES[0], {}))


def _die_with_run_worker(environment: Environment) -> None:
    """Let the kernel end this process when the run worker dies, if this is a step's process of its own.

    Otherwise a step whose run worker was killed goes on, with all its memory, while the run counts as
    failed. Never in the run worker itself: its parent is a thread of the code server, whose end would
    send the signal.
    """
    if environment.run_worker != os.getppid():
        return
    # Whatever was started in the background of a script may ignore SIGTERM.
    ignored = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    ending = signal.SIGKILL if ignored else signal.SIGTERM
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, ending)
    except (OSError, AttributeError):
        # Not Linux.
        return
    if os.getppid() != environment.run_worker:
        # It died between the two lines.
        os.kill(os.getpid(), ending)
