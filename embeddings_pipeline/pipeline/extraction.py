"""The first use case: from a source's records to the texts of each strategy, cut into parts.

What belongs here: which files are read, whether they can give what the corpus names, and writing the
delivery's records manifest last. What does not: making texts of records (`walk`) and reading formats
(`storage.sources`).
"""

import datetime as dt
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from embeddings_pipeline.pipeline.deliveries import narrowed, version_of
from embeddings_pipeline.pipeline.limits import check_rejects, in_a_sentence
from embeddings_pipeline.pipeline.mismatch import differences
from embeddings_pipeline.pipeline.preflight import output_of
from embeddings_pipeline.pipeline.walk import STAGE, Walk, WalkCounts
from embeddings_pipeline.records import Counts, Delivery
from embeddings_pipeline.reports import ExtractReport
from embeddings_pipeline.settings import CorpusSpec, ExtractSettings
from embeddings_pipeline.storage.collect import collect_work, keep_from_collection
from embeddings_pipeline.storage.location import FileEntry
from embeddings_pipeline.storage.manifests import DeliveryManifest, RecordsManifest, dump, load
from embeddings_pipeline.storage.parts import Output, remove_others
from embeddings_pipeline.storage.rejects import first_rejects
from embeddings_pipeline.storage.scratch import Scratch
from embeddings_pipeline.storage.slices import KeysWriter, Remembered
from embeddings_pipeline.storage.sources import READER_VERSION, Listing, reader
from embeddings_pipeline.storage.strategies import definition_hash

MANY_FILES = 1000
_FEW_RECORDS = 10
"""Per file: a source of many files with less than that is worth a warning."""

_log = logging.getLogger(__name__)


@in_a_sentence
def extract(spec: CorpusSpec, delivery: Delivery, settings: ExtractSettings, *, run_id: str) -> ExtractReport:
    """Read the delivery's records and write the texts of every strategy as parts.

    A source file that is as it was when it was last read is not read again. Holds one record batch of
    512 and 8 MB of text per strategy in memory, and 16 bytes per key.

    Raises:
        ConfigurationError: a setting, a location or a column is wrong.
        SourceUnreadableError: a file is not what the corpus declares.
        TooManyRejectsError: more texts gave no text than the corpus allows.
    """
    started = time.monotonic()
    settings.check("")
    spec, listing = narrowed(spec, delivery)
    output = output_of(spec, delivery)
    Scratch.sweep(output.scratch)
    collect_work(output)
    reading = _reading(spec, listing)
    before = load(output.records_manifest, RecordsManifest)
    if before is not None:
        keep_from_collection(output, before)
    remembered = Remembered(output, before, reading)
    found = None if settings.partial else remembered.whole(listing.files)
    files = listing.files
    if found is None:
        _tell_differences(spec, before, reading)
        files = _openable(spec, listing, remembered)
        _check_columns(spec, files)
    with Scratch(output.scratch) as scratch:
        output.claim(scratch)
        if found is not None:
            manifest = replace(
                found, base=_published_commit(output), run_id=run_id, source_version=version_of(listing.files)
            )
            counts = WalkCounts(found.records, len(found.parts), len(files))
        else:
            manifest, counts = _read(spec, output, scratch, files, settings, remembered, run_id)
            manifest = replace(manifest, reading=reading, source_version=version_of(listing.files))
        manifest = replace(manifest, stamp=_stamp(output, before, manifest.extraction))
        scratch.put_text(output.records_manifest, dump(manifest))
    warnings = _warnings(spec, listing, files, manifest)
    for warning in warnings:
        _log.warning("%s", warning)
    _remove_stale(output, manifest)
    texts, rejected = sum(part.texts for part in manifest.parts), sum(part.rejected for part in manifest.parts)
    check_rejects(spec, rejected, texts + rejected, manifest.rejects_by_reason, output)
    return ExtractReport(
        counts=Counts(read=texts + rejected, rejected=rejected),
        records=counts.records,
        parts=len(manifest.parts),
        parts_reused=counts.reused,
        files=len(files),
        strays=listing.strays,
        rejects_by_reason=dict(manifest.rejects_by_reason),
        source_location=str(listing.location),
        records_location=str(output.records),
        seconds=time.monotonic() - started,
        files_reused=counts.files_reused,
        unreadable=len(listing.files) - len(files),
        extraction=manifest.extraction,
        first_rejects=first_rejects(output.rejects) if rejected else (),
        warnings=warnings,
    )


