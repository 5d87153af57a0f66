"""Killed at any moment and started again: the dataset of an uninterrupted run, each row once, nothing left behind."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from embeddings_pipeline.storage.published import is_there
from tests.fakes import Bench
from tests.faults.plan import APPLICATION_BATCH, PART_TEXTS, STRATEGIES, comparable, prepare

WORKER = Path(__file__).parent / "worker.py"
ROOT = Path(__file__).parents[2]


def glob(pattern: str, least: int = 1) -> Callable[[Path], bool]:
    """Return a condition on an output folder: so many files of that pattern are there."""
    return lambda out: len(list(out.glob(pattern))) >= least


POINTS = {
    "before anything is written": lambda out: True,
    "the output is claimed": glob("corpus.json"),
    "the first records part": glob("records/*/*/part-*.parquet"),
    "the records manifest": glob("records/*/manifest.json"),
    "a part's file is being filled": glob("scratch/attempt-*/part-*.parquet"),
    "the first staged part": glob("staging/*/*/*/part-*.parquet"),
    "the first part's manifest": glob("staging/*/*/*/part-*.json"),
    "between parts": glob("staging/*/*/*/part-*.json", 4),
    "between strategies": glob("staging/*/titles/*/part-*.json"),
    "the last part's manifest": glob("staging/*/titles/*/part-*.json", 5),
    "the first dataset file": glob("dataset/*/*/*/part-*.parquet"),
    "several dataset files": glob("dataset/*/*/*/part-*.parquet", 5),
    "the delivery's manifest": glob("manifests/*.json"),
}


def start(root: Path, version: int, seconds: float = 0.0) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(WORKER), str(root), str(version), str(seconds)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_when(process: subprocess.Popen[str], condition: Callable[[Path], bool], out: Path) -> bool:
    """Kill the process as soon as the condition holds; False where it had ended before."""
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        while process.poll() is None and not condition(out):
            time.sleep(0.0002)
        process.send_signal(signal.SIGKILL)
        return process.wait() == -signal.SIGKILL


def run_whole(bench: Bench, version: int) -> None:
    prepare(bench, version)
    bench.run(run_id="whole", batch=APPLICATION_BATCH, part_texts=PART_TEXTS, strategies=STRATEGIES)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[tuple]]:
    """Give the rows of uninterrupted runs of both versions."""
    right = {}
    for version in (1, 2):
        bench = Bench(tmp_path_factory.mktemp(f"whole{version}"))
        run_whole(bench, version)
        right[version] = comparable(bench)
        assert len({row[:3] for row in right[version]}) == len(right[version]) > 90
    return right


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the output of the first version, to start the second from."""
    bench = Bench(tmp_path_factory.mktemp("published"))
    run_whole(bench, 1)
    return bench.out


def check(bench: Bench, version: int, expected: list[tuple]) -> None:
    run_whole(bench, version)
    rows = comparable(bench)
    assert rows == expected
    assert len({row[:3] for row in rows}) == len(rows)
    assert bench.leftovers() == []
    manifest = bench.manifest()
    named = {file.path.removeprefix("dataset/") for entry in manifest.sets for file in entry.files}
    assert set(bench.dataset_files()) == named


@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_is_killed_and_started_again_gives_the_same_dataset(
    bench: Bench, point: str, expected: dict[int, list[tuple]]
) -> None:
    """Cases 19 to 22."""
    assert kill_when(start(bench.root, 1, 0.003), POINTS[point], bench.out)
    check(bench, 1, expected[1])


@pytest.mark.parametrize(
    "point",
    ["the first staged part", "publishing is next", "a new dataset file", "the new manifest", "the old files go"],
)
def test_an_update_that_is_killed_leaves_the_old_set_or_the_new_one_to_whoever_reads_by_manifest(
    bench: Bench, point: str, expected: dict[int, list[tuple]], published: Path
) -> None:
    shutil.copytree(published, bench.out)
    old = {path.name for path in bench.output.dataset.path.rglob("*.parquet")}
    commit = bench.manifest().commit

    def new_files(out: Path) -> bool:
        return any(path.name not in old for path in out.glob("dataset/*/*/*/part-*.parquet"))

    def old_gone(out: Path) -> bool:
        return len(old & {path.name for path in out.glob("dataset/*/*/*/part-*.parquet")}) < len(old)

    conditions = {
        "the first staged part": POINTS["the first staged part"],
        "publishing is next": glob("staging/*/titles/*/part-*.json", 5),
        "a new dataset file": new_files,
        "the new manifest": lambda out: commit not in (out / "manifests" / "whole.json").read_text(encoding="utf-8"),
        "the old files go": old_gone,
    }
    assert kill_when(start(bench.root, 2, 0.002), conditions[point], bench.out)
    manifest = bench.manifest()
    files = [file for entry in manifest.sets for file in entry.files]
    assert all(is_there(bench.output.root, file) for file in files)
    assert sum(file.rows for file in files) == len(expected[1 if manifest.commit == commit else 2])
    check(bench, 2, expected[2])


def test_random_kills_one_after_the_other_lose_nothing(
    bench: Bench, expected: dict[int, list[tuple]], record_property: Callable[[str, object], None]
) -> None:
    """Every attempt finds what all the killed ones before it have left; the seed is in the output for a repeat."""
    seed = random.SystemRandom().randrange(10**6)
    record_property("seed", seed)
    print(f"seed {seed}")  # noqa: T201
    chance = random.Random(seed)
    killed = 0
    for number in range(20):
        version = 1 if number < 10 else 2
        process = start(bench.root, version, 0.002)
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0, 0.5))
            process.send_signal(signal.SIGKILL)
            killed += process.wait() == -signal.SIGKILL
        if number == 9:
            check(bench, 1, expected[1])
    assert killed >= 5, f"seed {seed}"
    check(bench, 2, expected[2])
