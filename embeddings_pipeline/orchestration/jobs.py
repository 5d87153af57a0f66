"""The jobs of a corpus, and the jobs around the verbs of the model cache.

What belongs here: which assets or ops a job takes, with which defaults. What does not: what its steps
do (`assets`, `ops`) and when it starts (`schedules`, `sensors`).
"""

from collections.abc import Mapping
from typing import Any, cast

import dagster as dg

from embeddings_pipeline.orchestration.assets import EmbeddingsConfig, RecordsConfig, asset_key, op_name
from embeddings_pipeline.orchestration.discovery import build_discover
from embeddings_pipeline.orchestration.executor import arm_defaults
from embeddings_pipeline.orchestration.ops import MODEL_OPS
from embeddings_pipeline.orchestration.partitions import partitions_of
from embeddings_pipeline.orchestration.resources import MODEL_CACHE, ModelCacheResource
from embeddings_pipeline.orchestration.tags import JOB_SUFFIX, STAGES, delivery_tags, device_of, device_tags
from embeddings_pipeline.records import Delivery
from embeddings_pipeline.settings import DEVICES, CorpusSpec


def job_name(corpus: str) -> str:
    """Return the name of a corpus's job."""
    return f"{corpus}{JOB_SUFFIX}"


def build_job(spec: CorpusSpec) -> Any:
    """Return the job that brings a corpus's dataset up to date, with the run config of its YAML."""
    partitions = partitions_of(spec)
    config: Any = launchpad_config(spec)
    tags = device_tags(spec.run_config) | spec.run_tags
    if partitions is None:
        tags = delivery_tags(spec.name, Delivery(spec.name).name) | tags
    else:
        # Backfills ask for the config and the tags of each partition, and leave out those of the job.
        shown = config
        config = dg.PartitionedConfig(
            partitions,
            run_config_for_partition_key_fn=lambda _: shown,
            tags_for_partition_key_fn=lambda key: delivery_tags(spec.name, key) | tags,
        )
    return dg.define_asset_job(
        job_name(spec.name),
        selection=dg.AssetSelection.assets(*(asset_key(spec.name, stage) for stage in STAGES)),
        description=f"Bring the dataset of corpus '{spec.name}' up to date: new and changed texts are embedded, "
        "unchanged ones are skipped."
        + ("" if partitions is None else " Each run embeds one delivery; a backfill makes a run for each chosen one."),
        config=config,
        partitions_def=partitions,
        run_tags=tags,
    )


def launchpad_config(spec: CorpusSpec) -> dict[str, Any]:
    """Return the run config that a launchpad starts with: that of the corpus YAML, and every other knob's default.

    Of a job that has a config of its own a launchpad shows that and no more, and so it does with partitions.
    """
    device = device_of(spec.run_config)
    knobs: dict[str, Any] = {
        "ops": {
            op_name(spec.name, "records"): {"config": RecordsConfig().model_dump()},
            op_name(spec.name, "embeddings"): {"config": EmbeddingsConfig().model_dump()},
        }
    }
    if device is not None or "execution" not in spec.run_config:
        arm = device or DEVICES[0]
        knobs["execution"] = {"config": {arm: arm_defaults(arm)}}
    return _merged(knobs, spec.run_config)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return two configs as one; where they differ, or one has no mapping, `above` holds."""
    merged = {**below, **above}
    for name in below.keys() & above.keys():
        under, over = below[name], above[name]
        if isinstance(under, Mapping) and (over is None or isinstance(over, Mapping)):
            merged[name] = _merged(cast("Mapping[str, Any]", under), cast("Mapping[str, Any]", over or {}))
    return merged


def build_discover_job(spec: CorpusSpec) -> dg.JobDefinition:
    """Return the job that lists a corpus's deliveries and makes partitions of new ones; it embeds nothing."""
    return _light_job(f"{spec.name}_discover", build_discover(spec), {})


def build_model_jobs(model_cache: ModelCacheResource) -> list[dg.JobDefinition]:
    """Return one job per verb of the model cache, each named after its op."""
    return [_light_job(f"{op.name}_job", op, {MODEL_CACHE: model_cache}) for op in MODEL_OPS]


def _light_job(name: str, op: dg.OpDefinition, resources: dict[str, Any]) -> dg.JobDefinition:
    """Return a job of one op in the run's own process, which keeps nothing on disk and is not started again."""

    @dg.job(
        name=name,
        description=op.description,
        executor_def=dg.in_process_executor,
        resource_defs={"io_manager": dg.mem_io_manager, **resources},
        run_tags={"dagster/max_retries": "0"},
    )
    def light_job() -> None:
        op()

    return light_job
