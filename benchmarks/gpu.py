"""Attention on CUDA: torch's varlen, sdpa per segment, and padding, checked and timed; run by `gpu.sh`.

What belongs here: the three paths on one loaded model, in float32 and float16. What does not: the
rest of the engine; on a CPU there is nothing to choose. The model is all-MiniLM-L6-v2 where its package is installed,
else a random one of its shape.
"""

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import models, report
from benchmarks.compare import cosines
from benchmarks.spread import spread
from benchmarks.texts import generated_texts
from embeddings_pipeline.inference import packed
from embeddings_pipeline.inference.batching import plan
from embeddings_pipeline.inference.forward import PaddedForward

_TEXTS = 2_000
_ROUNDS = 7
_BUDGET = 16_384
_MOST_TEXTS = 512
_SECONDS = 420
"""After this no further measurement begins, so that what was measured is printed before `gpu.sh` ends the call."""

_NO_DEVICE = "no CUDA device: nothing measured"
_LEAST_COSINE = {"float32": 0.99999, "float16": 0.999}

Ids = Sequence[np.ndarray]


def _token_ids(model: Any, texts: list[str]) -> list[np.ndarray]:
    encoded = model.tokenizer(texts, truncation=True, max_length=model.max_seq_length)["input_ids"]
    return [np.asarray(row, np.int64) for row in encoded]


@contextlib.contextmanager
def _attention(model: Any, name: str) -> Iterator[None]:
    """Make the model use a path's attention; sdpa per segment is what is left without varlen."""
    transformer = model[0].model
    if name == "padded":
        transformer.set_attn_implementation("sdpa")
        yield
        return
    packed.register()
    transformer.set_attn_implementation(packed.ATTENTION if name == "varlen" else packed.SEGMENTS)
    yield


def _embed(forward: Any, ids: Ids, *, padded: bool) -> np.ndarray:
    """Return the vectors of all texts in order; *Shape:* float32[texts, dimensions]."""
    result: np.ndarray | None = None
    for batch in plan([len(row) for row in ids], _MOST_TEXTS, _BUDGET, padded=padded):
        values = forward([], [ids[number] for number in batch]).values
        if result is None:
            result = np.zeros((len(ids), values.shape[1]), np.float32)
        result[batch] = values
    return np.asarray(result)


def _timed(run: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def measure(load: Callable[[str, torch.dtype], Any]) -> dict[str, Any]:
    """Check every path against float32 on the CPU, then time them in interleaved rounds.

    Args:
        load: from a device and a type of number to a loaded `SentenceTransformer`.
    """
    began = time.perf_counter()
    figures: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    reference = load("cpu", torch.float32)
    sample = _token_ids(reference, [*generated_texts(120), "a", "word " * 600])
    expected = _embed(PaddedForward(reference, task=None), sample, padded=True)
    ids = _token_ids(reference, generated_texts(_TEXTS))
    figures |= {"texts": len(ids), "tokens": sum(map(len, ids))}
    for dtype in (torch.float16, torch.float32):
        kind = str(dtype).removeprefix("torch.")
        model = load("cuda", dtype)
        paths: dict[str, tuple[Any, bool]] = {}
        for name in ("varlen", "segments", "padded"):
            key = f"{kind}.{name}"
            if name == "varlen" and packed._varlen(dtype) is None:
                figures[key] = "not run: torch has no varlen attention for this type of number"
                continue
            padded = name == "padded"
            try:
                with _attention(model, name):
                    forward = PaddedForward(model, task=None) if padded else packed.PackedForward(model, None)
                    found = cosines(_embed(forward, sample, padded=padded), expected)
                    _embed(forward, ids, padded=padded)
            except Exception as error:  # noqa: BLE001 (the other paths are still worth measuring)
                figures[key] = f"failed: {type(error).__name__}: {error}"[:300]
                continue
            figures[f"{key}.min_cosine"] = float(found.min())
            figures[key] = "right" if found.min() >= _LEAST_COSINE[kind] else "WRONG"
            paths[name] = forward, padded
        figures |= _rounds(model, kind, paths, ids, began)
        del model, paths
        torch.cuda.empty_cache()
    figures["seconds"] = time.perf_counter() - began
    return figures


def _rounds(
    model: Any, kind: str, paths: dict[str, tuple[Any, bool]], ids: list[np.ndarray], began: float
) -> dict[str, Any]:
    """Time the paths of one type of number in turn."""
    taken: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(_ROUNDS):
        if time.perf_counter() - began > _SECONDS:
            break
        for name, (forward, padded) in paths.items():
            with _attention(model, name):
                taken[name].append(_timed(lambda forward=forward, padded=padded: _embed(forward, ids, padded=padded)))
    figures: dict[str, Any] = {}
    tokens = sum(map(len, ids))
    for name, seconds in taken.items():
        if seconds:
            figures |= spread([tokens / value for value in seconds]).keys(f"{kind}.{name}.tokens_per_second")
            if name != "padded" and taken.get("padded"):
                pairs = zip(taken["padded"], seconds, strict=False)
                figures[f"{kind}.{name}.ratio_to_padded"] = spread([slow / fast for slow, fast in pairs]).median
    return figures


def main(argv: list[str] | None = None) -> None:
    """Print what was measured as JSON, and write it to the file that the command line names."""
    argv = sys.argv[1:] if argv is None else argv
    if not torch.cuda.is_available():
        figures: dict[str, Any] = {"result": _NO_DEVICE}
    else:
        from sentence_transformers import SentenceTransformer

        models.quiet()
        with tempfile.TemporaryDirectory() as folder:
            try:
                source = models.minilm_folder()
            except SystemExit:
                source = models.build_tiny(Path(folder) / "model", width=384, layers=6, max_length=512)

            def load(device: str, dtype: torch.dtype) -> Any:
                model = SentenceTransformer(str(source), device=device, local_files_only=True).to(dtype).eval()
                model.max_seq_length = 512
                return model

            figures = {"model": source.name, **measure(load)}
    text = json.dumps({"benchmark": "gpu", **report.machine(), **figures}, indent=1)
    print(text)
    for file in argv:
        Path(file).write_text(text + "\n", encoding="utf-8")
    if figures.get("result") == _NO_DEVICE:
        report.say(_NO_DEVICE)


if __name__ == "__main__":
    main()
