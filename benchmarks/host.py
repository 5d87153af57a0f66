"""What a round trip to a model host costs: an application batch there and back, with an encoder that costs nothing.

    python -m benchmarks.host --json benchmarks/results/host.json

What belongs here: the host's share of a batch's time. What does not: how fast texts are embedded
(`inference`).
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from embeddings_pipeline.host.client import RemoteCache
from embeddings_pipeline.host.lifecycle import Hosts
from embeddings_pipeline.models.store import ResolvedModel, resolve
from embeddings_pipeline.records import EmbeddedBatch
from embeddings_pipeline.settings import CacheSettings, Environment, ModelSpec

TEXTS = 1_000
TEXT_BYTES = 1_024
WIDTH = 384
ROUNDS = 200
MODULE = "benchmarks.host"


class Nothing:
    """An encoder whose vectors are there already."""

    kind, dimensions, max_length, path, path_reason, bytes, device = "dense", WIDTH, 512, "packed", "", 0, "cpu"

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self._vectors = generator.standard_normal((TEXTS, WIDTH), dtype=np.float32)
        self._counts = np.full(TEXTS, 200, np.int32)
        self._no = np.zeros(TEXTS, np.bool_)

    def embed(self, texts: Any, options: Any = None, cancel: Any = None) -> EmbeddedBatch:
        """Return as many vectors as there are texts."""
        count = len(texts)
        return EmbeddedBatch(self._counts[:count], ~self._no[:count], self._no[:count], self._vectors[:count])

    def workers(self, options: Any) -> int:
        """Return one."""
        return 1

    def model_batch_tokens(self, options: Any) -> int:
        """Return some number."""
        return 1_024

    def close(self) -> None:
        """Do nothing."""


def load(model: ResolvedModel, device: str) -> Nothing:
    """Load what costs nothing, for the host's process."""
    return Nothing()


def milliseconds(rounds: int, work: Any) -> list[float]:
    """Return how long each call takes, in order."""
    times: list[float] = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        times.append((time.perf_counter() - started) * 1_000)
    return sorted(times)


def main() -> None:
    """Measure, and print the figures."""
    arguments = report.parser(str(__doc__).partition("\n")[0]).parse_args()
    rounds = 20 if arguments.quick else ROUNDS
    texts = [f"{number:06d} " + "a word and another " * 60 for number in range(TEXTS)]
    texts = [text[:TEXT_BYTES] for text in texts]
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "model"
        files.mkdir()
        (files / "config.json").write_text('{"architectures": ["Nothing"]}', encoding="utf-8")
        model = resolve(ModelSpec(name="benchmarks/nothing", source=str(files), kind="dense"))
        hosts = Hosts(Path(folder), Environment.read(), module=MODULE)
        cache = RemoteCache("cpu", hosts, CacheSettings())
        try:
            started = time.perf_counter()
            cache.load(model)
            first = time.perf_counter() - started
            with cache.lease(model) as encoder:
                encoder.embed(texts)
                embed = milliseconds(rounds, lambda: encoder.embed(texts))
                small = milliseconds(rounds, lambda: encoder.embed(texts[:1]))
            rows = milliseconds(rounds, cache.rows)
        finally:
            cache.close()
            hosts.stop("cpu")
    figures = {
        "host.texts": TEXTS,
        "host.bytes_per_text": TEXT_BYTES,
        "host.dimensions": WIDTH,
        "host.embed_ms_median": statistics.median(embed),
        "host.embed_ms_p95": embed[int(len(embed) * 0.95)],
        "host.embed_one_text_ms_median": statistics.median(small),
        "host.models_ms_median": statistics.median(rows),
        "host.start_seconds": first,
        "host.client_imports_torch": "torch" in sys.modules,
    }
    report.finish("host", figures, arguments)


if __name__ == "__main__":
    if "--ready" in sys.argv:
        from embeddings_pipeline.host.__main__ import main as serve

        serve(load)
    else:
        main()
