"""The second use case: from extracted texts to finished parts of vectors.

What belongs here: which parts and texts still need a vector, keeping at most three application
batches alive, and counting. What does not: computing vectors (`inference`) and the layout of files
(`storage.parts`). `embed_part` is the unit that another machine could take.
"""

import contextlib
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from embeddings_pipeline.errors import ManifestError, PublishConflictError, RunConfigError
from embeddings_pipeline.inference.cache import Cache
from embeddings_pipeline.inference.encoder import Encoder
from embeddings_pipeline.models.store import ResolvedModel, resolve
from embeddings_pipeline.pipeline.batches import BatchFlow, PartRows
from embeddings_pipeline.pipeline.devices import Encoders, in_order
from embeddings_pipeline.pipeline.finished import (
    PartOutput,
    carried_whole,
    embed_rejects,
    finished,
    finished_before,
    keep_published,
    part_manifest,
    refuse_mixture,
    without_texts,
)
from embeddings_pipeline.pipeline.limits import check_rejects, in_a_sentence
from embeddings_pipeline.pipeline.mismatch import unused_work
from embeddings_pipeline.pipeline.preflight import output_of
from embeddings_pipeline.pipeline.progress import Progress
from embeddings_pipeline.pipeline.statistics import Statistics
from embeddings_pipeline.records import Counts, Delivery, EmbedOptions
from embeddings_pipeline.reports import EmbedReport, PartReport
from embeddings_pipeline.settings import CorpusSpec, EmbedSettings
from embeddings_pipeline.storage.manifests import (
    DatasetFile,
    DeliveryManifest,
    PartManifest,
    RecordsManifest,
    RecordsPart,
    dump,
    load,
)
from embeddings_pipeline.storage.parts import Output, VectorsWriter, read_batches, read_text_hashes, write_rejects
from embeddings_pipeline.storage.published import PublishedRows
from embeddings_pipeline.storage.rejects import first_rejects
from embeddings_pipeline.storage.scratch import Scratch
from embeddings_pipeline.storage.staged import StagedParts

_log = logging.getLogger(__name__)


@in_a_sentence
def embed(
    spec: CorpusSpec,
    delivery: Delivery,
    settings: EmbedSettings,
    *caches: Cache,
    workers: int = 0,
    run_id: str,
    extraction: str = "",
) -> EmbedReport:
    """Embed every part of a delivery that is neither finished nor published.

    At most three application batches are alive at once on a device. Killed at any point, the next call
    goes on after the last finished part.

    Args:
        spec: the corpus.
        delivery: whose records `extract` has written.
        settings: batch sizes; `force` computes what is published or finished by another run again.
        caches: where the model comes from, one per device; each embeds parts of its own, and is only
            asked for the model if a text needs computing.
        workers: worker threads on CPU; 0 is automatic.
        run_id: of the run and all its retries; with `force` their finished parts count.
        extraction: the one that the run made itself; another that has replaced it since is refused.

    Raises:
        ConfigurationError: a setting is out of bounds, or the model is not to be found.
        ManifestError: the delivery's records are not extracted.
        ModelError: the model cannot be loaded, or fails on every text.
    """
    started = time.monotonic()
    settings.check("")
    if workers < 0:
        raise RunConfigError(f"workers is {workers}, but has to be at least 0; use 0 for an automatic number")
    model = resolve(spec.model)
    output = output_of(spec, delivery)
    records = load_records(output, extraction)
    current = load(output.manifest, DeliveryManifest)
    refuse_mixture(spec, records, current, model)
    notes = unused_work(spec, output, records, current, model)
    for note in notes:
        _log.warning("%s", note)
    options = EmbedOptions(settings.model_batch_size, settings.model_batch_tokens, workers)
    progress, statistics = Progress(sum(part.texts for part in records.parts)), Statistics()
    reasons: Counter[str] = Counter(records.rejects_by_reason)
    sizes = settings.application_batch_size, settings.model_batch_size
    with contextlib.closing(progress), Scratch(output.scratch) as scratch, contextlib.ExitStack() as leases:
        encoders = Encoders(
            caches, model, leases, lambda encoder: progress.started(*sizes, encoder.workers(options), encoder.device)
        )
        work: list[tuple[RecordsPart, PartOutput]] = []
        for strategy in spec.strategies:
            before = None if settings.force or current is None else current.find(model.slug, strategy.name)
            parts = [part for part in records.parts if part.strategy == strategy.name]
            out = PartOutput(
                output=output,
                scratch=scratch,
                model=model,
                published=PublishedRows(output.root, before, model.fingerprint),
                options=options,
                application_batch_size=settings.application_batch_size,
                partial=records.partial,
                run_id=run_id,
                force=settings.force,
                progress=progress,
                statistics=statistics,
                done=StagedParts(output, strategy.name, model.fingerprint),
                stale_rejects=frozenset(entry.name for entry in (output.rejects / strategy.name).files()),
            )
            keep_published(parts, out)
            work.extend((part, out) for part in parts)
        reports: list[PartReport] = []
        for report, rejects in in_order(work, lambda part, out: _one(part, out, encoders), len(caches)):
            reports.append(report)
            reasons.update(rejects)
        counts = sum((report.counts for report in reports), Counts())
        _log.info(
            "%d texts read: %d embedded, %d skipped, %d rejected",
            counts.read,
            counts.embedded,
            counts.skipped,
            counts.rejected,
        )
        check_rejects(spec, counts.rejected, counts.read, reasons, output)
        row = encoders.row()
    encoder = encoders.first
    device = ",".join(cache.device for cache in caches)
    report = _summary(
        output, settings, device, model, options, encoder, row, reports, reasons, time.monotonic() - started
    )
    shown = first_rejects(output.rejects) if counts.rejected else ()
    events = (*notes, *report.events)
    return dataclasses.replace(report, statistics=statistics.result(), first_rejects=shown, events=events)


