"""Every record is a text or a reject, once per strategy, and a part is the same part wherever its records lie."""

import logging
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embeddings_pipeline.errors import ColumnError, LocationNotFoundError, LocationOwnedError, RunConfigError
from embeddings_pipeline.records import Counts, Reason
from tests.fakes import Bench, works

TWO = [{"name": "full_record"}, {"name": "card", "template": "{title}. {abstract}"}]
BOTH = [{"name": "full_record"}, {"name": "titles", "fields": ["title"]}]


def part_ids(bench: Bench) -> list[str]:
    return [part.id for part in bench.records_manifest().parts]


def slices(bench: Bench, strategy: str = "full_record") -> list[tuple[str, int, int]]:
    parts = bench.records_manifest().parts
    return [(part.source, part.start, part.stop) for part in parts if part.strategy == strategy]


# Counting


def test_many_files_with_a_record_each_are_worth_a_warning(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embeddings_pipeline.pipeline.extraction.MANY_FILES", 20)
    for number in range(20):
        (bench.source / f"{number}.json").write_text(f'{{"id": "{number}"}}', encoding="utf-8")
    report = bench.extract()
    assert (report.records, report.parts) == (20, 20)
    (warning,) = report.warnings
    assert warning.startswith("the source has 20 files for 20 records, and each file becomes a part")
    (bench.source / "0.json").unlink()
    assert bench.extract().warnings == ()


def test_every_text_of_every_strategy_is_counted_once(bench: Bench) -> None:
    """Case 4: one strategy's empty text does not stop the other."""
    bench.put("a.jsonl", [*works(3), {"id": "bare"}, {"id": "blank", "title": " ", "abstract": ""}])
    report = bench.extract(strategies=TWO)
    assert report.counts == Counts(read=10, rejected=2)
    assert (report.records, report.parts, report.files, report.strays) == (5, 2, 1, 0)
    assert report.rejects_by_reason == {Reason.NULL_TEXT: 1, Reason.BLANK_TEXT: 1}
    assert bench.texts()["bare"] == 'id: "bare"\n'
    assert bench.texts("card") == {f"r{number}": f"work {number}. " for number in range(3)}
    assert bench.reasons() == [("bare", "null_text"), ("blank", "blank_text")]


def test_a_record_without_a_key_is_rejected_once_per_strategy(bench: Bench) -> None:
    bench.put("a.jsonl", [{"title": "x"}, *works(1)])
    report = bench.extract(strategies=BOTH)
    assert report.counts == Counts(read=4, rejected=2)
    assert [(row["strategy"], row["record_id"], row["reason"]) for row in bench.rejects()] == [
        ("full_record", None, "null_key"),
        ("titles", None, "null_key"),
    ]


def test_second_keys_are_rejected_within_a_file_and_across_files(bench: Bench) -> None:
    """The first one is taken, in the order of reading."""
    bench.put("a.jsonl", [{"id": "k", "title": "first"}, {"id": "k", "title": "second"}, {"id": 1}])
    bench.put("b.jsonl", [{"id": "k", "title": "third"}, {"id": "1"}])
    report = bench.extract(strategies=BOTH)
    assert report.rejects_by_reason[Reason.DUPLICATE_KEY] == 6
    assert bench.texts() == {"k": 'id: "k"\ntitle: "first"\n', "1": "id: 1\n"}


def test_a_bad_record_does_not_use_up_its_key(bench: Bench) -> None:
    (bench.source / "a.jsonl").write_text('{"id": "a", "title"\n{"id": "a", "title": "whole"}\n', encoding="utf-8")
    bench.extract()
    assert bench.texts() == {"a": 'id: "a"\ntitle: "whole"\n'}


def test_second_keys_are_found_over_many_batches(bench: Bench) -> None:
    bench.put("a.jsonl", works(3000))
    bench.put("b.jsonl", works(3000, 1500))
    report = bench.extract(part_texts=700)
    assert report.rejects_by_reason == {Reason.DUPLICATE_KEY: 1500}
    assert len(bench.texts()) == 4500


def test_half_a_surrogate_pair_costs_its_text_only(bench: Bench) -> None:
    """Case 1: in one value of the record for full_record, not for a strategy that does not read that value."""
    lines = ['{"id": "a"}', r'{"id": "b", "title": "ok", "note": "bad\ud800"}', r'{"id": "k\ud800"}', '{"id": "d"}']
    (bench.source / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    bench.extract(strategies=BOTH)
    assert list(bench.texts()) == ["a", "d"]
    assert bench.texts("titles") == {"b": "ok"}
    details = {
        (row["strategy"], row["record_id"]): row["detail"]
        for row in bench.rejects()
        if row["reason"] == "lone_surrogate"
    }
    assert details["full_record", "b"] == r"the text holds half of a surrogate pair, \ud800, at 30"
    assert r"k\ud800" in details["full_record", None]


@pytest.mark.parametrize("titles", [[None, "x"], ["x", None], ["", "x"], ["x", "   \n\t"], [None, "x", ""]])
def test_null_and_blank_texts_are_rejected_in_any_position(bench: Bench, titles: list[str | None]) -> None:
    """Case 3."""
    bench.parquet().put(
        "a.parquet", pa.table({"id": [str(n) for n in range(len(titles))], "title": pa.array(titles, pa.string())})
    )
    bench.extract(strategies=[{"name": "titles", "fields": ["title"]}])
    assert bench.texts("titles") == {str(titles.index("x")): "x"}
    assert len(bench.rejects()) == len(titles) - 1


def test_a_double_column_as_the_text_is_refused_before_anything_is_written(bench: Bench) -> None:
    """Case 2."""
    bench.parquet().put("a.parquet", pa.table({"id": ["a"], "title": [float("nan")]}))
    with pytest.raises(
        ColumnError, match=r"strategies\[0\]\.fields names the column 'title', which has the type double"
    ):
        bench.extract(strategies=[{"name": "titles", "fields": ["title"]}])
    assert not bench.out.exists()


def test_rejects_can_be_read_with_key_stage_reason_detail_and_position(bench: Bench) -> None:
    """Case 10: what is left out is listed, in parquet, next to the output."""
    bench.put("sub/a.jsonl", [{"id": "x"}, {"id": "x"}])
    bench.extract()
    assert bench.rejects() == [
        {
            "record_id": "x",
            "delivery": "whole",
            "strategy": "full_record",
            "chunk": 0,
            "stage": "extract",
            "reason": "duplicate_key",
            "detail": "a record with this key comes earlier in the delivery and was taken",
            "position": "sub/a.jsonl line 2",
        }
    ]


# Which records


@pytest.mark.parametrize(
    ("limit", "offset", "expected"),
    [
        (0, 0, range(12)),
        (5, 0, range(5)),
        (4, 0, range(4)),
        (0, 5, range(5, 12)),
        (3, 3, range(3, 6)),
        (0, 12, range(0)),
        (0, 100, range(0)),
        (100, 0, range(12)),
        (1, 11, range(11, 12)),
        (8, 2, range(2, 10)),
    ],
)
def test_limit_and_offset_count_records_over_all_files(bench: Bench, limit: int, offset: int, expected: range) -> None:
    for number in range(3):
        bench.put(f"{number}.jsonl", works(4, 4 * number))
    report = bench.extract(limit=limit, offset=offset, part_texts=3)
    assert list(bench.texts()) == [f"r{number}" for number in expected]
    assert report.records == len(expected)
    assert bench.records_manifest().partial == bool(limit or offset)


def test_limit_and_offset_out_of_bounds_are_refused(bench: Bench) -> None:
    bench.put("a.jsonl", works(1))
    with pytest.raises(RunConfigError, match="limit is -1, but has to be at least 0; use 0 for no limit"):
        bench.extract(limit=-1)
    with pytest.raises(RunConfigError, match="offset is -5"):
        bench.extract(offset=-5)


def test_an_empty_folder_gives_no_records_and_a_warning(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Case 15."""
    with caplog.at_level(logging.WARNING):
        report = bench.extract()
    assert (report.records, report.counts) == (0, Counts())
    assert "has no jsonl file: 0 records" in caplog.text


def test_files_without_records_give_a_warning_too(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.put("a.jsonl", [])
    with caplog.at_level(logging.WARNING):
        bench.extract()
    assert "gave 0 records (1 files read)" in caplog.text


def test_a_missing_source_leaves_no_trace(bench: Bench) -> None:
    with pytest.raises(LocationNotFoundError):
        bench.extract(source={"kind": "jsonl", "location": str(bench.root / "nowhere")})
    assert not bench.out.exists()


def test_another_corpus_does_not_write_to_the_same_output(bench: Bench) -> None:
    bench.put("a.jsonl", works(1))
    bench.extract()
    other = Bench(bench.root / "other")
    other.out = bench.out
    other.put("a.jsonl", works(1))
    from embeddings_pipeline import pipeline
    from embeddings_pipeline.records import Delivery
    from embeddings_pipeline.settings import ExtractSettings

    with pytest.raises(LocationOwnedError, match="'bench'"):
        pipeline.extract(other.spec(name="other"), Delivery("other"), ExtractSettings(), run_id="x")
    assert list(bench.texts()) == ["r0"]


# Parts


def test_a_part_never_spans_two_files_and_has_at_most_part_texts_records(bench: Bench) -> None:
    bench.put("a.jsonl", works(7))
    bench.put("b.jsonl", works(6, 7))
    bench.put("c.jsonl", [])
    bench.extract(part_texts=3)
    assert slices(bench) == [
        ("a.jsonl", 0, 3),
        ("a.jsonl", 3, 6),
        ("a.jsonl", 6, 7),
        ("b.jsonl", 0, 3),
        ("b.jsonl", 3, 6),
    ]


def test_extracting_again_reuses_every_part(bench: Bench) -> None:
    bench.put("a.jsonl", works(7))
    first = bench.extract(part_texts=3, strategies=BOTH)
    ids, extraction = part_ids(bench), bench.records_manifest().extraction
    second = bench.extract(part_texts=3, strategies=BOTH)
    assert (first.parts, first.parts_reused, second.parts_reused) == (6, 0, 6)
    assert (part_ids(bench), bench.records_manifest().extraction) == (ids, extraction)


def test_part_ids_come_from_content_not_from_names_times_or_order(bench: Bench) -> None:
    """Case 27: a touched or renamed file, or one that is new and listed earlier, makes nothing stale."""
    file = bench.put("m.jsonl", works(6))
    bench.extract(part_texts=3)
    ids = part_ids(bench)
    os.utime(file, (1, 1))
    bench.extract(part_texts=3)
    assert part_ids(bench) == ids
    file.rename(bench.source / "n.jsonl")
    bench.put("a.jsonl", works(2, 100))
    bench.extract(part_texts=3)
    assert part_ids(bench)[1:] == ids


def test_a_part_changes_with_a_text_and_its_neighbours_do_not(bench: Bench) -> None:
    bench.put("a.jsonl", works(9))
    bench.extract(part_texts=3)
    before = part_ids(bench)
    changed = works(9)
    changed[4]["title"] = "another"
    bench.put("a.jsonl", changed)
    bench.extract(part_texts=3)
    assert [old == new for old, new in zip(before, part_ids(bench), strict=True)] == [True, False, True]


def test_keys_are_part_of_a_parts_identity(bench: Bench) -> None:
    """With fields, two records may have one text: their rows are two all the same."""
    strategies = [{"name": "titles", "fields": ["title"]}]
    bench.put("a.jsonl", [{"id": "a", "title": "t"}])
    bench.extract(strategies=strategies)
    first = part_ids(bench)
    bench.put("a.jsonl", [{"id": "b", "title": "t"}])
    bench.extract(strategies=strategies)
    assert part_ids(bench) != first


def test_records_and_rejects_of_an_earlier_extraction_go(bench: Bench) -> None:
    bench.put("a.jsonl", [*works(2), {"id": "r0"}])
    bench.extract(strategies=BOTH)
    bench.put("a.jsonl", works(1, 5))
    bench.extract()
    assert len([file for file in bench.output.records.path.rglob("*.parquet")]) == 1
    assert bench.rejects() == []


def test_a_limited_extraction_leaves_other_rejects_alone(bench: Bench) -> None:
    bench.put("a.jsonl", [*works(2), {"id": "r0"}])
    bench.extract()
    bench.extract(limit=1)
    assert bench.reasons() == [("r0", "duplicate_key")]


def test_a_part_with_rejects_only_has_no_file(bench: Bench) -> None:
    bench.put("a.jsonl", [{"id": None}, {"id": None}])
    report = bench.extract()
    assert report.counts == Counts(read=2, rejected=2)
    assert [part.file for part in bench.records_manifest().parts] == [None]


def test_failing_half_way_keeps_the_last_manifest_and_no_scratch(bench: Bench) -> None:
    bench.put("a.jsonl", works(5))
    bench.extract(part_texts=2)
    before = bench.records_manifest()
    bench.parquet()
    pq.write_table(pa.table({"id": ["x"]}), bench.source / "a.parquet")
    torn = bench.source / "b.parquet"
    pq.write_table(pa.table({"id": [os.urandom(16).hex() for _ in range(4000)]}), torn)
    data = bytearray(torn.read_bytes())
    data[100:5000] = b"\xff" * 4900
    torn.write_bytes(data)
    from embeddings_pipeline.errors import SourceUnreadableError

    with pytest.raises(SourceUnreadableError, match=r"b\.parquet"):
        bench.extract()
    assert bench.records_manifest() == before
    assert not (bench.out / "scratch").exists()


def test_unicode_names_of_files_and_fields_are_kept(bench: Bench) -> None:
    bench.put("Ünï/作品 😀.jsonl", [{"id": "ключ", "題": "x"}])
    bench.extract()
    assert bench.texts() == {"ключ": 'id: "ключ"\n題: "x"\n'}
    assert slices(bench) == [("Ünï/作品 😀.jsonl", 0, 1)]


def test_a_relative_source_and_output_work_from_the_working_directory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put("a.jsonl", works(2))
    monkeypatch.chdir(bench.root)
    bench.changes = {
        "source": {"kind": "jsonl", "location": "source"},
        "output": {"location": "./relative/../out2"},
    }
    bench.run()
    assert sorted(path.name for path in (Path("out2")).iterdir()) == ["corpus.json", "dataset", "manifests", "records"]
