"""How much memory a large parquet file takes: in one row group, and in fifty.

Usage: python -m benchmarks.memory --json FILE [--gib N] [--quick]

Writes a file of N GiB (2 by default) of texts that hardly compress, of about 4,000 characters each, in one row group
and again in 50; runs extract, embed and publish over it with an application batch of 100 texts and a stand-in for a
model, in a process of its own, and takes that process's peak. What it writes, about twice the file's size, is removed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.unchanged import StandIn
from embeddings_pipeline import pipeline
from embeddings_pipeline.inference.cache import ModelCache
from embeddings_pipeline.records import Delivery
from embeddings_pipeline.settings import CorpusSpec, EmbedSettings, ExtractSettings

TEXT_CHARACTERS = 4000
APPLICATION_BATCH = 100
GROUPS = (1, 50)
_PIECE = 1000
_SCHEMA = pa.schema([("id", pa.string()), ("title", pa.string())])


def make(root: Path, size: int, groups: int) -> None:
    """Write the source and a folder that looks like a model."""
    source, model = root / "source", root / "model"
    source.mkdir(parents=True)
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["StandIn"]}', encoding="utf-8")
    (model / "model.safetensors").write_bytes(b"none")
    rows = max(groups, size // TEXT_CHARACTERS)
    random = np.random.default_rng(0)
    with pq.ParquetWriter(source / "large.parquet", _SCHEMA, use_dictionary=False) as writer:
        for group in range(groups):
            first, stop = rows * group // groups, rows * (group + 1) // groups
            # In pieces, so that the texts of a row group are there once, in arrow's memory.
            pieces = [
                pa.record_batch(
                    {
                        "id": [f"record-{row}" for row in range(start, min(stop, start + _PIECE))],
                        "title": [
                            random.bytes(TEXT_CHARACTERS // 2).hex() for _ in range(start, min(stop, start + _PIECE))
                        ],
                    },
                    schema=_SCHEMA,
                )
                for start in range(first, stop, _PIECE)
            ]
            writer.write_table(pa.Table.from_batches(pieces), row_group_size=stop - first)


def embed(root: Path) -> dict[str, Any]:
    """Run the three use cases over the source and return what they took of this process."""
    spec = CorpusSpec.parse(
        {
            "name": "memory",
            "source": {"kind": "parquet", "location": str(root / "source"), "id": "id"},
            "strategies": [{"name": "title", "fields": ["title"]}],
            "model": {"name": "benchmarks/stand-in", "source": str(root / "model"), "kind": "dense"},
            "output": {"location": str(root / "out")},
        },
        "benchmarks.memory",
    )
    metadata = pq.read_metadata(root / "source" / "large.parquet")
    delivery = Delivery(spec.name)
    cache = ModelCache("cpu", load=lambda model, _: StandIn(model))
    before, started = _status("VmRSS"), time.perf_counter()
    with pipeline.attach_log_handler():
        pipeline.extract(spec, delivery, ExtractSettings(), run_id="memory")
        extracted = _status("VmHWM")
        pipeline.embed(spec, delivery, EmbedSettings(application_batch_size=APPLICATION_BATCH), cache, run_id="memory")
        report = pipeline.publish(spec, delivery, run_id="memory")
    cache.close()
    return {
        "texts": report.counts.embedded,
        "file_bytes": (root / "source" / "large.parquet").stat().st_size,
        "row_groups": metadata.num_row_groups,
        "row_group_bytes": max(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups)),
        "started_rss_bytes": before,
        "extracted_peak_rss_bytes": extracted,
        "peak_rss_bytes": _status("VmHWM"),
        "seconds": round(time.perf_counter() - started, 1),
    }


def _status(name: str) -> int:
    """Return a figure of this process as the kernel keeps it, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _alone(*arguments: str) -> str:
    """Run a step of this module in a process of its own and return its last line."""
    command = [sys.executable, "-m", "benchmarks.memory", "--json", os.devnull, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return (done.stdout.splitlines() or [""])[-1]


def main() -> None:
    """Measure, print, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--quick", action="store_true", help="64 MiB")
    parser.add_argument("--make", nargs=3, metavar=("ROOT", "BYTES", "GROUPS"), help=argparse.SUPPRESS)
    parser.add_argument("--embed", type=Path, metavar="ROOT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make is not None:
        make(Path(arguments.make[0]), int(arguments.make[1]), int(arguments.make[2]))
        return
    if arguments.embed is not None:
        print(json.dumps(embed(arguments.embed)))
        return
    size = 64 << 20 if arguments.quick else int(arguments.gib * (1 << 30))
    result: dict[str, Any] = {"application_batch_size": APPLICATION_BATCH}
    with tempfile.TemporaryDirectory(prefix="embeddings-memory-") as folder:
        for groups in GROUPS:
            root = Path(folder) / str(groups)
            _alone("--make", str(root), str(size), str(groups))
            found = json.loads(_alone("--embed", str(root)))
            shutil.rmtree(root)
            found["peak_of_row_group"] = round(found["peak_rss_bytes"] / found["row_group_bytes"], 3)
            result["one_row_group" if groups == 1 else f"{groups}_row_groups"] = found
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