def _one(part: RecordsPart, out: PartOutput, encoders: Encoders) -> tuple[PartReport, Mapping[str, int]]:
    """Embed a part unless it is done already; return its report and its rejects by reason."""
    manifest = finished_before(part, out)
    if manifest is not None:
        out.progress.passed(part.texts)
        out.statistics.part(manifest.token_lengths, manifest.max_length)
        return _report(manifest, resumed=True), manifest.rejects_by_reason
    if part.file is None:
        manifest = without_texts(part, out)
        return _report(manifest), manifest.rejects_by_reason
    if (shape := carried_whole(part, out)) is not None:
        report = embed_part(part, shape, out)
    else:
        with encoders.one() as encoder:
            report = embed_part(part, encoder, out)
    manifest = load(out.manifest(part), PartManifest)
    if manifest is None:
        return report, {}
    out.statistics.part(manifest.token_lengths, manifest.max_length)
    return report, manifest.rejects_by_reason


def embed_part(part: RecordsPart, encoder: Encoder, out: PartOutput) -> PartReport:
    """Embed one part and write its file, its rejects, and last its manifest.

    Raises:
        ModelError: the model fails on every text; the error names the batch's first and last key.
        VerificationError: the written file does not read back as it was written.
    """
    started = time.monotonic()
    texts = None if part.file is None else out.output.records / part.file
    rows = PartRows(part, encoder, out.model, out.output.delivery, read_text_hashes(texts) if texts else ())
    writer = VectorsWriter(out.scratch.file(f"part-{part.id}.parquet"), rows.schema)
    batches = read_batches(texts, out.application_batch_size) if texts else ()
    sizes: list[int] = []
    seen = out.statistics.of_part(part.strategy)
    try:
        with BatchFlow(encoder, out.options, rows, out.published, carry_rows=not out.partial) as flow:
            for batch in flow.run(batches):
                writer.write(batch.table)
                sizes.append(batch.texts)
                seen.batch(batch.table, rows.embedded, rows.tokens)
                out.progress.batch(batch.texts)
                # Forgotten here, not when the next one is bound, so that no more than three are alive.
                del batch
        digest = writer.finish()
    except BaseException:
        writer.abandon()
        raise
    file = None
    if digest is not None:
        place, size = out.output.relative(out.staged(part)), writer.path.stat().st_size
        file = DatasetFile(place, writer.rows, size, digest, part.id, out.model.fingerprint)
    manifest = part_manifest(
        part,
        out,
        embedded=rows.embedded,
        skipped=rows.skipped,
        rejects=rows.rejects,
        tokens=rows.tokens,
        truncated=rows.truncated,
        kind=encoder.kind,
        dimensions=encoder.dimensions,
        file=file,
        seconds=time.monotonic() - started,
        token_lengths=seen.token_lengths,
        max_length=encoder.max_length,
    )
    with out.output.publish_lock.lock():
        if (other := finished(part, out)) is not None:
            # Another run was faster; what it has finished it may be about to publish.
            return _report(other, seconds=manifest.seconds, batch_sizes=tuple(sizes))
        # An earlier attempt's manifest must not outlive its file: names are the same, digests are not.
        out.manifest(part).delete()
        if file is not None:
            out.staged(part).put(writer.path)
        write_rejects(out.scratch, embed_rejects(part, out), rows.rejects, out.output.delivery.name)
        out.scratch.put_text(out.manifest(part), dump(manifest))
    for event in rows.events:
        _log.warning("part %s of strategy %s: %s", part.id, part.strategy, event)
    return _report(
        manifest,
        seconds=manifest.seconds,
        compute_seconds=rows.compute_seconds,
        batch_sizes=tuple(sizes),
        events=tuple(rows.events),
    )


