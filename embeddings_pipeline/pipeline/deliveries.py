"""The deliveries of a corpus: which its source has, which are published, and which are due.

What belongs here: finding deliveries and the files of one. What does not: reading these files
(`extraction`), and deciding when a delivery that is due is embedded (a sensor, a schedule, the CLI).
"""

import datetime as dt
import hashlib
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache

from embeddings_pipeline.errors import ConfigurationError, DeliveryNotFoundError, LocationNotFoundError, ManifestError
from embeddings_pipeline.models import registry
from embeddings_pipeline.pipeline.preflight import output_of
from embeddings_pipeline.records import Delivery, Discovery, FoundDelivery
from embeddings_pipeline.settings import CorpusSpec
from embeddings_pipeline.storage.location import FileEntry, Place
from embeddings_pipeline.storage.manifests import DeliveryManifest, load
from embeddings_pipeline.storage.names import folder_of, name_of, source_of
from embeddings_pipeline.storage.parts import Output
from embeddings_pipeline.storage.runs import files_by_run
from embeddings_pipeline.storage.sources import Listing, list_file, list_source

WHOLE = Delivery("").name
"""The name of the one delivery of a `whole` corpus."""

_READERS = 16
"""Threads that read manifests from an object store; 10,000 one after the other would take minutes."""


@dataclass(frozen=True, slots=True)
class Due:
    """A delivery that is not published as its source and the corpus's spec are now.

    `made_from` is what its manifest will say once it is. `key` is the same until the delivery's files, the
    spec, or what is published of it change: one run for it is enough, whatever becomes of that run.
    """

    delivery: FoundDelivery
    made_from: str
    key: str


def discover(spec: CorpusSpec) -> Discovery:
    """Return the deliveries that the source has, sorted by name.

    Lists the source and the output's manifests. Of the runs of a TIMDEX dataset, only files that are new or
    changed since any process looked are opened.

    Raises:
        SourceUnreadableError: a folder of the source may not be read, or a file holds no runs.
        LocationUnavailableError: an object store does not answer.
    """
    try:
        listing = _listing(spec)
    except LocationNotFoundError as error:
        return Discovery(spec.source.location, (), missing=str(error))
    files = _by_delivery(spec, listing)
    found = tuple(_found(name, files[name]) for name in sorted(files))
    here = {folder_of(name) for name in files}
    published = _manifests(output_of(spec, Delivery(spec.name)))
    gone = [entry for folder, entry in published.items() if folder not in here]
    withdrawn = sorted(state.delivery for state in _states(gone))
    twice = len(listing.files) - len({entry.name for entry in listing.files})
    return Discovery(str(listing.location), found, listing.strays + twice, withdrawn=tuple(withdrawn))


def due(spec: CorpusSpec, discovery: Discovery) -> list[Due]:
    """Return the deliveries that are new or changed, or were made by another spec, in the order of their names.

    Reads the manifests that are new since this process looked last.
    """
    entries = _manifests(output_of(spec, Delivery(spec.name)))
    states = dict(zip(entries, _states(entries.values()), strict=True))
    made_by = spec_hash(spec)
    waiting: list[Due] = []
    for delivery in discovery.deliveries:
        state = states.get(folder_of(delivery.name), _State(delivery.name, "", "new"))
        wanted = made_from(delivery.version, made_by)
        if not wanted or state.made_from != wanted:
            key = f"{delivery.name}:{delivery.version}:{made_by}:{state.commit}"
            waiting.append(Due(delivery, wanted, key))
    return waiting


