"""CSV files: what is a row, and where reading goes on after one that cannot be read."""

import csv
import io
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embeddings_pipeline.errors import ColumnError, SourceUnreadableError
from embeddings_pipeline.records import Counts, Record
from embeddings_pipeline.settings import SourceSpec, StrategySpec
from embeddings_pipeline.storage.sources import list_source, reader
from tests.fakes import Bench

ENCODING = "where files are in another encoding, name it with source.encoding, such as cp1252"
NOT_CLOSED = "a quotation mark that is opened in this line is not closed; only this line is left out"


def read(location: Path, kind: str = "csv", **options: object) -> list[Record]:
    spec = SourceSpec.model_validate({"kind": kind, "location": str(location), "id": "id", **options})
    source = reader(spec, (StrategySpec(name="full_record"),))
    files = list_source(spec).files
    source.check(files, ())
    return [record for file in files for record in source.read(file)]


def problems(records: list[Record]) -> list[tuple[str, str, str]]:
    return [(record.position, str(record.problem[0]), record.problem[1]) for record in records if record.problem]


def rows(folder: Path, text: str, **options: object) -> list[tuple[str | None, str]]:
    """Return key and title, or the position of what is wrong."""
    (folder / "a.csv").write_bytes(text.encode("utf-8"))
    return [
        (record.key, str(record.values["title"])) if record.problem is None else (None, record.position)
        for record in read(folder, **options)
    ]


def test_csv_with_quoted_line_ends_a_mark_and_a_last_line_without_end(tmp_path: Path) -> None:
    text = '\ufeffid,title\r\n1,"two\nlines, and ""marks"""\r\n\r\n2,\n3,last'
    (tmp_path / "a.csv").write_text(text, encoding="utf-8", newline="")
    found = read(tmp_path)
    assert [(record.key, record.values["title"], record.position) for record in found] == [
        ("1", 'two\nlines, and "marks"', "a.csv line 2"),
        ("2", "", "a.csv line 5"),
        ("3", "last", "a.csv line 6"),
    ]


def test_csv_rows_that_cannot_be_read_are_rejects_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id;title\n1;one\n2;two;more\n3;b\xffd\n;none\n4;four\n")
    found = read(tmp_path, delimiter=";")
    assert problems(found) == [
        ("a.csv line 3", "unparsable", "the row has 3 fields and the header 2"),
        ("a.csv line 4", "unparsable", "the line is not UTF-8 (byte 0xff at 2); " + ENCODING),
        ("a.csv line 5", "null_key", "the key field 'id' is empty"),
    ]
    assert [record.key for record in found if not record.problem] == ["1", "4"]


