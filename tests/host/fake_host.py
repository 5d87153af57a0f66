"""A real host whose encoders cost nothing: `python -m tests.host.fake_host`, as `Hosts(module=...)` starts it.

A model's folder says how its encoder behaves; see `fake_model`.
"""

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MODULE = "tests.host.fake_host"
BATCH = 8
"""Texts of a model batch, whatever the options say."""

_live: dict[str, int] = {}
_lock = threading.Lock()


def fake_model(folder: Path, **behaviour: Any) -> Path:
    """Write a model folder. `seconds` per model batch, `bytes`, `kind`, `dimensions`, `budget` of all live encoders,
    `load_seconds`, `fail` (a sentence raised by each call); calls append the texts of each batch to `batches`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["FakeModel"], "fake": behaviour}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    # A header as of real weights, from which the cache learns what a model will take.
    header = json.dumps(
        {"weight": {"dtype": "F32", "shape": [behaviour.get("bytes", 100) // 4], "data_offsets": [0, 0]}}
    )
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode())
    return folder


def load(model: Any, device: str) -> Any:
    """Build the encoder that a model folder describes."""
    from embeddings_pipeline.errors import EmbeddingCancelledError, ModelError
    from embeddings_pipeline.records import EmbeddedBatch
    from tests.fakes import DIMENSIONS, FakeEncoder

    behaviour = json.loads((model.path / "config.json").read_text(encoding="utf-8"))["fake"]

    class Encoder(FakeEncoder):
        def embed(self, texts: Sequence[str], options: Any = None, cancel: Any = None) -> EmbeddedBatch:
            for first in range(0, len(texts), BATCH):
                if cancel is not None and cancel.is_set():
                    raise EmbeddingCancelledError
                if self.closed:
                    raise ModelError("the encoder was ejected while it was in use")
                if "batches" in behaviour:
                    with Path(behaviour["batches"]).open("a", encoding="utf-8") as file:
                        file.write(f"{texts[first]}\n")
                time.sleep(behaviour.get("seconds", 0))
            if "fail" in behaviour:
                raise ModelError(behaviour["fail"])
            return super().embed(texts)

        def close(self) -> None:
            self.closed = True
            with _lock:
                _live.pop(str(id(self)), None)

    time.sleep(behaviour.get("load_seconds", 0))
    size = behaviour.get("bytes", 100)
    encoder = Encoder(model=model, device=device, kind=behaviour.get("kind", "dense"), bytes=size)
    assert encoder.dimensions == DIMENSIONS
    with _lock:
        if sum(_live.values()) + size > behaviour.get("budget", 1 << 60):
            raise RuntimeError(f"the budget is exceeded: {_live}")
        _live[str(id(encoder))] = size
    return encoder


if __name__ == "__main__":
    from embeddings_pipeline.host.__main__ import main

    main(load)
