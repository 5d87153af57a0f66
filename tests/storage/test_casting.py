"""Files of one collection drift apart; declared types give the same records of them."""

import datetime as dt
import decimal
import math

import pyarrow as pa
import pytest

from embeddings_pipeline.errors import ColumnError, CorpusSpecError
from embeddings_pipeline.records import Counts
from embeddings_pipeline.storage.casting import Misfit, declared
from tests.fakes import Bench, to_jsonl, works

YEAR = [{"name": "card", "template": "{title}, {year}"}]


def cast(value: object, kind: str) -> object:
    return declared({"x": value}, {"x": kind})["x"]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("string", "a", "a"),
        ("string", 7, "7"),
        ("string", 7.0, "7"),
        ("string", 7.5, "7.5"),
        ("string", True, "true"),
        ("string", decimal.Decimal("1.10"), "1.10"),
        ("string", dt.date(2020, 1, 2), "2020-01-02"),
        ("string", b"\xc3\xa9", "é"),
        ("int", "2004", 2004),
        ("int", " 2004 ", 2004),
        ("int", "2004.0", 2004),
        ("int", 2004.0, 2004),
        ("int", decimal.Decimal("2004.00"), 2004),
        ("int", "123456789012345678901234567890", 123456789012345678901234567890),
        ("int", True, 1),
        ("int", "", None),
        ("float", "1.5", 1.5),
        ("float", 2, 2.0),
        ("float", " ", None),
        ("bool", "TRUE", True),
        ("bool", 0, False),
        ("bool", "0", False),
        ("date", "2020-01-02", dt.date(2020, 1, 2)),
        ("date", dt.datetime(2020, 1, 2, 3), dt.date(2020, 1, 2)),
        ("timestamp", "2020-01-02T03:04:05+01:00", dt.datetime.fromisoformat("2020-01-02T03:04:05+01:00")),
        ("timestamp", dt.date(2020, 1, 2), dt.datetime(2020, 1, 2)),
        *((kind, None, None) for kind in ("string", "int", "float", "bool", "date", "timestamp")),
        *((kind, math.nan, None) for kind in ("string", "int", "float", "bool")),
    ],
)
def test_what_may_become_which_type(kind: str, value: object, expected: object) -> None:
    found = cast(value, kind)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", ["a"]),
        ("string", {"a": 1}),
        ("string", b"\xff"),
        ("int", "c1990"),
        ("int", 1.5),
        ("int", "1e400000000"),
        ("int", math.inf),
        ("float", "inf"),
        ("float", "many"),
        ("bool", "yes"),
        ("bool", 2),
        ("date", "last year"),
        ("date", 2020),
        ("timestamp", "noon"),
    ],
)
def test_what_may_not_is_said_in_words(kind: str, value: object) -> None:
    found = cast(value, kind)
    assert isinstance(found, Misfit)
    assert found.detail.startswith("the field 'x' holds ")
    assert found.detail.endswith(f"which is no {kind}")


def test_a_long_value_is_shown_in_part() -> None:
    assert len(str(cast("x" * 10_000, "int"))) < 200


def test_declared_fields_come_first_in_their_order_and_missing_ones_are_null() -> None:
    types = {"id": "string", "title": "string", "year": "int"}
    first = declared({"year": "1990", "id": "a", "title": "t", "more": 1}, types)
    second = declared({"more": 1, "title": "t", "id": "a", "year": 1990.0}, types)
    assert list(first.items()) == list(second.items())
    assert list(declared({"id": "a"}, types).items()) == [("id", "a"), ("title", None), ("year", None)]


def test_a_nested_field_is_cast_where_it_is() -> None:
    record = {"m": {"year": "1990", "x": 1}}
    assert declared(record, {"m.year": "int", "m.month": "int"}) == {"m": {"year": 1990, "x": 1}}
    assert record == {"m": {"year": "1990", "x": 1}}


# In a corpus


