"""How fast, how exact and how large this engine is beside sentence-transformers: `python -m benchmarks.inference`.

What belongs here: which ways are compared on which model, and the figures that come of it. What does
not: the ways themselves (`ways`), rounds (`rounds`).
"""

import argparse
import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import compare, models, report
from benchmarks.flops import flops_of
from benchmarks.processes import WayProcess
from benchmarks.rounds import Rounds, figure, interleave, ratio
from benchmarks.spread import spread
from benchmarks.texts import mixed_texts, token_lengths, write_source

PEER_LIST, PEER_BATCH, LIBRARY_BATCH = 100, 4, 32
"""The nearest peer encodes lists of 100 at batch 4; 32 is the library's default."""

_BUDGET = {"dense": 1_024, "sparse": 2_048}
"""Tokens of a model batch, as `inference.encoder` has it on a CPU: the size of the limit's products."""

_OURS, _PEER, _LIBRARY, _LIMIT = "ours", "peer", "library", "limit"

_NAMES = {
    "dense": {_PEER: "peer", _LIBRARY: "st"},
    "sparse": {_PEER: "st", _LIBRARY: "st_default"},
}
"""How figures name the other ways: for sparse models the peer's is sentence-transformers at its best batch size."""


@dataclass(frozen=True, slots=True)
class Case:
    """One model that is measured; `section` begins the names of its figures."""

    section: str
    model: Path
    kind: str
    texts: int
    long_texts: int


