"""Reading records: which files, which columns, and what becomes of a record that cannot be read."""

import datetime as dt
import decimal
import json
import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embeddings_pipeline.errors import ColumnError, LocationNotFoundError, SourceUnreadableError
from embeddings_pipeline.records import Reason, Record
from embeddings_pipeline.settings import SourceSpec, StrategySpec
from embeddings_pipeline.storage.sources import Listing, list_source, reader
from tests.fakes import Bench, to_jsonl, works

FULL = StrategySpec(name="full_record")
TITLE = StrategySpec(name="title", fields=("title",))


def listing(location: Path, kind: str = "jsonl") -> Listing:
    return list_source(SourceSpec(kind=kind, location=str(location), id="id"))


def read(location: Path, kind: str = "jsonl", *strategies: StrategySpec) -> list[Record]:
    spec = SourceSpec(kind=kind, location=str(location), id="id")
    source = reader(spec, strategies or (FULL,))
    return [record for file in list_source(spec).files for record in source.read(file)]


def check(location: Path, kind: str, *strategies: StrategySpec) -> None:
    spec = SourceSpec(kind=kind, location=str(location), id="id")
    named = [(f"strategies[{number}].fields", strategy) for number, strategy in enumerate(strategies)]
    reader(spec, strategies).check(list_source(spec).files, named)


def problems(records: list[Record]) -> list[tuple[str, str]]:
    return [(record.position, str(record.problem[0])) for record in records if record.problem]


def parquet(file: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), file)
    return file


# Which files


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_file_and_a_folder_of_files_give_the_same_records(bench: Bench, kind: str) -> None:
    file = bench.put(f"works.{kind}", works(3))
    alone, below = read(file, kind), read(bench.source, kind)
    assert alone == below
    assert [record.key for record in alone] == ["r0", "r1", "r2"]
    assert alone[0].position == ("works.jsonl line 1" if kind == "jsonl" else "works.parquet row 1")


def test_files_are_read_in_the_order_of_their_names_whatever_folder_they_lie_in(bench: Bench) -> None:
    for number, name in enumerate(["b/2.jsonl", "a.jsonl", "b/10.jsonl"]):
        bench.put(name, works(1, number))
    assert [entry.name for entry in listing(bench.source).files] == ["a.jsonl", "b/10.jsonl", "b/2.jsonl"]


def test_strays_are_passed_over_and_counted(bench: Bench) -> None:
    """Case 15: side files of other tools make readers that open everything fail on magic bytes."""
    bench.put("good.parquet", works(2))
    bench.put("year=2024/more.parquet", works(2, 2))
    for name in ["_SUCCESS", ".part.crc", "notes.json", ".hidden/a.parquet", "_temporary/a.parquet", "README.md"]:
        (bench.source / name).parent.mkdir(exist_ok=True)
        (bench.source / name).write_bytes(b"no parquet")
    found = listing(bench.source, "parquet")
    assert [entry.name for entry in found.files] == ["good.parquet", "year=2024/more.parquet"]
    assert found.strays == 6
    assert len(read(bench.source, "parquet")) == 4


def test_a_file_that_is_named_itself_needs_no_suffix(bench: Bench) -> None:
    bench.put("works.jsonl", works(2)).rename(bench.source / "works")
    assert len(read(bench.source / "works")) == 2


def test_a_location_that_does_not_exist_is_named_with_its_absolute_path(tmp_path: Path) -> None:
    with pytest.raises(
        LocationNotFoundError, match=r"source.location '.*nowhere' does not exist; looked at /.*nowhere"
    ):
        listing(tmp_path / "nowhere")


@pytest.mark.parametrize("location", ["package:not_installed/x.jsonl", "package:not.installed/x.jsonl", "package:/x"])
def test_a_package_that_is_not_installed_is_a_location_that_does_not_exist(location: str) -> None:
    """A dotted name makes importlib raise for the missing parent instead of answering None."""
    with pytest.raises(LocationNotFoundError, match=r"source.location 'package:.*does not exist; install the package"):
        list_source(SourceSpec(kind="jsonl", location=location))


def test_a_link_to_a_parent_folder_does_not_multiply_the_records(bench: Bench) -> None:
    """Following it naively lists every file forty times, until the kernel's limit on links."""
    bench.put("a.jsonl", works(1))
    (bench.source / "loop").symlink_to(bench.source)
    assert [entry.name for entry in listing(bench.source).files] == ["a.jsonl"]


