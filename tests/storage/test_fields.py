"""A field's name may be a path into nested fields, in every format alike."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embeddings_pipeline.errors import ColumnError
from embeddings_pipeline.records import Counts
from embeddings_pipeline.storage.fields import find_field, has_field, steps_to, with_field
from tests.fakes import Bench, to_jsonl

NESTED = [
    {"metadata": {"id": "a", "title": {"main": "one", "sub": "first"}}, "year": 2001},
    {"metadata": {"id": "b", "title": {"main": "two", "sub": None}}, "year": 2002},
    {"metadata": {"id": "c", "title": None}, "year": 2003},
    {"metadata": None, "year": 2004},
]
CARD = [{"name": "card", "template": "{metadata.title.main}: {metadata.title.sub} ({year})"}]


@pytest.mark.parametrize(
    ("values", "path", "value"),
    [
        ({"a": {"b": 1}}, "a.b", 1),
        ({"a.b": 1, "a": {"b": 2}}, "a.b", 1),
        ({"a": {"b.c": 1, "b": {"c": 2}}}, "a.b.c", 1),
        ({"a.b": {"c": 1}, "a": {"b": {"c": 2}}}, "a.b.c", 1),
        ({"a.b": {"d": 1}, "a": {"b": {"c": 2}}}, "a.b.c", 2),
        ({"a": {"b": None}}, "a.b", None),
        ({".a": 1, "a.": 2, "": 3}, ".a", 1),
    ],
)
def test_a_name_that_is_the_whole_path_wins_and_then_the_longest_first_step(values, path, value) -> None:
    assert has_field(values, path)
    assert find_field(values, path) == value


@pytest.mark.parametrize(
    ("values", "path"), [({"a": 1}, "a.b"), ({"a": [{"b": 1}]}, "a.b"), ({"a": None}, "a.b"), ({}, ".")]
)
def test_a_path_that_leads_nowhere_is_missing(values, path) -> None:
    assert not has_field(values, path)
    assert find_field(values, path) is None


def test_another_value_changes_no_record_but_the_new_one() -> None:
    record = {"a": {"b": {"c": 1}, "d": 2}, "a.b": 3}
    assert with_field(record, "a.b.c", 9) == {"a": {"b": {"c": 9}, "d": 2}, "a.b": 3}
    assert with_field(record, "a.b", 9)["a.b"] == 9
    assert record == {"a": {"b": {"c": 1}, "d": 2}, "a.b": 3}


def test_arrow_schemas_and_records_understand_a_path_alike() -> None:
    schema = pa.schema(
        [("a.b", pa.struct([("d", pa.string())])), ("a", pa.struct([("b", pa.struct([("c", pa.string())]))]))]
    )
    assert steps_to(schema, "a.b.c") == ("a", "b", "c")
    assert steps_to(schema, "a.b") == ("a.b",)
    assert steps_to(schema, "a.b.d") == ("a.b", "d")
    assert steps_to(schema, "a.c") is None


def nested(bench: Bench, kind: str) -> None:
    bench.changes["source"] = {"kind": kind, "location": str(bench.source), "id": "metadata.id"}
    if kind == "parquet":
        bench.put("a.parquet", pa.Table.from_pylist(NESTED))
    else:
        (bench.source / "a.jsonl").write_text(to_jsonl(NESTED), encoding="utf-8")


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_keys_fields_and_templates_reach_into_nested_fields(bench: Bench, kind: str) -> None:
    nested(bench, kind)
    strategies = [*CARD, {"name": "sub", "fields": ["metadata.title.sub", "metadata.title.main"]}]
    report = bench.extract(strategies=strategies)
    assert report.counts == Counts(read=8, rejected=3)
    assert bench.texts("card") == {"a": "one: first (2001)", "b": "two:  (2002)", "c": ":  (2003)"}
    assert bench.texts("sub") == {"a": "first\none", "b": "two"}
    assert {
        (row["record_id"], row["reason"], row["detail"]) for row in bench.rejects() if row["strategy"] == "sub"
    } == {
        ("c", "null_text", "null or missing: metadata.title.sub, metadata.title.main"),
        (None, "null_key", "the key field 'metadata.id' is null or missing"),
    }


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("wrong", ["metadata.titel", "metadata.title.man", "year.month"])
def test_a_path_that_no_record_has_is_named_with_the_nearest_one(bench: Bench, kind: str, wrong: str) -> None:
    nested(bench, kind)
    with pytest.raises(
        ColumnError, match=rf"names the column '{wrong}', which is not in .*columns there: .*metadata\.id"
    ):
        bench.extract(strategies=[{"name": "x", "fields": [wrong]}])


def test_a_column_of_parquet_whose_name_has_a_dot_wins(bench: Bench) -> None:
    table = pa.Table.from_pylist([{"metadata": {"id": "nested", "t": "n"}, "metadata.id": "flat", "t.x": "with a dot"}])
    bench.put("a.parquet", table)
    bench.changes["source"] = {"kind": "parquet", "location": str(bench.source), "id": "metadata.id"}
    bench.extract(strategies=[{"name": "x", "fields": ["t.x"]}])
    assert bench.texts("x") == {"flat": "with a dot"}


def test_a_struct_that_holds_no_text_is_refused_with_its_type(bench: Bench) -> None:
    nested(bench, "parquet")
    with pytest.raises(
        ColumnError, match=r"'metadata\.title', which has the type struct<.*no text; name a text column"
    ):
        bench.extract(strategies=[{"name": "x", "fields": ["metadata.title"]}])


def test_only_the_leaves_that_are_named_are_read(bench: Bench, tmp_path: Path) -> None:
    """A broken page of another leaf of the same struct does not matter, since nobody reads it."""
    rows = [{"m": {"id": f"r{n}", "title": f"title {n}", "ballast": f"{n}" * 200}} for n in range(3000)]
    file = bench.source / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file, compression="zstd", use_dictionary=False)
    metadata = pq.read_metadata(file).row_group(0)
    leaf = next(metadata.column(i) for i in range(3) if metadata.column(i).path_in_schema == "m.ballast")
    data = bytearray(file.read_bytes())
    data[leaf.data_page_offset + 60 : leaf.data_page_offset + leaf.total_compressed_size - 10] = b"\xff" * (
        leaf.total_compressed_size - 70
    )
    file.write_bytes(data)
    bench.changes["source"] = {"kind": "parquet", "location": str(bench.source), "id": "m.id"}
    bench.extract(strategies=[{"name": "t", "fields": ["m.title"]}])
    assert bench.texts("t")["r2999"] == "title 2999"
