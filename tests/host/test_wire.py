"""Bodies: what goes in comes out, and what is none of ours is refused in words."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from embeddings_pipeline import errors
from embeddings_pipeline.host import wire
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.records import EmbeddedBatch, EmbedOptions, Reason, SparseVectors, TextFailure
from embeddings_pipeline.settings import ModelSpec
from tests.fakes import make_model

COUNTS = {
    "token_count": np.array([3, 0, 5], np.int32),
    "token_count_exact": np.array([True, True, False]),
    "truncated": np.array([False, False, True]),
    "failures": [TextFailure(1, Reason.LONE_SURROGATE, "why")],
    "events": ["something"],
    "compute_seconds": 0.5,
}


@pytest.fixture
def model(tmp_path: Path):
    return resolve(ModelSpec(name="tests/fake", source=str(make_model(tmp_path / "m")), kind="dense", max_length=9))


def same_counts(batch: EmbeddedBatch) -> None:
    for name, value in COUNTS.items():
        seen = getattr(batch, name)
        assert (
            (seen == value).all()
            if isinstance(value, np.ndarray)
            else list(seen) == value
            if isinstance(value, list)
            else seen == value
        )


def test_texts_arrive_as_they_were_with_model_and_options(model):
    texts = ["", "é", "a\ud800b", "x" * 10_000]
    request = wire.read_texts(wire.pack_texts(model, texts, EmbedOptions(7, 8, 9)))
    assert (request.texts, request.options) == (texts, EmbedOptions(7, 8, 9))
    assert wire.read_model(request.model) == model


def test_dense_vectors_arrive_bit_by_bit():
    dense = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    batch, facts = wire.read_vectors(bytes(wire.pack_vectors(EmbeddedBatch(dense=dense, **COUNTS), {"workers": 2})))
    same_counts(batch)
    assert batch.dense.tobytes() == dense.tobytes()
    assert (batch.sparse, facts) == (None, {"workers": 2})


def test_sparse_vectors_arrive_with_their_empty_rows():
    sparse = SparseVectors(
        np.array([0, 2, 2, 3], np.int64), np.array([5, 1, 7], np.int32), np.array([2, 1, 1], np.float32)
    )
    batch, _ = wire.read_vectors(bytes(wire.pack_vectors(EmbeddedBatch(sparse=sparse, **COUNTS), {})))
    same_counts(batch)
    for name in ("indptr", "indices", "values"):
        seen, sent = getattr(batch.sparse, name), getattr(sparse, name)
        assert seen.dtype == sent.dtype
        assert (seen == sent).all()


def test_no_texts_are_no_vectors():
    nothing = {name: value[:0] for name, value in COUNTS.items() if isinstance(value, np.ndarray)}
    batch, _ = wire.read_vectors(
        bytes(wire.pack_vectors(EmbeddedBatch(dense=np.zeros((0, 4), np.float32), **nothing), {}))
    )
    assert (len(batch), batch.dense.shape) == (0, (0, 4))


def stream(columns: dict, metadata: dict | None = None) -> bytes:
    table = pa.table(columns).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00" * 64,
        b"\xff\xff\xff\xff" * 16,
        stream({"text": ["a"]}),
        stream({"text": ["a"]}, {"embeddings": "no json"}),
        stream({"text": ["a"]}, {"embeddings": "[]"}),
        stream({"text": [1]}, {"embeddings": '{"spec": {}}'}),
        stream({"text": ["a", None]}, {"embeddings": '{"spec": {}}'}),
        stream({"text": [b"\xff"]}, {"embeddings": '{"spec": {}}'}),
        stream({"text": ["a"]}, {"embeddings": '{"spec": {}, "workers": -1}'}),
        stream({"text": ["a"]}, {"embeddings": '{"spec": {}, "workers": "x"}'}),
        stream({"other": ["a"]}, {"embeddings": '{"spec": {}}'}),
    ],
)
def test_a_body_that_is_none_is_refused(body):
    with pytest.raises(errors.InvalidRequestError, match="see the host's /openapi.json"):
        wire.read_texts(body)


@pytest.mark.parametrize("message", [{}, {"spec": None}, {"spec": []}, {"spec": {}}, {"spec": {"name": "x", "y": 1}}])
def test_a_model_that_is_none_is_refused(message):
    with pytest.raises(errors.InvalidRequestError):
        wire.read_model(message)


def test_a_model_whose_files_changed_since_the_run_looked_is_refused(model):
    message = wire.model_message(model)
    (model.path / "model.safetensors").write_bytes(b"others")
    with pytest.raises(errors.ModelLoadError, match="they were changed meanwhile: start the run again"):
        wire.read_model(message)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.ModelNotInCacheError("x", "cpu", ["y"]), 404, "model_not_in_cache"),
        (errors.ModelAmbiguousError("x", "cpu", ["a", "b"]), 409, "model_ambiguous"),
        (errors.ModelInUseError("x", "cpu", 2, 1.0), 409, "model_in_use"),
        (errors.ModelDoesNotFitError("x", "cpu", 9, "1 left", "do"), 507, "model_does_not_fit"),
        (errors.UnknownDeviceError("tpu", ["cpu"]), 400, "unknown_device"),
        (errors.UnknownModelError("x", []), 400, "unknown_model"),
        (errors.RequestTooLargeError(5), 413, "request_too_large"),
        (errors.ModelLoadError("x", "why", "check"), 500, "model_load_failed"),
        (errors.DeviceFailedError("cuda:0", "why"), 503, "device_failed"),
        (errors.HostUnavailableError("cpu", "ended", ["é"], "start"), 503, "host_unavailable"),
        (errors.ModelError("x"), 500, "model_error"),
    ],
)
def test_an_error_arrives_as_the_same_class_with_its_ids(error, status, code):
    body = wire.error_body(error)
    assert (wire.status_of(error), body["code"], list(body)) == (status, code, ["message", "code", "type", "link"])
    restored = wire.read_error(body, wire.error_ids(error))
    assert (type(restored), str(restored), vars(restored)) == (type(error), str(error), vars(error))


def test_codes_are_unique():
    def kinds(kind):
        return [kind, *(deeper for sub in kind.__subclasses__() for deeper in kinds(sub))]

    codes = [kind.code for kind in kinds(errors.EmbeddingsError)]
    assert sorted(codes) == sorted(set(codes))