def load_records(output: Output, extraction: str = "") -> RecordsManifest:
    """Return the delivery's records manifest.

    Raises:
        ManifestError: `extract` has not finished for this delivery.
        PublishConflictError: another run has extracted other records than those of `extraction` since.
    """
    records = load(output.records_manifest, RecordsManifest)
    if records is None:
        name = f"{output.delivery.corpus}/{output.delivery.name}"
        raise ManifestError(
            f"the records of delivery '{name}' are not extracted (no {output.records_manifest}); "
            f"materialize {output.delivery.corpus}/records first"
        )
    if extraction and records.extraction != extraction:
        raise PublishConflictError(
            output.delivery.name,
            records.run_id,
            "has read other records, perhaps with another limit, since",
        )
    return records


def _report(
    manifest: PartManifest,
    *,
    seconds: float = 0.0,
    compute_seconds: float = 0.0,
    resumed: bool = False,
    batch_sizes: tuple[int, ...] = (),
    events: tuple[str, ...] = (),
) -> PartReport:
    return PartReport(
        part_id=manifest.part,
        strategy=manifest.strategy,
        counts=manifest.counts,
        tokens=manifest.tokens,
        truncated=manifest.truncated,
        seconds=seconds,
        compute_seconds=compute_seconds,
        resumed=resumed,
        batch_sizes=batch_sizes,
        events=events,
        skips_by_reason=manifest.skips_by_reason,
    )


def _summary(
    output: Output,
    settings: EmbedSettings,
    device: str,
    model: ResolvedModel,
    options: EmbedOptions,
    encoder: Encoder | None,
    row: dict[str, object] | None,
    reports: Sequence[PartReport],
    reasons: Counter[str],
    seconds: float,
) -> EmbedReport:
    counts = sum((report.counts for report in reports), Counts())
    done = [report for report in reports if not report.resumed]
    busy = sum(report.seconds for report in done)
    workers = encoder.workers(options) if encoder else 0
    facts = {"model_name": model.name, "fingerprint": model.fingerprint, "kind": model.spec.kind}
    facts |= {"dimensions": model.spec.width, "revision": model.spec.revision}
    return EmbedReport(
        counts=counts,
        parts=tuple(reports),
        computed=sum(report.counts.embedded for report in done),
        tokens=sum(report.tokens for report in done),
        truncated=sum(report.truncated for report in reports),
        seconds=seconds,
        compute_share=sum(report.compute_seconds for report in done) / (workers * busy) if workers and busy else 0.0,
        device=device,
        workers=workers,
        application_batch_size=settings.application_batch_size,
        model_batch_size=settings.model_batch_size,
        model_batch_tokens=encoder.model_batch_tokens(options) if encoder else settings.model_batch_tokens,
        model=row or facts,
        rejects_by_reason=dict(reasons),
        staging_location=str(output.staging),
        rejects_location=str(output.rejects),
        events=tuple(event for report in reports for event in report.events),
        skips_by_reason=dict(sum((Counter(report.skips_by_reason) for report in reports), Counter())),
    )
