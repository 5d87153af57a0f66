"""Publishing a delivery: its finished parts become its dataset, as one atomic change.

What belongs here: moving files into the dataset, replacing the delivery's manifest (the commit), and
removing what the commit superseded. What does not: computing vectors or deciding which texts are
unchanged (`pipeline`).

Killed at any point, `publish` can be run again: files move by rename, to names that carry their
digest; until the manifest is replaced the old set stands whole, and afterwards whatever the manifest
does not name is removed.
"""

import datetime as dt
import math
import re
import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from embeddings_pipeline.errors import PublishConflictError, VerificationError
from embeddings_pipeline.records import Counts, dataset_schema
from embeddings_pipeline.reports import VectorFacts
from embeddings_pipeline.storage import timdex
from embeddings_pipeline.storage.location import Location, Place
from embeddings_pipeline.storage.manifests import (
    DatasetFile,
    DeliveryManifest,
    Export,
    PartManifest,
    PublishedSet,
    RecordsManifest,
    dump,
    parse,
)
from embeddings_pipeline.storage.merging import merged
from embeddings_pipeline.storage.parts import Output, check_file, file_digest, remove_others
from embeddings_pipeline.storage.published import present
from embeddings_pipeline.storage.scratch import Scratch
from embeddings_pipeline.storage.vectors import VectorsSeen, check_vectors

_EMBEDDINGS = "data/embeddings"


@dataclass(frozen=True, slots=True)
class Publication:
    """What one strategy brings: its finished parts in the order of the records, and whose they are."""

    model: str
    slug: str
    strategy: str
    definition: str
    fingerprint: str
    parts: Sequence[PartManifest]
    made_with: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Published:
    """The new manifest, how many files stayed, how many went, and what was seen of the vectors taken in.

    `held` counts the rows that stay published only since the source gave no text at all.
    """

    manifest: DeliveryManifest
    kept: int
    removed: int
    vectors: VectorFacts = field(default_factory=VectorFacts)
    held: int = 0


def publish(
    output: Output,
    records: RecordsManifest,
    publications: Sequence[Publication],
    versions: Mapping[str, str],
    run_id: str,
    *,
    keep: bool = False,
    allow_empty: bool = False,
    made_from: str = "",
) -> Published:
    """Make the finished parts the delivery's published set; with `keep` what is gone from the source stays in it.

    Records without a single text replace nothing, unless with `allow_empty`: what is published stays.

    `made_from` goes into the manifest. A run with limit or offset, which embeds only some of the records, leaves
    a delivery up to date that was, and does not make another so.

    Files that are new to the dataset are read once before the commit; those that stay are not.

    Raises:
        PublishConflictError: another run published the delivery since `records` was extracted.
        VerificationError: a part's file is missing, is not what its manifest says, or holds a vector that
            is not finite.
    """
    seen = VectorsSeen()
    with output.publish_lock.lock(), Scratch(output.scratch) as scratch:
        text, version = output.manifest.read_version()
        current = parse(text, output.manifest, DeliveryManifest)
        _compare(output, records, current)
        hold = not allow_empty and not any(part.texts for part in records.parts)
        after, kept, held = _next_sets(
            output, scratch, publications, current, seen, merge=records.partial or keep, hold=hold
        )
        exports = _export(output, scratch, records, after, current)
        manifest = DeliveryManifest(
            corpus=records.corpus,
            delivery=records.delivery,
            commit=secrets.token_hex(8),
            extraction=records.extraction,
            run_id=run_id,
            published_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            sets=after,
            versions=dict(versions),
            partial=records.partial or keep or held > 0,
            exports=exports,
            superseded=_superseded(current, after, exports),
            stamp=records.stamp,
            made_from=made_from if not records.partial or (current and current.made_from == made_from) else "",
        )
        if not output.manifest.swap(scratch.text(dump(manifest)), version):
            winner = parse(output.manifest.read_text(), output.manifest, DeliveryManifest)
            raise PublishConflictError(output.delivery.name, winner.run_id if winner else "another")
        # Staging first: a part that is staged no more cannot be published by a run that read this manifest.
        clear_staging(output)
        removed = sweep(output, manifest)
        return Published(manifest, kept, removed, seen.facts(), 0 if records.partial else held)


