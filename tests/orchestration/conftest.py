"""A small corpus outside the package, as a person would declare it, for the tests of what Dagster sees."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

RECORDS = [{"id": f"r{number}", "title": f"work {number}", "year": 1900 + number} for number in range(10)]

# What Dagster 1.13 itself raises while it reads YAML files and runs steps.
DAGSTER_WARNINGS = [
    "ignore:`parse_obj_as` is deprecated",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning in DAGSTER_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@dataclass(frozen=True)
class Corpora:
    """A folder of corpora: `declare` writes or changes the YAML of `small`, and gives its path."""

    folder: Path
    source: Path
    output: Path
    declare: Callable[..., Path]

    @property
    def file(self) -> Path:
        return self.folder / "small" / "defs.yaml"


@pytest.fixture
def corpora(tmp_path: Path, tiny_dense_model: Path, monkeypatch: pytest.MonkeyPatch) -> Corpora:
    """Declare the corpus `small`, ten records of one JSONL file, in a folder that EMBEDDINGS_CORPORA names."""
    folder, source, output = tmp_path / "corpora", tmp_path / "works.jsonl", tmp_path / "out"
    source.write_text("".join(json.dumps(record) + "\n" for record in RECORDS), encoding="utf-8")

    def declare(**changes: Any) -> Path:
        attributes = {
            "name": "small",
            "source": {"kind": "jsonl", "location": str(source), "id": "id"},
            "strategies": [{"name": "full_record"}],
            "model": {"name": "tests/tiny", "source": str(tiny_dense_model)},
            "output": {"location": str(output)},
            **changes,
        }
        file = folder / "small" / "defs.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "type": "embeddings_pipeline.orchestration.corpus.Corpus",
            "attributes": {name: value for name, value in attributes.items() if value is not None},
        }
        file.write_text(yaml.safe_dump(document), encoding="utf-8")
        return file

    declare()
    monkeypatch.setenv("EMBEDDINGS_CORPORA", str(folder))
    return Corpora(folder, source, output, declare)
