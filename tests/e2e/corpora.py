"""What the scenes embed: corpora declared as a person declares them, in a YAML file, and their records."""

import json
import random
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
_WORDS = re.findall(
    r"\w+",
    "whale sea ship captain harbour storm island letter garden winter queen castle forest river bridge engine "
    "signal copper glass theory proof number model neuron memory market painting portrait marble chapel choir "
    "violin opera novel chapter ghost detective railway village school mountain glacier desert comet planet",
)


def text(seed: str, words: int) -> str:
    """Return a text of so many words, the same for the same seed."""
    chosen = random.Random(seed)
    return " ".join(chosen.choice(_WORDS) for _ in range(words)).capitalize() + "."


def records(prefix: str, count: int, words: int = 12) -> list[dict[str, Any]]:
    """Return records with the keys `<prefix>-0`, `<prefix>-1`, …"""
    return [{"id": f"{prefix}-{number}", "title": text(f"{prefix}-{number}", words)} for number in range(count)]


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSONL file under its final name at once, as a careful sender does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    partial.replace(path)


def declare(folder: Path, name: str, source: Path, output: Path, **more: Any) -> Path:
    """Write `<folder>/<name>/defs.yaml` and return its path."""
    attributes = {
        "name": name,
        "source": {"kind": "jsonl", "location": str(source), "id": "id"},
        "strategies": [{"name": "full_record"}],
        "model": {"name": MODEL},
        "output": {"location": str(output)},
        **more,
    }
    file = folder / name / "defs.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    document = {"type": "embeddings_pipeline.orchestration.corpus.Corpus", "attributes": attributes}
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return file