def test_linked_files_and_folders_are_read(bench: Bench, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "b.jsonl").write_text(to_jsonl(works(1, 1)), encoding="utf-8")
    (bench.source / "linked").symlink_to(elsewhere)
    (bench.source / "a.jsonl").symlink_to(elsewhere / "b.jsonl")
    assert [entry.name for entry in listing(bench.source).files] == ["a.jsonl", "linked/b.jsonl"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_dead_link_is_an_error_that_names_it(bench: Bench, kind: str) -> None:
    """Passing it over would lose a file's records without a word."""
    (bench.source / f"gone.{kind}").symlink_to("/nowhere")
    with pytest.raises(SourceUnreadableError, match=rf"gone\.{kind}"):
        read(bench.source, kind)


def test_a_file_name_that_is_no_utf8_is_shown_with_escapes(bench: Bench) -> None:
    """It would otherwise end in the positions, which cannot be written to parquet."""
    Path(os.fsdecode(os.fsencode(bench.source) + b"/w\xff.jsonl")).write_text(to_jsonl(works(1)), encoding="utf-8")
    assert read(bench.source)[0].position == r"w\xff.jsonl line 1"


# Parquet


def test_a_parquet_file_without_rows_gives_no_records(bench: Bench) -> None:
    bench.put("empty.parquet", pa.table({"id": pa.array([], pa.string()), "title": pa.array([], pa.string())}))
    check(bench.source, "parquet", TITLE)
    assert read(bench.source, "parquet") == []


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\0" * 50 + b"PAR1", b"not parquet at all"])
def test_a_zero_byte_or_broken_parquet_file_is_an_error_that_names_it(bench: Bench, content: bytes) -> None:
    """Case 15."""
    (bench.source / "broken.parquet").write_bytes(content)
    with pytest.raises(SourceUnreadableError, match=r"broken\.parquet' cannot be read as parquet .*repair or remove"):
        check(bench.source, "parquet", FULL)


def test_a_row_group_that_cannot_be_decoded_is_an_error_that_names_the_file(bench: Bench) -> None:
    file = bench.source / "torn.parquet"
    rows = {"id": [str(number) for number in range(5000)], "title": [os.urandom(20).hex() for _ in range(5000)]}
    pq.write_table(pa.table(rows), file, compression="zstd")
    data = bytearray(file.read_bytes())
    data[200:4000] = b"\xff" * 3800
    file.write_bytes(data)
    with pytest.raises(SourceUnreadableError, match=r"torn\.parquet"):
        read(bench.source, "parquet")


def test_a_missing_key_column_is_named_with_the_nearest_one(bench: Bench) -> None:
    parquet(bench.source / "a.parquet", record_id=["a"], ID=["b"])
    with pytest.raises(ColumnError, match=r"source\.id names the column 'id', which is not in a\.parquet .*'ID'"):
        check(bench.source, "parquet", FULL)


def test_a_missing_column_is_named_with_the_nearest_one(bench: Bench) -> None:
    parquet(bench.source / "a.parquet", id=["a"], titel=["x"])
    expected = r"strategies\[0\]\.fields names the column 'title', which is not in a\.parquet \(did you mean 'titel'"
    with pytest.raises(ColumnError, match=expected):
        check(bench.source, "parquet", TITLE)


def test_the_key_has_to_be_in_every_file_and_a_field_in_one(bench: Bench) -> None:
    """Files of one collection drift apart over the years; a record without the field is a reject, not a failure."""
    parquet(bench.source / "a.parquet", id=["a"], title=["x"])
    parquet(bench.source / "b.parquet", id=["b"], subject=["y"])
    check(bench.source, "parquet", TITLE)
    assert [dict(record.values) for record in read(bench.source, "parquet", TITLE)] == [
        {"id": "a", "title": "x"},
        {"id": "b"},
    ]
    parquet(bench.source / "c.parquet", key=["c"])
    with pytest.raises(ColumnError, match=r"'id', which is not in c\.parquet"):
        check(bench.source, "parquet", TITLE)


@pytest.mark.parametrize("kind", [pa.float64(), pa.decimal128(5, 2), pa.binary(), pa.timestamp("us")])
def test_a_text_column_that_holds_no_text_is_refused_with_its_type(bench: Bench, kind: pa.DataType) -> None:
    """Case 2: otherwise a NaN here and there becomes the word nan, or fails inside the tokenizer."""
    parquet(bench.source / "a.parquet", id=["a"], title=pa.array([None], kind))
    with pytest.raises(ColumnError, match=r"'title', which has the type .*no text; name a text column"):
        check(bench.source, "parquet", TITLE)


def test_a_type_that_drifts_between_files_is_found_at_the_start(bench: Bench) -> None:
    parquet(bench.source / "a.parquet", id=["a"], title=["x"])
    parquet(bench.source / "b.parquet", id=["b"], title=[1.5])
    with pytest.raises(ColumnError, match="has the type double"):
        check(bench.source, "parquet", TITLE)


def test_a_key_column_of_floats_is_refused(bench: Bench) -> None:
    parquet(bench.source / "a.parquet", id=[1.0])
    with pytest.raises(ColumnError, match=r"source\.id .*has the type double; name a column of text or whole numbers"):
        check(bench.source, "parquet", FULL)


def test_two_columns_of_one_name_are_refused(bench: Bench) -> None:
    """A record is a mapping: one of the two would be lost without a word."""
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["x"]), pa.array(["y"])], names=["id", "t", "t"])
    bench.put("a.parquet", table)
    with pytest.raises(SourceUnreadableError, match="the column 't' stands there twice"):
        check(bench.source, "parquet", FULL)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.int64()])