def drifting(bench: Bench) -> dict[str, object]:
    """Write three files as three exports of the same catalogue may be."""
    source = {"kind": "parquet", "location": str(bench.source), "id": "id"}
    bench.put("a.parquet", pa.table({"id": [1, 2], "title": ["one", "two"], "year": [1991, None]}))
    bench.put("b.parquet", pa.table({"year": [1993.0, 1994.5], "title": ["three", "four"], "id": ["3", "4"]}))
    bench.put("c.parquet", pa.table({"id": pa.array([5.0, 6.0]), "title": ["five", "six"]}))
    return source


def test_without_declared_types_drift_is_an_error_that_says_what_to_declare(bench: Bench) -> None:
    source = drifting(bench)
    with pytest.raises(ColumnError, match=r"'id', which has the type double; .* or declare source.types: {id: int}"):
        bench.extract(source=source, strategies=YEAR)
    (bench.source / "c.parquet").unlink()
    with pytest.raises(ColumnError, match=r"'year', which has the type double.* declare source.types: {year: string}"):
        bench.extract(source=source, strategies=YEAR)


def test_with_declared_types_drifting_files_give_one_collection(bench: Bench) -> None:
    source = drifting(bench) | {"types": {"id": "int", "title": "string", "year": "int"}}
    report = bench.extract(
        source=source, strategies=[*YEAR, {"name": "full_record"}, {"name": "t", "fields": ["title"]}]
    )
    assert report.rejects_by_reason == {"wrong_type": 2}
    assert bench.texts("card") == {"1": "one, 1991", "2": "two, ", "3": "three, 1993", "5": "five, ", "6": "six, "}
    assert bench.texts("full_record")["3"] == 'id: 3\ntitle: "three"\nyear: 1993\n'
    assert bench.texts("full_record")["5"] == 'id: 5\ntitle: "five"\nyear: null\n'
    assert bench.texts("t")["4"] == "four"
    assert {(row["record_id"], row["strategy"], row["detail"]) for row in bench.rejects()} == {
        ("4", strategy, "the field 'year' holds a number, 1994.5, which is no int")
        for strategy in ("card", "full_record")
    }


def test_columns_in_another_order_change_no_text(bench: Bench) -> None:
    """Otherwise an export that moves a column would be embedded anew, all of it."""
    source = {
        "kind": "parquet",
        "location": str(bench.source),
        "id": "id",
        "types": {"id": "string", "title": "string"},
    }
    bench.put("a.parquet", pa.table({"id": ["1", "2"], "title": ["one", "two"]}))
    bench.run(source=source)
    bench.put("a.parquet", pa.table({"title": ["one", "two"], "id": [1, 2]}))
    assert bench.run(source=source).embed.counts == Counts(read=2, skipped=2)


def test_a_key_is_the_same_text_as_a_number_and_as_a_string(bench: Bench) -> None:
    bench.put("a.parquet", pa.table({"id": pa.array([7, 8], pa.int32()), "title": ["x", "y"]}))
    bench.put("b.parquet", pa.table({"id": ["8", "9"], "title": ["y", "z"]}))
    bench.parquet().extract()
    assert sorted(bench.texts()) == ["7", "8", "9"]
    assert bench.reasons() == [("8", "duplicate_key")]


def test_a_key_that_cannot_become_its_type_is_a_reject_with_the_value(bench: Bench) -> None:
    (bench.source / "a.csv").write_text("id,title\n007,one\n8x,two\n", encoding="utf-8")
    source = {"kind": "csv", "location": str(bench.source), "id": "id", "types": {"id": "int"}}
    bench.extract(source=source)
    assert list(bench.texts()) == ["7"]
    assert [(row["reason"], row["detail"]) for row in bench.rejects()] == [
        ("bad_key", "the field 'id' holds a text, '8x', which is no int")
    ]