def narrowed(spec: CorpusSpec, delivery: Delivery) -> tuple[CorpusSpec, Listing]:
    """Return the corpus with its source narrowed down to one delivery, and the delivery's files.

    Raises:
        LocationNotFoundError: the source is gone.
        DeliveryNotFoundError: the delivery is.
    """
    if spec.deliveries == "whole":
        if delivery.name != WHOLE:
            raise DeliveryNotFoundError(spec.name, delivery.name, spec.source.location, [WHOLE])
        return spec, list_source(spec.source)
    if spec.deliveries == "files":
        name = source_of(delivery.name)
        # Without looking at all the others, which may be 10,000.
        if (listing := list_file(spec.source, name)) is not None:
            return spec, listing
    listing = _listing(spec)
    files = _by_delivery(spec, listing)
    if delivery.name not in files:
        raise DeliveryNotFoundError(spec.name, delivery.name, spec.source.location, files)
    chosen = replace(listing, files=tuple(files[delivery.name]), strays=0)
    if spec.deliveries == "files":
        return spec, chosen
    source = spec.source.model_copy(update={"run_id": source_of(delivery.name)})
    return spec.model_copy(update={"source": source}), chosen


def version_of(files: Sequence[FileEntry]) -> str:
    """Return a digest that changes whenever the files may have; empty where one changed too shortly ago to tell."""
    if not all(file.version for file in files):
        return ""
    together = "\n".join(f"{file.name} {file.version}" for file in files)
    return hashlib.sha256(together.encode()).hexdigest()[:16]


def spec_hash(spec: CorpusSpec) -> str:
    """Return a digest of what a corpus YAML says of the rows, the pinned facts of a known model included."""
    facts = spec.facts()
    try:
        model = registry.complete(spec.model)
    except ConfigurationError:
        # The run says what is wrong with it.
        model = spec.model
    facts["model"] = model.model_dump(mode="json", exclude={"source"}, exclude_defaults=True)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def made_from(source_version: str, spec: str) -> str:
    """Return what a published delivery's manifest says it was made from; empty where that is not sure."""
    return f"{source_version}:{spec}" if source_version else ""


def _listing(spec: CorpusSpec) -> Listing:
    if spec.deliveries == "whole":
        return list_source(spec.source)
    # All runs' files, where `source` would ask for those with current records.
    return list_source(spec.source.model_copy(update={"source": None}))


def _by_delivery(spec: CorpusSpec, listing: Listing) -> dict[str, list[FileEntry]]:
    """Return the files of each delivery by its name; of two files that are shown by one name the first counts."""
    match spec.deliveries:
        case "whole":
            return {WHOLE: list(listing.files)}
        case "files":
            return {name_of(file.name): [file] for file in reversed(listing.files)}
        case "runs":
            output = output_of(spec, Delivery(spec.name))
            skip = spec.source.on_unreadable == "skip"
            found = files_by_run(output, listing.files, spec.source.source, opens_only=skip)
            return {name_of(run): files for run, files in found.items()}


def _found(name: str, files: Sequence[FileEntry]) -> FoundDelivery:
    newest = max((file.modified for file in files), default=None)
    modified = None if newest is None else dt.datetime.fromtimestamp(newest, dt.UTC)
    return FoundDelivery(name, version_of(files), modified, sum(file.size for file in files))


@dataclass(frozen=True, slots=True)
class _State:
    """What is published of a delivery."""

    delivery: str
    made_from: str
    commit: str


def _manifests(output: Output) -> dict[str, FileEntry]:
    listed = (output.root / "manifests").files()
    return {entry.name.removesuffix(".json"): entry for entry in listed if entry.name.endswith(".json")}


def _states(entries: Iterable[FileEntry]) -> list[_State]:
    asked = list(entries)
    if asked and asked[0].location.remote:
        with ThreadPoolExecutor(_READERS) as pool:
            return list(pool.map(_state, asked))
    return [_state(entry) for entry in asked]


def _state(entry: FileEntry) -> _State:
    """Return what a manifest says; a manifest that is as it was is not read again by this process."""
    return _read_state(entry.location, entry.version) if entry.version else _read_state.__wrapped__(entry.location, "")


@lru_cache(maxsize=100_000)
def _read_state(place: Place, version: str) -> _State:  # noqa: ARG001 (part of the cache key)
    folder = place.name.removesuffix(".json")
    try:
        manifest = load(place, DeliveryManifest)
    except ManifestError:
        # Its run fails and says what is wrong with it.
        return _State(source_of(folder), "", "unreadable")
    if manifest is None:
        return _State(source_of(folder), "", "new")
    return _State(manifest.delivery, manifest.made_from, manifest.commit)
