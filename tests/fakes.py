"""A deterministic encoder, and a corpus on a bench: what the tests of the core share.

The encoder implements `inference.encoder.Encoder` for real, only its vectors come from a hash of the text; no test here
needs torch, so that a whole run takes milliseconds.
"""

import gc
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embeddings_pipeline import pipeline
from embeddings_pipeline.errors import EmbeddingCancelledError, ModelError
from embeddings_pipeline.inference.cache import ModelCache
from embeddings_pipeline.inference.encoder import DEFAULT_OPTIONS
from embeddings_pipeline.models.store import ResolvedModel, resolve
from embeddings_pipeline.pipeline.batches import ApplicationBatch
from embeddings_pipeline.records import Delivery, EmbeddedBatch, EmbedOptions, Reason, SparseVectors, TextFailure
from embeddings_pipeline.reports import EmbedReport, ExtractReport, PublishReport
from embeddings_pipeline.settings import CorpusSpec, EmbedSettings, ExtractSettings
from embeddings_pipeline.storage.manifests import DeliveryManifest, RecordsManifest, load
from embeddings_pipeline.storage.parts import Output

_COUNTING = threading.Lock()

DIMENSIONS = 8
MAX_LENGTH = 16
"""Of the fake, in words and two more."""


def vector_of(text: str) -> np.ndarray:
    """Return the fake's vector of a text. *Shape:* float32[DIMENSIONS]."""
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=DIMENSIONS).digest()
    return np.frombuffer(digest, dtype=np.uint8).astype(np.float32) / 255.0 + 0.01


def live_batches() -> int:
    """Count the application batches that are alive in this process, whoever holds them.

    One thread counts at a time: the list of all objects would keep a forgotten batch alive for the others.
    """
    with _COUNTING:
        # By its type: to ask some of torch's objects for their class is deprecated.
        return sum(type(thing) is ApplicationBatch for thing in gc.get_objects())


@dataclass
class FakeEncoder:
    """An `Encoder` whose vectors are a function of the text alone.

    `fail_call` is asked for every call and makes it raise `ModelError`; texts that hold a word of `bad` become
    failures; `calls` records the texts of every call, `alive` how many application batches were alive during each.
    """

    model: ResolvedModel | None = None
    device: str = "cpu"
    kind: str = "dense"
    dimensions: int = DIMENSIONS
    max_length: int = MAX_LENGTH
    path: str = "packed"
    path_reason: str = ""
    bytes: int = 1024
    seconds: float = 0.0
    fail_call: Callable[[Sequence[str]], bool] = lambda texts: False
    bad: Mapping[str, Reason] = field(default_factory=dict)
    count_alive: bool = False
    calls: list[list[str]] = field(default_factory=list)
    alive: list[int] = field(default_factory=list)
    closed: bool = False

    def embed(
        self, texts: Sequence[str], options: EmbedOptions = DEFAULT_OPTIONS, cancel: threading.Event | None = None
    ) -> EmbeddedBatch:
        self.calls.append(list(texts))
        if self.count_alive:
            self.alive.append(live_batches())
        if self.seconds:
            time.sleep(self.seconds)
        if cancel is not None and cancel.is_set():
            raise EmbeddingCancelledError
        if self.fail_call(texts):
            raise ModelError("the fake was told to fail")
        failures = [
            TextFailure(row, reason, f"the text holds {word}")
            for row, text in enumerate(texts)
            for word, reason in self.bad.items()
            if word in text
        ]
        words = np.array([len(text.split()) + 2 for text in texts], dtype=np.int32)
        facts = {
            "token_count": words,
            "token_count_exact": np.ones(len(texts), dtype=np.bool_),
            "truncated": words > self.max_length,
            "failures": failures,
            "compute_seconds": 0.001,
        }
        vectors = np.stack([vector_of(text) for text in texts])
        if self.kind == "dense":
            vectors[[failure.row for failure in failures]] = 0
            return EmbeddedBatch(dense=vectors, **facts)
        indptr = np.arange(0, DIMENSIONS * len(texts) + 1, DIMENSIONS, dtype=np.int64)
        indices = np.tile(np.arange(DIMENSIONS, dtype=np.int32), len(texts))
        return EmbeddedBatch(sparse=SparseVectors(indptr, indices, vectors.reshape(-1)), **facts)

    def workers(self, options: EmbedOptions) -> int:
        return options.workers or 1

    def model_batch_tokens(self, options: EmbedOptions) -> int:
        return options.model_batch_tokens or 512

    def token_strings(self, indices: np.ndarray) -> pa.Array:
        return pa.array([f"token{index}" for index in indices], pa.string())

    def close(self) -> None:
        self.closed = True

    @property
    def texts(self) -> list[str]:
        """All texts that were computed."""
        return [text for call in self.calls for text in call]


def make_model(folder: Path) -> Path:
    """Write a folder that `models.store` takes for a model; nothing in it can be loaded."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["FakeModel"]}), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def works(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Return records with the keys r<start> and following."""
    return [{"id": f"r{number}", "title": f"work {number}"} for number in range(start, start + count)]


