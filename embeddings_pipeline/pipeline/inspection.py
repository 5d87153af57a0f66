"""Looking at what is published: counts, places, and the texts nearest to a query.

What belongs here: read-only views for a person who asks "did it work". What does not: a search
service; `nearest` reads the whole dataset, one row group at a time.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embeddings_pipeline.errors import ConfigurationError, ManifestError
from embeddings_pipeline.inference.cache import Cache
from embeddings_pipeline.models.registry import for_queries
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.pipeline.preflight import output_of
from embeddings_pipeline.records import Counts, Delivery
from embeddings_pipeline.settings import CorpusSpec
from embeddings_pipeline.storage.manifests import DeliveryManifest, PublishedSet, RecordsManifest, load
from embeddings_pipeline.storage.parts import Output


@dataclass(frozen=True, slots=True)
class Summary:
    """What is published of a delivery with the corpus's present model, and the last run's counts."""

    counts: Counts
    seconds: float
    rows: int
    dimensions: int
    files: int
    bytes: int
    model: str
    dataset: str
    manifest: str
    rejects: str

    @property
    def records_per_second(self) -> float:
        """Texts embedded by the last run per second of embedding; 0 where it embedded none."""
        return self.counts.embedded / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A published text and its cosine similarity to a query; `text` is empty where it is not kept."""

    record_id: str
    strategy: str
    similarity: float
    text: str


def summary(spec: CorpusSpec, delivery: Delivery) -> Summary:
    """Return what is published of a delivery.

    Raises:
        ManifestError: nothing is published yet.
    """
    output, sets = _published(spec, delivery)
    files = [file for entry in sets for file in entry.files]
    return Summary(
        counts=sum((entry.counts for entry in sets), Counts()),
        seconds=sum(entry.seconds for entry in sets),
        rows=sum(file.rows for file in files),
        dimensions=max(entry.dimensions for entry in sets),
        files=len(files),
        bytes=sum(file.bytes for file in files),
        model=sets[0].model,
        dataset=str(output.dataset),
        manifest=str(output.manifest),
        rejects=str(output.rejects),
    )


def nearest(
    spec: CorpusSpec, delivery: Delivery, queries: Sequence[str], cache: Cache, most: int = 3
) -> list[list[Neighbour]]:
    """Return for each query the published texts with the highest cosine similarity, best first.

    Raises:
        ManifestError: nothing is published yet.
        ConfigurationError: the corpus's vectors are sparse.
    """
    output, sets = _published(spec, delivery)
    if sets[0].kind != "dense":
        raise ConfigurationError(
            f"corpus '{spec.name}' has sparse vectors; queries are for dense ones: leave --query out"
        )
    with cache.lease(resolve(for_queries(spec.model))) as encoder:
        result = encoder.embed(list(queries))
    if result.dense is None:
        raise ConfigurationError(f"the model of corpus '{spec.name}' gives no dense vectors; leave --query out")
    asked = result.dense / np.maximum(np.linalg.norm(result.dense, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    best: list[list[tuple[float, str, str]]] = [[] for _ in queries]
    for entry in sets:
        for file in entry.files:
            with pq.ParquetFile((output.root / file.path).parquet()) as opened:
                for group in range(opened.num_row_groups):
                    table = opened.read_row_group(group, columns=["record_id", "embedding"], use_threads=False)
                    _keep_best(best, asked, table, entry, most)
    texts = _texts(output, {(strategy, record) for found in best for _, record, strategy in found})
    return [
        [
            Neighbour(record, strategy, similarity, texts.get((strategy, record), ""))
            for similarity, record, strategy in sorted(found, reverse=True)
        ]
        for found in best
    ]


def _published(spec: CorpusSpec, delivery: Delivery) -> tuple[Output, list[PublishedSet]]:
    output = output_of(spec, delivery)
    slug = resolve(spec.model).slug
    manifest = load(output.manifest, DeliveryManifest)
    sets = [entry for strategy in spec.strategies if manifest and (entry := manifest.find(slug, strategy.name))]
    if not sets:
        raise ManifestError(
            f"nothing is published of delivery '{spec.name}/{delivery.name}' (no {output.manifest}); "
            f"run {spec.name}_job first"
        )
    return output, sets


def _keep_best(
    best: list[list[tuple[float, str, str]]], asked: np.ndarray, table: pa.Table, entry: PublishedSet, most: int
) -> None:
    column = table.column("embedding").combine_chunks()
    vectors = np.asarray(column.flatten(), np.float32).reshape(-1, entry.dimensions)
    norms = np.maximum(np.linalg.norm(vectors, axis=1), np.finfo(np.float32).tiny)
    similarities = asked @ vectors.T / norms
    ids = table.column("record_id")
    for found, row in zip(best, similarities, strict=True):
        for position in np.argsort(-row)[:most]:
            heapq.heappush(found, (float(row[position]), ids[int(position)].as_py(), entry.strategy))
            if len(found) > most:
                heapq.heappop(found)


def _texts(output: Output, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Look texts up in the extracted records, as far as these are still there."""
    texts: dict[tuple[str, str], str] = {}
    records = load(output.records_manifest, RecordsManifest)
    for part in records.parts if records else ():
        ids = {record for strategy, record in wanted if strategy == part.strategy}
        if part.file is None or not ids:
            continue
        table = pq.ParquetFile((output.records / part.file).parquet()).read(
            columns=["record_id", "text"], use_threads=False
        )
        rows = zip(table.column("record_id").to_pylist(), table.column("text").to_pylist(), strict=True)
        texts.update({(part.strategy, record): text for record, text in rows if record in ids})
    return texts
