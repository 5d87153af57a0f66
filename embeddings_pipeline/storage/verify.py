"""Proving a dataset: what its manifests say is compared with what its files hold.

What belongs here: read-only checks of a whole output location, one row group in memory at a time. What
does not: repairing anything; running the corpus's job does that.
"""

import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from embeddings_pipeline.errors import LocationNotFoundError, StorageError
from embeddings_pipeline.records import dataset_schema
from embeddings_pipeline.storage.index import SeenKeys, key_hashes
from embeddings_pipeline.storage.location import Place
from embeddings_pipeline.storage.manifests import (
    DatasetFile,
    DeliveryManifest,
    PublishedSet,
    load,
    published_deliveries,
)
from embeddings_pipeline.storage.names import folder_of
from embeddings_pipeline.storage.vectors import VectorsSeen

_CONSTANT = ("strategy", "delivery", "model", "fingerprint")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as its manifest says; `place` is the file or manifest, relative to the location."""

    kind: str
    place: str
    detail: str


@dataclass(slots=True)
class Verification:
    """What was looked at and what was found; `norms` are the least and greatest length of a dense vector."""

    location: str
    deliveries: int = 0
    sets: int = 0
    files: int = 0
    rows: int = 0
    bytes: int = 0
    norms: tuple[float, float] | None = None
    problems: list[Problem] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def add(self, kind: str, place: str, detail: str) -> None:
        """Note a problem."""
        self.problems.append(Problem(kind, place, detail))


def verify(root: Place) -> Verification:
    """Compare all that is published at an output location with its manifests.

    Holds one row group, and 16 bytes per row of a set, in memory; a remote file is copied to TMPDIR.

    Raises:
        LocationNotFoundError: there is no output of a corpus.
    """
    found = Verification(str(root))
    manifests = published_deliveries(root)
    if not manifests and not (root / "corpus.json").exists():
        raise LocationNotFoundError("location", str(root), "name the output.location of a corpus, where corpus.json is")
    named: set[str] = set()
    for folder, place in manifests.items():
        try:
            manifest = load(place, DeliveryManifest)
        except StorageError as error:
            found.add("manifest", f"manifests/{place.name}", str(error))
            continue
        if manifest is None:
            continue
        found.deliveries += 1
        if folder_of(manifest.delivery) != folder:
            found.add("manifest", f"manifests/{place.name}", f"is that of delivery '{manifest.delivery}'")
        for entry in manifest.sets:
            named.update(file.path for file in entry.files)
            _verify_set(root, manifest, entry, found)
    for entry in (root / "dataset").files():
        if f"dataset/{entry.name}" not in named:
            found.add("dangling", f"dataset/{entry.name}", "no manifest names this file; `embeddings gc` removes it")
    return found


def _verify_set(root: Place, manifest: DeliveryManifest, entry: PublishedSet, found: Verification) -> None:
    found.sets += 1
    place = f"dataset/{entry.slug}/{entry.strategy}/{folder_of(manifest.delivery)}"
    if not entry.counts.identity_holds:
        found.add("identity", place, f"{entry.counts} do not add up")
    rows = sum(file.rows for file in entry.files)
    expected = entry.counts.embedded + entry.counts.skipped
    if rows < expected or (rows > expected and not manifest.partial):
        found.add("identity", place, f"{rows} rows are published, but {expected} texts were embedded or skipped")
    if len(prints := {file.fingerprint for file in entry.files}) > 1:
        found.add("mixture", place, f"vectors of {len(prints)} versions of the model: {', '.join(sorted(prints))}")
    seen = SeenKeys()
    for file in entry.files:
        found.files += 1
        found.rows += file.rows
        found.bytes += file.bytes
        for kind, detail in _verify_file(root, manifest, entry, file, seen, found):
            found.add(kind, file.path, detail)


def _verify_file(
    root: Place, manifest: DeliveryManifest, entry: PublishedSet, file: DatasetFile, seen: SeenKeys, found: Verification
) -> Iterator[tuple[str, str]]:
    place = root / file.path
    size = place.size()
    if size is None:
        yield "missing", "the manifest names this file, and it is not there; run the job again"
        return
    if size != file.bytes:
        yield "digest", f"has {size} bytes instead of {file.bytes}; run the job again"
        return
    with tempfile.TemporaryDirectory(prefix="embeddings-verify-") as folder:
        path = place.fetch(Path(folder) / "file.parquet")
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if digest != file.digest:
            yield "digest", "its sha256 is not the manifest's; delete the file and run the job again"
            return
        try:
            yield from _verify_rows(path, manifest, entry, file, seen, found)
        except (pa.ArrowException, OSError) as error:
            yield "unreadable", f"{str(error).splitlines()[0]}; delete the file and run the job again"


def _verify_rows(
    path: Path, manifest: DeliveryManifest, entry: PublishedSet, file: DatasetFile, seen: SeenKeys, found: Verification
) -> Iterator[tuple[str, str]]:
    constants = (entry.strategy, manifest.delivery, entry.model, file.fingerprint)
    with pq.ParquetFile(path) as opened:
        if not opened.schema_arrow.equals(dataset_schema(entry.kind, entry.dimensions, entry.precision)):
            yield "schema", f"has the columns {opened.schema_arrow.names} in other types or order than it has to"
            return
        if opened.metadata.num_rows != file.rows:
            yield "rows", f"has {opened.metadata.num_rows} rows instead of {file.rows}"
        for group in range(opened.num_row_groups):
            table = opened.read_row_group(group, use_threads=False)
            for name, value in zip(_CONSTANT, constants, strict=True):
                if pc.unique(table.column(name)).to_pylist() != [value]:
                    yield "identity", f"column {name} holds something else than '{value}'"
            keys = zip(table.column("chunk").to_pylist(), table.column("record_id").to_pylist(), strict=True)
            repeated = seen.add_hashes(key_hashes([f"{chunk}:{record_id}" for chunk, record_id in keys]))
            if repeated.any():
                yield "uniqueness", f"{int(repeated.sum())} keys stand in the set a second time"
            yield from _verify_vectors(table, entry, found)


def _verify_vectors(table: pa.Table, entry: PublishedSet, found: Verification) -> Iterator[tuple[str, str]]:
    seen = VectorsSeen()
    bad = seen.add(table)
    if bad:
        yield "values", f"holds {len(bad)} vectors that are not finite"
        return
    if entry.kind == "dense":
        norms = seen.facts()
        least, most = found.norms or (np.inf, 0.0)
        found.norms = (min(least, norms.min_norm), max(most, norms.max_norm))
        if seen.zeros:
            yield "values", f"holds {seen.zeros} vectors of nothing but zeros"
        return
    lengths = [pc.list_value_length(table.column(f"sparse_{name}")) for name in ("indices", "values", "tokens")]
    if not (lengths[0].equals(lengths[1]) and lengths[1].equals(lengths[2])):
        yield "values", "holds sparse vectors whose indices, values and tokens differ in number"
    values = np.asarray(table.column("sparse_values").combine_chunks().flatten())
    if not (values > 0).all():
        yield "values", "holds sparse weights that are not positive"