def measure(case: Case, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run all ways on one model and return its figures."""
    config = json.loads((case.model / "config.json").read_text(encoding="utf-8"))
    max_length = min(arguments.max_length, config["max_position_embeddings"])
    texts, origin = mixed_texts(case.texts, arguments.data)
    lengths = token_lengths(texts, case.model, max_length)
    source = write_source(folder / case.section, texts)
    report.say(f"{case.section}: {len(texts)} texts, {origin}, {sum(lengths)} tokens, up to {max(lengths)} each")
    batch_size = PEER_BATCH if case.kind == "dense" else _best_batch_size(case, max_length, source)
    ways = _ways(case, config, max_length, batch_size, arguments.limit_seconds)
    with _started(ways) as processes:
        for process in processes.values():
            process.prepare(source)
        loaded = processes[_OURS].loaded_peak_bytes
        rounds = interleave({name: process.run for name, process in processes.items()}, arguments.rounds, report.say)
        files = {name: folder / f"{case.section}-{name}.npz" for name in (_OURS, _PEER, _LIBRARY)}
        for name, file in files.items():
            processes[name].save(file)
        long = _long_run(case, arguments, processes[_OURS], folder)
    figures = {
        "texts": len(texts),
        "texts_from": origin,
        "tokens": sum(lengths),
        "rounds": arguments.rounds,
        "peer_batch_size": batch_size,
        **_speed(rounds, flops_of(config, lengths, head=case.kind == "sparse"), sum(lengths), _NAMES[case.kind]),
        **_memory(rounds, _NAMES[case.kind]),
        "loaded_peak_rss_mb": loaded / 2**20,
        **long,
        **_exactness(case.kind, files),
        **_noise(rounds),
    }
    return {f"{case.section}.{name}": value for name, value in figures.items()}


def _ways(
    case: Case, config: dict[str, Any], max_length: int, batch_size: int, limit_seconds: float
) -> dict[str, tuple[str, dict[str, Any]]]:
    encode = "benchmarks.ways:Encode" if case.kind == "dense" else "benchmarks.ways:EncodeSparse"
    library = {"model": str(case.model), "max_length": max_length}
    head = case.kind == "sparse"
    limit = {"config": config, "head": head, "tokens": _BUDGET[case.kind], "seconds": limit_seconds}
    return {
        _OURS: ("benchmarks.ways:ThisEngine", {**library, "kind": case.kind}),
        _PEER: (encode, {**library, "batch_size": batch_size, "list_size": PEER_LIST}),
        _LIMIT: ("benchmarks.ways:MatrixProducts", limit),
        _LIBRARY: (encode, {**library, "batch_size": LIBRARY_BATCH}),
    }


@contextlib.contextmanager
def _started(ways: Mapping[str, tuple[str, dict[str, Any]]]) -> Iterator[dict[str, WayProcess]]:
    """Start a process for each way, side by side, and wait until all have loaded their models."""
    with contextlib.ExitStack() as stack:
        processes = {name: stack.enter_context(WayProcess(way, options)) for name, (way, options) in ways.items()}
        for process in processes.values():
            process.wait_until_ready()
        yield processes


def _best_batch_size(case: Case, max_length: int, source: Path) -> int:
    """Try the peer's batch sizes on some texts, in a process of their own: memory is measured later."""
    sizes = [1, 2, 4]
    options = {"model": str(case.model), "max_length": max_length, "sizes": sizes, "texts": 60, "sparse": True}
    with WayProcess("benchmarks.ways:BatchSizes", options) as process:
        process.wait_until_ready()
        process.prepare(source)
        tried = [process.run() for _ in range(3)]
    medians = {size: spread([run[f"batch_size_{size}"] for run in tried]).median for size in sizes}
    report.say(f"{case.section}: the peer's way takes " + ", ".join(f"{t:.2f} s at {n}" for n, t in medians.items()))
    return min(medians, key=lambda size: medians[size])


def _long_run(case: Case, arguments: argparse.Namespace, ours: WayProcess, folder: Path) -> dict[str, Any]:
    """Let this engine run over several application batches, as for a corpus: a round has only one of them.

    Its `compute_share` replaces that of the rounds, where nothing is there to prefetch.
    """
    if not case.long_texts:
        return {}
    texts, _ = mixed_texts(case.long_texts, arguments.data)
    lengths = token_lengths(texts, case.model, arguments.max_length)
    ours.prepare(write_source(folder / f"{case.section}-long", texts))
    report.say(f"{case.section}: one longer run of {len(texts)} texts")
    run = ours.run()
    return {
        "compute_share": run["compute_share"],
        "long_run_texts": len(texts),
        "long_run_tokens_per_second": sum(lengths) / run["seconds"],
        "long_run_peak_rss_mb": run["peak_rss_bytes"] / 2**20,
    }


def _speed(rounds: Rounds, flops: int, tokens: int, names: Mapping[str, str]) -> dict[str, Any]:
    """Return rates, ratios within rounds, and shares of the same round's matrix products."""
    figures: dict[str, Any] = {"flops_per_token": flops / tokens}
    figures |= figure(rounds, _LIMIT, "flops_per_second").keys("limit_flops_per_second")
    for way, prefix in ((_OURS, ""), *((way, f"{name}_") for way, name in names.items())):
        pairs = zip(rounds[_LIMIT], rounds[way], strict=True)
        shares = [flops / (limit["flops_per_second"] * run["seconds"]) for limit, run in pairs]
        figures |= spread(shares).keys(f"{prefix}share_of_limit")
        figures |= figure(rounds, way, "seconds").keys(f"{prefix}seconds")
        figures[f"{prefix}cpu_seconds"] = figure(rounds, way, "cpu_seconds").median
        figures[f"{prefix}tokens_per_second"] = tokens / figures[f"{prefix}seconds"]
    for way, name in names.items():
        figures |= ratio(rounds, way, _OURS).keys(f"ratio_to_{name}")
    whole = zip(rounds[_PEER], rounds[_OURS], strict=True)
    wholes = [peer["seconds"] / ours["whole_seconds"] for peer, ours in whole]
    figures |= spread(wholes).keys(f"ratio_to_{names[_PEER]}_whole")
    figures |= ratio(rounds, _PEER, _OURS, "cpu_seconds").keys("ratio_cpu_seconds")
    figures |= figure(rounds, _OURS, "compute_share").keys("compute_share_rounds")
    figures["compute_share"] = figures["compute_share_rounds"]
    figures["whole_seconds"] = figure(rounds, _OURS, "whole_seconds").median
    figures["packed"] = bool(rounds[_OURS][-1]["packed"])
    figures["workers"] = rounds[_OURS][-1]["workers"]
    return figures


def _memory(rounds: Rounds, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the most that each way's process ever held, and what this engine's is of the peer's."""
    ours = rounds[_OURS][-1]["peak_rss_bytes"]
    figures: dict[str, Any] = {"peak_rss_mb": ours / 2**20}
    for way, name in names.items():
        figures[f"{name}_peak_rss_mb"] = rounds[way][-1]["peak_rss_bytes"] / 2**20
    figures["peak_memory_ratio"] = ours / rounds[_PEER][-1]["peak_rss_bytes"]
    return figures


def _exactness(kind: str, files: Mapping[str, Path]) -> dict[str, Any]:
    """Compare with sentence-transformers' own vectors, and these with each other at another batch size."""
    if kind == "dense":
        found = compare.compare_dense(files[_OURS], files[_LIBRARY])
        between = compare.compare_dense(files[_PEER], files[_LIBRARY])
        return {
            "min_cosine": float(found.min()),
            "mean_cosine": float(found.mean()),
            "st_with_itself_min_cosine": float(between.min()),
        }
    difference = compare.compare_sparse(files[_OURS], files[_PEER])
    between = compare.compare_sparse(files[_LIBRARY], files[_PEER])
    return {
        "max_abs_diff": difference.max_abs_diff,
        "same_support": difference.same_support,
        "rows_with_other_support": difference.rows_with_other_support,
        "largest_stray_weight": difference.stray,
        "mean_active_dimensions": difference.mean_active,
        "st_with_itself_max_abs_diff": between.max_abs_diff,
        "st_with_itself_rows_with_other_support": between.rows_with_other_support,
    }


def _noise(rounds: Rounds) -> dict[str, Any]:
    """Return how much of the cores' time others had while anything was measured."""
    entries = [entry for runs in rounds.values() for entry in runs]
    wall = sum(entry["seconds"] for entry in entries)
    return {
        "stolen_seconds_per_second": sum(entry["stolen_seconds"] for entry in entries) / wall,
        "other_seconds_per_second": sum(entry["other_seconds"] for entry in entries) / wall,
    }


def arguments_of(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line; `--quick` replaces the defaults of what makes a run long."""
    options = report.parser("This engine beside sentence-transformers: speed, exactness, memory.")
    options.add_argument("--only", default="dense,sparse,sparse_minilm", help="which models, with commas")
    options.add_argument("--data", type=Path, help="folder of real texts; without it they are generated")
    options.add_argument("--rounds", type=int, help="7, or 2 with --quick")
    options.add_argument("--texts", type=int, help="of a round: 400, or 24 with --quick")
    options.add_argument("--sparse-minilm-texts", type=int, help="of its rounds: 150, or 12 with --quick")
    options.add_argument(
        "--long-texts", type=int, help="of one more run of this engine alone: 3000, or 60 with --quick"
    )
    options.add_argument("--limit-seconds", type=float, default=2.0, help="of matrix products in a round")
    options.add_argument("--max-length", type=int, default=512, help="tokens of a text")
    options.add_argument("--dense-model", type=Path, help="folder; all-MiniLM-L6-v2 by default")
    options.add_argument("--sparse-model", type=Path, help="folder; splade-tiny by default")
    arguments = options.parse_args(argv)
    defaults = {"rounds": 2, "texts": 24, "sparse_minilm_texts": 12, "long_texts": 60}
    if not arguments.quick:
        defaults = {"rounds": 7, "texts": 400, "sparse_minilm_texts": 150, "long_texts": 3_000}
    for name, value in defaults.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    return arguments


def _cases(arguments: argparse.Namespace, folder: Path) -> Iterator[Case]:
    chosen = arguments.only.split(",")
    if unknown := set(chosen) - {"dense", "sparse", "sparse_minilm"}:
        raise SystemExit(f"--only names {', '.join(sorted(unknown))}; use dense, sparse, sparse_minilm")
    texts, long = arguments.texts, arguments.long_texts
    if "dense" in chosen:
        yield Case("dense", arguments.dense_model or models.minilm_folder(), "dense", texts, long)
    if "sparse" in chosen:
        yield Case("sparse", arguments.sparse_model or models.splade_tiny_folder(), "sparse", texts, long)
    if "sparse_minilm" in chosen:
        models.quiet()
        built = models.build_minilm_with_head(folder / "minilm-with-head")
        yield Case("sparse_minilm", built, "sparse", arguments.sparse_minilm_texts, 0)


def main(argv: list[str] | None = None) -> None:
    """Measure what the command line asks for."""
    arguments = arguments_of(argv)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="embeddings-benchmark-") as folder:
        for case in _cases(arguments, Path(folder)):
            figures |= measure(case, arguments, Path(folder))
    report.finish("inference", figures, arguments)


if __name__ == "__main__":
    main()
