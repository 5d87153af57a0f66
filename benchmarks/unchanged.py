"""How fast a rerun is in which nothing has changed: all records are read, rendered and hashed, none is embedded.

Usage: python -m benchmarks.unchanged --json FILE [--records N] [--quick]

Makes records with one field of about 60 characters in parquet files, publishes them once with a stand-in for a
model, gives every file a new time, and runs extract, embed and publish again. The measured time is that of the whole
second run.
"""

import argparse
import json
import os
import resource
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embeddings_pipeline import pipeline
from embeddings_pipeline.inference.cache import ModelCache
from embeddings_pipeline.inference.encoder import DEFAULT_OPTIONS
from embeddings_pipeline.models.store import ResolvedModel
from embeddings_pipeline.records import Delivery, EmbeddedBatch, EmbedOptions
from embeddings_pipeline.settings import CorpusSpec, EmbedSettings, ExtractSettings

DIMENSIONS = 8
FILES = 10


class StandIn:
    """An encoder without a model: what is measured is everything around one."""

    kind, dimensions, max_length, path, path_reason, bytes, device = "dense", DIMENSIONS, 512, "none", "", 0, "cpu"

    def __init__(self, model: ResolvedModel) -> None:
        self.model = model

    def embed(
        self,
        texts: Sequence[str],
        options: EmbedOptions = DEFAULT_OPTIONS,
        cancel: threading.Event | None = None,
    ) -> EmbeddedBatch:
        """Return ones."""
        count = len(texts)
        return EmbeddedBatch(
            token_count=np.full(count, 12, np.int32),
            token_count_exact=np.ones(count, np.bool_),
            truncated=np.zeros(count, np.bool_),
            dense=np.ones((count, DIMENSIONS), np.float32),
        )

    def workers(self, options: EmbedOptions) -> int:
        """Return one."""
        return 1

    def model_batch_tokens(self, options: EmbedOptions) -> int:
        """Return what was asked for."""
        return options.model_batch_tokens

    def token_strings(self, indices: np.ndarray) -> pa.Array:
        """Return none: vectors are dense."""
        return pa.array([], pa.string())

    def close(self) -> None:
        """Do nothing."""


def make(root: Path, records: int) -> CorpusSpec:
    """Write the source and a folder that looks like a model."""
    source, model = root / "source", root / "model"
    source.mkdir()
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["StandIn"]}', encoding="utf-8")
    (model / "model.safetensors").write_bytes(b"none")
    per_file = -(-records // FILES)
    for number in range(FILES):
        ids = range(number * per_file, min(records, (number + 1) * per_file))
        titles = [f"A record about something, with a title of sixty letters {key:08d}" for key in ids]
        table = pa.table({"id": [f"record-{key}" for key in ids], "title": titles})
        pq.write_table(table, source / f"{number}.parquet", row_group_size=50_000)
    return CorpusSpec.parse(
        {
            "name": "unchanged",
            "source": {"kind": "parquet", "location": str(source), "id": "id"},
            "strategies": [{"name": "title", "fields": ["title"]}],
            "model": {"name": "benchmarks/stand-in", "source": str(model), "kind": "dense"},
            "output": {"location": str(root / "out")},
        },
        "benchmarks.unchanged",
    )


def run(spec: CorpusSpec, run_id: str) -> dict[str, float]:
    """Run the three use cases and return the seconds of each."""
    delivery, seconds = Delivery(spec.name), {}
    cache = ModelCache("cpu", load=lambda model, _: StandIn(model))
    started = time.perf_counter()
    extracted = pipeline.extract(spec, delivery, ExtractSettings(), run_id=run_id)
    seconds["extract"] = time.perf_counter() - started
    embedded = pipeline.embed(spec, delivery, EmbedSettings(), cache, run_id=run_id)
    seconds["embed"] = time.perf_counter() - started - seconds["extract"]
    published = pipeline.publish(spec, delivery, run_id=run_id)
    seconds["all"] = time.perf_counter() - started
    seconds["publish"] = seconds["all"] - seconds["extract"] - seconds["embed"]
    cache.close()
    return seconds | {
        "read": extracted.counts.read,
        "embedded": embedded.counts.embedded,
        "skipped": embedded.counts.skipped,
        "files_reused": extracted.files_reused,
        "rows": published.published_rows,
    }


def main() -> None:
    """Measure, print, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="50,000 records")
    arguments = parser.parse_args()
    records = 50_000 if arguments.quick else arguments.records
    with tempfile.TemporaryDirectory(prefix="embeddings-unchanged-") as folder:
        spec = make(Path(folder), records)
        first = run(spec, "first")
        for file in Path(spec.source.location).iterdir():
            os.utime(file)
        second = run(spec, "second")
        # Long ago, so that no clock's grain stands in the way of taking the files for unchanged.
        for file in Path(spec.source.location).iterdir():
            os.utime(file, (1_700_000_000, 1_700_000_000))
        run(spec, "third")
        fourth = run(spec, "fourth")
    if (second["embedded"], second["skipped"], second["files_reused"]) != (0, records, 0):
        raise SystemExit(f"the rerun was no unchanged one: {second}")
    result = {
        "texts_hashed": int(second["read"]),
        "texts_per_second": round(second["read"] / second["all"], 1),
        "seconds": {name: round(second[name], 3) for name in ("extract", "embed", "publish", "all")},
        "first_run_seconds": round(first["all"], 3),
        "untouched_rerun_seconds": round(fourth["all"], 3),
        "untouched_files_reused": int(fourth["files_reused"]),
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "cpus": len(os.sched_getaffinity(0)),
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