def test_keys_of_every_accepted_type_become_text(bench: Bench, kind: pa.DataType) -> None:
    values = [7, 8] if kind == pa.int64() else ["7", "8"]
    keys = pa.array(["7", "8"]).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(values, kind)
    parquet(bench.source / "a.parquet", id=keys)
    check(bench.source, "parquet", FULL)
    assert [record.key for record in read(bench.source, "parquet")] == ["7", "8"]


def test_every_arrow_type_arrives_as_a_python_value(bench: Bench) -> None:
    parquet(
        bench.source / "a.parquet",
        id=["a"],
        large=pa.array(["é"], pa.large_string()),
        coded=pa.array(["x"]).dictionary_encode(),
        price=[decimal.Decimal("1.10")],
        nested=[{"name": "n", "tags": ["t", None]}],
        pairs=pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())),
        day=[dt.date(2020, 1, 2)],
        raw=[b"\xff"],
    )
    values = dict(read(bench.source, "parquet")[0].values)
    assert values == {
        "id": "a",
        "large": "é",
        "coded": "x",
        "price": decimal.Decimal("1.10"),
        "nested": {"name": "n", "tags": ["t", None]},
        "pairs": [("k", 1)],
        "day": dt.date(2020, 1, 2),
        "raw": b"\xff",
    }


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.timestamp("ns"), 1_700_000_000_123_456_789, dt.datetime(2023, 11, 14, 22, 13, 20, 123456)),
        (pa.duration("ns"), 1_234_567_891, dt.timedelta(seconds=1, microseconds=234567)),
        (pa.time64("ns"), 1_234_567_891, dt.time(0, 0, 1, 234567)),
    ],
)
def test_nanoseconds_are_cut_to_microseconds_however_deep_they_are_nested(
    bench: Bench, kind: pa.DataType, value: int, expected: object
) -> None:
    """pyarrow makes pandas objects of them where pandas is installed and fails elsewhere; texts depend on neither."""
    parquet(
        bench.source / "a.parquet",
        id=["a"],
        plain=pa.array([value], kind),
        listed=pa.array([[value]], pa.list_(kind)),
        inside=pa.array([{"at": [value]}], pa.struct([("at", pa.large_list(kind))])),
        mapped=pa.array([[("k", value)]], pa.map_(pa.string(), kind)),
    )
    values = dict(read(bench.source, "parquet")[0].values)
    assert values == {
        "id": "a",
        "plain": expected,
        "listed": [expected],
        "inside": {"at": [expected]},
        "mapped": [("k", expected)],
    }


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, 2**62, 0], pa.timestamp("us")),
        pa.array([b"ok", b"\xff\xfe", b"ok"], pa.binary()).view(pa.string()),
    ],
    ids=["a date beyond the year 9999", "bytes that are no UTF-8"],
)
def test_a_value_that_python_cannot_hold_costs_its_record_only(bench: Bench, column: pa.Array) -> None:
    parquet(bench.source / "a.parquet", id=["a", "b", "c"], value=column)
    records = read(bench.source, "parquet")
    assert problems(records) == [("a.parquet row 2", Reason.UNPARSABLE)]
    assert [record.key for record in records] == ["a", None, "c"]