def _next_sets(
    output: Output,
    scratch: Scratch,
    publications: Sequence[Publication],
    current: DeliveryManifest | None,
    seen: VectorsSeen,
    *,
    merge: bool,
    hold: bool,
) -> tuple[tuple[PublishedSet, ...], int, int]:
    """Move the staged files; return all sets, how many files are in them still, and how many rows only by `hold`.

    Each publication replaces its set, or with `merge` adds to it; with `hold` what has files stays as it is.
    """
    sets = {(entry.slug, entry.strategy): entry for entry in (current.sets if current else ())}
    kept = held = 0
    for publication in publications:
        before = sets.get((publication.slug, publication.strategy))
        after = _move(output, scratch, publication, before, seen)
        if hold and before is not None and before.files:
            after = replace(before, counts=after.counts, seconds=after.seconds, skips_by_reason={})
            held += sum(file.rows for file in before.files)
        elif merge and before is not None:
            after = merged(output, scratch, before, after)
        kept += len({file.path for file in after.files} & {file.path for file in (before.files if before else ())})
        sets[publication.slug, publication.strategy] = after
    return tuple(sets[key] for key in sorted(sets)), kept, held


def sweep(output: Output, manifest: DeliveryManifest) -> int:
    """Remove the delivery's dataset files that its manifest does not name; return how many.

    Where no lock keeps other publishers out, a file that nobody names may be theirs, who name it next. But
    one that is older than the manifest, by the store's own clock, nobody can name any more: whoever put it
    has read an earlier manifest, so that its swap fails. What is younger goes with a later commit.
    """
    named = {file.path for entry in manifest.sets for file in entry.files}
    exported = {entry.path for entry in manifest.exports}
    if not output.root.remote:
        remove_exports(output, exported)
        return remove_unnamed(output, named)
    superseded = set(manifest.superseded)
    committed = max((entry.modified for entry in output.manifest.files()), default=0.0)
    remove_exports(output, exported, superseded, committed)
    folders = {output.relative(output.published(entry.slug, entry.strategy)) for entry in manifest.sets}
    removed = 0
    folders |= {path.rpartition("/")[0] for path in superseded if path.startswith("dataset/")}
    for folder in sorted(folders):
        for entry in (output.root / folder).files():
            path = f"{folder}/{entry.name}"
            if path not in named and (path in superseded or entry.modified < committed):
                removed += entry.location.delete()
    return removed


def _export(
    output: Output,
    scratch: Scratch,
    records: RecordsManifest,
    sets: Sequence[PublishedSet],
    current: DeliveryManifest | None,
) -> tuple[Export, ...]:
    """Write the dataset files that are new in the layout of TIMDEX, below the day of the delivery's stamp."""
    if output.timdex is None:
        return ()
    before = {entry.digest: entry for entry in (current.exports if current else ())}
    exports: list[Export] = []
    for file in (file for entry in sets for file in entry.files):
        known = before.get(file.digest)
        if known is not None and (output.timdex / known.path).size() == known.bytes:
            exports.append(known)
            continue
        target = scratch.file(f"export-{file.digest[:16]}.parquet")
        published = (output.root / file.path).fetch(scratch.file(f"published-{file.digest[:16]}.parquet"))
        rows = timdex.export(published, target, records.stamp)
        size = target.stat().st_size
        path = f"{_EMBEDDINGS}/{timdex.folder_of(records.stamp)}/{_export_prefix(output)}{file.digest[:20]}.parquet"
        (output.timdex / path).put(target)
        exports.append(Export(path, file.digest, rows, size))
    return tuple(exports)


def _superseded(
    current: DeliveryManifest | None, after: Sequence[PublishedSet], exports: Sequence[Export]
) -> tuple[str, ...]:
    """Return the files that go with this commit, or where there is none those that a killed one may have left."""
    if current is None:
        return ()
    named = {file.path for entry in after for file in entry.files} | {entry.path for entry in exports}
    before = {file.path for entry in current.sets for file in entry.files} | {entry.path for entry in current.exports}
    return tuple(sorted(before - named)) or tuple(path for path in current.superseded if path not in named)


def remove_exports(
    output: Output, named: Collection[str] = (), superseded: Collection[str] = (), before: float = math.inf
) -> None:
    """Remove the delivery's earlier files from the TIMDEX dataset, if it writes to one: there every file is data.

    Those that are `named` stay, and those that are neither `superseded` nor older than `before`.
    """
    if output.timdex is None:
        return
    for entry in (output.timdex / _EMBEDDINGS).files():
        path = f"{_EMBEDDINGS}/{entry.name}"
        old = path in superseded or entry.modified < before
        if old and path not in named and _is_export(output, entry.name):
            entry.location.delete()


def _export_prefix(output: Output) -> str:
    return f"{output.delivery.corpus}-{output.folder}-"


def _is_export(output: Output, name: str) -> bool:
    """Tell whether a file of the TIMDEX dataset is one of the delivery's; another's name may begin like its own."""
    file, prefix = name.rsplit("/", 1)[-1], _export_prefix(output)
    return file.startswith(prefix) and re.fullmatch(r"[0-9a-f]{20}\.parquet", file.removeprefix(prefix)) is not None


