"""The files of one corpus's output, and the parts in them.

What belongs here: where each file of an output lies, cutting records into parts, and writing a
part's texts, vectors and rejects. What does not: which vectors to compute (`pipeline`) and what is
published (`publish`).
"""

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embeddings_pipeline.errors import LocationOwnedError, ManifestError, VerificationError
from embeddings_pipeline.records import RECORDS_SCHEMA, REJECTS_SCHEMA, Delivery, Reject, Text
from embeddings_pipeline.storage.location import Location, Place
from embeddings_pipeline.storage.names import folder_of
from embeddings_pipeline.storage.scratch import Scratch

ROW_GROUP_BYTES = 64 << 20
"""Upper bound of a row group before compression: a reader that takes one at a time stays small."""

_TEXT_BUFFER_BYTES = 8 << 20
_DICTIONARY = ["strategy", "delivery", "model", "revision", "fingerprint", "sparse_tokens.list.element"]
"""Columns with few distinct values; vectors and keys only lose time on a dictionary."""


@dataclass(frozen=True, slots=True)
class Output:
    """The places of one delivery below a corpus's output location.

    `timdex` is the TIMDEX dataset that gets the embeddings too.
    """

    root: Place
    delivery: Delivery
    timdex: Place | None = None

    @property
    def owner(self) -> Place:
        """The file that says whose output this is."""
        return self.root / "corpus.json"

    @property
    def scratch(self) -> Location:
        """Unfinished files of running attempts: on the disk of the output, or below TMPDIR where that is remote."""
        if isinstance(self.root, Location):
            return self.root / "scratch"
        name = hashlib.sha256(str(self.root).encode()).hexdigest()[:16]
        return Location(Path(tempfile.gettempdir()) / f"embeddings-scratch-{os.getuid()}-{name}")

    @property
    def folder(self) -> str:
        """The name of the delivery's folders."""
        return folder_of(self.delivery.name)

    @property
    def records(self) -> Place:
        """The extracted texts of the delivery."""
        return self.root / "records" / self.folder

    @property
    def records_manifest(self) -> Place:
        """What `extract` finished last."""
        return self.records / "manifest.json"

    @property
    def staging(self) -> Place:
        """Finished parts that are not published yet."""
        return self.root / "staging" / self.folder

    @property
    def rejects(self) -> Place:
        """The rejects of the delivery's last run, a parquet file per part and stage."""
        return self.root / "rejects" / self.folder

    @property
    def dataset(self) -> Place:
        """The published files of all deliveries, and nothing else."""
        return self.root / "dataset"

    @property
    def manifest(self) -> Place:
        """What is published of the delivery."""
        return self.root / "manifests" / f"{self.folder}.json"

    @property
    def publish_lock(self) -> Place:
        """Held while the delivery is published, and while a finished part gets its names."""
        return self.root / "manifests" / f"{self.folder}.lock"

    def staged(self, strategy: str, fingerprint: str) -> Place:
        """Return the folder of finished parts of a strategy and model."""
        return self.staging / strategy / fingerprint

    def published(self, slug: str, strategy: str) -> Place:
        """Return the folder of published files of a model and strategy."""
        return self.dataset / slug / strategy / self.folder

    def relative(self, location: Place) -> str:
        """Return a path below the output location as manifests hold it."""
        return location.relative_to(self.root)

    def check_owner(self) -> None:
        """Raise `LocationOwnedError` if another corpus writes here."""
        owner = self.owner.read_text()
        if owner is not None and owner.strip() != self.delivery.corpus:
            raise LocationOwnedError(str(self.root), owner.strip(), self.delivery.corpus)

    def claim(self, scratch: Scratch) -> None:
        """Make this output the corpus's own."""
        self.check_owner()
        if not self.owner.exists() and not self.owner.swap(scratch.text(self.delivery.corpus + "\n"), None):
            self.check_owner()


@dataclass(slots=True)
class RecordsPartWriter:
    """Collects the texts and rejects of one part and writes them in row groups of about 8 MB."""

    scratch: Scratch
    strategy: str
    texts: int = 0
    rejects: list[Reject] = field(default_factory=list)
    _buffer: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in RECORDS_SCHEMA.names})
    _buffered: int = 0
    _writer: pq.ParquetWriter | None = None
    _digest: Any = field(default_factory=hashlib.sha256)

    @property
    def path(self) -> Path:
        """The unfinished file."""
        return self.scratch.file(f"records-{self.strategy}.parquet")

    def add(self, text: Text) -> None:
        """Add one text."""
        self.add_all([text.record_id], text.chunk, [text.text], [text.text_hash], [text.position])

    def add_all(
        self, ids: Sequence[str], chunk: int, texts: Sequence[str], hashes: Sequence[str], positions: Sequence[str]
    ) -> None:
        """Add texts with one chunk number."""
        self.texts += len(ids)
        lines = [f"{len(key)}:{key}:{chunk}:{text_hash}\n" for key, text_hash in zip(ids, hashes, strict=True)]
        self._digest.update("".join(lines).encode())
        for name, values in zip(RECORDS_SCHEMA.names, (ids, [chunk] * len(ids), texts, hashes, positions), strict=True):
            self._buffer[name].extend(values)
        self._buffered += sum(map(len, texts))
        if self._buffered >= _TEXT_BUFFER_BYTES:
            self._flush()

    def reject(self, reject: Reject) -> None:
        """Add one reject."""
        self._digest.update(f"reject:{reject.record_id}:{reject.reason}:{reject.position}\n".encode())
        self.rejects.append(reject)

    def _flush(self) -> None:
        writer = self._writer or _open_writer(self.path, RECORDS_SCHEMA, dictionary=False)
        self._writer = writer
        writer.write_table(pa.table(self._buffer, schema=RECORDS_SCHEMA))
        self._buffer = {name: [] for name in RECORDS_SCHEMA.names}
        self._buffered = 0

    def close(self) -> str:
        """Finish the file, if there are texts, and return the part's id."""
        if self._buffer["record_id"]:
            self._flush()
        if self._writer is not None:
            self._writer.close()
        return self._digest.hexdigest()[:20]