def test_only_the_columns_that_the_strategies_need_are_read(bench: Bench) -> None:
    parquet(bench.source / "a.parquet", id=["a"], title=["x"], ballast=["y"])
    assert dict(read(bench.source, "parquet", TITLE)[0].values) == {"id": "a", "title": "x"}
    assert set(read(bench.source, "parquet", TITLE, FULL)[0].values) == {"id", "title", "ballast"}


def test_rows_are_numbered_over_row_groups(bench: Bench) -> None:
    pq.write_table(pa.table({"id": [str(n) for n in range(1300)]}), bench.source / "a.parquet", row_group_size=600)
    records = read(bench.source, "parquet")
    assert [record.key for record in records] == [str(number) for number in range(1300)]
    assert records[-1].position == "a.parquet row 1300"


# JSONL


def test_a_missing_field_is_found_by_looking_at_the_first_records(bench: Bench) -> None:
    bench.put("a.jsonl", [{"id": "a", "titel": "x"}])
    with pytest.raises(ColumnError, match=r"'title', which is not in any record \(did you mean 'titel'"):
        check(bench.source, "jsonl", TITLE)
    bench.put("a.jsonl", [{"key": "a"}])
    with pytest.raises(ColumnError, match=r"source\.id names the column 'id'"):
        check(bench.source, "jsonl", FULL)


def test_a_field_that_the_first_thousand_records_lack_counts_as_missing(bench: Bench) -> None:
    bench.put("a.jsonl", [*works(1000), {"id": "last", "subject": "x"}])
    with pytest.raises(ColumnError, match="is not in the first 1000 records"):
        check(bench.source, "jsonl", StrategySpec(name="subject", fields=("subject",)))
    bench.put("a.jsonl", [*works(999), {"id": "last", "subject": "x"}])
    check(bench.source, "jsonl", StrategySpec(name="subject", fields=("subject",)))


def test_a_field_name_with_half_a_surrogate_pair_can_be_printed(bench: Bench) -> None:
    (bench.source / "a.jsonl").write_text('{"id": "a", "\\ud800": 1}\n', encoding="utf-8")
    with pytest.raises(ColumnError) as caught:
        check(bench.source, "jsonl", TITLE)
    assert r"\ud800" in str(caught.value).encode("utf-8").decode("utf-8")


def test_bom_blank_lines_and_a_missing_final_newline_are_no_trouble(bench: Bench) -> None:
    """Case 13."""
    (bench.source / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"id": "a"}\r\n\n   \n{"id": "b"}\n\t\n{"id": "c"}')
    records = read(bench.source)
    assert [(record.key, record.position) for record in records] == [
        ("a", "a.jsonl line 1"),
        ("b", "a.jsonl line 4"),
        ("c", "a.jsonl line 6"),
    ]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_a_file_without_records_gives_none(bench: Bench, content: bytes) -> None:
    (bench.source / "a.jsonl").write_bytes(content)
    check(bench.source, "jsonl", TITLE)
    assert read(bench.source) == []


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        (b'{"id": "b", "title": "cut of', "no JSON"),
        (b'{"id": "\xff"}', r"not UTF-8 \(byte 0xff at 9\)"),
        (b'["a", "list"]', "holds a list, not an object"),
        (b'"text"', "holds a text, not an object"),
        (b"null", "holds null, not an object"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"id": ' + b"9" * 5000 + b"}", "has over 4,300 digits"),
        (b'{"id": "b"} trailing', "no JSON"),
    ],
)
def test_a_line_that_cannot_be_parsed_costs_itself_only(bench: Bench, line: bytes, detail: str) -> None:
    """Case 13: the record is kept as a reject with its line number."""
    (bench.source / "a.jsonl").write_bytes(b'{"id": "a"}\n' + line + b'\n{"id": "c"}\n')
    records = read(bench.source)
    assert [record.key for record in records] == ["a", None, "c"]
    assert problems(records) == [("a.jsonl line 2", Reason.UNPARSABLE)]
    assert records[1].problem is not None
    assert re.search(detail, records[1].problem[1])


def test_a_file_in_another_encoding_gives_rejects_not_an_end(bench: Bench) -> None:
    (bench.source / "a.jsonl").write_bytes(to_jsonl(works(2)).encode("utf-16"))
    assert {str(record.problem[0]) for record in read(bench.source) if record.problem} == {Reason.UNPARSABLE}


