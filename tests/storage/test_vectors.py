"""What is seen of vectors, and that files with vectors of no use are not published."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embeddings_pipeline.errors import VerificationError
from embeddings_pipeline.records import dataset_schema
from embeddings_pipeline.reports import VectorFacts
from embeddings_pipeline.storage.location import Location
from embeddings_pipeline.storage.manifests import PartManifest, dump, load
from embeddings_pipeline.storage.parts import file_digest
from embeddings_pipeline.storage.vectors import VectorsSeen, check_vectors
from embeddings_pipeline.storage.verify import verify
from tests.fakes import Bench, works


def dense(values: np.ndarray) -> pa.Table:
    flat = pa.array(np.ascontiguousarray(values, dtype=np.float32).reshape(-1))
    ids = [f"r{number}" for number in range(len(values))]
    return pa.table({"record_id": ids, "embedding": pa.FixedSizeListArray.from_arrays(flat, values.shape[1])})


def sparse(*rows: dict[int, float]) -> pa.Table:
    indices = pa.array([list(row) for row in rows], pa.list_(pa.int32()))
    weights = pa.array([list(row.values()) for row in rows], pa.list_(pa.float32()))
    ids = [f"r{number}" for number in range(len(rows))]
    return pa.table({"record_id": ids, "sparse_indices": indices, "sparse_values": weights})


def seen(*tables: pa.Table) -> VectorsSeen:
    look = VectorsSeen()
    for table in tables:
        look.add(table)
    return look


def test_norms_are_taken_over_all_tables() -> None:
    values = np.array([[3, 4], [0, 1], [6, 8]], np.float32)
    facts = seen(dense(values[:2]), dense(values[2:])).facts()
    assert facts == VectorFacts(rows=3, width=2, min_norm=1.0, max_norm=10.0)


def test_norms_of_large_values_do_not_overflow() -> None:
    facts = seen(dense(np.full((2, 4), 1e30))).facts()
    assert facts.max_norm == pytest.approx(2e30)


def test_many_rows_are_looked_at_as_few_are() -> None:
    """The pieces that bound memory change nothing."""
    values = np.random.default_rng(1).normal(size=(20_000, 3)).astype(np.float32)
    values[12_345] = np.nan
    look = VectorsSeen()
    assert look.add(dense(values)) == [12_345]
    good = np.delete(values, 12_345, axis=0)
    norms = np.linalg.norm(good.astype(np.float64), axis=1)
    facts = look.facts()
    assert (facts.rows, facts.non_finite, facts.constant) == (20_000, 1, False)
    assert (facts.min_norm, facts.max_norm) == (pytest.approx(norms.min()), pytest.approx(norms.max()))


def test_rows_are_counted_within_their_table() -> None:
    look = seen(dense(np.ones((5, 2))))
    assert look.add(dense(np.array([[1, 1], [np.inf, 1]]))) == [1]


@pytest.mark.parametrize(
    ("values", "constant"),
    [([[1, 2], [1, 2], [1, 2]], True), ([[1, 2], [1, 2], [1, 3]], False), ([[1, 2]], False)],
)
def test_vectors_that_are_all_the_same_are_constant(values: list[list[float]], constant: bool) -> None:
    table = dense(np.array(values))
    assert seen(table).facts().constant is constant
    assert seen(*(table.slice(row, 1) for row in range(len(values)))).facts().constant is constant


@pytest.mark.parametrize(
    ("rows", "constant"),
    [
        (({1: 0.5, 7: 0.25}, {1: 0.5, 7: 0.25}), True),
        (({1: 0.5, 7: 0.25}, {1: 0.5, 8: 0.25}), False),
        (({1: 0.5, 7: 0.25}, {1: 0.5}, {1: 0.5, 7: 0.25, 9: 0.1}), False),
        (({}, {}), True),
        (({}, {1: 0.5}), False),
    ],
)
def test_sparse_vectors_are_constant_where_indices_and_weights_are(rows: tuple[dict[int, float]], constant) -> None:
    table = sparse(*rows)
    assert seen(table).facts().constant is constant
    assert seen(*(table.slice(row, 1) for row in range(len(rows)))).facts().constant is constant


def test_sparse_norms_and_weights_that_are_not_finite() -> None:
    look = VectorsSeen()
    assert look.add(sparse({1: 3, 2: 4}, {}, {5: float("nan")}, {9: 1})) == [2]
    assert look.facts() == VectorFacts(rows=4, width=0, non_finite=1, min_norm=0.0, max_norm=5.0)


def test_half_precision_is_looked_at_too() -> None:
    flat = pa.array(np.array([[3, 4], [np.inf, 0]], np.float16).reshape(-1))
    table = pa.table({"record_id": ["a", "b"], "embedding": pa.FixedSizeListArray.from_arrays(flat, 2)})
    look = VectorsSeen()
    assert look.add(table) == [1]
    assert look.facts().max_norm == 5.0


def test_nothing_seen_is_nothing() -> None:
    assert VectorsSeen().facts() == VectorFacts()


def test_another_width_is_refused_with_both(tmp_path: Path) -> None:
    pq.write_table(dense(np.ones((2, 4))), tmp_path / "a.parquet")
    with pytest.raises(VerificationError, match=r"'shown'.*'embedding' of type fixed_size_list.*\[4\] where .*\[3\]"):
        check_vectors(tmp_path / "a.parquet", "shown", dataset_schema("dense", 3), VectorsSeen())


@pytest.mark.parametrize(
    ("hashes", "truncated", "constant"),
    [
        (["a", "a"], [False, False], False),
        (["a", "b"], [False, False], True),
        (["a", "b"], [True, True], False),
        (["a", "b"], [False, True], False),
    ],
)
def test_equal_texts_and_long_ones_with_one_head_are_not_constant(hashes, truncated, constant) -> None:
    """A nightly run may bring nothing but two records with one title, and fails nobody's check."""
    table = dense(np.ones((2, 3))).append_column("text_hash", pa.array(hashes))
    table = table.append_column("truncated", pa.array(truncated))
    assert seen(table).facts().constant is constant
    assert seen(table.slice(0, 1), table.slice(1, 1)).facts().constant is constant


