"""What travels between a run and a model host: Arrow streams, model specs as JSON, error bodies.

What belongs here: the two directions of each message, side by side. What does not: sending them
(`client`) and answering them (`server`). Nothing is pickled: a peer can make no code run.
"""

import datetime as dt
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

import embeddings_pipeline
from embeddings_pipeline.errors import (
    ConfigurationError,
    DeviceFailedError,
    EmbeddingCancelledError,
    EmbeddingsError,
    HostUnavailableError,
    InvalidRequestError,
    ModelAmbiguousError,
    ModelDoesNotFitError,
    ModelEjectedError,
    ModelInUseError,
    ModelLoadError,
    ModelNotInCacheError,
    RequestTooLargeError,
    error_classes,
)
from embeddings_pipeline.models.store import ResolvedModel, resolve
from embeddings_pipeline.records import EmbeddedBatch, EmbedOptions, Reason, SparseVectors, TextFailure
from embeddings_pipeline.settings import ModelSpec

PROTOCOL = 1
"""Raised when a host and a client of different versions could not understand each other."""

ARROW = "application/vnd.apache.arrow.stream"
IDS_HEADER = "embeddings-error"
"""The header with the ids that an error carries; bodies have exactly the four keys of the design."""

LINK = "docs/model_host.md#errors"

_KEY = b"embeddings"
_LIBRARIES = ("torch", "transformers", "sentence-transformers", "tokenizers")
_HOST_CODE = ("errors.py", "settings", "packages.py", "records.py", "models", "inference", "host")
_MOST_IDS = 4_000

STATUS: Mapping[type[EmbeddingsError], int] = {
    ConfigurationError: 400,
    RequestTooLargeError: 413,
    ModelNotInCacheError: 404,
    ModelAmbiguousError: 409,
    ModelInUseError: 409,
    ModelEjectedError: 409,
    EmbeddingCancelledError: 499,
    ModelDoesNotFitError: 507,
    DeviceFailedError: 503,
    HostUnavailableError: 503,
    ModelLoadError: 500,
    EmbeddingsError: 500,
}
"""Status codes by error; the nearest base decides for the rest."""


@dataclass(frozen=True, slots=True)
class Build:
    """Which code a process runs: a host of other code is replaced, unless it is the newer one."""

    version: str
    digest: str
    written_at: float


@lru_cache(maxsize=1)
def this_build() -> Build:
    """Return the build of this process: what the code that hosts run holds, and the versions of its libraries."""
    root = Path(embeddings_pipeline.__file__).parent
    digest, written_at = hashlib.sha256(), 0.0
    named = [root / name for name in _HOST_CODE]
    files = [file for path in named for file in (path.rglob("*") if path.is_dir() else [path])]
    for file in sorted(file for file in files if file.suffix in (".py", ".yaml")):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
        written_at = max(written_at, file.stat().st_mtime)
    for library in _LIBRARIES:
        digest.update(f"{library} {_version(library)}\n".encode())
    return Build(_version("embeddings-pipeline"), digest.hexdigest()[:16], written_at)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"


def model_message(model: ResolvedModel) -> dict[str, Any]:
    """Return a model as JSON; a host finds its files under the path that the client has found them."""
    spec = model.spec.model_dump(mode="json") | {"source": str(model.path)}
    return {"spec": spec, "fingerprint": model.fingerprint}


def read_model(message: Mapping[str, Any]) -> ResolvedModel:
    """Find the model that a client means, and check that its files are the ones that the client sees.

    Raises:
        ConfigurationError: there is no such model here.
        InvalidRequestError: the message is none.
        ModelLoadError: its files have changed since the client looked.
    """
    try:
        spec = ModelSpec.model_validate(message["spec"])
        fingerprint = message.get("fingerprint")
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidRequestError(f"the model is no mapping with a spec ({error})") from error
    except ValidationError as error:
        problem = error.errors()[0]
        raise InvalidRequestError(f"model.{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error
    model = resolve(spec)
    if fingerprint is not None and fingerprint != model.fingerprint:
        raise ModelLoadError(
            model.name,
            f"its files in {model.path} have fingerprint {model.fingerprint}, not {fingerprint} as the run has found",
            "they were changed meanwhile: start the run again",
        )
    return model


def pack_texts(model: ResolvedModel, texts: Sequence[str], options: EmbedOptions) -> bytes:
    """Return an application batch as a request body.

    Texts travel as UTF-8 bytes in which a lone surrogate is a legal sequence: what is wrong with one
    text is the encoder's to say.
    """
    facts = model_message(model) | {
        "model_batch_size": options.model_batch_size,
        "model_batch_tokens": options.model_batch_tokens,
        "workers": options.workers,
    }
    column = pa.array([text.encode("utf-8", "surrogatepass") for text in texts], pa.large_binary())
    return bytes(_pack({"text": column}, facts))


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """An application batch as it arrives; `model` is a `model_message`."""

    model: dict[str, Any]
    texts: list[str]
    options: EmbedOptions


def read_texts(body: bytes | memoryview) -> EmbedRequest:
    """Read an application batch.

    Raises:
        InvalidRequestError: the body is none.
    """
    table, facts = _unpack(body)
    if "text" not in table.column_names or "spec" not in facts:
        raise InvalidRequestError("it lacks the column 'text' or the model's spec in the schema's metadata")
    column = table.column("text")
    if column.null_count or column.type not in (pa.large_binary(), pa.binary(), pa.string(), pa.large_string()):
        raise InvalidRequestError(f"the column 'text' is {column.type}, or has nulls; send bytes or strings")
    try:
        texts = [bytes_.decode("utf-8", "surrogatepass") for bytes_ in column.cast(pa.large_binary()).to_pylist()]
        numbers = {name: facts.get(name, 0) for name in ("model_batch_size", "model_batch_tokens", "workers")}
        if not all(isinstance(number, int) and number >= 0 for number in numbers.values()):
            raise InvalidRequestError("model_batch_size, model_batch_tokens and workers are whole numbers from 0")
        options = EmbedOptions(**numbers | {"model_batch_size": numbers["model_batch_size"] or 64})
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"a text is no UTF-8 ({error})") from error
    return EmbedRequest({name: facts.get(name) for name in ("spec", "fingerprint")}, texts, options)


