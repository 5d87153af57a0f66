"""JSON lines with TIMDEX records in them."""

import json
from typing import Any

import pytest

from embeddings_pipeline.errors import ColumnError, CorpusSpecError
from embeddings_pipeline.records import Counts
from tests.fakes import Bench, to_jsonl


def line(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "timdex_record_id": f"a:{number}",
        "run_id": "run",
        "run_record_offset": number,
        "transformed_record": json.dumps({"title": f"Título {number}"}),
    } | changes


@pytest.fixture
def lines(bench: Bench) -> Bench:
    bench.changes["source"] = {"kind": "jsonl", "location": str(bench.source), "envelope": "timdex"}
    bench.source.mkdir(exist_ok=True)
    return bench


def write(bench: Bench, *rows: dict[str, Any]) -> None:
    (bench.source / "records.jsonl").write_text(to_jsonl(rows), encoding="utf-8")


def test_the_record_inside_is_embedded_under_its_whole_key(lines: Bench) -> None:
    write(lines, line(0), line(1, transformed_record={"title": "no text but an object"}))
    assert lines.run().publish.counts == Counts(read=2, embedded=2)
    assert sorted(row["record_id"] for row in lines.rows()) == ["a:0 run 0", "a:1 run 1"]


def test_a_line_that_is_no_envelope_is_rejected_and_the_rest_goes_on(lines: Bench) -> None:
    write(lines, line(0), line(1, run_record_offset=True), line(2, run_id=7), line(3, transformed_record=None), line(4))
    assert lines.run().publish.counts == Counts(read=5, embedded=2, rejected=3)
    assert [reason for _, reason in lines.reasons()] == ["bad_key", "bad_key", "null_text"]


def test_a_field_that_is_missing_from_the_first_line_is_refused_by_name(lines: Bench) -> None:
    write(lines, {"timdex_record_id": "a:0", "run_id": "run", "run_record_offset": 0, "record": "{}"})
    with pytest.raises(ColumnError, match="source.envelope names the column 'transformed_record', which is not in"):
        lines.run()


def test_an_envelope_belongs_to_json_lines(lines: Bench) -> None:
    lines.changes["source"] = {"kind": "csv", "location": str(lines.source), "envelope": "timdex"}
    with pytest.raises(CorpusSpecError, match="envelope belongs to kind: jsonl, and kind is csv; remove it"):
        lines.run()
