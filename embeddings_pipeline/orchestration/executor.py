"""The executor: which device a run uses, and the look over the whole run before any step starts.

What belongs here: the `cpu` and `cuda` arms of `execution.config`, what they put into the environment
of the steps, and collecting what the preflight needs from a run's config. What does not: the checks
themselves (`pipeline.preflight`, `settings`), and running steps, which Dagster's own executors do.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import dagster as dg

from embeddings_pipeline import pipeline
from embeddings_pipeline.errors import ConfigurationError, RunConfigError
from embeddings_pipeline.inference.device import usable_cores
from embeddings_pipeline.orchestration.assets import config_path, op_name
from embeddings_pipeline.orchestration.resources import MODEL_CACHE, check_model_cache
from embeddings_pipeline.orchestration.tags import DEVICE_TAG, STAGES
from embeddings_pipeline.settings import CorpusSpec, EmbedSettings, Environment, ExtractSettings

_MAX_RETRIES_TAG = "dagster/max_retries"

_COMMON = {
    "workers": dg.Field(
        dg.Int, default_value=0, description="Threads that compute at once; 0 = one per usable core (cuda: one)."
    ),
    "max_concurrent": dg.Field(
        dg.Int, default_value=1, description="Steps of this run that may run at once; above 1 needs isolate_steps."
    ),
    "isolate_steps": dg.Field(
        dg.Bool,
        default_value=False,
        description="Run each step in a process of its own (spawned). A run has its own process already; one more "
        "per step pays the imports and the model's load again.",
    ),
    "retries": dg.Field(
        dg.Selector({"enabled": {}, "disabled": {}}),
        default_value={"enabled": {}},
        description="Whether retries that a step asks for are honoured.",
    ),
}

_FIELDS = {
    "cpu": _COMMON,
    "cuda": {
        "devices": dg.Field(
            [dg.Int],
            default_value=[],
            description="Numbers of the CUDA devices to use; of several each embeds its own parts. "
            "[] = the first visible.",
        ),
        **_COMMON,
    },
}

# Every default is a concrete value: the launchpad's default YAML leaves out null ones, and then the
# whole execution block.
CONFIG_SCHEMA = dg.Field(
    dg.Selector(
        {
            "cpu": dg.Field(_FIELDS["cpu"], description="Embed on the CPU; CUDA devices are hidden from the steps."),
            "cuda": dg.Field(
                _FIELDS["cuda"],
                description="Embed on CUDA devices; the run fails before any step where none can be used.",
            ),
        }
    ),
    default_value={"cpu": {}},
)


def arm_defaults(device: str) -> dict[str, Any]:
    """Return the fields of an arm that a launchpad shows, with their defaults."""
    return {name: field.default_value for name, field in _FIELDS[device].items() if name != "retries"}


def build_executor(corpora: Sequence[CorpusSpec]) -> dg.ExecutorDefinition:
    """Return the executor of a code location that has these corpora."""

    @dg.executor(name="device_executor", config_schema=CONFIG_SCHEMA, requirements=_requirements)
    def device_executor(init_context: dg.InitExecutorContext) -> dg.Executor:
        return _create(init_context, corpora)

    return device_executor


def _requirements(config: Mapping[str, Any]) -> Sequence[Any]:
    isolated = any((arm or {}).get("isolate_steps") for arm in config.values())
    return dg.multiprocess_executor.get_requirements({}) if isolated else []


def _create(init_context: dg.InitExecutorContext, corpora: Sequence[CorpusSpec]) -> dg.Executor:
    selected = cast("Mapping[str, Mapping[str, Any]]", init_context.executor_config)
    ((device, arm),) = selected.items()
    stock, config = dg.in_process_executor, {"retries": arm["retries"]}
    if arm["isolate_steps"]:
        # Its default start method is spawn, which CUDA needs; so none is offered.
        stock, config = dg.multiprocess_executor, {**config, "max_concurrent": max(arm["max_concurrent"], 1)}
    create = cast("Callable[[dg.InitExecutorContext], dg.Executor]", stock.executor_creation_fn)
    return DeviceExecutor(create(init_context._replace(executor_config=config)), device, arm, corpora)


class DeviceExecutor(dg.Executor):
    """Runs the preflight, then lets one of Dagster's executors run the steps on the chosen device.

    The device reaches the steps by environment variables, the only way that serves steps of this
    process and of others, and that holds for a job's default config too.
    """

    def __init__(self, inner: dg.Executor, device: str, arm: Mapping[str, Any], corpora: Sequence[CorpusSpec]) -> None:
        self._inner = inner
        self._device = device
        self._arm = arm
        self._corpora = corpora

    @property
    def retries(self) -> Any:
        """The retry mode of the executor that runs the steps."""
        return self._inner.retries

    @property
    def step_dependency_config(self) -> Any:
        """The dependency settings of the executor that runs the steps."""
        return self._inner.step_dependency_config

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dg.DagsterEvent]:
        """Yield the events of the run's steps.

        Raises:
            ConfigurationError: before any step, where the run cannot work as configured.
        """
        plan_context.instance.add_run_tags(plan_context.run_id, {DEVICE_TAG: self._device})
        # The variables stand before the preflight looks for devices: the CUDA driver reads
        # CUDA_VISIBLE_DEVICES once per process, at the first look.
        with _environment(self._variables()):
            try:
                self._preflight(plan_context, set(execution_plan.step_keys_to_execute))
            except ConfigurationError as error:
                # Dagster would start the run again, as often as its home allows, to fail the same way.
                plan_context.instance.add_run_tags(plan_context.run_id, {_MAX_RETRIES_TAG: "0"})
                raise error.with_traceback(None) from None
            yield from self._inner.execute(plan_context, execution_plan)

    def _variables(self) -> dict[str, str]:
        workers, steps = self._arm["workers"], self._arm["max_concurrent"]
        if workers == 0 and steps > 1 and self._device == "cpu":
            workers = max(1, usable_cores() // steps)
        variables = {
            Environment.DEVICE: ",".join(self._devices()),
            Environment.WORKERS: str(workers),
            "TOKENIZERS_PARALLELISM": "false",
        }
        if self._device == "cpu":
            variables["CUDA_VISIBLE_DEVICES"] = ""
        elif self._arm["devices"]:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(str(device) for device in self._arm["devices"])
        if self._arm["isolate_steps"]:
            variables[Environment.RUN_WORKER] = str(os.getpid())
        return variables

    def _devices(self) -> list[str]:
        """Return the devices as the steps see them: numbered from 0, whichever are chosen."""
        chosen = len(self._arm.get("devices", []))
        return [f"{self._device}:{number}" for number in range(chosen)] if chosen > 1 else [self._device]

    def _preflight(self, plan_context: Any, step_keys: set[str]) -> None:
        """Check all that the run's steps will use.

        A run whose own config is empty has its job's default; `validate_run_config` merges the two as
        Dagster does, and adds the defaults of every field.
        """
        self._check_arm()
        config = dg.validate_run_config(plan_context.job.get_definition(), plan_context.run_config)
        model_cache = (config.get("resources") or {}).get(MODEL_CACHE) or {}
        check_model_cache(model_cache.get("config") or {})
        corpora = [spec for spec in self._corpora if any(op_name(spec.name, stage) in step_keys for stage in STAGES)]
        for spec in corpora:
            for stage, settings in (("records", ExtractSettings), ("embeddings", EmbedSettings)):
                if op_name(spec.name, stage) in step_keys:
                    fields = config["ops"][op_name(spec.name, stage)]["config"]
                    settings(**fields).check(config_path(spec.name, stage))
        for device in self._devices() if corpora else []:
            for spec in corpora:
                # The later steps need no source: it may be gone once its records are extracted.
                reads = op_name(spec.name, STAGES[0]) in step_keys
                pipeline.preflight([spec], device=device, source=reads)

    def _check_arm(self) -> None:
        path = f"execution.config.{self._device}"
        workers, steps = self._arm["workers"], self._arm["max_concurrent"]
        if workers < 0:
            raise RunConfigError(
                f"{path}.workers is {workers}, but has to be at least 0; use 0 for an automatic number"
            )
        if steps < 1:
            raise RunConfigError(f"{path}.max_concurrent is {steps}, but has to be at least 1; use 1")
        if steps > 1 and not self._arm["isolate_steps"]:
            raise RunConfigError(
                f"{path}.max_concurrent is {steps}, but steps of one process follow one another; "
                "set isolate_steps: true, or max_concurrent: 1"
            )
        devices = self._arm.get("devices", [])
        if negative := [device for device in devices if device < 0]:
            raise RunConfigError(
                f"{path}.devices has {negative[0]}; use numbers from 0 on, or [] for the first visible"
            )
        if repeated := [device for device in devices if devices.count(device) > 1]:
            raise RunConfigError(f"{path}.devices has {repeated[0]} twice; name each device once")


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and put back what was there."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
