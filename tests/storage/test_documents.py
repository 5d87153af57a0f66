"""`.json` files: one document, an object or a list, or JSON lines."""

import gzip
import json
from pathlib import Path

import pytest

from embeddings_pipeline.records import Counts, Record
from embeddings_pipeline.settings import SourceSpec, StrategySpec
from embeddings_pipeline.storage.sources import list_source, reader
from tests.fakes import Bench, to_jsonl, works

PRETTY = json.dumps({"id": "a", "title": "one\ntwo", "more": {"x": [1, 2]}}, indent=2)


def read(location: Path, **options: object) -> list[Record]:
    spec = SourceSpec.model_validate({"kind": "jsonl", "location": str(location), "id": "id", **options})
    source = reader(spec, (StrategySpec(name="full_record"),))
    files = list_source(spec).files
    source.check(files, ())
    return [record for file in files for record in source.read(file)]


def found(folder: Path, text: str, name: str = "a.json", **options: object) -> list[tuple[str | None, str, str]]:
    """Return key, place and reason of each record of a file."""
    (folder / name).write_text(text, encoding="utf-8")
    records = read(folder, **options)
    return [(record.key, record.position, str(record.problem[0]) if record.problem else "") for record in records]


@pytest.mark.parametrize(
    "text", [PRETTY, "\ufeff" + PRETTY, "\n\n" + PRETTY + "\n", json.dumps(json.loads(PRETTY), indent=0)]
)
def test_a_file_with_one_object_over_many_lines_is_one_record(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text) == [("a", "a.json", "")]
    assert read(tmp_path)[0].values == json.loads(PRETTY)


@pytest.mark.parametrize("indent", [None, 0, 2])
def test_a_file_with_a_list_of_objects_is_many_records(tmp_path: Path, indent: int | None) -> None:
    text = json.dumps(works(1500), indent=indent)
    expected = [(f"r{number}", f"a.json item {number + 1}", "") for number in range(1500)]
    assert found(tmp_path, text) == expected


def test_a_list_with_one_object_a_line_is_a_list(tmp_path: Path) -> None:
    """Its last line alone would pass for a JSON line."""
    text = "[\n" + ",\n".join(json.dumps(work) for work in works(4)) + "\n]\n"
    assert [key for key, _, _ in found(tmp_path, text)] == ["r0", "r1", "r2", "r3"]


def test_json_lines_in_a_json_file_are_json_lines(tmp_path: Path) -> None:
    assert found(tmp_path, to_jsonl(works(2))) == [("r0", "a.json line 1", ""), ("r1", "a.json line 2", "")]
    broken = '{"id": "cut\n' + to_jsonl(works(2))
    assert found(tmp_path, broken) == [
        (None, "a.json line 1", "unparsable"),
        ("r0", "a.json line 2", ""),
        ("r1", "a.json line 3", ""),
    ]


def test_a_document_that_is_cut_is_one_reject_not_one_for_each_line(tmp_path: Path) -> None:
    assert found(tmp_path, PRETTY[:-10]) == [(None, "a.json", "unparsable")]
    problem = read(tmp_path)[0].problem
    assert problem is not None
    assert problem[1].startswith("the file is no JSON document and no JSON lines: Expecting ")


@pytest.mark.parametrize("item", ["7", '"text"', "null", '["a"]'])
def test_what_is_no_object_costs_itself_only(tmp_path: Path, item: str) -> None:
    text = f'[{{"id": "a"}}, {item}, {{"id": "b"}}]'
    assert found(tmp_path, text) == [
        ("a", "a.json item 1", ""),
        (None, "a.json item 2", "unparsable"),
        ("b", "a.json item 3", ""),
    ]


def test_a_document_over_the_limit_is_a_reject_that_says_what_to_do(tmp_path: Path) -> None:
    text = json.dumps(works(100), indent=1)
    assert found(tmp_path, text, max_line_bytes=500) == [(None, "a.json", "too_large")]
    problem = read(tmp_path, max_line_bytes=500)[0].problem
    assert problem is not None
    assert problem[1].endswith("write it as JSON lines, an object a line")


@pytest.mark.parametrize("text", ["", "\n \n", "[]"])
def test_a_document_without_anything_gives_no_record(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text) == []


def test_only_json_files_may_be_documents(tmp_path: Path) -> None:
    reasons = [reason for _, _, reason in found(tmp_path, PRETTY, "a.jsonl")]
    assert reasons == ["unparsable"] * len(PRETTY.splitlines())


def test_a_folder_of_compressed_documents_goes_from_source_to_dataset(bench: Bench) -> None:
    for number in range(5):
        data = json.dumps({"id": f"r{number}", "title": f"t{number}"}, indent=1).encode("cp1252")
        (bench.source / f"{number}.json.gz").write_bytes(gzip.compress(data))
    source = {"kind": "jsonl", "location": str(bench.source), "id": "id", "encoding": "cp1252"}
    run = bench.run(source=source, strategies=[{"name": "t", "fields": ["title"]}])
    assert run.publish.counts == Counts(read=5, embedded=5)
    assert bench.keys() == [f"r{number}" for number in range(5)]