# Publishing


def test_publishing_tells_what_it_saw_of_the_new_files_only(bench: Bench) -> None:
    bench.put("a.jsonl", works(6))
    facts = bench.run(part_texts=3).publish.vectors
    norms = [float(np.linalg.norm(row["embedding"])) for row in bench.rows()]
    assert (facts.rows, facts.width, facts.non_finite, facts.constant) == (6, 8, 0, False)
    assert (facts.min_norm, facts.max_norm) == (pytest.approx(min(norms)), pytest.approx(max(norms)))
    bench.put("a.jsonl", [*works(6), {"id": "new", "title": "n"}])
    assert bench.run(part_texts=3).publish.vectors.rows == 1
    assert bench.run(part_texts=3).publish.vectors == VectorFacts()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_vector_that_is_not_finite_is_not_published(bench: Bench, value: float) -> None:
    """However it came into the file: the part's own manifest agrees with it here."""
    bench.put("a.jsonl", works(5))
    bench.extract()
    bench.embed()
    (file,) = bench.output.staging.path.rglob("*.parquet")
    table = pq.read_table(file)
    vectors = np.array(table.column("embedding").to_pylist(), np.float32)
    vectors[3, 2] = value
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 8)
    index = table.schema.get_field_index("embedding")
    pq.write_table(table.set_column(index, table.schema.field(index), column), file)
    place = Location(file.with_suffix(".json"))
    part = load(place, PartManifest)
    assert part is not None
    assert part.file is not None
    fixed = dataclasses.replace(part.file, bytes=file.stat().st_size, digest=file_digest(file))
    place.path.write_text(dump(dataclasses.replace(part, file=fixed)), encoding="utf-8")
    with pytest.raises(VerificationError, match=rf"'.*{file.name}' holds a vector that is not finite in row 4.*'r3'"):
        bench.publish()
    assert not bench.output.manifest.exists()
    assert not (bench.out / "dataset").exists()


def test_verify_names_vectors_that_are_zero_or_not_finite(bench: Bench) -> None:
    bench.put("a.jsonl", works(4))
    bench.run()
    (file,) = bench.output.dataset.path.rglob("*.parquet")
    table = pq.ParquetFile(file).read()
    index = table.schema.get_field_index("embedding")
    path = bench.output.manifest.path
    for vectors, kind in ((np.zeros((4, 8)), "zeros"), (np.full((4, 8), np.nan), "not finite")):
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.astype(np.float32).reshape(-1)), 8)
        pq.write_table(table.set_column(index, table.schema.field(index), column), file)
        manifest = json.loads(path.read_text(encoding="utf-8"))
        manifest["sets"][0]["files"][0].update(bytes=file.stat().st_size, digest=file_digest(file))
        path.write_text(json.dumps(manifest), encoding="utf-8")
        assert [problem.detail for problem in verify(bench.output.root).problems] == [f"holds 4 vectors {detail(kind)}"]


def detail(kind: str) -> str:
    return "of nothing but zeros" if kind == "zeros" else "that are not finite"
