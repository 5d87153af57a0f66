"""Removing by age what no manifest needs: orphans of dead attempts, staging, and records that are published.

What belongs here: deciding what is nobody's any more. What does not: what a commit supersedes, which
goes with the commit (`publish`).

Nothing of a live attempt is touched: on a local disk attempts hold locks, and where any is alive its
staging stays; in an object store only age tells, so a delivery's staging and records go as a whole, and only when
the newest of their files is old: an attempt that is at work writes one now and then.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from embeddings_pipeline.errors import LocationUnavailableError
from embeddings_pipeline.records import Delivery
from embeddings_pipeline.storage.location import FileEntry, Location, Place
from embeddings_pipeline.storage.manifests import DeliveryManifest, RecordsManifest, dump, load, published_deliveries
from embeddings_pipeline.storage.parts import Output
from embeddings_pipeline.storage.publish import remove_exports
from embeddings_pipeline.storage.scratch import Scratch

ORPHAN_SECONDS = 7 * 24 * 3600.0
"""Older than any run: what an object store holds for so long and no manifest names belongs to no live attempt."""


_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Collected:
    """How many files of each kind went, their bytes, and the deliveries that were withdrawn."""

    dataset: int = 0
    staging: int = 0
    records: int = 0
    attempts: int = 0
    uploads: int = 0
    bytes: int = 0
    withdrawn: tuple[str, ...] = ()


def collect(output: Output, older_than: float) -> Collected:
    """Remove what is older than `older_than` seconds and needed by nobody.

    Raises:
        StorageError: a manifest cannot be read, so that nobody can tell what it names; nothing is removed.
    """
    done = Collected()
    manifests = _manifests(output)
    named = {file.path for manifest in manifests.values() for entry in manifest.sets for file in entry.files}
    before = time.time() - older_than
    done.attempts = Scratch.sweep(output.scratch)
    done.uploads = output.root.delete_uploads(before)
    # A file keeps its age when it moves into the dataset, where no manifest names it until the commit.
    if not _alive(output):
        done.dataset = _remove(
            done, output.root / "dataset", before, lambda entry: f"dataset/{entry.name}" not in named, output
        )
    _collect_work(done, output, before, manifests.get)
    return done


def collect_work(output: Output, older_than: float = ORPHAN_SECONDS) -> Collected:
    """Remove old staging and published records of the other deliveries, at the beginning of a run of one.

    Its own stay: they save it work, and its publish removes what it leaves.

    Raises:
        StorageError: a manifest cannot be read.
    """
    done = Collected()

    def published(folder: str) -> DeliveryManifest | None:
        return load(output.root / "manifests" / f"{folder}.json", DeliveryManifest)

    _collect_work(done, output, time.time() - older_than, published, spare=output.folder)
    if done.staging or done.records:
        _log.info("removed %d staged files and %d files of published records that are old", done.staging, done.records)
    return done


def keep_from_collection(output: Output, records: RecordsManifest) -> None:
    """Make the records of an attempt that begins look new where nothing but age protects them."""
    there = output.records_manifest.files() if output.root.remote else []
    if there and there[0].modified < time.time() - ORPHAN_SECONDS / 2:
        with Scratch(output.scratch) as scratch:
            scratch.put_text(output.records_manifest, dump(records))


def _collect_work(
    done: Collected,
    output: Output,
    before: float,
    published: Callable[[str], DeliveryManifest | None],
    spare: str | None = None,
) -> None:
    """Remove staging and published records of whole deliveries, the newest file of which is old.

    Attempts on a local disk hold locks, and where any is alive nothing goes. In an object store an attempt shows
    itself by what it writes: a part that is finished keeps all that were finished before it.
    """
    if _alive(output):
        return
    for folder, entries in _by_delivery(output.root / "staging", before, spare):
        done.staging += _delete(done, output.root / "staging" / folder, entries, output)
    for folder, entries in _by_delivery(output.root / "records", before, spare):
        place = output.root / "records" / folder
        records = load(place / "manifest.json", RecordsManifest)
        manifest = published(folder) if records is not None else None
        if records is None or (manifest is not None and manifest.extraction == records.extraction):
            done.records += _delete(done, place, entries, output)


def _by_delivery(folder: Place, before: float, spare: str | None) -> list[tuple[str, list[FileEntry]]]:
    """Return the files of each delivery in a folder that has no newer one."""
    found: dict[str, list[FileEntry]] = {}
    for entry in folder.files():
        found.setdefault(entry.name.split("/")[0], []).append(entry)
    return [
        (name, entries)
        for name, entries in found.items()
        if name != spare and max(entry.modified for entry in entries) < before
    ]


def collect_orphans(output: Output) -> int:
    """Remove old files of a delivery that its manifest does not name, and old uploads, after a publish to a store."""
    manifest = load(output.manifest, DeliveryManifest)
    named = {file.path for entry in (manifest.sets if manifest else ()) for file in entry.files}

    def mine(entry: FileEntry) -> bool:
        return entry.name.split("/")[2:3] == [output.folder] and f"dataset/{entry.name}" not in named

    before = time.time() - ORPHAN_SECONDS
    try:
        output.root.delete_uploads(before)
    except LocationUnavailableError as error:
        # A right of its own, which a role that may write need not have; nothing that is published depends on it.
        _log.warning("uploads that a dead run began cannot be removed: %s; a lifecycle rule of the bucket can", error)
    return _remove(Collected(), output.dataset, before, mine, output)


def withdraw(output: Output, deliveries: Iterable[str]) -> tuple[str, ...]:
    """Remove what is published of these deliveries: first the manifest, then files; return the names of all."""
    gone = tuple(deliveries)
    files: dict[str, list[FileEntry]] = {}
    for entry in output.dataset.files() if gone else ():
        files.setdefault("/".join(entry.name.split("/")[2:3]), []).append(entry)
    for name in gone:
        other = replace(output, delivery=Delivery(output.delivery.corpus, name))
        with other.publish_lock.lock():
            other.manifest.delete()
            for entry in files.get(other.folder, ()):
                entry.location.delete()
            remove_exports(other)
            for folder in (other.staging, other.records, other.rejects):
                folder.delete_tree()
        other.publish_lock.delete()
    _remove_empty(output.dataset, output)
    return gone


def _manifests(output: Output) -> dict[str, DeliveryManifest]:
    found: dict[str, DeliveryManifest] = {}
    for name, place in published_deliveries(output.root).items():
        manifest = load(place, DeliveryManifest)
        if manifest is not None:
            found[name] = manifest
    return found


def _alive(output: Output) -> bool:
    """Tell whether an attempt is at work, by the locks that are left after a sweep."""
    return not output.root.remote and any(entry.name.endswith(".alive") for entry in output.scratch.files())


def _remove(
    done: Collected, folder: Place, before: float, unneeded: Callable[[FileEntry], bool], output: Output
) -> int:
    unneeded_ones = [entry for entry in folder.files() if entry.modified < before and unneeded(entry)]
    return _delete(done, folder, unneeded_ones, output)


def _delete(done: Collected, folder: Place, entries: Iterable[FileEntry], output: Output) -> int:
    removed = 0
    for entry in entries:
        if entry.location.delete():
            removed += 1
            done.bytes += entry.size
    _remove_empty(folder, output)
    return removed


def _remove_empty(folder: Place, output: Output) -> None:
    if not isinstance(folder, Location) or not isinstance(output.root, Location):
        return
    for path in sorted((path for path in folder.path.rglob("*") if path.is_dir()), reverse=True):
        Location(path).delete_if_empty(up_to=output.root)
    folder.delete_if_empty(up_to=output.root)