class VectorsWriter:
    """The file of one part: a row group per application batch, closed and checked before it is moved."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.rows = 0
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None

    def write(self, table: pa.Table) -> None:
        """Append rows; a table over 64 MB becomes several row groups."""
        if not table.num_rows:
            return
        writer = self._writer or _open_writer(self.path, self._schema, dictionary=_DICTIONARY)
        self._writer = writer
        per_row = max(1, table.nbytes // table.num_rows)
        writer.write_table(table, row_group_size=max(1, ROW_GROUP_BYTES // per_row))
        self.rows += table.num_rows

    def abandon(self) -> None:
        """Close what is open, on the way out of a failed part."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def finish(self) -> str | None:
        """Close and check the file; return its sha256, or None where there were no rows.

        Raises:
            VerificationError: the file does not read back with the rows that were written.
        """
        if self._writer is None:
            return None
        self._writer.close()
        self._writer = None
        check_file(self.path, self._schema, self.rows)
        return file_digest(self.path)


def _open_writer(path: Path, schema: pa.Schema, dictionary: Any) -> pq.ParquetWriter:
    """Open a file with zstd at level 1, which costs under half a percent of embedding (FACTS 0)."""
    return pq.ParquetWriter(path, schema, compression="zstd", compression_level=1, use_dictionary=dictionary)


def check_file(path: Path, schema: pa.Schema, rows: int) -> None:
    """Compare a vectors file's rows and columns with what it has to hold.

    Raises:
        VerificationError: it cannot be read, or rows or schema differ.
    """
    try:
        with pq.ParquetFile(path) as opened:
            found, found_schema = opened.metadata.num_rows, opened.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise VerificationError(
            f"file '{path}' cannot be read ({str(error).splitlines()[0]}); delete it and run the job again"
        ) from error
    if found != rows or not found_schema.equals(schema):
        raise VerificationError(
            f"file '{path}' holds {found} rows with columns {found_schema.names}, expected {rows} rows with "
            f"{schema.names}; run the job again, and check the disk if this comes back"
        )


def file_digest(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_rejects(scratch: Scratch, target: Place, rejects: Sequence[Reject], delivery: str) -> None:
    """Write a rejects file, or remove an earlier one where there are none now."""
    if not rejects:
        target.delete()
        return
    columns = {
        name: [getattr(reject, name) if name != "delivery" else delivery for reject in rejects]
        for name in REJECTS_SCHEMA.names
    }
    path = scratch.file(f"rejects-{target.name}")
    with _open_writer(path, REJECTS_SCHEMA, dictionary=True) as writer:
        writer.write_table(pa.table(columns, schema=REJECTS_SCHEMA))
    target.put(path)


@contextmanager
def _records_part(file: Place) -> Iterator[pq.ParquetFile]:
    """Open a records part.

    Raises:
        ManifestError: it is gone, or is no records part.
    """
    try:
        with pq.ParquetFile(file.parquet(), pre_buffer=False) as opened:
            yield opened
    except (pa.ArrowException, OSError) as error:
        raise ManifestError(
            f"the extracted records '{file}' cannot be read ({str(error).splitlines()[0]}); materialize the corpus's "
            "records again"
        ) from error


def read_text_hashes(file: Place) -> list[str]:
    """Return the text hashes of a records part, in order."""
    with _records_part(file) as opened:
        return opened.read(columns=["text_hash"], use_threads=False).column("text_hash").to_pylist()


def read_keys(file: Place) -> Iterator[pa.RecordBatch]:
    """Yield a records part without its texts."""
    with _records_part(file) as opened:
        yield from opened.iter_batches(columns=["record_id", "chunk", "text_hash"], use_threads=False)


def read_batches(file: Place, size: int) -> Iterator[pa.RecordBatch]:
    """Yield a records part in application batches of exactly `size` texts, the last one shorter."""
    with _records_part(file) as opened:
        waiting: list[pa.RecordBatch] = []
        count = 0
        for batch in opened.iter_batches(batch_size=size, use_threads=False):
            rest = batch
            while rest.num_rows:
                taken = rest.slice(0, size - count)
                rest = rest.slice(taken.num_rows)
                waiting.append(taken)
                count += taken.num_rows
                if count == size:
                    yield pa.concat_batches(waiting)
                    waiting, count = [], 0
        if waiting:
            yield pa.concat_batches(waiting)


def remove_others(folder: Place, keep: Iterable[str]) -> int:
    """Delete the files of a folder whose names are not in `keep`; return how many went."""
    kept = set(keep)
    removed = 0
    if folder.exists():
        for entry in folder.files():
            if entry.name not in kept:
                removed += entry.location.delete()
    return removed
