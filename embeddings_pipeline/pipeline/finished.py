"""Parts that need no model: finished by an earlier attempt, published as they are, carried over, or empty.

What belongs here: finding out, from manifests and hashes, what of a part is there already. What does not:
computing the rest (`embedding`, `batches`).
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from embeddings_pipeline.errors import ModelError, RunConfigError
from embeddings_pipeline.inference.encoder import DEFAULT_OPTIONS
from embeddings_pipeline.models.store import ResolvedModel
from embeddings_pipeline.pipeline.mismatch import made_with
from embeddings_pipeline.pipeline.progress import Progress
from embeddings_pipeline.pipeline.statistics import Statistics
from embeddings_pipeline.records import Counts, EmbeddedBatch, EmbedOptions, IntVector, Reject
from embeddings_pipeline.settings import CorpusSpec
from embeddings_pipeline.storage.location import Place
from embeddings_pipeline.storage.manifests import (
    DatasetFile,
    DeliveryManifest,
    PartManifest,
    RecordsManifest,
    RecordsPart,
    dump,
    load,
)
from embeddings_pipeline.storage.parts import Output, read_keys
from embeddings_pipeline.storage.publish import find_file
from embeddings_pipeline.storage.published import KEY_COLUMNS, PublishedRows
from embeddings_pipeline.storage.scratch import Scratch
from embeddings_pipeline.storage.staged import StagedParts


@dataclass(frozen=True, slots=True)
class PartOutput:
    """Where a part's vectors go, and what is known before they are computed.

    `published` holds the rows that may be carried over (none with `force`); with `partial` they stay
    where they are, since a run with limit or offset only adds to what is published. `done` are the parts
    that were finished or stay as they are when the run began, `stale_rejects` the rejects that lie there.
    """

    output: Output
    scratch: Scratch
    model: ResolvedModel
    published: PublishedRows
    options: EmbedOptions
    application_batch_size: int
    partial: bool
    run_id: str
    force: bool
    progress: Progress
    statistics: Statistics
    done: StagedParts
    stale_rejects: frozenset[str] = frozenset()

    def staged(self, part: RecordsPart) -> Place:
        """Return where the part's file is staged; its manifest lies beside it."""
        return self.output.staged(part.strategy, self.model.fingerprint) / f"part-{part.id}.parquet"

    def manifest(self, part: RecordsPart) -> Place:
        """Return where the part's manifest is."""
        return self.output.staged(part.strategy, self.model.fingerprint) / f"part-{part.id}.json"


def part_manifest(
    part: RecordsPart,
    out: PartOutput,
    *,
    embedded: int = 0,
    skipped: int = 0,
    rejects: Sequence[Reject] = (),
    tokens: int = 0,
    truncated: int = 0,
    kind: str = "",
    dimensions: int = 0,
    file: DatasetFile | None = None,
    seconds: float = 0.0,
    token_lengths: Mapping[int, int] | None = None,
    max_length: int = 0,
) -> PartManifest:
    """Return the manifest of a finished part; what extraction rejected of it is added to `rejects`."""
    return PartManifest(
        part=part.id,
        strategy=part.strategy,
        fingerprint=out.model.fingerprint,
        run_id=out.run_id,
        counts=Counts(
            read=part.texts + part.rejected,
            embedded=embedded,
            skipped=skipped,
            rejected=part.rejected + len(rejects),
        ),
        tokens=tokens,
        truncated=truncated,
        kind=kind,
        dimensions=dimensions,
        file=file,
        kept=False,
        seconds=seconds,
        rejects_by_reason=dict(Counter(str(reject.reason) for reject in rejects)),
        token_lengths=dict(sorted((token_lengths or {}).items())),
        max_length=max_length,
        precision=out.model.spec.precision,
        made_with=made_with(out.model),
    )


def serves(manifest: PartManifest, *, partial: bool) -> bool:
    """Tell whether a finished part may be published by this run.

    A run with limit or offset leaves skipped rows out of its file, since it only adds to what is
    published; a run without replaces what is published, so its file has to have them.
    """
    rows = 0 if manifest.file is None else manifest.file.rows
    return partial or rows == manifest.counts.embedded + manifest.counts.skipped


def finished(part: RecordsPart, out: PartOutput) -> PartManifest | None:
    """Return the manifest of an attempt at this part that has finished by now, if all that it counts on is there."""
    manifest = load(out.manifest(part), PartManifest)
    if manifest is None or (out.force and manifest.run_id != out.run_id) or not serves(manifest, partial=out.partial):
        return None
    if manifest.file is None:
        return manifest if not manifest.counts.skipped else None
    folder = out.output.published(out.model.slug, part.strategy)
    return manifest if find_file(out.output, folder, manifest.file) is not None else None


