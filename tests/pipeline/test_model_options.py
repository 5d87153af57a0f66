"""The options of a model through a whole run: what is stored, and under which fingerprint."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embeddings_pipeline import pipeline
from embeddings_pipeline.errors import ConfigurationError
from embeddings_pipeline.inference.cache import ModelCache
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.pipeline.inspection import nearest
from embeddings_pipeline.records import Counts
from embeddings_pipeline.settings import EmbedSettings
from embeddings_pipeline.storage import reading
from embeddings_pipeline.storage.location import Location
from embeddings_pipeline.storage.verify import verify
from tests.fakes import Bench, vector_of, works


def with_model(bench: Bench, **options: Any) -> Bench:
    bench.changes["model"] = bench.spec().model.model_dump(exclude_defaults=True) | options
    return bench


def test_vectors_are_stored_in_half_precision_where_the_spec_says_so(bench: Bench) -> None:
    bench.put("a.jsonl", works(5))
    run = with_model(bench, precision="float16").run()
    assert run.publish.identities_hold
    assert run.publish.schema.field("embedding").type == pa.list_(pa.float16(), 8)
    (file,) = bench.output.dataset.path.rglob("*.parquet")
    assert pq.read_schema(file).field("embedding").type == pa.list_(pa.float16(), 8)
    texts = bench.texts()
    for row in bench.rows():
        np.testing.assert_allclose(row["embedding"], vector_of(texts[row["record_id"]]), rtol=1e-3)
    assert verify(Location(bench.out)).passed
    assert reading.read(str(bench.out)).collect().height == 5


def test_a_second_run_carries_half_precision_rows_over_and_adds_to_them(bench: Bench) -> None:
    bench.put("a.jsonl", works(5))
    with_model(bench, precision="float16").run()
    bench.put("a.jsonl", works(7))
    run = bench.run(run_id="second")
    assert run.embed.counts == Counts(read=7, embedded=2, skipped=5)
    assert verify(Location(bench.out)).passed


def test_another_precision_is_another_fingerprint_and_replaces_the_rows(bench: Bench) -> None:
    bench.put("a.jsonl", works(3))
    bench.run()
    run = with_model(bench, precision="float16").run(run_id="second")
    assert run.embed.counts.embedded == 3
    assert {type(row["embedding"][0]) for row in bench.rows()} == {float}
    assert len({row["fingerprint"] for row in bench.rows()}) == 1
    assert verify(Location(bench.out)).passed


def test_half_precision_computing_fails_before_any_work_on_a_cpu(bench: Bench) -> None:
    bench.put("a.jsonl", works(3))
    with pytest.raises(ConfigurationError, match="model.dtype of 'tests/fake' is float16, which a CPU computes"):
        pipeline.preflight([with_model(bench, dtype="float16").spec()], device="cpu")


def test_rows_the_models_row_and_the_report_have_one_fingerprint_whatever_the_batches(
    bench: Bench, tiny_dense_model: Path
) -> None:
    """The real model: other batch sizes and workers skip everything, another option embeds everything again."""
    bench.put("a.jsonl", works(9))
    options = {"source": str(tiny_dense_model), "prompt": "work: ", "truncate_dim": 6, "precision": "float16"}
    fingerprint = resolve(with_model(bench, **options).spec().model).fingerprint
    cache = ModelCache("cpu")
    try:
        bench.extract()
        report = pipeline.embed(bench.spec(), bench.delivery, EmbedSettings(4, 2), cache, workers=1, run_id="run")
        (row,) = cache.rows()
        bench.publish()
        assert row["fingerprint"] == report.model["fingerprint"] == fingerprint
        assert {row["fingerprint"] for row in bench.rows()} == {fingerprint}
        assert (row["dimensions"], row["dtype"]) == (6, "float32")
        for stored in bench.rows():
            assert np.linalg.norm(np.asarray(stored["embedding"], np.float32)) == pytest.approx(1, abs=1e-3)
        bench.extract(run_id="again")
        again = pipeline.embed(bench.spec(), bench.delivery, EmbedSettings(9, 9, 77), cache, workers=2, run_id="again")
        assert again.counts == Counts(read=9, skipped=9)
        ((best, *_),) = nearest(bench.spec(), bench.delivery, [bench.texts()["r3"]], cache)
        assert best.record_id == "r3"
        with_model(bench, prompt="other: ")
        other = pipeline.embed(bench.spec(), bench.delivery, EmbedSettings(), cache, run_id="other")
        assert other.counts == Counts(read=9, embedded=9)
    finally:
        cache.close()
