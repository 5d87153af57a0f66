"""The ways to embed that are compared, each run in a process of its own by `worker`.

What belongs here: this project's engine, sentence-transformers as others use it, and the machine's
own matrix products. What does not: other products (`peer_ways`), order and rounds (`rounds`).
"""

import json
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.clock import Clock
from benchmarks.flops import linear_products
from benchmarks.texts import TEXTS_FILE
from embeddings_pipeline import pipeline
from embeddings_pipeline.inference.cache import ModelCache
from embeddings_pipeline.inference.device import usable_cores
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.records import Delivery
from embeddings_pipeline.settings import CorpusSpec, EmbedSettings, ExtractSettings

_WARM_UP = ["a short one", "some words of a text of middling length " * 12, "and a long one " * 150]
_HEAD_COLUMNS = 2_048


def read_texts(source: Path) -> list[str]:
    """Return the texts of a source folder, in order."""
    texts: list[str] = pq.read_table(source / TEXTS_FILE, columns=["text"]).column("text").to_pylist()
    return texts


class ThisEngine:
    """This project, end to end: parquet in, dataset of parquet out, in a new output folder each time.

    `seconds`, `cpu_seconds` and so on are those of the embeddings step, from its first look at the
    manifests to the last part closed; `whole_seconds` adds extracting and publishing.
    """

    def __init__(
        self, model: str, kind: str, max_length: int, workers: int = 0, application_batch_size: int = 1_000
    ) -> None:
        """Load the model of a folder."""
        self._spec = {"name": "benchmarked", "source": model, "kind": kind, "max_length": max_length}
        self._kind = kind
        self._workers = workers
        self._settings = EmbedSettings(application_batch_size=application_batch_size)
        self._folder = Path(tempfile.mkdtemp(prefix="embeddings-benchmark-"))
        self._cache = ModelCache("cpu")
        self._runs = 0
        self._corpus: CorpusSpec | None = None
        self._source = self._folder
        resolved = resolve(self._new_corpus(self._folder).model)
        with self._cache.lease(resolved) as encoder:
            encoder.embed(_WARM_UP)
            self._path = encoder.path

    def prepare(self, source: Path) -> None:
        """Take the texts of a source folder."""
        self._source = source

    def run(self) -> dict[str, Any]:
        """Extract, embed and publish."""
        self._runs += 1
        corpus = self._corpus = self._new_corpus(self._folder / f"out-{self._runs}")
        delivery = Delivery(corpus.name)
        run_id = str(self._runs)
        started = time.perf_counter()
        pipeline.extract(corpus, delivery, ExtractSettings(), run_id=run_id)
        with Clock() as clock:
            report = pipeline.embed(corpus, delivery, self._settings, self._cache, workers=self._workers, run_id=run_id)
        pipeline.publish(corpus, delivery, run_id=run_id)
        whole = time.perf_counter() - started
        if report.counts.rejected or report.counts.embedded != report.counts.read:
            raise RuntimeError(f"not every text was embedded: {report.counts}")
        return clock.figures | {
            "seconds": report.seconds,
            "whole_seconds": whole,
            "compute_share": report.compute_share,
            "workers": report.workers,
            "packed": float(self._path == "packed"),
        }

    def save(self, path: Path) -> None:
        """Write the vectors of the last run out of its dataset."""
        if self._corpus is None:
            raise RuntimeError("nothing has run yet")
        files = sorted(Path(self._corpus.output.location).glob("dataset/**/*.parquet"))
        table = pa.concat_tables([pq.read_table(file, partitioning=None) for file in files]).sort_by("record_id")
        if self._kind == "dense":
            column = table.column("embedding").combine_chunks()
            np.savez(path, dense=np.asarray(column.flatten()).reshape(len(table), -1))
            return
        lists = table.column("sparse_indices").combine_chunks(), table.column("sparse_values").combine_chunks()
        indices, values = (np.asarray(column.flatten()) for column in lists)
        indptr = np.concatenate([[0], np.cumsum(np.asarray(lists[0].value_lengths()))])
        np.savez(path, indptr=indptr, indices=indices, values=values)

    def close(self) -> None:
        """Unload the model and remove what was written."""
        self._cache.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _new_corpus(self, output: Path) -> CorpusSpec:
        if self._corpus is not None:
            shutil.rmtree(self._corpus.output.location, ignore_errors=True)
        return CorpusSpec.parse(
            {
                "name": "benchmarked",
                "source": {"kind": "parquet", "location": str(self._source), "id": "id"},
                "strategies": [{"name": "whole_text", "fields": ["text"]}],
                "model": self._spec,
                "output": {"location": str(output)},
            },
            "a benchmark",
        )


class Encode:
    """`SentenceTransformer.encode`, on lists of `list_size` texts (0: on all at once)."""

    def __init__(self, model: str, max_length: int, batch_size: int, list_size: int = 0) -> None:
        """Load the model of a folder."""
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(model, device="cpu", local_files_only=True)
        self._model.max_seq_length = max_length
        self._batch_size = batch_size
        self._list_size = list_size
        self._texts = _WARM_UP
        self.run()

    def prepare(self, source: Path) -> None:
        """Take the texts of a source folder."""
        self._texts = read_texts(source)

    def run(self) -> dict[str, Any]:
        """Encode the texts."""
        self._vectors = [
            self._model.encode(texts, batch_size=self._batch_size, show_progress_bar=False)
            for texts in _lists(self._texts, self._list_size)
        ]
        return {}

    def save(self, path: Path) -> None:
        """Write the vectors of the last run."""
        np.savez(path, dense=np.concatenate(self._vectors))