def finished_before(part: RecordsPart, out: PartOutput) -> PartManifest | None:
    """Return the manifest of a part that needs nothing: published as it is, or finished by an earlier attempt."""
    if out.done.kept(part.id) is not None and (file := out.published.whole(part.id, part.texts)) is not None:
        if (rejects := embed_rejects(part, out)).name in out.stale_rejects:
            rejects.delete()
        return kept_part(part, file, out.run_id, out.model.spec.precision)
    manifest = out.done.manifest(part.id)
    if manifest is None or manifest.file is None or not out.done.holds(manifest.file):
        return finished(part, out)
    mine = not out.force or manifest.run_id == out.run_id
    return manifest if mine and serves(manifest, partial=out.partial) else None


def keep_published(parts: Sequence[RecordsPart], out: PartOutput) -> None:
    """Name all parts of a strategy whose every text is published, in one file each, for `publish` to find."""
    whole = {part.id: file.path for part in parts if (file := out.published.whole(part.id, part.texts)) is not None}
    with out.output.publish_lock.lock():
        out.done.keep(out.scratch, out.run_id, whole)


def kept_part(part: RecordsPart, file: DatasetFile, run_id: str, precision: str) -> PartManifest:
    """Return the manifest of a part whose published file serves as it is; nobody writes it."""
    return PartManifest(
        part=part.id,
        strategy=part.strategy,
        fingerprint=file.fingerprint,
        run_id=run_id,
        counts=Counts(read=part.texts + part.rejected, skipped=part.texts, rejected=part.rejected),
        tokens=0,
        truncated=0,
        kind="",
        dimensions=0,
        file=file,
        kept=True,
        seconds=0.0,
        rejects_by_reason={},
        precision=precision,
    )


def without_texts(part: RecordsPart, out: PartOutput) -> PartManifest:
    """Write and return the manifest of a part whose every text was rejected; that needs no model."""
    spec = out.model.spec
    manifest = part_manifest(part, out, kind=spec.kind or "", dimensions=spec.width or 0)
    with out.output.publish_lock.lock():
        out.scratch.put_text(out.manifest(part), dump(manifest))
    return manifest


def embed_rejects(part: RecordsPart, out: PartOutput) -> Place:
    """Return where the rejects go that embedding a part gives."""
    return out.output.rejects / part.strategy / f"embed-{part.id}.parquet"


class NoEncoder:
    """Stands for the encoder of a part whose every vector is carried over: it has a shape and computes nothing."""

    device, path, path_reason, max_length, bytes = "none", "none", "nothing is computed", 0, 0

    def __init__(self, model: ResolvedModel, kind: str, dimensions: int) -> None:
        self.model = model
        self.kind = kind
        self.dimensions = dimensions

    def embed(
        self, texts: Sequence[str], options: EmbedOptions = DEFAULT_OPTIONS, cancel: threading.Event | None = None
    ) -> EmbeddedBatch:
        """Fail: a published row vanished between two looks at it."""
        raise ModelError(f"{len(texts)} texts that were published are not any more; run the job again")

    def workers(self, options: EmbedOptions) -> int:  # noqa: ARG002
        """Return 0."""
        return 0

    def model_batch_tokens(self, options: EmbedOptions) -> int:
        """Return what was asked for."""
        return options.model_batch_tokens

    def token_strings(self, indices: IntVector) -> pa.Array:
        """Return no strings."""
        return pa.array([""] * len(indices), pa.string())

    def close(self) -> None:
        """Do nothing."""


def carried_whole(part: RecordsPart, out: PartOutput) -> NoEncoder | None:
    """Return a stand-in for the encoder, if every text of the part is published, in whatever files."""
    rows = out.published
    if part.file is None or not rows.kind:
        return None
    for batch in read_keys(out.output.records / part.file):
        carried = rows.carry(batch, KEY_COLUMNS)
        if carried is None or len(carried.rows) < batch.num_rows:
            return None
    return NoEncoder(out.model, rows.kind, rows.dimensions)


def refuse_mixture(
    spec: CorpusSpec, records: RecordsManifest, current: DeliveryManifest | None, model: ResolvedModel
) -> None:
    """Refuse a run with limit or offset where another version of the model is published.

    Its rows would stand beside the old ones, in one folder and perhaps with another width.
    """
    if not records.partial or current is None:
        return
    for strategy in spec.strategies:
        before = current.find(model.slug, strategy.name)
        if before is not None and any(file.fingerprint != model.fingerprint for file in before.files):
            raise RunConfigError(
                f"limit is {records.limit} and offset {records.offset}, but what is published of strategy "
                f"'{strategy.name}' was made by another version of model '{model.name}'; run once without limit and "
                "offset, which embeds everything with this one"
            )
