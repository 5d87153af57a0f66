"""`embeddings create-embeddings`: what people script with the timdex-embeddings app, and deliveries one by one."""

import datetime as dt
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from embeddings_pipeline.storage.timdex import EMBEDDINGS_SCHEMA
from tests.fakes import to_jsonl
from tests.s3 import serve
from tests.storage.test_timdex import RECORDS, record
from tests.test_cli import BAKING, SEA, STARS, Command

ROOT = Path(__file__).parents[2]

LINES = [
    {
        "timdex_record_id": f"record:{number}",
        "run_id": "abc123",
        "run_record_offset": number,
        "transformed_record": json.dumps({"title": f"Record {number}", "about": about}),
    }
    for number, about in enumerate(["coffee in the mountains", "poetry made by accident", "an oddball"])
]
"""The shape of the lines that timdex-embeddings takes."""


@pytest.fixture
def command(
    tmp_path: Path, tiny_dense_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    for name in ("TE_MODEL_URI", "TE_MODEL_PATH", "EMBEDDING_BATCH_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return Command(tmp_path, tiny_dense_model, capsys, monkeypatch)


def create(command: Command, *arguments: str, model: tuple[str, str] | None = None) -> dict[str, Any]:
    """Run the command with the tiny model and the strategy full_record; return its summary."""
    name, path = model or ("tests/tiny", command.model["source"])
    code, out, err = command(
        "create-embeddings",
        "--model-uri",
        name,
        "--model-path",
        path,
        "--strategy",
        "full_record",
        "--json",
        *arguments,
    )
    assert code == 0, err + out
    return json.loads(out)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def lines(command: Command) -> Path:
    path = command.root / "records.jsonl"
    path.write_text(to_jsonl(LINES), encoding="utf-8")
    return path


@pytest.fixture
def dataset(command: Command) -> Path:
    """Give a TIMDEX dataset with a full run of three records, one of them to be deleted, and a daily one."""
    root = command.root / "dataset"
    rows = [
        [record("a:0", "full", 0, 2, run_type="full"), record("a:1", "full", 1, 2, run_type="full", action="delete")],
        [record("a:2", "full", 2, 2, run_type="full"), record("a:0", "daily", 0, 3)],
    ]
    for number, some in enumerate(rows):
        file = root / "data" / "records" / "year=2024" / "month=01" / "day=02" / f"{number}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(some, schema=RECORDS), file)
    return root


def keys(dataset: Path) -> list[tuple[str, str, int]]:
    table = ds.dataset(dataset / "data" / "embeddings", schema=EMBEDDINGS_SCHEMA, partitioning=None).to_table()
    return sorted((row["timdex_record_id"], row["run_id"], row["run_record_offset"]) for row in table.to_pylist())


def test_lines_become_lines_in_the_shape_of_the_app(command: Command, lines: Path) -> None:
    target = command.root / "embeddings.jsonl"
    summary = create(command, "--input-jsonl", str(lines), "--output-jsonl", str(target))
    assert (summary["read"], summary["embedded"], summary["lines"], summary["rejected"]) == (3, 3, 3, 0)
    written = read_lines(target)
    assert list(written[0]) == [
        "timdex_record_id",
        "run_id",
        "run_record_offset",
        "model_uri",
        "embedding_strategy",
        "embedding_vector",
        "embedding_token_weights",
        "embedding_timestamp",
    ]
    for line, source in zip(written, LINES, strict=True):
        assert {name: line[name] for name in list(line)[:3]} == {name: source[name] for name in list(line)[:3]}
        assert (line["model_uri"], line["embedding_strategy"]) == ("tests/tiny", "full_record")
        assert len(line["embedding_vector"]) == 16
        assert line["embedding_token_weights"] is None
        assert dt.datetime.fromisoformat(line["embedding_timestamp"]).tzinfo is not None
    assert sorted(path.name for path in command.root.iterdir()) == [
        "corpora", "embeddings.jsonl", "records.jsonl", "works.jsonl",
    ]  # fmt: skip


def test_sparse_lines_have_the_weights_of_tokens(command: Command, lines: Path) -> None:
    pytest.importorskip("cognition")
    target = command.root / "sparse.jsonl.gz"
    model = "splade-tiny", "package:cognition/model"
    create(command, "--input-jsonl", str(lines), "--output-jsonl", str(target), model=model)
    with gzip.open(target, "rt", encoding="utf-8") as opened:
        first = json.loads(opened.readline())
    assert first["embedding_vector"] is None
    assert first["embedding_token_weights"]["coffee"] > first["embedding_token_weights"].get("poetry", 0.0)


def test_lines_that_cannot_be_embedded_are_in_a_file_beside(command: Command, lines: Path) -> None:
    bad = [LINES[0] | {"run_id": None}, LINES[0] | {"run_record_offset": "x"}, {"run_id": "abc123"}]
    bad += [LINES[0] | {"run_id": "abc 123"}, LINES[1] | {"transformed_record": "{"}, LINES[0]]
    lines.write_text(to_jsonl([*LINES, *bad]) + "{\n", encoding="utf-8")
    target = command.root / "out.jsonl"
    summary = create(command, "--input-jsonl", str(lines), "--output-jsonl", str(target))
    assert (summary["embedded"], summary["rejected"]) == (3, 7)
    rejects = read_lines(Path(summary["rejects_jsonl"]))
    assert summary["rejects_jsonl"] == str(command.root / "out.rejects.jsonl")
    assert [(row["position"].split()[-1], row["reason"]) for row in rejects] == [
        ("4", "null_key"),
        ("5", "bad_key"),
        ("6", "null_key"),
        ("7", "bad_key"),
        ("8", "duplicate_key"),
        ("9", "duplicate_key"),
        ("10", "unparsable"),
    ]
    lines.write_text(to_jsonl(LINES), encoding="utf-8")
    assert "rejects_jsonl" not in create(command, "--input-jsonl", str(lines), "--output-jsonl", str(target))
    assert not (command.root / "out.rejects.jsonl").exists()


def test_lines_come_from_s3_and_go_there(command: Command) -> None:
    with serve() as endpoint:
        command.patch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
        client = boto3.client("s3")
        client.create_bucket(Bucket="lines")
        client.put_object(Bucket="lines", Key="in/records.jsonl", Body=to_jsonl([*LINES, {}]).encode())
        create(command, "--input-jsonl", "s3://lines/in/records.jsonl", "--output-jsonl", "s3://lines/out/e.jsonl.gz")
        keys = [item["Key"] for item in client.list_objects_v2(Bucket="lines")["Contents"]]
        assert keys == ["in/records.jsonl", "out/e.jsonl.gz", "out/e.rejects.jsonl"]
        body = client.get_object(Bucket="lines", Key="out/e.jsonl.gz")["Body"].read()
    assert len(gzip.decompress(body).splitlines()) == 3


def test_plain_lines_are_embedded_by_a_key_of_theirs(command: Command) -> None:
    create(command, "--input-jsonl", "works.jsonl", "--id-field", "id", "--output-jsonl", "out.jsonl")
    written = read_lines(command.root / "out.jsonl")
    assert [line["record_id"] for line in written] == ["whale", "bread", "stars"]
    assert "timdex_record_id" not in written[0]


def test_a_run_of_a_timdex_dataset_is_embedded_into_it(command: Command, dataset: Path) -> None:
    summary = create(command, "--dataset-location", str(dataset), "--run-id", "full")
    assert (summary["read"], summary["embedded"]) == (2, 2)
    assert summary["timdex_embeddings"] == f"{dataset}/data/embeddings"
    assert keys(dataset) == [("a:0", "full", 0), ("a:2", "full", 2)]
    again = create(command, "--dataset-location", str(dataset), "--run-id", "full")
    assert (again["embedded"], again["skipped"]) == (0, 2)
    assert len(keys(dataset)) == 2


def test_the_current_records_of_a_source_are_embedded(command: Command, dataset: Path) -> None:
    create(command, "--dataset-location", str(dataset), "--source", "alma")
    assert keys(dataset) == [("a:0", "daily", 0), ("a:2", "full", 2)]


def test_a_run_record_offset_is_the_records_own_number(command: Command, dataset: Path) -> None:
    """Of numbers 0, 1 (to be deleted) and 2, one is at or above 1; leaving one record out would leave one too many."""
    ask = ["--dataset-location", str(dataset), "--run-id", "full"]
    assert create(command, *ask, "--run-record-offset", "1", "--record-limit", "1")["embedded"] == 1
    assert keys(dataset) == [("a:2", "full", 2)]
    assert create(command, *ask, "--run-record-offset", "3")["read"] == 0
    assert create(command, *ask, "--record-limit", "1")["embedded"] == 1
    assert keys(dataset) == [("a:0", "full", 0), ("a:2", "full", 2)]


def test_a_dataset_can_be_embedded_into_lines_and_lines_into_a_dataset(
    command: Command, dataset: Path, lines: Path
) -> None:
    create(command, "--dataset-location", str(dataset), "--run-id", "full", "--output-jsonl", "out.jsonl")
    assert [line["run_record_offset"] for line in read_lines(command.root / "out.jsonl")] == [0, 2]
    assert sorted(path.name for path in dataset.iterdir()) == ["data"]
    assert not (dataset / "data" / "embeddings").exists()
    create(command, "--input-jsonl", str(lines), "--dataset-location", str(dataset))
    assert keys(dataset) == [(f"record:{number}", "abc123", number) for number in range(3)]


def test_the_apps_variables_stand_for_options(command: Command, lines: Path) -> None:
    command.patch.setenv("TE_MODEL_URI", "tests/from-the-environment")
    command.patch.setenv("TE_MODEL_PATH", command.model["source"])
    command.patch.setenv("EMBEDDING_BATCH_SIZE", "2")
    ask = ["create-embeddings", "--strategy", "full_record", "--input-jsonl", str(lines), "--output-jsonl", "out.jsonl"]
    code, _, err = command(*ask)
    assert code == 0, err
    assert "application batch size: 2, " in err
    assert read_lines(command.root / "out.jsonl")[0]["model_uri"] == "tests/from-the-environment"
    assert "application batch size: 5, " in command(*ask, "--batch-size", "5")[2]
    # A corpus has its own model, whatever the environment says.
    assert command.create()[0] == 0
    command.patch.setenv("EMBEDDING_BATCH_SIZE", "many")
    code, _, err = command(*ask)
    assert (code, "EMBEDDING_BATCH_SIZE is 'many', which is no whole number" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name what to embed: --corpus NAME, or --dataset-location with --run-id or --source, or --input-jsonl"),
        (["--corpus", "small", "--strategy", "full_record"], "leave --strategy out, or --corpus"),
        (["--corpus", "small", "--run-id", "x"], "leave --run-id out"),
        (["--corpus", "small", "--run-record-offset", "1"], "run_record_offset is 1, but source.kind is jsonl"),
        (["--dataset-location", "d", "--run-id", "r", "--model-uri", "m"], "--strategy is missing; add"),
        (["--dataset-location", "d", "--run-id", "r", "--strategy", "full_record"], "--model-uri is missing"),
        (["--dataset-location", "d", "--strategy", "full_record", "--model-uri", "m"], "needs --run-id (the records"),
        (["--input-jsonl", "works.jsonl", "--strategy", "full_record", "--model-uri", "m"], "add --output-jsonl FILE"),
        (
            ["--input-jsonl", "a.jsonl", "--output-jsonl", "a.jsonl", "--strategy", "full_record", "--model-uri", "m"],
            "--output-jsonl is --input-jsonl, a.jsonl; name another file",
        ),
        (
            ["--input-jsonl", "a.jsonl", "--output-jsonl", "b.zst", "--strategy", "full_record", "--model-uri", "m"],
            "output-jsonl is 'b.zst', which is no name for JSON lines; end it in .jsonl or .jsonl.gz",
        ),
        (
            ["--input-jsonl", "a.jsonl", "--run-id", "r", "--strategy", "full_record", "--model-uri", "m"],
            "leave --run-id and --source out",
        ),
        (
            ["--input-jsonl", "a", "--output-jsonl", "b", "--strategy", "title", "--model-uri", "m"],
            "the strategy 'title' is unknown",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused_by_name(
    command: Command, arguments: list[str], message: str
) -> None:
    code, out, err = command("create-embeddings", *arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


def test_a_corpus_is_written_to_lines_as_well(command: Command) -> None:
    code, out, err = command.create("--output-jsonl", str(command.root / "all.jsonl"))
    assert code == 0, err
    assert f"output_jsonl  {command.root / 'all.jsonl'}" in out
    assert [line["record_id"] for line in read_lines(command.root / "all.jsonl")] == ["whale", "bread", "stars"]
    assert (command.out / "dataset").is_dir()
    assert [path.name for path in command.root.iterdir() if path.name.startswith(".")] == []


@pytest.fixture
def files(command: Command) -> Path:
    """Declare the corpus in deliveries, one for each of two files."""
    folder = command.root / "drop"
    folder.mkdir()
    (folder / "one.jsonl").write_text(to_jsonl([SEA]), encoding="utf-8")
    (folder / "two.jsonl").write_text(to_jsonl([BAKING]), encoding="utf-8")
    for file in folder.iterdir():
        os.utime(file, (1e9, 1e9))
    command.declare(source={"kind": "jsonl", "location": str(folder)}, deliveries="files")
    return folder


def test_new_and_changed_deliveries_are_embedded_and_no_others(command: Command, files: Path) -> None:
    first = json.loads(command.create("--json")[1])
    assert (first["embedded"], [one["delivery"] for one in first["deliveries"]]) == (2, ["one.jsonl", "two.jsonl"])
    (files / "three.jsonl").write_text(to_jsonl([STARS]), encoding="utf-8")
    code, out, err = command.create("--output-jsonl", "all.jsonl")
    assert code == 0
    assert "1 of 3 deliveries are new or changed" in err
    assert out.split()[:12] == [
        "delivery", "read", "embedded", "skipped", "rejected", "published_rows", "three.jsonl", "1", "1", "0", "0", "1",
    ]  # fmt: skip
    assert {line["record_id"] for line in read_lines(command.root / "all.jsonl")} == {"whale", "bread", "stars"}
    named = json.loads(command.create("--json", "--force", "--delivery", "two.jsonl")[1])
    assert (named["embedded"], named["deliveries"][0]["delivery"]) == (1, "two.jsonl")


def test_a_failed_delivery_lets_the_others_go_on_and_is_named(command: Command, files: Path) -> None:
    (files / "poison.jsonl.gz").write_bytes(b"no gzip")
    (files / "keyless.jsonl").write_text('{"title": "no key"}\n', encoding="utf-8")
    code, out, err = command.create("--json")
    assert code == 1
    summary = json.loads(out)
    assert summary["embedded"] == 2
    codes = {name: failure["code"] for name, failure in summary["failed"].items()}
    assert codes == {"keyless.jsonl": "column_error", "poison.jsonl.gz": "source_unreadable"}
    assert "delivery poison.jsonl.gz: source file" in err
    (files / "keyless.jsonl").unlink()
    (files / "three.jsonl").write_text(to_jsonl([STARS]), encoding="utf-8")
    code, out, err = command.create()
    assert code == 1
    assert "Error: 1 of 2 deliveries failed, the others are published; 'poison.jsonl.gz': source file" in err
    with gzip.open(files / "poison.jsonl.gz", "wt", encoding="utf-8") as opened:
        opened.write(to_jsonl([SEA]))
    os.utime(files / "three.jsonl", (1e9, 1e9))
    repaired = json.loads(command.create("--json", "--delivery", "poison.jsonl.gz")[1])
    assert (repaired["embedded"], "failed" in repaired) == (1, False)


def test_an_unknown_delivery_is_refused(command: Command, files: Path) -> None:  # noqa: ARG001
    code, _, err = command.create("--delivery", "tow.jsonl")
    assert code == 2
    assert "delivery 'tow.jsonl' of corpus 'small' is not in source.location" in err


def test_show_lists_the_deliveries_and_finds_the_nearest_in_all(command: Command, files: Path) -> None:
    assert command.create()[0] == 0
    (files / "three.jsonl").write_text(to_jsonl([STARS]), encoding="utf-8")
    (files / "one.jsonl").unlink()
    code, out, err = command("show", "small", "--query", "whales")
    assert code == 0, err
    states = {line.split()[0]: line.split()[1] for line in out.split("\n2 deliveries of")[0].splitlines()[1:]}
    assert states == {"one.jsonl": "withdrawn", "three.jsonl": "due", "two.jsonl": "published"}
    assert {line.split()[1] for line in out.split("\nwhales\n")[1].splitlines()} == {"whale", "bread"}
    assert command("show", "small", "--delivery", "two.jsonl")[0] == 0


def test_the_help_says_what_the_exit_codes_mean(command: Command) -> None:
    code, out, _ = command("create-embeddings", "--help")
    assert code == 0
    assert "Exit codes:" in out
    assert [line.split()[0] for line in out.split("Exit codes:")[1].splitlines() if line.startswith("    ")] == [
        "0", "1", "it", "2",
    ]  # fmt: skip


def test_the_whole_command_runs_without_dagster_and_with_a_bar_on_a_terminal(command: Command, lines: Path) -> None:
    """In a process of its own, whose stderr is a terminal; what is on stdout stays JSON alone."""
    code = (
        "import sys\nfrom embeddings_pipeline.cli import main\n"
        "try:\n    main()\nfinally:\n    print([name for name in sys.modules if name.startswith('dagster')])"
    )
    terminal, end = os.openpty()
    termios.tcsetwinsize(end, (24, 120))
    arguments = ["create-embeddings", "--model-uri", "tests/tiny", "--model-path", command.model["source"]]
    arguments += ["--strategy", "full_record", "--input-jsonl", str(lines), "--output-jsonl", "out.jsonl", "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=end, env=environment, cwd=command.root
    )
    os.close(end)
    shown = b""
    try:
        while data := os.read(terminal, 65536):
            shown += data
    except OSError:
        # How Linux says that nobody has the other end open any more.
        pass
    out, _ = process.communicate(timeout=120)
    os.close(terminal)
    assert process.returncode == 0, shown.decode()
    summary, imported = out.decode().splitlines()
    assert json.loads(summary)["lines"] == 3
    assert imported == "[]"
    assert re.search(rb"[03]/3 \[\S+, .*texts", shown), shown.decode()


@pytest.mark.slow
def test_a_killed_command_goes_on_after_its_last_finished_part(command: Command) -> None:
    """Of two parts of 10,000 texts the first is finished when the process dies; the next one computes the second."""
    works = ({"id": str(number), "title": f"w{number}"} for number in range(20_000))
    (command.root / "many.jsonl").write_text(to_jsonl(works), encoding="utf-8")
    ask = ["create-embeddings", "--model-uri", "tests/tiny", "--model-path", command.model["source"], "--strategy"]
    ask += ["full_record", "--input-jsonl", "many.jsonl", "--id-field", "id", "--output-jsonl", "out.jsonl"]
    code = "from embeddings_pipeline.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *ask],
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=command.root,
        text=True,
    )
    assert process.stderr is not None
    with process, process.stderr:
        for line in process.stderr:
            if "Embeddings batch 11:" in line:
                process.kill()
                break
    assert process.returncode == -signal.SIGKILL
    assert not (command.root / "out.jsonl").exists()
    done, _, err = command(*ask)
    assert (done, err.count("Embeddings batch ")) == (0, 10)
    assert [line["record_id"] for line in read_lines(command.root / "out.jsonl")] == [str(n) for n in range(20_000)]
    assert [path.name for path in command.root.iterdir() if path.name.startswith(".")] == []


def test_the_app_s_other_words_are_understood(command: Command) -> None:
    assert command("ping")[:2] == (0, "pong\n")
    assert command("--verbose", "ping")[0] == 0