def to_jsonl(records: Iterable[Any]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


@dataclass
class Run:
    """The three reports of one run."""

    extract: ExtractReport
    embed: EmbedReport
    publish: PublishReport


class Bench:
    """A corpus below a temporary folder, with the use cases at hand.

    `encoder` computes, `loads` counts its loads, `chosen` is the delivery that the use cases take.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = root / "source"
        self.source.mkdir(parents=True, exist_ok=True)
        self.out = root / "out"
        self.model = make_model(root / "model")
        self.encoder = FakeEncoder()
        self.loads = 0
        self.changes: dict[str, Any] = {}
        self.chosen = "whole"

    def spec(self, **changes: Any) -> CorpusSpec:
        attributes = {
            "name": "bench",
            "source": {"kind": "jsonl", "location": str(self.source), "id": "id"},
            "strategies": [{"name": "full_record"}],
            "model": {"name": "tests/fake", "source": str(self.model), "kind": "dense"},
            "output": {"location": str(self.out)},
        }
        return CorpusSpec.parse(attributes | self.changes | changes, "bench.yaml")

    @property
    def output(self) -> Output:
        from embeddings_pipeline.pipeline.preflight import output_of

        return output_of(self.spec(), self.delivery)

    @property
    def delivery(self) -> Delivery:
        return Delivery("bench", self.chosen)

    def put(self, name: str, records: Iterable[Mapping[str, Any]] | pa.Table) -> Path:
        """Write a source file, JSONL or parquet by its name."""
        file = self.source / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".parquet":
            table = records if isinstance(records, pa.Table) else pa.Table.from_pylist([dict(row) for row in records])
            pq.write_table(table, file)
        else:
            file.write_text(to_jsonl(records), encoding="utf-8")
        return file

    def parquet(self) -> "Bench":
        """Make the source parquet."""
        self.changes["source"] = {"kind": "parquet", "location": str(self.source), "id": "id"}
        return self

    def cache(self) -> ModelCache:
        return ModelCache("cpu", load=self._load)

    def _load(self, model: ResolvedModel, device: str) -> FakeEncoder:
        self.loads += 1
        self.encoder.model = model
        return self.encoder

    def extract(self, *, limit: int = 0, offset: int = 0, run_id: str = "run", **changes: Any) -> ExtractReport:
        return pipeline.extract(
            self.spec(**changes), self.delivery, ExtractSettings(limit=limit, offset=offset), run_id=run_id
        )

    def embed(self, *, run_id: str = "run", batch: int = 1000, workers: int = 0, force: bool = False, **changes: Any):
        settings = EmbedSettings(application_batch_size=batch, force=force)
        cache = self.cache()
        try:
            return pipeline.embed(self.spec(**changes), self.delivery, settings, cache, workers=workers, run_id=run_id)
        finally:
            cache.close()

    def publish(self, *, run_id: str = "run", **changes: Any) -> PublishReport:
        return pipeline.publish(self.spec(**changes), self.delivery, run_id=run_id)

    def run(
        self,
        *,
        limit: int = 0,
        offset: int = 0,
        run_id: str = "run",
        batch: int = 1000,
        force: bool = False,
        **changes: Any,
    ) -> Run:
        extracted = self.extract(limit=limit, offset=offset, run_id=run_id, **changes)
        embedded = self.embed(run_id=run_id, batch=batch, force=force, **changes)
        return Run(extracted, embedded, self.publish(run_id=run_id, **changes))

    def resolved(self) -> ResolvedModel:
        return resolve(self.spec().model)

    def records_manifest(self) -> RecordsManifest:
        manifest = load(self.output.records_manifest, RecordsManifest)
        assert manifest is not None
        return manifest

    def manifest(self) -> DeliveryManifest:
        manifest = load(self.output.manifest, DeliveryManifest)
        assert manifest is not None
        return manifest

    def texts(self, strategy: str = "full_record") -> dict[str, str]:
        """Return the extracted texts of a strategy by key."""
        return {row["record_id"]: row["text"] for row in self.record_rows(strategy)}

    def record_rows(self, strategy: str = "full_record") -> list[dict[str, Any]]:
        parts = [part for part in self.records_manifest().parts if part.strategy == strategy and part.file]
        return [row for part in parts for row in pq.read_table(self.output.records.path / str(part.file)).to_pylist()]

    def rows(self) -> list[dict[str, Any]]:
        """Return what is published, as whoever globs sees it, by strategy and key."""
        files = sorted(self.output.dataset.path.rglob("*.parquet"))
        rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
        return sorted(rows, key=lambda row: (row["strategy"], row["record_id"], row["chunk"]))

    def keys(self) -> list[str]:
        return [row["record_id"] for row in self.rows()]

    def dataset_files(self) -> dict[str, bytes]:
        """Return the dataset's files with their contents, by their path below it."""
        folder = self.output.dataset.path
        return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}

    def rejects(self) -> list[dict[str, Any]]:
        folder = self.output.rejects.path
        rows = [row for file in sorted(folder.rglob("*.parquet")) for row in pq.read_table(file).to_pylist()]
        return sorted(rows, key=lambda row: (row["strategy"], row["position"]))

    def reasons(self) -> list[tuple[str | None, str]]:
        return [(row["record_id"], row["reason"]) for row in self.rejects()]

    def leftovers(self) -> list[str]:
        """Return what lies in scratch and staging, where nothing may be after a publish."""
        return [
            file.relative_to(self.out).as_posix()
            for name in ("scratch", "staging")
            if (self.out / name).exists()
            for file in [self.out / name, *(self.out / name).rglob("*")]
        ]
