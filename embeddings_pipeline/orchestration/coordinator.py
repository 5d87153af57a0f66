"""The run coordinator: it tags a run with its device and its delivery before the run is queued.

What belongs here: what the queue has to know of a run, which only the run's config says. What does not:
limits (`concurrency.runs` of dagster.yaml) and everything after the queue (`executor`).

dagster.yaml names this class, so every process that reads the Dagster home imports it: this package has
to be installed where the webserver, the daemon and the code servers run. It imports nothing of the core.
"""

from collections.abc import Mapping
from typing import Any, Self

import dagster as dg

from embeddings_pipeline.orchestration.tags import (
    DELIVERY_TAG,
    DEVICE_TAG,
    PARTITION_TAG,
    corpus_of,
    delivery_tags,
    device_of,
)

_WHOLE = "whole"


class DeviceRunCoordinator(dg.QueuedRunCoordinator):
    """Dagster's queue, for runs that carry `embeddings/device` and `embeddings/delivery`.

    The device is the one that the run's config names: limits by tag then let CUDA runs wait for each other
    while CPU runs go on. A run whose config names none keeps the tag of its job. `device_tags` gives more
    tags by device, such as the ECS task that a CUDA run needs.
    """

    def __init__(
        self,
        device_tags: Mapping[str, Mapping[str, str]] | None = None,
        inst_data: Any = None,
        **queue: Any,
    ) -> None:
        self._device_tags = {device: dict(tags) for device, tags in (device_tags or {}).items()}
        super().__init__(inst_data=inst_data, **queue)

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """Return the fields of `run_coordinator.config`: those of Dagster's queue and `device_tags`."""
        more = dg.Field(
            dg.Map(dg.String, dg.Map(dg.String, dg.String)),
            is_required=False,
            description="Tags that a run on a device gets too, by device.",
        )
        inherited: Any = dg.QueuedRunCoordinator.config_type()
        return {**inherited, "device_tags": more}

    @classmethod
    def from_config_value(cls, inst_data: Any, config_value: Mapping[str, Any]) -> Self:
        """Build the coordinator from its part of dagster.yaml."""
        return cls(inst_data=inst_data, **config_value)

    def submit_run(self, context: dg.SubmitRunContext) -> dg.DagsterRun:
        """Tag the run, then queue it."""
        run = context.dagster_run
        tags = self._tags(run)
        if tags:
            self._instance.add_run_tags(run.run_id, tags)
        return super().submit_run(context)

    def _tags(self, run: dg.DagsterRun) -> dict[str, str]:
        device = device_of(run.run_config) or run.tags.get(DEVICE_TAG)
        tags: dict[str, str] = {}
        if device is not None:
            added = {name: value for name, value in self._device_tags.get(device, {}).items() if name not in run.tags}
            tags |= {DEVICE_TAG: device, **added}
        paths = [key.path for key in run.asset_selection or ()]
        corpus = corpus_of(paths, run.job_name)
        if DELIVERY_TAG not in run.tags and corpus is not None and (paths or PARTITION_TAG in run.tags):
            tags |= delivery_tags(corpus, run.tags.get(PARTITION_TAG, _WHOLE))
        return tags
