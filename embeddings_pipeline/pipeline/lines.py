"""What is published, and what was rejected, as JSON lines for whoever reads no parquet.

What belongs here: the shape of a line. What does not: which rows are current (`inspection` and
`storage.published` ask the manifests) and when lines are asked for (`cli`).
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from embeddings_pipeline.errors import ConfigurationError
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.pipeline.limits import in_a_sentence
from embeddings_pipeline.pipeline.preflight import output_of
from embeddings_pipeline.records import Delivery
from embeddings_pipeline.settings import CorpusSpec
from embeddings_pipeline.storage.location import Location, Place
from embeddings_pipeline.storage.manifests import DeliveryManifest, load
from embeddings_pipeline.storage.s3 import locate
from embeddings_pipeline.storage.scratch import Scratch
from embeddings_pipeline.storage.timdex import key_parts

_COMPRESSED_OTHERWISE = (".bz2", ".xz", ".zst", ".zstd", ".lz4")


def lines_place(location: str) -> Place:
    """Return where a file of lines is to be: a path or `s3://bucket/key`, with `.gz` compressed.

    Raises:
        ConfigurationError: it names no file, or a compression that is not written.
    """
    if location.endswith(_COMPRESSED_OTHERWISE) or location.endswith("/"):
        raise ConfigurationError(
            f"output-jsonl is '{location}', which is no name for JSON lines; end it in .jsonl or .jsonl.gz"
        )
    place = locate(location, "output-jsonl")
    if isinstance(place, Location) and place.path.is_dir():
        raise ConfigurationError(f"output-jsonl is '{location}', which is a folder; name a file in it")
    return place


@in_a_sentence
def write_lines(spec: CorpusSpec, deliveries: Sequence[Delivery], target: Place, scratch: Location) -> int:
    """Write the published rows of the corpus's model and strategies to one file, whole; return how many.

    A line has the key (`timdex_record_id`, `run_id` and `run_record_offset` of a TIMDEX record, else
    `record_id`), `model_uri`, `embedding_strategy`, `embedding_vector` or `embedding_token_weights`
    (the other is null), and `embedding_timestamp`: those of the timdex-embeddings app. Rows stand by
    delivery, strategy, and then in the order of the records. Holds one row group in memory.
    """
    return _write(_lines(spec, deliveries), target, scratch)


@in_a_sentence
def write_rejects(spec: CorpusSpec, deliveries: Sequence[Delivery], target: Place, scratch: Location) -> int:
    """Write the rejects of the deliveries' last runs to one file of lines; with none there is no file."""
    rows = _write(_rejects(spec, deliveries), target, scratch)
    if not rows:
        target.delete()
    return rows


def _write(rows: Iterable[Mapping[str, Any]], target: Place, parent: Location) -> int:
    count = 0
    with Scratch(parent) as scratch:
        path = scratch.file("lines.jsonl")
        with _opened(path, target.name) as opened:
            for row in rows:
                opened.write(json.dumps(row, default=str) + "\n")
                count += 1
        target.put(path)
    return count


def _opened(path: Path, name: str) -> Any:
    if name.endswith(".gz"):
        return gzip.open(path, "wt", encoding="utf-8", compresslevel=6)
    return path.open("w", encoding="utf-8")


def _lines(spec: CorpusSpec, deliveries: Sequence[Delivery]) -> Iterator[dict[str, Any]]:
    slug = resolve(spec.model).slug
    for delivery in deliveries:
        output = output_of(spec, delivery)
        manifest = load(output.manifest, DeliveryManifest)
        for strategy in spec.strategies:
            entry = manifest.find(slug, strategy.name) if manifest is not None else None
            for file in entry.files if entry is not None else ():
                for row in _rows(output.root / file.path):
                    yield _line(row, timdex=spec.source.timdex)


def _rows(place: Place) -> Iterator[dict[str, Any]]:
    with pq.ParquetFile(place.parquet()) as opened:
        for group in range(opened.num_row_groups):
            for batch in opened.read_row_group(group, use_threads=False).to_batches(max_chunksize=1000):
                yield from batch.to_pylist()


def _line(row: Mapping[str, Any], *, timdex: bool) -> dict[str, Any]:
    key: dict[str, Any] = {"record_id": row["record_id"]}
    if timdex:
        record, run, offset = key_parts(row["record_id"])
        key = {"timdex_record_id": record, "run_id": run, "run_record_offset": offset}
    sparse = "sparse_tokens" in row
    return key | {
        "model_uri": row["model"],
        "embedding_strategy": row["strategy"],
        "embedding_vector": None if sparse else row["embedding"],
        "embedding_token_weights": (
            dict(zip(row["sparse_tokens"], row["sparse_values"], strict=True)) if sparse else None
        ),
        "embedding_timestamp": row["embedded_at"],
    }


def _rejects(spec: CorpusSpec, deliveries: Sequence[Delivery]) -> Iterator[dict[str, Any]]:
    for delivery in deliveries:
        for entry in output_of(spec, delivery).rejects.files():
            if entry.name.endswith(".parquet"):
                yield from _rows(entry.location)
