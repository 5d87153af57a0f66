"""From a record to its text: exact to the byte, since text hashes decide what is computed again."""

import datetime as dt
import decimal
import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddings_pipeline.records import Reason
from embeddings_pipeline.settings import StrategySpec
from embeddings_pipeline.storage.strategies import Unusable, column_problem, definition_hash, hash_text, renderer

FULL = StrategySpec(name="full_record")
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def fields(*names: str) -> StrategySpec:
    return StrategySpec(name="some", fields=names)


def template(text: str) -> StrategySpec:
    return StrategySpec(name="card", template=text)


def render(spec: StrategySpec, values: dict[str, Any]) -> str:
    return renderer(spec)(values)


def reason(spec: StrategySpec, values: dict[str, Any]) -> Reason:
    with pytest.raises(Unusable) as caught:
        render(spec, values)
    return caught.value.reason


def test_a_full_record_is_a_line_of_json_per_field_in_the_records_order() -> None:
    values = {"title": "Les Misérables", "id": "w1", "year": 1862, "subjects": ["Paris", "罪"], "note": None}
    assert render(FULL, values) == (
        'title: "Les Misérables"\nid: "w1"\nyear: 1862\nsubjects: ["Paris", "罪"]\nnote: null\n'
    )


def test_ascii_escapes_as_timdex_does() -> None:
    spec = StrategySpec(name="full_record", ascii=True)
    values = {"title": "Müller 😀 罪", "n": 1.5}
    assert render(spec, values) == f"title: {json.dumps(values['title'])}\nn: 1.5\n"


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(min_size=1), JSON_VALUES, max_size=4), st.booleans())
def test_every_json_value_is_written_as_the_json_module_writes_it(values: dict[str, Any], ascii_only: bool) -> None:
    spec = StrategySpec(name="full_record", ascii=ascii_only)
    expected = "".join(f"{name}: {json.dumps(value, ensure_ascii=ascii_only)}\n" for name, value in values.items())
    assert render(spec, values) == expected


def test_nan_and_infinities_are_null_wherever_they_stand() -> None:
    """Case 2: JSON has no NaN, and the word nan means nothing to a model."""
    values = {"a": math.nan, "b": [1.0, math.inf, {"c": -math.inf}], "d": (math.nan,)}
    assert render(FULL, values) == 'a: null\nb: [1.0, null, {"c": null}]\nd: [null]\n'


def test_values_that_json_lacks_have_one_spelling() -> None:
    values = {
        "price": decimal.Decimal("1.10"),
        "day": dt.date(2020, 1, 2),
        "at": dt.datetime(2020, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
        "time": dt.time(1, 2),
        "long": dt.timedelta(minutes=1),
        "text": "é".encode(),
        "bytes": b"\xff",
    }
    assert render(FULL, values) == (
        'price: "1.10"\nday: "2020-01-02"\nat: "2020-01-02T03:04:05+00:00"\ntime: "01:02:00"\nlong: 60.0\n'
        'text: "é"\nbytes: "/w=="\n'
    )


@pytest.mark.parametrize("innermost", [1, math.nan])
def test_a_value_nested_deeper_than_python_can_write_is_a_reject(innermost: float) -> None:
    value: Any = innermost
    for _ in range(5000):
        value = [value]
    assert reason(FULL, {"id": "a", "deep": value}) == Reason.NOT_TEXT


def test_fields_stand_below_one_another_and_blank_ones_are_left_out() -> None:
    """Case 4: a record that lacks one of its fields is embedded from the others."""
    spec = fields("title", "subjects", "note")
    assert render(spec, {"note": "n", "title": "t", "subjects": ["a", None, " ", "b"]}) == "t\na, b\nn"
    assert render(spec, {"title": "t", "note": " "}) == "t"


def test_a_template_is_filled_and_missing_fields_leave_nothing() -> None:
    spec = template("{title} ({year}). {abstract}")
    assert render(spec, {"title": "T", "year": 1999, "abstract": "A"}) == "T (1999). A"
    assert render(spec, {"title": "T"}) == "T (). "


def test_braces_in_a_value_are_no_placeholders() -> None:
    assert render(template("{a} {b} {{c}}"), {"a": "{b}", "b": "{0.__class__}"}) == "{b} {0.__class__} {c}"


def test_a_template_takes_whole_numbers_booleans_dates_and_lists_of_text() -> None:
    values = {"n": 2**70, "b": True, "d": dt.date(2020, 1, 2), "l": ["x", "y"]}
    assert render(template("{n} {b} {d} {l}"), values) == f"{2**70} true 2020-01-02 x, y"


@pytest.mark.parametrize("make", [lambda: fields("a", "b"), lambda: template("{a}: {b}")])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, Reason.NULL_TEXT),
        ({"a": None, "b": None}, Reason.NULL_TEXT),
        ({"a": None, "b": []}, Reason.NULL_TEXT),
        ({"a": "", "b": None}, Reason.BLANK_TEXT),
        ({"a": "   \n\t", "b": ""}, Reason.BLANK_TEXT),
        ({"a": "\u3000\u2003"}, Reason.BLANK_TEXT),
        ({"a": [" "]}, Reason.BLANK_TEXT),
        ({"a": "x", "b": 1.5}, Reason.NOT_TEXT),
        ({"a": {"x": 1}}, Reason.NOT_TEXT),
        ({"a": [1, 2]}, Reason.NOT_TEXT),
        ({"a": math.nan}, Reason.NOT_TEXT),
    ],
)
def test_a_record_that_gives_no_text_says_why(make: Any, values: dict[str, Any], expected: Reason) -> None:
    """Cases 2, 3 and 4: never the words None or nan, never a vector of nothing."""
    assert reason(make(), values) == expected


def test_fields_takes_no_numbers_since_they_have_no_one_spelling() -> None:
    with pytest.raises(Unusable, match="the field 'a' holds a number, not text; use full_record"):
        render(fields("a"), {"a": 1})


def test_columns_are_judged_by_their_type() -> None:
    text, words = pa.string(), pa.list_(pa.string())
    for kind in (text, pa.large_string(), pa.string_view(), words, pa.dictionary(pa.int8(), text), pa.null()):
        assert column_problem(fields("a"), kind) is None
        assert column_problem(template("{a}"), kind) is None
    for kind in (pa.int64(), pa.bool_(), pa.date32()):
        assert column_problem(template("{a}"), kind) is None
        assert column_problem(fields("a"), kind) == f"has the type {kind}, which is no text"
    for kind in (pa.float32(), pa.struct([("x", text)]), pa.list_(pa.int8()), pa.timestamp("s")):
        assert column_problem(template("{a}"), kind) is not None
        assert column_problem(FULL, kind) is None


def test_the_definition_hash_changes_with_whatever_changes_a_text() -> None:
    specs = [
        FULL,
        StrategySpec(name="full_record", ascii=True),
        fields("a"),
        fields("a", "b"),
        fields("b", "a"),
        template("{a}"),
        template("{a} "),
    ]
    assert len({definition_hash(spec) for spec in specs}) == len(specs)
    assert definition_hash(fields("a")) == definition_hash(fields("a"))


def test_text_hashes_are_stable() -> None:
    """They are stored with every row: another hash would compute every dataset anew."""
    assert hash_text(b"") == "cae66941d9efbd404e4d88758ea67670"
    assert hash_text("罪".encode()) == "ea8cf387d887fd56cfd730aa03b2f436"
