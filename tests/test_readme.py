"""What README.md and CONTRIBUTING.md show is run or checked here, so that it stays true."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import dagster as dg
import polars as pl
import pytest
import yaml

from embeddings_pipeline import pipeline
from embeddings_pipeline.definitions import defs
from embeddings_pipeline.inference.cache import ModelCache
from embeddings_pipeline.records import Delivery
from embeddings_pipeline.settings import CorpusSpec, EmbedSettings, ExtractSettings

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
READING_LINES = re.findall(r"^((polars|duckdb|pandas)\..+)$", README, flags=re.MULTILINE)
WORKS = (ROOT / "embeddings_pipeline/samples/works.jsonl").read_text(encoding="utf-8").splitlines()


def yaml_block(word: str) -> dict:
    (block,) = [block for block in re.findall(r"^```yaml\n(.*?)^```", README, flags=re.M | re.S) if word in block]
    return yaml.safe_load(block)


def embed_corpus(spec: CorpusSpec) -> None:
    """Extract, embed and publish a corpus as the command line does."""
    delivery, cache = Delivery(spec.name), ModelCache("cpu")
    try:
        pipeline.extract(spec, delivery, ExtractSettings(), run_id="readme")
        pipeline.embed(spec, delivery, EmbedSettings(), cache, workers=1, run_id="readme")
        pipeline.publish(spec, delivery, run_id="readme")
    finally:
        cache.close()


@pytest.fixture(scope="module")
def working_directory(tmp_path_factory) -> Path:
    """A folder with the dataset of five works where the demo would have put it."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "works.jsonl").write_text("\n".join(WORKS[:5]) + "\n", encoding="utf-8")
    spec = CorpusSpec.parse(
        {
            "name": "demo",
            "source": {"kind": "jsonl", "location": str(folder / "works.jsonl")},
            "strategies": [{"name": "full_record"}, {"name": "title", "fields": ["title"]}],
            "model": {"name": "sentence-transformers/all-MiniLM-L6-v2"},
            "output": {"location": str(folder / ".embeddings/demo")},
        },
        where="test",
    )
    embed_corpus(spec)
    return folder


@pytest.mark.parametrize(("line", "library"), READING_LINES, ids=[library for _, library in READING_LINES])
def test_the_dataset_folder_is_read_with_the_line_of_the_readme(line, library, working_directory, monkeypatch):
    module = pytest.importorskip(library)
    monkeypatch.chdir(working_directory)
    frame = eval(line, {library: module})
    assert frame.shape == (10, 12)
    assert list(frame.columns) == re.findall(r"`(\w+)`", README.split("one row per text, with")[1].split("One line")[0])


def test_the_readme_reads_with_three_libraries():
    assert [library for _, library in READING_LINES] == ["polars", "duckdb", "pandas"]


def test_the_readmes_run_config_is_one_that_the_demo_job_takes():
    job = defs().resolve_job_def("demo_job")
    assert dg.validate_run_config(job, yaml_block("demo__records"))


def test_the_readmes_corpus_is_accepted():
    corpus = yaml_block("name: catalogue\n")
    assert CorpusSpec.parse(corpus["attributes"], where="README.md").name == "catalogue"


def test_the_readmes_sparse_corpus_is_embedded_as_it_stands(tmp_path):
    """Only the places are this test's: the model and its options are the page's."""
    pytest.importorskip("cognition")
    (tmp_path / "catalogue.jsonl").write_text(
        "".join(f'{{"record_id": "{number}", "title": "A whale of {number} tons"}}\n' for number in range(3)),
        encoding="utf-8",
    )
    attributes = yaml_block("name: catalogue_sparse")["attributes"]
    attributes["source"]["location"] = str(tmp_path / "catalogue.jsonl")
    attributes["output"]["location"] = str(tmp_path / "out")
    spec = CorpusSpec.parse(attributes, where="README.md")
    embed_corpus(spec)
    rows = pl.read_parquet(tmp_path / "out/dataset").to_dicts()
    assert len(rows) == 3
    for row in rows:
        assert "whale" in row["sparse_tokens"]
        assert "[CLS]" not in row["sparse_tokens"]
        assert len(row["sparse_tokens"]) == len(row["sparse_values"]) == len(row["sparse_indices"]) <= 256


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_make_target_that_is_named_exists(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|\$ |<br>)make ([a-z0-9-]+)", text))
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert named
    assert named <= targets


PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(f"docs/{page.name}" for page in ROOT.glob("docs/*.md")),
]


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page):
    folder = (ROOT / page).parent
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", (ROOT / page).read_text(encoding="utf-8"))
    assert [link for link, _ in links if not (folder / link).exists()] == []
    for link, section in links:
        if section:
            titles = re.findall(
                r"^#+ (.+)$", (folder / link if link else ROOT / page).read_text(encoding="utf-8"), re.M
            )
            assert section in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize(("library", "word"), [("lancedb", "import lancedb"), ("json", "bulk.ndjson")])
def test_the_dataset_goes_elsewhere_with_the_lines_of_the_readme(library, word, working_directory, monkeypatch, capsys):
    pytest.importorskip(library)
    (block,) = [found for found in re.findall(r"^```python\n(.*?)^```", README, flags=re.M | re.S) if word in found]
    assert len(block.splitlines()) <= 11
    monkeypatch.chdir(working_directory)
    exec(block, {})
    if library == "lancedb":
        assert json.loads(capsys.readouterr().out.replace("'", '"'))[0]["_distance"] < 1e-6
        return
    lines = [json.loads(line) for line in (working_directory / "bulk.ndjson").read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 20
    assert {line["index"]["_id"].split("/")[0] for line in lines[::2]} == {line["record_id"] for line in lines[1::2]}
    assert len({line["index"]["_id"] for line in lines[::2]}) == 10
    assert all(len(line["embedding"]) == 384 for line in lines[1::2])


def test_the_picture_of_the_graph_names_the_readmes_assets():
    words = " ".join(ET.parse(ROOT / "docs/asset_graph.svg").getroot().itertext())
    for asset in ("catalogue/records", "catalogue/embeddings", "catalogue/dataset"):
        assert asset in words
        assert asset in README