def pack_vectors(batch: EmbeddedBatch, facts: Mapping[str, Any]) -> memoryview:
    """Return what became of an application batch as a response body."""
    columns: dict[str, pa.Array] = {
        "token_count": pa.array(batch.token_count),
        "token_count_exact": pa.array(batch.token_count_exact),
        "truncated": pa.array(batch.truncated),
    }
    if batch.dense is not None:
        flat = pa.array(np.ascontiguousarray(batch.dense).reshape(-1))
        columns["embedding"] = pa.FixedSizeListArray.from_arrays(flat, batch.dense.shape[1])
    elif batch.sparse is not None:
        offsets = pa.array(batch.sparse.indptr, pa.int64())
        for name, values in (("sparse_indices", batch.sparse.indices), ("sparse_values", batch.sparse.values)):
            columns[name] = pa.LargeListArray.from_arrays(offsets, pa.array(values))
    failures = [(failure.row, str(failure.reason), failure.detail) for failure in batch.failures]
    events = list(batch.events)
    return _pack(columns, {**facts, "failures": failures, "events": events, "compute_seconds": batch.compute_seconds})


def read_vectors(body: bytes) -> tuple[EmbeddedBatch, dict[str, Any]]:
    """Read what became of an application batch, and the facts about the encoder; arrays share the body's memory.

    Raises:
        InvalidRequestError: the body is none.
    """
    table, facts = _unpack(body)
    # The host sends one record batch, so that each column is one array without a copy.
    (batch,) = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    dense = sparse = None
    if "embedding" in batch.schema.names:
        column = batch.column("embedding")
        dense = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), column.type.list_size)
    else:
        indices, values = batch.column("sparse_indices"), batch.column("sparse_values")
        sparse = SparseVectors(
            indices.offsets.to_numpy(), indices.values.to_numpy(), values.values.to_numpy(zero_copy_only=False)
        )
    return EmbeddedBatch(
        token_count=batch.column("token_count").to_numpy(),
        token_count_exact=batch.column("token_count_exact").to_numpy(zero_copy_only=False),
        truncated=batch.column("truncated").to_numpy(zero_copy_only=False),
        dense=dense,
        sparse=sparse,
        failures=[TextFailure(row, Reason(reason), detail) for row, reason, detail in facts.pop("failures")],
        events=facts.pop("events"),
        compute_seconds=facts.pop("compute_seconds"),
    ), facts


def pack_strings(strings: pa.Array) -> memoryview:
    """Return a vocabulary as a response body."""
    return _pack({"token": strings}, {})


def read_strings(body: bytes) -> pa.Array:
    """Read a vocabulary."""
    return _unpack(body)[0].column("token").combine_chunks()


def _pack(columns: Mapping[str, pa.Array], facts: Mapping[str, Any]) -> memoryview:
    schema = pa.schema([(name, column.type) for name, column in columns.items()])
    schema = schema.with_metadata({_KEY: json.dumps(facts, default=str).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(list(columns.values()), schema=schema))
    return memoryview(sink.getvalue())


def _unpack(body: bytes | memoryview) -> tuple[pa.Table, dict[str, Any]]:
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            table = reader.read_all()
        table.validate(full=True)
        facts = json.loads((table.schema.metadata or {}).get(_KEY, b"{}"))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidRequestError(f"the body is no Arrow IPC stream ({error})") from error
    if not isinstance(facts, dict):
        raise InvalidRequestError("the metadata 'embeddings' of the schema is no JSON object")
    return table, facts


def row_message(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the cache as JSON; times as ISO 8601 in UTC."""
    return {name: value.isoformat() if isinstance(value, dt.datetime) else value for name, value in row.items()}


def status_of(error: EmbeddingsError) -> int:
    """Return the HTTP status of an error."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def error_body(error: EmbeddingsError) -> dict[str, str]:
    """Return an error as the body that hosts, `--json` and ops show."""
    kind = "invalid_request" if status_of(error) < 500 else "model_host"
    return {"message": str(error), "code": error.code, "type": kind, "link": LINK}


def error_ids(error: EmbeddingsError) -> str:
    """Return the ids of an error as the value of `IDS_HEADER`."""
    text = json.dumps(vars(error), default=str)
    return text if len(text) <= _MOST_IDS else "{}"


def read_error(body: Mapping[str, Any], ids: str | None) -> EmbeddingsError:
    """Return the error that a host has answered with, as an instance of the class that was raised there."""
    kind = error_classes().get(str(body.get("code")), EmbeddingsError)
    try:
        known = json.loads(ids or "{}")
    except ValueError:
        known = {}
    return kind.restored(str(body.get("message") or body), known if isinstance(known, dict) else {})