def test_csv_values_get_their_types(bench: Bench) -> None:
    (bench.source / "a.csv").write_text("id,title,year\n1,one,1991\n2,two,\n3,three,c1990\n", encoding="utf-8")
    source = {"kind": "csv", "location": str(bench.source), "id": "id", "types": {"year": "int"}}
    bench.extract(source=source)
    assert bench.texts() == {
        "1": 'year: 1991\nid: "1"\ntitle: "one"\n',
        "2": 'year: null\nid: "2"\ntitle: "two"\n',
    }
    assert bench.reasons() == [("3", "wrong_type")]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_an_optional_field_may_be_missing_from_every_file_and_another_not(bench: Bench, kind: str) -> None:
    if kind == "csv":
        (bench.source / "a.csv").write_text("id,title\n1,one\n", encoding="utf-8")
    else:
        bench.put(f"a.{kind}", [{"id": "1", "title": "one"}])
    source = {"kind": kind, "location": str(bench.source), "id": "id"}
    strategies = [{"name": "card", "template": "{title} {subtitle}"}]
    with pytest.raises(ColumnError, match="'subtitle', which is not in"):
        bench.extract(source=source, strategies=strategies)
    bench.extract(source=source | {"optional": ["subtitle"]}, strategies=strategies)
    assert bench.texts("card") == {"1": "one "}


def test_a_declared_type_does_not_hide_that_a_field_is_missing(bench: Bench) -> None:
    bench.put("a.jsonl", works(2))
    source = {"kind": "jsonl", "location": str(bench.source), "id": "id", "types": {"titel": "string"}}
    with pytest.raises(ColumnError, match="'titel', which is not in any record"):
        bench.extract(source=source, strategies=[{"name": "t", "fields": ["titel"]}])


def test_a_declaration_that_changes_is_read_anew(bench: Bench) -> None:
    bench.put("a.jsonl", [{"id": "1", "year": "1990"}])
    source = {"kind": "jsonl", "location": str(bench.source), "id": "id"}
    bench.run(source=source)
    run = bench.run(source=source | {"types": {"year": "int"}})
    assert run.embed.counts == Counts(read=1, embedded=1)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"types": {"year": "integer"}}, 'source.types.year is "integer"'),
        ({"types": {"id": "float"}}, "types.id is float, but a key is a string or an int"),
        ({"optional": ["id"]}, "optional names 'id', the field of the key"),
        ({"kind": "timdex", "run_id": "r", "types": {"a": "int"}}, "types belongs to kind: parquet or jsonl or csv"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(bench: Bench, source: dict[str, object], message: str) -> None:
    with pytest.raises(CorpusSpecError) as caught:
        bench.spec(source={"kind": "jsonl", "location": "x", "id": "id"} | source)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "strategy", "fits"),
    [
        ("int", {"fields": ["x"]}, False),
        ("int", {"template": "{x}"}, True),
        ("float", {"template": "{x}"}, False),
        ("date", {"template": "{x}"}, True),
        ("string", {"fields": ["x"]}, True),
    ],
)
def test_a_strategy_that_cannot_take_the_declared_type_is_refused_at_once(
    bench: Bench, kind: str, strategy: dict[str, object], fits: bool
) -> None:
    """Each of its texts would be a reject."""
    changes = {
        "source": {"kind": "jsonl", "location": "x", "id": "id", "types": {"x": kind}},
        "strategies": [{"name": "s", **strategy}],
    }
    if fits:
        assert bench.spec(**changes)
        return
    with pytest.raises(CorpusSpecError, match=f"strategy 's' takes the field 'x' as text, .* declares it {kind}"):
        bench.spec(**changes)


def test_values_out_of_json_are_cast_as_those_out_of_parquet(bench: Bench) -> None:
    rows = [{"id": "1", "year": "1990"}, {"id": "2", "year": 1990.0}, {"id": "3", "year": 1990}]
    (bench.source / "a.jsonl").write_text(to_jsonl(rows), encoding="utf-8")
    source = {"kind": "jsonl", "location": str(bench.source), "id": "id", "types": {"year": "string"}}
    bench.extract(source=source, strategies=[{"name": "y", "fields": ["year"]}])
    assert set(bench.texts("y").values()) == {"1990"}
