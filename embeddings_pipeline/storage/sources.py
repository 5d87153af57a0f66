"""The files of a corpus's source, and who reads them.

What belongs here: listing a source, patterns, strays, and choosing the reader of its format. What does
not: reading (`parquet`, `lines`), turning records into texts (`strategies`), cutting them into parts
(`parts`), and rejecting second keys (`pipeline.extraction`, which sees the whole delivery).

Files are read in bounded memory; a record that cannot be read is yielded with its problem, so that
nothing is lost and nothing else stops.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from embeddings_pipeline.errors import LocationNotFoundError, SourceUnreadableError
from embeddings_pipeline.settings import SourceSpec, StrategySpec
from embeddings_pipeline.storage.chunks import Chunk, Reader
from embeddings_pipeline.storage.csv_rows import CsvReader
from embeddings_pipeline.storage.envelope import EnvelopeReader
from embeddings_pipeline.storage.lines import JsonlReader
from embeddings_pipeline.storage.location import FileEntry, Place
from embeddings_pipeline.storage.parquet import ParquetReader
from embeddings_pipeline.storage.s3 import locate
from embeddings_pipeline.storage.timdex import TimdexReader

__all__ = ["READER_VERSION", "Chunk", "JsonlReader", "Listing", "Reader", "is_hidden", "list_source", "reader"]

READER_VERSION = 2
"""Raised when the same file would give other records: files that were read before are then read again."""

_COMPRESSED = ("", ".gz", ".zst", ".zstd")
_SUFFIXES = {
    "parquet": (".parquet", ".parq", ".pq"),
    "timdex": (".parquet",),
    "jsonl": tuple(f"{suffix}{more}" for suffix in (".jsonl", ".ndjson", ".json") for more in _COMPRESSED),
    "csv": tuple(f"{suffix}{more}" for suffix in (".csv", ".tsv") for more in _COMPRESSED),
}


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a source in the order they are read, and how many others lie there."""

    location: Place
    files: tuple[FileEntry, ...]
    strays: int


def list_source(spec: SourceSpec) -> Listing:
    """List the source: a file as it is, or the files with the format's suffix below a folder.

    Hidden files, files in hidden or `_` folders, and files with another suffix are strays.

    Raises:
        LocationNotFoundError: nothing is at the location.
    """
    location, pattern = _located(spec)
    _require(spec, location)
    try:
        entries = location.files()
    except OSError as error:
        raise SourceUnreadableError(str(error.filename), spec.kind, error.strerror or str(error)) from error
    if pattern is None and location.size() is not None:
        return Listing(location, tuple(entries), 0)
    chosen = tuple(
        entry
        for entry in entries
        if _is_data(entry.name, spec.kind) and (pattern is None or pattern.fullmatch(entry.name))
    )
    listing = Listing(location, chosen, len(entries) - len(chosen))
    return listing if spec.source is None or spec.run_id is not None else _bound_together(listing)


def source_location(spec: SourceSpec) -> Place:
    """Return the file or the folder that holds the source's files; lists nothing.

    Raises:
        LocationNotFoundError: nothing is at the location.
    """
    location, _ = _located(spec)
    _require(spec, location)
    return location


def list_file(spec: SourceSpec, name: str) -> Listing | None:
    """List one file by its path below the location; None where `list_source` would list no such file."""
    location, pattern = _located(spec)
    if not _is_data(name, spec.kind) or (pattern is not None and not pattern.fullmatch(name)):
        return None
    place = location / name
    if place.size() is None:
        return None
    return Listing(location, tuple(replace(entry, name=name) for entry in place.files()), 0)


def _located(spec: SourceSpec) -> tuple[Place, re.Pattern[str] | None]:
    base, pattern = _split_pattern(spec.location)
    location = locate(base, "source.location", spec.s3)
    return (location / "data" / "records" if spec.kind == "timdex" else location), pattern


def _require(spec: SourceSpec, location: Place) -> None:
    if not location.exists():
        raise LocationNotFoundError(
            "source.location", spec.location, f"looked at {location}; correct the path or put the records there"
        )


def _bound_together(listing: Listing) -> Listing:
    """Make each file's version depend on all: which of its records are current is said by the others too."""
    together = hashlib.sha256("\n".join(f"{entry.name} {entry.version}" for entry in listing.files).encode())
    known = all(entry.version for entry in listing.files)
    versions = [f"{entry.version}-{together.hexdigest()[:16]}" if known else "" for entry in listing.files]
    files = [replace(entry, version=version) for entry, version in zip(listing.files, versions, strict=True)]
    return replace(listing, files=tuple(files))


def _split_pattern(text: str) -> tuple[str, re.Pattern[str] | None]:
    """Return the folder that a pattern starts from, and what the names below it have to match."""
    steps = text.split("/")
    first = next((number for number, step in enumerate(steps) if re.search(r"[*?]", step)), None)
    if first is None or text.startswith("package:"):
        return text, None
    pattern = ""
    for number, step in enumerate(steps[first:], start=first):
        last = number == len(steps) - 1
        if step == "**":
            pattern += ".*" if last else "(?:.*/)?"
        else:
            pattern += "".join({"*": "[^/]*", "?": "[^/]"}.get(sign, re.escape(sign)) for sign in step)
            pattern += "" if last else "/"
    return "/".join(steps[:first]) or ("/" if text.startswith("/") else "."), re.compile(pattern, re.DOTALL)


def _is_data(name: str, kind: str) -> bool:
    return not is_hidden(name) and name.lower().endswith(_SUFFIXES[kind])


def is_hidden(name: str) -> bool:
    """Tell whether a file below a source is passed over because it, or a folder on its way, is hidden."""
    return any(part.startswith((".", "_")) for part in name.split("/"))


def reader(
    spec: SourceSpec,
    strategy_specs: Iterable[StrategySpec],
    files: Sequence[FileEntry] = (),
    first_offset: int = 0,
) -> Reader:
    """Return the reader for a source's format; it reads only the fields that the strategies need.

    `files` are all files of the source, which say what is current in a TIMDEX dataset; of TIMDEX's
    records those with a lower number in their run than `first_offset` are left out.
    """
    match spec.kind:
        case "jsonl":
            return EnvelopeReader(spec, first_offset) if spec.envelope else JsonlReader(spec)
        case "csv":
            return CsvReader(spec)
        case "timdex":
            return TimdexReader(spec, files, first_offset)
        case "parquet":
            needed: set[str] | None = {spec.id}
            for strategy in strategy_specs:
                fields = strategy.needed_fields()
                needed = None if needed is None or fields is None else needed | set(fields)
            return ParquetReader(spec, needed)
