"""The third use case: the finished parts of a delivery become its dataset.

What belongs here: collecting the parts' manifests, checking the identities before the commit, and
the report. What does not: how files move (`storage.publish`).
"""

import logging
import time
from collections import Counter
from importlib import metadata

from embeddings_pipeline.errors import ManifestError, VerificationError
from embeddings_pipeline.models.folder import normalizes
from embeddings_pipeline.models.store import ResolvedModel, resolve
from embeddings_pipeline.pipeline.deliveries import made_from, spec_hash
from embeddings_pipeline.pipeline.embedding import load_records
from embeddings_pipeline.pipeline.finished import kept_part, serves
from embeddings_pipeline.pipeline.limits import in_a_sentence
from embeddings_pipeline.pipeline.mismatch import made_with
from embeddings_pipeline.pipeline.preflight import output_of
from embeddings_pipeline.records import Counts, Delivery, dataset_schema
from embeddings_pipeline.reports import PublishReport
from embeddings_pipeline.settings import CorpusSpec, StrategySpec
from embeddings_pipeline.storage.collect import collect_orphans
from embeddings_pipeline.storage.manifests import (
    DeliveryManifest,
    PartManifest,
    PublishedSet,
    RecordsManifest,
    load,
)
from embeddings_pipeline.storage.parts import Output
from embeddings_pipeline.storage.publish import Publication, Published, clear_staging, sweep
from embeddings_pipeline.storage.publish import publish as publish_files
from embeddings_pipeline.storage.published import is_there
from embeddings_pipeline.storage.staged import StagedParts
from embeddings_pipeline.storage.strategies import definition_hash

_log = logging.getLogger(__name__)

_VERSIONED = ("embeddings-pipeline", "torch", "transformers", "sentence-transformers", "tokenizers", "pyarrow")


@in_a_sentence
def publish(spec: CorpusSpec, delivery: Delivery, *, run_id: str, extraction: str = "") -> PublishReport:
    """Verify the delivery's finished parts and publish them as one atomic change.

    `extraction` is the one that the run made itself; another that has replaced it since is refused.

    Raises:
        ManifestError: the records or some parts are not there yet.
        PublishConflictError: another run published the delivery meanwhile.
        VerificationError: a part contradicts its manifest, or texts are not accounted for.
    """
    started = time.monotonic()
    model = resolve(spec.model)
    output = output_of(spec, delivery)
    records = load_records(output, extraction)
    current = load(output.manifest, DeliveryManifest)
    publications = [
        _publication(output, records, model, strategy, current, run_id) for strategy in spec.rendered_strategies()
    ]
    if all(publication is not None for publication in publications):
        ready = [publication for publication in publications if publication is not None]
        made = made_from(records.source_version, spec_hash(spec))
        published = publish_files(
            output,
            records,
            ready,
            _versions(),
            run_id,
            keep=spec.output.keep,
            allow_empty=spec.output.allow_empty,
            made_from=made,
        )
    else:
        published = _published_before(output, records, model, spec)
    if output.root.remote:
        collect_orphans(output)
    sets = [entry for strategy in spec.strategies if (entry := published.manifest.find(model.slug, strategy.name))]
    report = _report(output, records, model, published, sets, time.monotonic() - started)
    for warning in report.warnings:
        _log.warning("%s", warning)
    _log.info("%d rows published in %d files below %s", report.published_rows, report.files, report.dataset_location)
    return report


def _publication(
    output: Output,
    records: RecordsManifest,
    model: ResolvedModel,
    strategy: StrategySpec,
    current: DeliveryManifest | None,
    run_id: str,
) -> Publication | None:
    """Collect a strategy's finished parts, and those that stay as they are; None where one is missing."""
    staged = StagedParts(output, strategy.name, model.fingerprint)
    before = current.find(model.slug, strategy.name) if current else None
    published = {file.path: file for file in (before.files if before else ())}
    parts: list[PartManifest] = []
    for part in records.parts:
        if part.strategy != strategy.name:
            continue
        manifest = staged.manifest(part.id)
        if manifest is None and (file := published.get(staged.kept(part.id) or "")) is not None:
            manifest = kept_part(part, file, run_id, model.spec.precision)
        if manifest is None or not serves(manifest, partial=records.partial):
            return None
        if not manifest.counts.identity_holds or manifest.counts.read != part.texts + part.rejected:
            raise VerificationError(
                f"part {part.id} of strategy '{strategy.name}' accounts for {manifest.counts}, but "
                f"{part.texts + part.rejected} texts were read; remove {output.staging} and run again"
            )
        parts.append(manifest)
    definition = definition_hash(strategy)
    return Publication(model.name, model.slug, strategy.name, definition, model.fingerprint, parts, made_with(model))


