"""Other products around the same model, each run by `worker` in an environment of its own.

What belongs here: infinity-emb and Ray Data, used as their documentation shows. What does not:
installing them (`peers`). Nothing of this project but the worker is imported: its dependencies are not there.
"""

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

_WARM_UP = ["a short one", "some words of a text of middling length " * 12, "and a long one " * 150]


class Infinity:
    """infinity-emb's engine on torch, with its own batching and its default batch size of 32."""

    def __init__(self, model: str) -> None:
        """Load the model of a folder, whose files say its maximum length."""
        from infinity_emb import AsyncEmbeddingEngine, EngineArgs

        arguments = EngineArgs(
            model_name_or_path=model,
            engine="torch",
            device="cpu",
            dtype="float32",
            compile=False,
            bettertransformer=False,
        )
        self._loop = asyncio.Runner()
        self._engine = AsyncEmbeddingEngine.from_args(arguments)
        self._loop.run(self._engine.astart())
        self._texts = _WARM_UP
        self.run()

    def prepare(self, source: Path) -> None:
        """Take the texts of a source folder."""
        self._texts = _read_texts(source)

    def run(self) -> dict[str, Any]:
        """Embed the texts in one call."""
        vectors, _ = self._loop.run(self._engine.embed(sentences=self._texts))
        self._vectors = np.asarray(vectors)
        return {}

    def save(self, path: Path) -> None:
        """Write the vectors of the last run."""
        np.savez(path, dense=self._vectors)

    def close(self) -> None:
        """Stop the engine's threads."""
        self._loop.run(self._engine.astop())
        self._loop.close()


class RayData:
    """Ray Data's `map_batches` with one actor around sentence-transformers, on batches of 100.

    Each run starts an actor, which loads the model: that is in `whole_seconds`; `seconds` are from
    the first batch that reaches it to the last that leaves it.
    """

    def __init__(self, model: str, max_length: int, batch_size: int, cores: int) -> None:
        """Start Ray on this machine."""
        import ray

        os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
        # One more than the actor has, so that reading does not wait for it.
        ray.init(
            num_cpus=cores + 1,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=512 << 20,
            _temp_dir=str(Path(tempfile.gettempdir()) / "ray"),
        )
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        self._ray = ray
        self._options = {"model": model, "max_length": max_length, "batch_size": batch_size, "cores": cores}
        self._cores = cores
        self._source = Path()

    def prepare(self, source: Path) -> None:
        """Take the texts of a source folder."""
        self._source = source

    def run(self) -> dict[str, Any]:
        """Read parquet, embed, collect."""
        one = self._ray.data.ActorPoolStrategy(size=1)
        started = time.perf_counter()
        rows = (
            self._ray.data.read_parquet(str(self._source))
            .map_batches(_Actor, fn_constructor_kwargs=self._options, batch_size=100, num_cpus=self._cores, compute=one)
            .take_all()
        )
        whole = time.perf_counter() - started
        rows.sort(key=lambda row: row["id"])
        self._vectors = np.stack([row["embedding"] for row in rows])
        seconds = max(row["ended"] for row in rows) - min(row["began"] for row in rows)
        return {"seconds": seconds, "whole_seconds": whole}

    def save(self, path: Path) -> None:
        """Write the vectors of the last run."""
        np.savez(path, dense=self._vectors)

    def close(self) -> None:
        """Stop Ray."""
        self._ray.shutdown()


class _Actor:
    """What runs in Ray's actor."""

    def __init__(self, model: str, max_length: int, batch_size: int, cores: int) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(cores)
        self._model = SentenceTransformer(model, device="cpu", local_files_only=True)
        self._model.max_seq_length = max_length
        self._batch_size = batch_size
        self._model.encode(_WARM_UP, batch_size=batch_size, show_progress_bar=False)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        began = time.time()
        texts = [str(text) for text in batch["text"]]
        vectors = self._model.encode(texts, batch_size=self._batch_size, show_progress_bar=False)
        times = {"began": np.full(len(texts), began), "ended": np.full(len(texts), time.time())}
        return {"id": batch["id"], "embedding": vectors, **times}


def _read_texts(source: Path) -> list[str]:
    """Read what `peers` wrote beside the parquet file: infinity's environment has no pyarrow."""
    import json

    texts: list[str] = json.loads((source / "texts.json").read_text(encoding="utf-8"))
    return texts
