"""The files of a part: row groups, checks, and cutting into application batches."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embeddings_pipeline.errors import LocationOwnedError, VerificationError
from embeddings_pipeline.records import RECORDS_SCHEMA, Delivery, dataset_schema
from embeddings_pipeline.storage.location import Location
from embeddings_pipeline.storage.parts import Output, VectorsWriter, check_file, read_batches, remove_others
from embeddings_pipeline.storage.scratch import Scratch

SCHEMA = pa.schema([pa.field("text", pa.string())])


def records_file(path: Path, groups: list[int]) -> Location:
    with pq.ParquetWriter(path, RECORDS_SCHEMA) as writer:
        first = 0
        for size in groups:
            numbers = range(first, first + size)
            columns = {name: [f"{name}{number}" for number in numbers] for name in RECORDS_SCHEMA.names}
            columns["chunk"] = [0 for _ in numbers]
            writer.write_table(pa.table(columns, schema=RECORDS_SCHEMA))
            first += size
    return Location(path)


@pytest.mark.parametrize("groups", [[10], [1] * 10, [4, 6], [7, 3]])
@pytest.mark.parametrize(("size", "expected"), [(3, [3, 3, 3, 1]), (1, [1] * 10), (5, [5, 5]), (10, [10]), (100, [10])])
def test_application_batches_have_their_size_whatever_the_row_groups(
    tmp_path: Path, groups: list[int], size: int, expected: list[int]
) -> None:
    batches = list(read_batches(records_file(tmp_path / "records.parquet", groups), size))
    assert [batch.num_rows for batch in batches] == expected
    ids = [key for batch in batches for key in batch.column("record_id").to_pylist()]
    assert ids == [f"record_id{number}" for number in range(10)]


def test_each_write_is_a_row_group_and_a_large_one_is_cut_by_bytes(tmp_path: Path) -> None:
    """Case 18 and 26: a reader that takes one row group at a time stays small."""
    writer = VectorsWriter(tmp_path / "v.parquet", SCHEMA)
    writer.write(pa.table({"text": ["a", "b"]}))
    writer.write(pa.table({"text": pa.array([], pa.string())}))
    writer.write(pa.table({"text": ["x" * (1 << 20)] * 130}))
    assert writer.finish() is not None
    metadata = pq.ParquetFile(tmp_path / "v.parquet").metadata
    sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert sizes[0] == 2
    assert sum(sizes) == 132
    assert max(sizes) <= 64


def test_a_file_without_rows_is_no_file(tmp_path: Path) -> None:
    writer = VectorsWriter(tmp_path / "v.parquet", SCHEMA)
    assert writer.finish() is None
    assert not (tmp_path / "v.parquet").exists()


def test_a_file_is_checked_for_rows_schema_and_readability(tmp_path: Path) -> None:
    file = tmp_path / "v.parquet"
    pq.write_table(pa.table({"text": ["a"]}, schema=SCHEMA), file)
    check_file(file, SCHEMA, 1)
    with pytest.raises(VerificationError, match="holds 1 rows .* expected 2 rows"):
        check_file(file, SCHEMA, 2)
    with pytest.raises(VerificationError, match="expected 1 rows with"):
        check_file(file, dataset_schema("dense", 3), 1)
    file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(VerificationError, match=r"v\.parquet' cannot be read .*delete it and run the job again"):
        check_file(file, SCHEMA, 1)


def test_an_output_belongs_to_the_corpus_that_claimed_it_first(tmp_path: Path) -> None:
    root = Location(tmp_path / "out")
    first, second = Output(root, Delivery("first")), Output(root, Delivery("second"))
    with Scratch(root / "scratch") as scratch:
        first.claim(scratch)
        first.claim(scratch)
        with pytest.raises(
            LocationOwnedError, match="'first', so corpus 'second' cannot write there; give each corpus a location"
        ):
            second.claim(scratch)


def test_remove_others_leaves_what_is_named(tmp_path: Path) -> None:
    for name in ("a/keep", "a/go", "go"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert remove_others(Location(tmp_path), ["a/keep"]) == 2
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["keep"]


def test_the_dense_and_the_sparse_schema_differ_in_the_vector_only() -> None:
    dense, sparse = dataset_schema("dense", 384), dataset_schema("sparse", 30522)
    assert dense.field("embedding").type == pa.list_(pa.float32(), 384)
    assert [name for name in sparse.names if name.startswith("sparse_")] == [
        "sparse_indices",
        "sparse_values",
        "sparse_tokens",
    ]
    assert [name for name in dense.names if name != "embedding"] == [
        name for name in sparse.names if not name.startswith("sparse_")
    ]
