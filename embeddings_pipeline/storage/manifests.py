"""The manifests: what a set of records, a part, or a published delivery was made from.

What belongs here: their shape, their JSON, and the check of their `format_version`. What does not:
deciding when one is written (`parts`, `publish`) or what follows from one (`pipeline`).
"""

import functools
import json
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from embeddings_pipeline.errors import ManifestError
from embeddings_pipeline.records import Counts, SkipReason
from embeddings_pipeline.storage.location import Place

FORMAT_VERSION = 1
"""Raised when an older version of this package could not read what a newer one writes."""


@dataclass(frozen=True, slots=True)
class RecordsPart:
    """A part as `extract` cuts it.

    `id` is a digest of the part's keys, text hashes and rejects, so that a part with the same texts
    is the same part wherever its records lie in a listing. `file` is None where every text was
    rejected. `source`, `start` and `stop` say which records of which file it came from.
    """

    id: str
    strategy: str
    texts: int
    rejected: int
    file: str | None
    source: str
    start: int
    stop: int
    reasons: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceSlice:
    """A source file as it was read: the next extraction need not read it again while it is the same.

    `version` is that of its listing; `parts` counts its entries in the manifest's `parts`, `keyed` its
    hashes in the manifest's `keys` file, and `repeated` is a digest of which of them came a second time.
    """

    name: str
    version: str
    records: int
    parts: int
    keyed: int
    repeated: str


@dataclass(frozen=True, slots=True)
class RecordsManifest:
    """The records of a delivery, as one run extracted them.

    `extraction` is a digest of all parts; `base` the commit that was published at that time, with
    which `publish` compares before it swaps. `reading` says how the source was read, `sources` which
    files in which state, `keys` in which file the hashes of their keys are. `stamp`
    is the moment that stands for the delivery's embeddings, the same for all retries. `source_version`
    is that of the delivery's files, empty where another change of them would look the same.
    """

    corpus: str
    delivery: str
    extraction: str
    base: str | None
    run_id: str
    limit: int
    offset: int
    records: int
    parts: tuple[RecordsPart, ...]
    rejects_by_reason: dict[str, int]
    reading: dict[str, str] = field(default_factory=dict)
    sources: tuple[SourceSlice, ...] = ()
    keys: str | None = None
    stamp: str = ""
    run_record_offset: int = 0
    source_version: str = ""
    format_version: int = FORMAT_VERSION

    @property
    def partial(self) -> bool:
        """Whether limit or offset left records out."""
        return bool(self.limit or self.offset or self.run_record_offset)


@dataclass(frozen=True, slots=True)
class DatasetFile:
    """A file with vectors; `path` is relative to the output location, `part` its part's id."""

    path: str
    rows: int
    bytes: int
    digest: str
    part: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class PartManifest:
    """A finished part. `file` is the staged file, or with `kept` the published one that still serves.

    `seconds` is what embedding it took. `token_lengths` counts the texts of a file that the part wrote by
    the least token count of their bin, and `max_length` is the limit in tokens of the model that was asked.
    `made_with` is what the fingerprint stands for, to tell a person what differs.
    """

    part: str
    strategy: str
    fingerprint: str
    run_id: str
    counts: Counts
    tokens: int
    truncated: int
    kind: str
    dimensions: int
    file: DatasetFile | None
    kept: bool
    seconds: float
    rejects_by_reason: dict[str, int]
    token_lengths: dict[int, int] = field(default_factory=dict)
    max_length: int = 0
    precision: str = "float32"
    made_with: dict[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def skips_by_reason(self) -> dict[str, int]:
        """The skipped texts of the part by their reason."""
        reason = SkipReason.UNCHANGED_PART if self.kept else SkipReason.UNCHANGED_TEXT
        return {str(reason): self.counts.skipped} if self.counts.skipped else {}


@dataclass(frozen=True, slots=True)
class KeptParts:
    """The parts of a strategy and model whose published files serve as they are, with the paths of these files."""

    run_id: str
    parts: dict[str, str]
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """The published files of one model and strategy, and what the run that wrote them did.

    `seconds` is the time in which `counts.embedded` texts were embedded; `precision` that of a dense
    vector's numbers; `skips_by_reason` adds up to `counts.skipped`. `made_with` is what the fingerprint stands for.
    """

    model: str
    slug: str
    strategy: str
    kind: str
    dimensions: int
    fingerprint: str
    definition: str
    counts: Counts
    seconds: float
    files: tuple[DatasetFile, ...]
    precision: str = "float32"
    skips_by_reason: dict[str, int] = field(default_factory=dict)
    made_with: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Export:
    """A dataset file, by its digest, as it was written in another layout; `path` is relative to the location."""

    path: str
    digest: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class DeliveryManifest:
    """What is published of a delivery; replacing it is the commit.

    `partial`: the run added to what was there, so that there may be more rows than it counted.
    `superseded`: files of the set before, which go after the commit, or with the next one where that
    was killed. `made_from`: the version of the delivery's files and a hash of the corpus's spec, which tell
    whether the delivery is up to date; empty where that is not sure. `stamp`: that of its records.
    """

    corpus: str
    delivery: str
    commit: str
    extraction: str
    run_id: str
    published_at: str
    sets: tuple[PublishedSet, ...]
    versions: dict[str, str]
    partial: bool = False
    exports: tuple[Export, ...] = ()
    superseded: tuple[str, ...] = ()
    made_from: str = ""
    stamp: str = ""
    format_version: int = FORMAT_VERSION

    def find(self, slug: str, strategy: str) -> PublishedSet | None:
        """Return the set of a model and strategy."""
        return next((entry for entry in self.sets if (entry.slug, entry.strategy) == (slug, strategy)), None)


Manifest = TypeVar("Manifest", RecordsManifest, PartManifest, KeptParts, DeliveryManifest)


def dump(manifest: RecordsManifest | PartManifest | KeptParts | DeliveryManifest) -> str:
    """Return the manifest's JSON."""
    return json.dumps(asdict(manifest), ensure_ascii=False, indent=1) + "\n"


def load(location: Place, kind: type[Manifest]) -> Manifest | None:
    """Read a manifest; None where there is none.

    Raises:
        ManifestError: it is broken, or was written by a newer version.
    """
    return parse(location.read_text(), location, kind)


def parse(text: str | None, location: Place, kind: type[Manifest]) -> Manifest | None:
    """Return the manifest that a file's text is; None where there is no file.

    Raises:
        ManifestError: it is broken, or was written by a newer version.
    """
    if text is None:
        return None
    try:
        data: Any = json.loads(text)
        version = data["format_version"]
        if version <= FORMAT_VERSION:
            return _adapter(kind).validate_python(data)
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise ManifestError(
            f"manifest '{location}' cannot be read ({str(error).splitlines()[0]}); "
            "restore it from a backup, or remove the output location and run again"
        ) from error
    raise ManifestError(
        f"manifest '{location}' has format_version {version}, and this version reads up to {FORMAT_VERSION}; "
        "use the version of embeddings-pipeline that wrote it, or a newer one"
    )


@functools.cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def published_deliveries(root: Place) -> dict[str, Place]:
    """Return the places of the manifests of all published deliveries of an output, by the deliveries' folders."""
    folder = root / "manifests"
    names = sorted(entry.name for entry in folder.files() if entry.name.endswith(".json"))
    return {name.removesuffix(".json"): folder / name for name in names}