def _read(
    spec: CorpusSpec,
    output: Output,
    scratch: Scratch,
    files: Sequence[FileEntry],
    settings: ExtractSettings,
    remembered: Remembered,
    run_id: str,
) -> tuple[RecordsManifest, WalkCounts]:
    """Walk over the source, except for what is remembered."""
    with KeysWriter(scratch.file("keys.bin")) as keys:
        walk = Walk(spec, output, scratch, remembered, keys)
        walk.over(reader(spec.source, spec.strategies, files, settings.run_record_offset), files, settings)
        name = keys.close()
    (output.records / name).put(keys.path)
    digest = hashlib.sha256("\n".join(f"{part.strategy} {part.id}" for part in walk.parts).encode())
    manifest = RecordsManifest(
        corpus=spec.name,
        delivery=output.delivery.name,
        extraction=digest.hexdigest()[:20],
        base=_published_commit(output),
        run_id=run_id,
        limit=settings.limit,
        offset=settings.offset,
        run_record_offset=settings.run_record_offset,
        records=walk.counts.records,
        parts=tuple(walk.parts),
        rejects_by_reason=dict(sum((Counter(part.reasons) for part in walk.parts), Counter())),
        sources=tuple(walk.sources),
        keys=name,
    )
    return manifest, walk.counts


def _openable(spec: CorpusSpec, listing: Listing, remembered: Remembered) -> Sequence[FileEntry]:
    """Return the files, without those that cannot be read where the corpus passes them over.

    To know that before anything is made of them, files that were not read before are looked through first.
    """
    if spec.source.on_unreadable == "fail":
        return listing.files
    source = reader(spec.source, spec.strategies)
    return tuple(file for file in listing.files if remembered.find(file) is not None or source.opens(file))


def _check_columns(spec: CorpusSpec, files: Sequence[FileEntry]) -> None:
    named = [
        (f"strategies[{number}].{'template' if strategy.template is not None else 'fields'}", strategy)
        for number, strategy in enumerate(spec.strategies)
    ]
    reader(spec.source, spec.strategies).check(files, named)


def _stamp(output: Output, before: RecordsManifest | None, extraction: str) -> str:
    """Return the moment that stands for the delivery's embeddings: now, or that of an attempt which did not publish.

    A retry after midnight has to stay in the folder of the day before, and a run with another model has to be newer
    than what is published.
    """
    published = load(output.manifest, DeliveryManifest)
    retried = before is not None and before.extraction == extraction and before.stamp
    if before is not None and retried and (published is None or published.stamp != before.stamp):
        return before.stamp
    return dt.datetime.now(dt.UTC).isoformat()


def _published_commit(output: Output) -> str | None:
    published = load(output.manifest, DeliveryManifest)
    return published.commit if published else None


def _reading(spec: CorpusSpec, listing: Listing) -> dict[str, str]:
    """Return all that decides what is made of a source file, by the words of the YAML."""
    facts = {f"strategy {strategy.name}": definition_hash(strategy) for strategy in spec.rendered_strategies()}
    source = spec.source.model_dump(exclude={"s3", "on_unreadable", "location"}, exclude_none=True)
    facts |= {f"source.{name}": str(value) for name, value in source.items()}
    return facts | {
        "source.location": str(listing.location),
        "part_texts": str(spec.part_texts),
        "reader": str(READER_VERSION),
        "order of strategies": " ".join(strategy.name for strategy in spec.strategies),
    }


def _tell_differences(spec: CorpusSpec, before: RecordsManifest | None, reading: Mapping[str, str]) -> None:
    """Say why everything is read again, where an earlier extraction was made otherwise."""
    if before is None or not before.reading or before.reading == reading:
        return
    _log.info(
        "the records of %s are read again, since these differ from the last time: %s; texts that stay the same are "
        "not embedded again",
        spec.name,
        differences(before.reading, reading),
    )


def _warnings(
    spec: CorpusSpec, listing: Listing, files: Sequence[FileEntry], manifest: RecordsManifest
) -> tuple[str, ...]:
    """Say what a person ought to look at, though the extraction succeeded."""
    found: list[str] = []
    if not listing.files:
        found.append(f"the source {listing.location} has no {spec.source.kind} file: 0 records")
    elif files and not manifest.records:
        found.append(f"the source {spec.source.location} gave 0 records ({len(files)} files read)")
    if not manifest.partial and len(files) >= MANY_FILES and 0 < manifest.records < _FEW_RECORDS * len(files):
        found.append(
            f"the source has {len(files)} files for {manifest.records} records, and each file becomes a part and a "
            "dataset file of its own, which is slow to write and to read: put records together, such as one JSON "
            "object a line in a few .jsonl files"
        )
    return tuple(found)


def _remove_stale(output: Output, manifest: RecordsManifest) -> None:
    """Remove records of earlier extractions and, unless this one is partial, their rejects."""
    names = [part.file for part in manifest.parts if part.file is not None]
    remove_others(output.records, [*names, output.records_manifest.name, str(manifest.keys)])
    if not manifest.partial:
        remove_others(
            output.rejects,
            [f"{part.strategy}/{stage}-{part.id}.parquet" for part in manifest.parts for stage in (STAGE, "embed")],
        )