def _published_before(output: Output, records: RecordsManifest, model: ResolvedModel, spec: CorpusSpec) -> Published:
    """Return what is published, if it was made from these very records and this model."""
    with output.publish_lock.lock():
        return _unchanged(output, records, model, spec)


def _unchanged(output: Output, records: RecordsManifest, model: ResolvedModel, spec: CorpusSpec) -> Published:
    manifest = load(output.manifest, DeliveryManifest)
    sets = [manifest.find(model.slug, strategy.name) if manifest else None for strategy in spec.strategies]
    same_model = all(entry is not None and entry.fingerprint == model.fingerprint for entry in sets)
    if manifest is None or manifest.extraction != records.extraction or not same_model:
        raise ManifestError(
            f"some parts of delivery '{spec.name}/{records.delivery}' are not embedded yet; "
            f"materialize {spec.name}/embeddings first"
        )
    gone = [file.path for entry in sets if entry for file in entry.files if not is_there(output.root, file)]
    if gone:
        raise VerificationError(
            f"the published file '{output.root / gone[0]}' is gone or was changed; run the job again, which "
            "computes its vectors again"
        )
    removed = sweep(output, manifest)
    # Parts that another run of these records had finished when they were published.
    clear_staging(output)
    return Published(manifest, sum(len(entry.files) for entry in sets if entry), removed)


def _report(
    output: Output,
    records: RecordsManifest,
    model: ResolvedModel,
    published: Published,
    sets: list[PublishedSet],
    seconds: float,
) -> PublishReport:
    rows = {entry.strategy: sum(file.rows for file in entry.files) for entry in sets}
    # A strategy that gave no text knows no dimensions.
    kind, dimensions = next(
        ((entry.kind, entry.dimensions) for entry in sets if entry.dimensions),
        (model.spec.kind or "dense", model.spec.width or 1),
    )
    return PublishReport(
        counts=sum((entry.counts for entry in sets), Counts()),
        published_rows=sum(rows.values()),
        partial=published.manifest.partial,
        files=sum(len(entry.files) for entry in sets),
        files_kept=published.kept,
        files_removed=published.removed,
        rows_by_strategy=rows,
        bytes=sum(file.bytes for entry in sets for file in entry.files),
        dataset_location=str(output.dataset),
        manifest_location=str(output.manifest),
        schema=dataset_schema(kind, dimensions, model.spec.precision),
        model=model.name,
        fingerprint=model.fingerprint,
        seconds=seconds,
        vectors=published.vectors,
        skips_by_reason=dict(sum((Counter(entry.skips_by_reason) for entry in sets), Counter())),
        warnings=_warnings(output, records, published),
        normalized=_normalized(model),
    )


def _warnings(output: Output, records: RecordsManifest, published: Published) -> tuple[str, ...]:
    """Say that rows stay published although the source has not a single text for them any more."""
    if not published.held:
        return ()
    return (
        f"the source of delivery '{output.delivery.corpus}/{output.delivery.name}' gave no text ({records.records} "
        f"records), so the {published.held} rows that are published stay; look whether the source is complete, and set "
        "output.allow_empty: true if the dataset is to become empty",
    )


def _normalized(model: ResolvedModel) -> bool:
    """Tell whether the model's vectors have length 1, by its spec or else by its folder."""
    spec = model.spec
    if spec.kind == "sparse" or spec.normalize is not None:
        return spec.kind != "sparse" and bool(spec.normalize)
    return spec.truncate_dim is not None or normalizes(model.path)


def _versions() -> dict[str, str]:
    versions: dict[str, str] = {}
    for name in _VERSIONED:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions
