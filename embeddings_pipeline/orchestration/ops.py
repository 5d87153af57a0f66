"""What a person can do with models from the UI: list, load, eject, download, look at a device.

What belongs here: the ops of these verbs, their config and their tables. What does not: the verbs
(`host.machine`, `models.download`), and the jobs around the ops (`jobs`).
"""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import dagster as dg
from pydantic import Field

from embeddings_pipeline import pipeline
from embeddings_pipeline.errors import EmbeddingsError
from embeddings_pipeline.host.machine import ALL, MODEL_COLUMNS
from embeddings_pipeline.host.wire import error_body
from embeddings_pipeline.models.download import checked_spec, download, spec_of
from embeddings_pipeline.orchestration.metadata import table
from embeddings_pipeline.orchestration.resources import ModelCacheResource
from embeddings_pipeline.settings import Environment

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"

_SHOWN_COLUMNS = ("model_name", "device", "memory", "uses", "in_use", "last_used")
"""What people look for in a list of loaded models; all of a model's row follows as JSON."""

_DEVICE_COLUMNS = (
    *("device", "memory_usage", "total_device_memory", "memory_usage_bytes", "total_device_memory_bytes"),
    *("models", "models_bytes", "memory_budget"),
)
_WHOLE_NUMBERS = {
    *("bytes", "dimensions", "uses", "in_use", "models", "models_bytes", "freed_bytes", "returned_bytes"),
    *("memory_usage_bytes", "total_device_memory_bytes", "memory_budget"),
}


class DeviceConfig(dg.Config):
    """Which devices are asked."""

    device: str = Field(default=ALL, description="cpu, cuda:0 and so on; all = every device.")


class LoadConfig(dg.Config):
    """Which model is loaded where."""

    model_name: str = Field(default=DEFAULT_MODEL, description="The whole name of the model.")
    device: str = Field(default="cpu", description="cpu, cuda:0 and so on.")
    source: str = Field(default="", description="Where the model's files are; empty = as the registry knows it.")
    revision: str = Field(default="", description="On a hub, the commit; empty = as the registry pins it.")


class EjectConfig(dg.Config):
    """Which model is ejected, and how."""

    model_name: str = Field(default=DEFAULT_MODEL, description="The whole name of the model.")
    device: str = Field(default=ALL, description="cpu, cuda:0 and so on; all = wherever it is loaded.")
    fingerprint: str = Field(default="", description="Which one, where two loaded models have the name.")
    force: bool = Field(default=False, description="Cancel what computes with it, instead of waiting for it.")


class DownloadConfig(dg.Config):
    """Which model is brought into the model store, or a copy of it somewhere else."""

    model_name: str = Field(default=DEFAULT_MODEL, description="A known name, or any name together with source.")
    source: str = Field(default="", description="hub:organisation/model, a .zip or s3://…; empty = the registry's.")
    revision: str = Field(default="", description="On a hub: a commit, or a branch; empty = as the registry pins it.")
    to: str = Field(default="", description="A folder, a .zip or an s3:// location for a copy; empty = none.")
    force: bool = Field(default=False, description="Fetch again what is in the store.")


@dg.op(description="List the models in the devices' memory; starts nothing.")
def get_loaded_models(context: dg.OpExecutionContext, config: DeviceConfig, model_cache: ModelCacheResource) -> list:
    """Return and show one row per loaded model."""
    with verb(context):
        rows = model_cache.machine().models(config.device)
    context.add_output_metadata({**_model_tables(rows), "count": len(rows)})
    return rows


@dg.op(description="Load a model onto a device now, so that the next run finds it there.")
def load_model(context: dg.OpExecutionContext, config: LoadConfig, model_cache: ModelCacheResource) -> dict:
    """Return and show the loaded model's row."""
    with verb(context):
        if model_cache.mode == "in_process":
            context.log.warning("mode is in_process: the model is loaded into this run's process and goes with it")
        spec = checked_spec(config.model_name, config.source or None, config.revision or None)
        done = model_cache.machine().load(spec, config.device)
    context.add_output_metadata({"message": done["message"], **_model_tables([done["model"]])})
    return done


@dg.op(description="Eject a model from a device's memory; waits for the batches in flight.")
def eject_model(context: dg.OpExecutionContext, config: EjectConfig, model_cache: ModelCacheResource) -> list:
    """Return and show what was ejected."""
    with verb(context):
        machine = model_cache.machine()
        fingerprint = config.fingerprint or None
        done = machine.eject(config.model_name, config.device, fingerprint=fingerprint, force=config.force)
    columns = ("device", "message", "freed_bytes", "returned_bytes")
    freed = sum(ejection["freed_bytes"] for ejection in done)
    context.add_output_metadata({"ejected": _table(columns, done), "freed_bytes": freed})
    return done


@dg.op(description="Show the memory of the devices; starts nothing.")
def get_device_info(context: dg.OpExecutionContext, config: DeviceConfig, model_cache: ModelCacheResource) -> list:
    """Return and show one row per device."""
    with verb(context):
        rows = model_cache.machine().devices(config.device)
    context.add_output_metadata({"devices": _table(_DEVICE_COLUMNS, rows)})
    return rows


@dg.op(description="Fetch a model into the model store, verified; the hub's token comes from HF_TOKEN.")
def download_model(context: dg.OpExecutionContext, config: DownloadConfig) -> dict:
    """Return and show what was fetched."""
    with verb(context):
        environment = Environment.read()
        spec = spec_of(config.model_name, config.source or None, config.revision or None, environment)
        done = download(spec, environment, to=config.to or None, force=config.force)
    facts = {name: value for name, value in asdict(done).items() if value is not None} | {"changes": list(done.changes)}
    context.add_output_metadata({"message": done.message} | facts)
    return facts


MODEL_OPS = (get_loaded_models, load_model, eject_model, get_device_info, download_model)


def _model_tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, dg.MetadataValue[Any]]:
    """Return the models as a table and as JSON: a run's page shows six columns readably, and not all thirteen."""
    shown = [
        {
            **{name: row.get(name) for name in _SHOWN_COLUMNS},
            "memory": f"{row['bytes'] / 2**20:.1f} MiB",
            "last_used": dt.datetime.fromisoformat(row["last_used_at"]).strftime("%d %b %H:%M"),
        }
        for row in rows
    ]
    whole = [{name: row.get(name) for name in MODEL_COLUMNS} for row in rows]
    return {"models": _table(_SHOWN_COLUMNS, shown), "model_rows": dg.MetadataValue.json(whole)}


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    types = {name: "int" if name in _WHOLE_NUMBERS else "string" for name in columns}
    return table(types, [{name: row.get(name) for name in columns} for row in rows])


@contextmanager
def verb(context: dg.OpExecutionContext) -> Iterator[None]:
    """Show the core's errors as the sentence that the CLI and the host show; none of them is worth a retry."""
    with pipeline.attach_log_handler():
        try:
            yield
        except EmbeddingsError as error:
            raise dg.Failure(description=str(error), metadata=error_body(error), allow_retries=False) from error