def test_csv_headers_are_checked(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("key,title\n1,one\n", encoding="utf-8")
    with pytest.raises(ColumnError, match=r"source.id names the column 'id', which is not in a.csv"):
        read(tmp_path)
    (tmp_path / "a.csv").write_text("id,id\n1,one\n", encoding="utf-8")
    with pytest.raises(SourceUnreadableError, match="the column 'id' stands there twice"):
        read(tmp_path)
    (tmp_path / "a.csv").write_text('id,"title\n1,one\n', encoding="utf-8")
    with pytest.raises(SourceUnreadableError, match="the header cannot be read: a quotation mark .* is not closed"):
        read(tmp_path)


def test_a_csv_corpus_goes_from_source_to_dataset(bench: Bench) -> None:
    (bench.source / "a.csv").write_text("id,title\n1,one\n2,\n", encoding="utf-8")
    bench.changes["source"] = {"kind": "csv", "location": str(bench.source), "id": "id"}
    run = bench.run(strategies=[{"name": "title", "fields": ["title"]}])
    assert run.publish.counts == Counts(read=2, embedded=1, rejected=1)
    assert bench.reasons() == [("2", "blank_text")]


# What is wrong with a row costs its line


def test_a_mark_that_is_not_closed_costs_its_own_line_though_the_file_ends_before_another(tmp_path: Path) -> None:
    lines = ["id,title", "1,one", '2,"never closed', *(f"{number},x" for number in range(3, 500))]
    found = rows(tmp_path, "\n".join(lines))
    assert found == [("1", "one"), (None, "a.csv line 3"), *((str(number), "x") for number in range(3, 500))]
    assert problems(read(tmp_path)) == [("a.csv line 3", "unparsable", NOT_CLOSED)]


def test_a_mark_that_is_not_closed_does_not_swallow_the_rows_up_to_the_next_mark(tmp_path: Path) -> None:
    """The next mark opens a field of its own, though by the letter it closes this one."""
    text = 'id,title\n1,"never closed\n2,two\n3,"three, quoted"\n4,"four\nlines"\n5,five\n'
    assert rows(tmp_path, text) == [
        (None, "a.csv line 2"),
        ("2", "two"),
        ("3", "three, quoted"),
        ("4", "four\nlines"),
        ("5", "five"),
    ]


def test_marks_that_are_not_closed_in_many_lines_cost_these_lines(tmp_path: Path) -> None:
    random.seed(1)
    bad = set(random.sample(range(2, 3000), 700))
    lines = ["id,title", *(f'{n},"x{n}' if n in bad else f'{n},"x{n}"' for n in range(2, 3000))]
    found = rows(tmp_path, "\n".join(lines) + "\n")
    assert [key for key, _ in found if key] == [str(n) for n in range(2, 3000) if n not in bad]
    assert [place for key, place in found if key is None] == [f"a.csv line {n}" for n in sorted(bad)]


def test_a_row_that_grows_over_the_limit_is_not_waited_for(tmp_path: Path) -> None:
    """However large the file, no more than the limit is held of a row that does not end."""
    lines = ["id,title", '1,"never closed', *(f"{number},{'x' * 50}" for number in range(2, 100))]
    found = rows(tmp_path, "\n".join(lines), max_line_bytes=300)
    assert found[0] == (None, "a.csv line 2")
    assert [key for key, _ in found[1:]] == [str(number) for number in range(2, 100)]


def test_a_line_over_the_limit_is_a_reject_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,title\n1,one\n2," + "x" * 500 + "\n3,three\n", encoding="utf-8")
    found = read(tmp_path, max_line_bytes=100)
    assert problems(found) == [
        ("a.csv line 3", "too_large", "the line has 503 bytes, more than source.max_line_bytes, 100")
    ]
    assert [record.key for record in found] == ["1", None, "3"]


def test_a_line_over_the_limit_within_a_quoted_field_costs_both_lines(tmp_path: Path) -> None:
    text = 'id,title\n1,"starts here\n' + "x" * 500 + "\n2,two\n"
    assert rows(tmp_path, text, max_line_bytes=100) == [(None, "a.csv line 2"), (None, "a.csv line 3"), ("2", "two")]


def test_rows_with_more_or_fewer_fields_than_the_header_are_rejects(tmp_path: Path) -> None:
    text = "id,title\n1\n2,two,more\n3,three\n,,\n"
    assert rows(tmp_path, text) == [
        (None, "a.csv line 2"),
        (None, "a.csv line 3"),
        ("3", "three"),
        (None, "a.csv line 5"),
    ]


def test_text_behind_a_closing_mark_is_taken_as_other_programs_do(tmp_path: Path) -> None:
    assert rows(tmp_path, 'id,title\n1,"a" b\n2,5" disk\n3,"x"\n') == [("1", "a b"), ("2", '5" disk'), ("3", "x")]


def test_a_lone_carriage_return_costs_its_line(tmp_path: Path) -> None:
    assert rows(tmp_path, "id,title\n1,a\rb\n2,two\n") == [(None, "a.csv line 2"), ("2", "two")]


@pytest.mark.parametrize("text", ["", "\ufeff", "\n\n", "id,title", "id,title\n", '\ufeff"id","title"\r\n'])
def test_a_file_without_rows_gives_no_record(tmp_path: Path, text: str) -> None:
    assert rows(tmp_path, text) == []


def test_the_same_rows_come_out_however_they_are_quoted(tmp_path: Path) -> None:
    plain = rows(tmp_path, "id,title\n1,one\n2,two\n")
    assert plain == rows(tmp_path, '"id","title"\r\n"1","one"\r\n"2","two"\r\n')
    assert plain == rows(tmp_path, '\ufeffid;title\n1;"one"\n2;two', delimiter=";")


def test_a_header_over_the_limit_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,title," + "x" * 200 + "\n1,one,x\n", encoding="utf-8")
    with pytest.raises(SourceUnreadableError, match=r"a\.csv' cannot be read as csv \(the header has 210 bytes"):
        read(tmp_path, max_line_bytes=100)


def test_a_file_whose_header_is_wrong_is_passed_over_by_option_and_counted(bench: Bench) -> None:
    (bench.source / "a.csv").write_text("id,title\n1,one\n", encoding="utf-8")
    (bench.source / "b.csv").write_text("id,id\n2,two\n", encoding="utf-8")
    source = {"kind": "csv", "location": str(bench.source), "id": "id", "on_unreadable": "skip"}
    report = bench.extract(source=source)
    assert (report.files, report.unreadable, report.counts.read) == (1, 1, 1)


FIELDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12) | st.sampled_from(
    ['"', '""', "\n", "\r\n", ",", '",', '\n"', ";", "a\nb,c", '"quoted"', "\r"]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(titles=st.lists(FIELDS, max_size=8), dialect=st.sampled_from(["excel", "unix"]), bom=st.booleans())
def test_whatever_is_written_as_csv_is_read_back(tmp_path: Path, titles: list[str], dialect: str, bom: bool) -> None:
    written = io.StringIO(newline="")
    writer = csv.writer(written, dialect)
    writer.writerows([("id", "title"), *((f"r{number}", title) for number, title in enumerate(titles))])
    expected = [(f"r{number}", title) for number, title in enumerate(titles)]
    assert rows(tmp_path, "\ufeff" * bom + written.getvalue()) == expected


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=60))
def test_whatever_follows_a_header_ends_in_records_and_rejects(tmp_path: Path, data: bytes) -> None:
    """No byte sequence stops the run, loops, or loses a line without a word."""
    (tmp_path / "a.csv").write_bytes(b"id,title\n" + data)
    found = read(tmp_path)
    lines = [line for line in data.split(b"\n") if line.strip(b"\r")]
    assert len(found) <= len(lines)
    assert bool(found) == bool(lines)
