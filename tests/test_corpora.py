"""Finding a corpus by its name, as Dagster's components would, without Dagster."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from embeddings_pipeline.corpora import find_corpus
from embeddings_pipeline.errors import CorpusSpecError
from embeddings_pipeline.settings import CorpusSpec, Environment

TYPE = "embeddings_pipeline.orchestration.corpus.Corpus"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "corpora"


def declare(folder: Path, name: str = "mine", **changes: Any) -> Path:
    attributes = {
        "name": name,
        "source": {"kind": "jsonl", "location": "/data/works.jsonl"},
        "strategies": [{"name": "full_record"}],
        "model": {"name": "sentence-transformers/all-MiniLM-L6-v2"},
        "output": {"location": "/data/out"},
        **changes,
    }
    return write(folder / name, yaml.safe_dump({"type": TYPE, "attributes": attributes}))


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "defs.yaml").write_text(text, encoding="utf-8")
    return folder / "defs.yaml"


def find(name: str, folder: Path | None, **variables: str) -> CorpusSpec:
    return find_corpus(name, Environment(None, 0, str(folder) if folder else None, {}, variables))


def test_the_bundled_demo_is_found() -> None:
    assert find("demo", None).source.location == "package:embeddings_pipeline/samples/works.jsonl"


def test_a_corpus_outside_the_package_is_found_at_any_depth(folder: Path) -> None:
    declare(folder / "team", part_texts=5)
    assert find("mine", folder).part_texts == 5
    assert find("demo", folder).name == "demo"


def test_an_unknown_corpus_is_refused_with_the_nearest_and_all_others(folder: Path) -> None:
    """What other components declare in the same folder is none of the corpora."""
    declare(folder, "catalogue")
    write(folder / "other", "type: some.other.Component\nattributes: {name: catalog}\n")
    write(folder / "odd", "just text")
    write(folder / "empty", "")
    with pytest.raises(CorpusSpecError) as caught:
        find("katalogue", folder)
    message = str(caught.value)
    assert message.startswith("corpus 'katalogue' is not declared (did you mean 'catalogue'?); corpora here: ")
    assert "corpora here: catalogue, demo; add <corpus>/defs.yaml below" in message
    assert str(folder) in message


def test_variables_are_filled_in_everywhere(folder: Path) -> None:
    declare(
        folder,
        source={"kind": "jsonl", "location": "{{ env.DATA }}/works.jsonl"},
        owners=["{{ env.OWNER }}"],
        part_texts="{{ env.SIZE }}",
    )
    spec = find("mine", folder, DATA="/d", OWNER="team:x", SIZE="77")
    assert (spec.source.location, spec.owners, spec.part_texts) == ("/d/works.jsonl", ("team:x",), 77)


def test_a_variable_that_is_not_set_is_named(folder: Path) -> None:
    declare(folder, output={"location": "{{ env.NOWHERE }}/x"})
    with pytest.raises(CorpusSpecError, match=r"defs\.yaml: \{\{ env\.NOWHERE \}\}/x: .*NOWHERE.*; set the variable"):
        find("mine", folder)


@pytest.mark.parametrize("text", ["{{ env.X", "{{ env.X | nofilter }}", "{{ }}"])
def test_a_variable_that_is_written_wrongly_is_shown(folder: Path, text: str) -> None:
    declare(folder, output={"location": text})
    with pytest.raises(CorpusSpecError, match=r"write a variable as \{\{ env\.NAME \}\}"):
        find("mine", folder, X="x")


@pytest.mark.parametrize("content", [b"a: [1", b"\t- x: {", b"\xff\xfe"])
def test_a_file_that_is_no_yaml_is_named(folder: Path, content: bytes) -> None:
    file = write(folder / "bad", "")
    file.write_bytes(content)
    with pytest.raises(CorpusSpecError, match=r"bad/defs\.yaml: this is no YAML \(.*\); correct it"):
        find("mine", folder)


def test_a_wrong_field_is_named_with_its_file(folder: Path) -> None:
    file = declare(folder, part_text=5)
    with pytest.raises(CorpusSpecError, match=f"corpus file {file}: attributes: the field 'part_text' is unknown"):
        find("mine", folder)


def test_a_wrong_neighbour_does_not_stop_a_corpus(folder: Path) -> None:
    declare(folder, "aaa", part_text=5)
    declare(folder, "mine")
    assert find("mine", folder).name == "mine"