class EncodeSparse:
    """`SparseEncoder.encode_document` on lists of texts, `decode`, and one JSON object a record."""

    def __init__(self, model: str, max_length: int, batch_size: int, list_size: int = 0) -> None:
        """Load the model of a folder."""
        from sentence_transformers import SparseEncoder

        self._model = SparseEncoder(model, device="cpu", local_files_only=True)
        self._model.max_seq_length = max_length
        self._batch_size = batch_size
        self._list_size = list_size
        self._texts = _WARM_UP
        self.run()

    def prepare(self, source: Path) -> None:
        """Take the texts of a source folder."""
        self._texts = read_texts(source)

    def run(self) -> dict[str, Any]:
        """Encode, decode and write JSON into a string for every record."""
        self._vectors = []
        for texts in _lists(self._texts, self._list_size):
            vectors = self._model.encode_document(texts, batch_size=self._batch_size, show_progress_bar=False)
            for weights in self._model.decode(vectors):
                json.dumps(dict(weights))
            self._vectors.append(vectors)
        return {}

    def save(self, path: Path) -> None:
        """Write the vectors of the last run."""
        rows = torch.cat([vectors.to_sparse_coo() for vectors in self._vectors]).coalesce()
        numbers, indices = rows.indices().numpy()
        indptr = np.searchsorted(numbers, np.arange(rows.shape[0] + 1))
        np.savez(path, indptr=indptr, indices=indices, values=rows.values().numpy())


class BatchSizes:
    """Which batch size suits `Encode` or `EncodeSparse` best on the first texts of a source, in lists of 100."""

    def __init__(self, model: str, max_length: int, sizes: list[int], texts: int, sparse: bool) -> None:
        """Load the model once for each size."""
        way = EncodeSparse if sparse else Encode
        self._ways = {size: way(model, max_length, size, list_size=100) for size in sizes}
        self._most = texts

    def prepare(self, source: Path) -> None:
        """Take the texts of a source folder."""
        texts = read_texts(source)[: self._most]
        for way in self._ways.values():
            way._texts = texts

    def run(self) -> dict[str, Any]:
        """Return the seconds of each size, as `batch_size_<n>`."""
        figures: dict[str, Any] = {}
        for size, way in self._ways.items():
            started = time.perf_counter()
            way.run()
            figures[f"batch_size_{size}"] = time.perf_counter() - started
        return figures

    def save(self, path: Path) -> None:
        """Nothing is kept."""


class MatrixProducts:
    """The machine's limit: the model's own linear layers and nothing else, one thread a core.

    `flops_per_second` is that of all threads together. Weights are shared, as in the engine.
    """

    def __init__(self, config: dict[str, Any], head: bool, tokens: int, seconds: float) -> None:
        """Make weights of the model's shapes, and a batch of `tokens` tokens for each thread."""
        self._products = linear_products(config, head=head)
        self._seconds = seconds
        self._tokens = tokens
        random = torch.Generator().manual_seed(7)
        self._weights = [
            [torch.rand(product.outputs, product.inputs, generator=random) for _ in range(product.times)]
            for product in self._products
        ]
        self._flops = tokens * sum(product.flops_per_token for product in self._products)

    def prepare(self, source: Path) -> None:
        """It has no texts."""

    def run(self) -> dict[str, Any]:
        """Multiply for the given time."""
        rates: list[float] = []
        threads = [threading.Thread(target=self._multiply, args=(rates,)) for _ in range(usable_cores())]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"flops_per_second": sum(rates)}

    def save(self, path: Path) -> None:
        """It has no vectors."""

    def _multiply(self, rates: list[float]) -> None:
        torch.set_num_threads(1)
        rows = {product.inputs: torch.rand(self._tokens, product.inputs) for product in self._products}
        out = torch.empty(self._tokens * max(min(product.outputs, _HEAD_COLUMNS) for product in self._products))
        passes = 0
        started = time.perf_counter()
        with torch.inference_mode():
            while time.perf_counter() - started < self._seconds:
                for product, weights in zip(self._products, self._weights, strict=True):
                    for weight in weights:
                        self._product(rows[product.inputs], weight, out)
                passes += 1
        rates.append(passes * self._flops / (time.perf_counter() - started))

    def _product(self, rows: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """Multiply in pieces: the result of a whole vocabulary head would be a quarter of a gigabyte."""
        for piece in weight.split(_HEAD_COLUMNS):
            result = out[: len(rows) * len(piece)].view(len(rows), len(piece))
            torch.mm(rows, piece.T, out=result)


def _lists(texts: list[str], size: int) -> list[list[str]]:
    size = size or len(texts)
    return [texts[start : start + size] for start in range(0, len(texts), size)]