def remove_unnamed(output: Output, named: Collection[str]) -> int:
    """Remove the delivery's files of a local dataset that are not `named`."""
    removed = 0
    dataset = output.dataset
    if not isinstance(dataset, Location) or not isinstance(output.root, Location):
        return 0
    for folder in dataset.path.glob(f"*/*/{output.folder}"):
        location = Location(folder)
        prefix = output.relative(location) + "/"
        removed += remove_others(location, [path.removeprefix(prefix) for path in named if path.startswith(prefix)])
        location.delete_if_empty(up_to=output.root)
    return removed


def clear_staging(output: Output) -> None:
    """Remove the delivery's staged parts, which are published."""
    output.staging.delete_tree()
    if isinstance(output.root, Location):
        (output.root / "staging").delete_if_empty()


def find_file(output: Output, folder: Place, file: DatasetFile) -> Place | None:
    """Return where a part's file is: still staged, or moved by an earlier attempt to publish it."""
    staged = output.root / file.path
    if staged.size() == file.bytes:
        return staged
    ending = f"-{file.digest[:16]}.parquet"
    moved = (entry for entry in folder.files() if entry.name.endswith(ending) and entry.size == file.bytes)
    return next((entry.location for entry in moved), None)


def _compare(output: Output, records: RecordsManifest, current: DeliveryManifest | None) -> None:
    """Compare before the swap: what is published has to be what it was when the records were read."""
    if current is None or records.base == current.commit or records.extraction == current.extraction:
        return
    raise PublishConflictError(output.delivery.name, current.run_id)


def _intact(output: Output, scratch: Scratch, folder: Place, part: str, file: DatasetFile) -> tuple[Place, bool, Path]:
    """Return where a part's file is, whether it is still staged, and a local path with its bytes, which are the part's.

    A staged file with other bytes is removed, so that its part counts as unfinished and is made again.

    Raises:
        VerificationError: there is no file, or it is not the one that the part wrote.
    """
    found = find_file(output, folder, file)
    if found is None:
        raise VerificationError(
            f"part {part} has no file at '{output.root / file.path}'; materialize the corpus's embeddings again"
        )
    try:
        path = found.fetch(scratch.file(f"staged-{part}.parquet"))
    except FileNotFoundError:
        # On a store, which has no lock for them, of two runs that publish one part one may come too late.
        raise VerificationError(
            f"file '{found}' of part {part} is gone: another run of this delivery took it; run again"
        ) from None
    staged = output.relative(found).rpartition("/")[0] != output.relative(folder)
    if file_digest(path) != file.digest:
        if staged:
            found.delete()
        raise VerificationError(
            f"file '{found}' is not the one that part {part} wrote (sha256 differs): another run of this delivery "
            f"wrote it as well, or it is damaged; {'run' if staged else 'delete it and run'} again"
        )
    return found, staged, path


def _move(
    output: Output, scratch: Scratch, publication: Publication, before: PublishedSet | None, seen: VectorsSeen
) -> PublishedSet:
    """Verify the staged files of one strategy and move them into the dataset."""
    kept = [part.file for part in publication.parts if part.kept and part.file is not None]
    there = set(present(output.root, kept)) & set(before.files if before else ())
    folder = output.published(publication.slug, publication.strategy)
    files: list[DatasetFile] = []
    counts = Counts()
    kind, dimensions = (before.kind, before.dimensions) if before else ("dense", 0)
    precision = before.precision if before else "float32"
    for number, part in enumerate(publication.parts):
        counts += part.counts
        kind, dimensions, precision = part.kind or kind, part.dimensions or dimensions, part.precision
        if part.file is None:
            continue
        if part.kept:
            if part.file not in there:
                raise VerificationError(
                    f"part {part.part} counts on the published file '{part.file.path}', which is not published any "
                    "more; run the job again"
                )
            files.append(part.file)
            continue
        found, staged, path = _intact(output, scratch, folder, part.part, part.file)
        schema = dataset_schema(part.kind, part.dimensions, part.precision)
        check_file(path, schema, part.file.rows)
        check_vectors(path, str(found), schema, seen)
        if staged:
            found = folder / f"part-{number:05d}-{part.file.digest[:16]}.parquet"
            found.put(path)
        files.append(replace(part.file, path=output.relative(found)))
    return PublishedSet(
        model=publication.model,
        slug=publication.slug,
        strategy=publication.strategy,
        kind=kind,
        dimensions=dimensions,
        fingerprint=publication.fingerprint,
        definition=publication.definition,
        counts=counts,
        seconds=sum(part.seconds for part in publication.parts),
        files=tuple(files),
        precision=precision,
        skips_by_reason=dict(sum((Counter(part.skips_by_reason) for part in publication.parts), Counter())),
        made_with=dict(publication.made_with),
    )