def test_a_line_of_three_megabytes_is_read(bench: Bench) -> None:
    """Case 13: readers with a block size fail on it."""
    bench.put("a.jsonl", [{"id": "a"}, {"id": "b", "title": "x" * 3_000_000}, {"id": "c"}])
    assert [len(str(record.values.get("title", ""))) for record in read(bench.source)] == [0, 3_000_000, 0]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"title": "x"}, Reason.NULL_KEY),
        ({"id": None}, Reason.NULL_KEY),
        ({"id": ""}, Reason.NULL_KEY),
        ({"id": 1.5}, Reason.BAD_KEY),
        ({"id": True}, Reason.BAD_KEY),
        ({"id": ["a"]}, Reason.BAD_KEY),
        ({"id": {"a": 1}}, Reason.BAD_KEY),
    ],
)
def test_a_record_without_a_usable_key_says_why(bench: Bench, record: dict, reason: Reason) -> None:
    bench.put("a.jsonl", [record])
    found = read(bench.source)[0]
    assert found.key is None
    assert found.problem is not None
    assert found.problem[0] == reason


def test_a_key_with_half_a_surrogate_pair_has_no_key_and_shows_it(bench: Bench) -> None:
    """Case 1: JSON's escapes make such a string, which neither parquet nor a tokenizer takes."""
    (bench.source / "a.jsonl").write_text('{"id": "k\\ud800"}\n', encoding="utf-8")
    found = read(bench.source)[0]
    assert found.key is None
    assert found.problem == (Reason.LONE_SURROGATE, r"the key field 'id' holds half of a surrogate pair: k\ud800")


def test_whole_numbers_are_keys_and_a_json_number_is_not_rounded(bench: Bench) -> None:
    (bench.source / "a.jsonl").write_text(json.dumps({"id": 2**70}) + "\n", encoding="utf-8")
    assert read(bench.source)[0].key == str(2**70)


# Large row groups


def test_a_row_group_far_larger_than_a_batch_is_read_in_pieces_of_512_rows(bench: Bench) -> None:
    pq.write_table(pa.table({"id": [str(n) for n in range(20_000)]}), bench.source / "a.parquet")
    assert pq.read_metadata(bench.source / "a.parquet").num_row_groups == 1
    spec = SourceSpec(kind="parquet", location=str(bench.source), id="id")
    (file,) = list_source(spec).files
    sizes = [len(chunk) for chunk in reader(spec, (FULL,)).chunks(file)]
    assert sum(sizes) == 20_000
    assert max(sizes) == 512


def test_a_large_row_group_is_not_held_in_memory(bench: Bench) -> None:
    """Case 16: arrow would hold the compressed columns of the whole group."""
    rows = 40_000
    titles = [os.urandom(400).hex() for _ in range(rows)]
    pq.write_table(pa.table({"id": [str(n) for n in range(rows)], "title": titles}), bench.source / "a.parquet")
    del titles
    spec = SourceSpec(kind="parquet", location=str(bench.source), id="id")
    (file,) = list_source(spec).files
    pool = pa.default_memory_pool()
    before, most, count = pool.bytes_allocated(), 0, 0
    for chunk in reader(spec, (FULL,)).chunks(file):
        most = max(most, pool.bytes_allocated() - before)
        count += len(chunk)
    assert count == rows
    assert file.size > 30e6
    assert most < 10e6


def test_a_large_row_group_is_named_with_what_to_do(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embeddings_pipeline.storage.parquet.LARGE_ROW_GROUP_BYTES", 100_000)
    rows = {
        "id": [str(n) for n in range(3000)],
        "m": [{"title": os.urandom(50).hex(), "more": "x"} for _ in range(3000)],
    }
    pq.write_table(pa.table(rows), bench.source / "a.parquet", row_group_size=2000)
    read(bench.source, "parquet", StrategySpec(name="t", fields=("m.more",)))
    assert caplog.messages == []
    read(bench.source, "parquet", StrategySpec(name="t", fields=("m.title",)))
    (message,) = caplog.messages
    assert re.match(r"row group 1 of '.*a\.parquet' holds 2,000 rows and 2\d\d,\d{3} bytes of the columns", message)
    assert message.endswith("write such files with row groups of at most 64 MB (pyarrow: row_group_size)")
