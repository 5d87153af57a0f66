"""The three assets of a corpus: records, embeddings, dataset.

What belongs here: what an asset is called, depends on and can be configured with, and the call of the
use case that it stands for. What does not: the work (`pipeline`), what a materialization shows
(`metadata`), and judging it (`checks`).
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import dagster as dg
from pydantic import Field

from embeddings_pipeline import pipeline
from embeddings_pipeline.errors import ConfigurationError, EmbeddingsError, TooManyRejectsError
from embeddings_pipeline.orchestration import checks, metadata
from embeddings_pipeline.orchestration.partitions import delivery_of, partitions_of
from embeddings_pipeline.orchestration.resources import ModelCacheResource, device_for_run, workers_for_run
from embeddings_pipeline.orchestration.tags import STAGES
from embeddings_pipeline.settings import CorpusSpec, EmbedSettings, ExtractSettings

Outcome: TypeAlias = dg.MaterializeResult | dg.AssetCheckResult
"""What a step yields: its materialization, or the failed check of one that stops because of its rejects."""

CODE_VERSION = "1"
"""Raised when the same records, run config and corpus YAML would give other files."""


class RecordsConfig(dg.Config):
    """Which records a run takes."""

    limit: int = Field(default=0, description="Take at most this many records; 0 takes all of them.")
    offset: int = Field(default=0, description="Leave out this many records at the start of the source.")

    def settings(self) -> ExtractSettings:
        """Return the plain settings of the core."""
        return ExtractSettings(**self.model_dump())


class EmbeddingsConfig(dg.Config):
    """How a run embeds; nothing here changes a vector."""

    application_batch_size: int = Field(
        default=1000,
        description="Texts that are read, embedded, written and forgotten together; bounds memory.",
    )
    model_batch_size: int = Field(default=64, description="Texts that go through the model at once, at most.")
    model_batch_tokens: int = Field(
        default=0, description="Tokens that go through the model at once, at most; 0 lets the device decide."
    )
    force: bool = Field(default=False, description="Embed texts again whose vectors are published already.")

    def settings(self) -> EmbedSettings:
        """Return the plain settings of the core."""
        return EmbedSettings(**self.model_dump())


def asset_key(corpus: str, stage: str) -> dg.AssetKey:
    """Return the key of one of a corpus's assets."""
    return dg.AssetKey([corpus, stage])


def op_name(corpus: str, stage: str) -> str:
    """Return the name under `ops:` in a run's config, which is the step's key as well."""
    return f"{corpus}__{stage}"


def config_path(corpus: str, stage: str) -> str:
    """Return where a run's config holds the fields of a step, for messages."""
    return f"ops.{op_name(corpus, stage)}.config"


def code_version(spec: CorpusSpec, stage: str) -> str:
    """Return what changes when an asset would be made differently: Dagster shows it, and what follows, as outdated.

    That is the version of this code, and what the YAML says of the texts and, below the records, of the model.
    """
    facts: dict[str, Any] = {
        "source": spec.source.model_dump(mode="json", exclude_defaults=True),
        "strategies": [strategy.model_dump(mode="json", exclude_defaults=True) for strategy in spec.strategies],
        "model": spec.model.identity() if stage != STAGES[0] else None,
    }
    return f"{CODE_VERSION}-{hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]}"


def build_assets(spec: CorpusSpec) -> list[dg.AssetsDefinition]:
    """Return the assets of a corpus, with a partition per delivery unless it is `whole`."""
    return [_records(spec), _embeddings(spec), _dataset(spec)]


def _asset(spec: CorpusSpec, stage: str, what: str, kind: str) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Return the decorator of one of the assets: all three differ only in what they are and do."""
    first = stage == STAGES[0]
    above = [dg.AssetKey(dep.split("/")) for dep in spec.deps] if first else [_upstream(spec.name, stage)]
    return dg.asset(
        key=asset_key(spec.name, stage),
        deps=above,
        group_name=spec.name,
        description=_description(spec, what),
        kinds=set(spec.kinds) or {kind},
        owners=spec.owners,
        code_version=code_version(spec, stage),
        metadata=metadata.asset_metadata(spec),
        check_specs=checks.check_specs(spec, stage),
        partitions_def=partitions_of(spec),
    )


def _upstream(corpus: str, stage: str) -> dg.AssetKey:
    return asset_key(corpus, STAGES[STAGES.index(stage) - 1])


def _records(spec: CorpusSpec) -> dg.AssetsDefinition:
    @_asset(spec, "records", "Texts of the corpus's records with their hashes, cut into parts.", spec.source.kind)
    def records(context: dg.AssetExecutionContext, config: RecordsConfig) -> Iterator[Outcome]:
        settings = config.settings()
        with _step():
            settings.check(config_path(spec.name, "records"))
            pipeline.preflight([spec], device=device_for_run(context.run))
            delivery = delivery_of(spec, context)
            try:
                report = pipeline.extract(spec, delivery, settings, run_id=_run_id(context))
            except TooManyRejectsError as error:
                yield checks.too_many_rejects(spec, delivery, "records", error)
                raise
        yield dg.MaterializeResult(
            metadata=metadata.records_metadata(spec, report),
            check_results=checks.records_results(spec, delivery, report),
        )

    return records


def _embeddings(spec: CorpusSpec) -> dg.AssetsDefinition:
    @_asset(
        spec,
        "embeddings",
        f"Vectors of the texts by {spec.model.name}, staged and not yet published.",
        "sentence-transformers",
    )
    def embeddings(
        context: dg.AssetExecutionContext, config: EmbeddingsConfig, model_cache: ModelCacheResource
    ) -> Iterator[Outcome]:
        settings = config.settings()
        with _step():
            settings.check(config_path(spec.name, "embeddings"))
            pipeline.preflight([spec], device=device_for_run(context.run), source=False)
            delivery = delivery_of(spec, context)
            try:
                report = pipeline.embed(
                    spec,
                    delivery,
                    settings,
                    *model_cache.caches(),
                    workers=workers_for_run(context.run),
                    run_id=_run_id(context),
                )
            except TooManyRejectsError as error:
                yield checks.too_many_rejects(spec, delivery, "embeddings", error)
                raise
        yield dg.MaterializeResult(
            metadata=metadata.embeddings_metadata(spec, report),
            check_results=checks.embeddings_results(spec, delivery, report),
        )

    return embeddings


def _dataset(spec: CorpusSpec) -> dg.AssetsDefinition:
    @_asset(spec, "dataset", "The published vectors, as parquet files that a manifest names.", "parquet")
    def dataset(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        with _step():
            delivery = delivery_of(spec, context)
            report = pipeline.publish(spec, delivery, run_id=_run_id(context))
        return dg.MaterializeResult(
            metadata=metadata.dataset_metadata(spec, report),
            check_results=checks.dataset_results(spec, delivery, report),
        )

    return dataset


def _run_id(context: dg.AssetExecutionContext) -> str:
    """Return the id that a run shares with all its retries: with `force` they go on with each other's parts."""
    return context.run.root_run_id or context.run.run_id


def _description(spec: CorpusSpec, what: str) -> str:
    return f"{what}\n\n{spec.description}" if spec.description else what


@contextmanager
def _step() -> Iterator[None]:
    """Show the core's log lines on stderr, and its errors as one sentence.

    What is configured wrongly stays wrong, so such a step is not retried.
    """
    with pipeline.attach_log_handler():
        try:
            yield
        except EmbeddingsError as error:
            retry = not isinstance(error, ConfigurationError)
            raise dg.Failure(description=str(error), allow_retries=retry) from error
