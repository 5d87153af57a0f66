"""The plain, frozen data that travels between the layers.

What belongs here: dataclasses of records, texts, vectors and counts, and the parquet schemas of the
files that hold them. What does not: reading or writing those files (`storage`), computing vectors
(`inference`), and anything that imports Dagster or torch.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

FloatMatrix = npt.NDArray[np.float32]
IntVector = npt.NDArray[np.int32]
BoolVector = npt.NDArray[np.bool_]


class Reason(StrEnum):
    """Why a text was rejected; the code in the `reason` column of the rejects."""

    NULL_KEY = "null_key"
    DUPLICATE_KEY = "duplicate_key"
    UNPARSABLE = "unparsable"
    NULL_TEXT = "null_text"
    BLANK_TEXT = "blank_text"
    NOT_TEXT = "not_text"
    LONE_SURROGATE = "lone_surrogate"
    TOO_LARGE = "too_large"
    NON_FINITE = "non_finite"
    MODEL_ERROR = "model_error"
    BAD_KEY = "bad_key"
    WRONG_TYPE = "wrong_type"


class SkipReason(StrEnum):
    """Why a text that was read needed no computing; the skipped texts of a run are those of these reasons together.

    Either way its vector is published with the same text hash and fingerprint. `UNCHANGED_PART`: so is that of
    every text of its part, in one file, which stays as it is. `UNCHANGED_TEXT`: the vector is copied into a
    new file, or stays where it is in a run with limit or offset.
    """

    UNCHANGED_PART = "unchanged_part"
    UNCHANGED_TEXT = "unchanged_text"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A set of records that arrived together; a `whole` corpus has one, named `whole`."""

    corpus: str
    name: str = "whole"


@dataclass(frozen=True, slots=True)
class FoundDelivery:
    """A delivery as its source has it: a file by its path below the source's location, or a TIMDEX run by its id.

    `version` changes whenever the content may have; it is empty where files changed so shortly before
    that another change would look the same. `modified` is when the newest file changed, None where there
    is no file; `bytes` are those of all its files, of which one may hold several runs.
    """

    name: str
    version: str
    modified: dt.datetime | None
    bytes: int


@dataclass(frozen=True, slots=True)
class Discovery:
    """What a source holds: its deliveries by name, and how many other files lie there.

    `missing` says why there are none, where nothing is at the location; `withdrawn` names the deliveries
    that are published and that the source does not have any more (none of them while it is missing).
    """

    location: str
    deliveries: tuple[FoundDelivery, ...]
    strays: int = 0
    missing: str | None = None
    withdrawn: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """One thing to embed, as a source yields it.

    `key` is None, and `problem` says why, where the record cannot be used at all (no key, not
    parsable): it becomes one reject per strategy. `position` says where in the source it stands, in
    words that a person can follow (``works.jsonl line 12``).
    """

    key: str | None
    values: Mapping[str, Any]
    position: str
    problem: "tuple[Reason, str] | None" = None


@dataclass(frozen=True, slots=True)
class Text:
    """One (record, strategy, chunk) to embed. `text_hash` is `hash_text(text)`."""

    record_id: str
    strategy: str
    chunk: int
    text: str
    text_hash: str
    position: str


@dataclass(frozen=True, slots=True)
class Reject:
    """One text that could not be embedded; `record_id` is None where the record has no usable key."""

    record_id: str | None
    strategy: str
    chunk: int
    stage: str
    reason: Reason
    detail: str
    position: str


@dataclass(frozen=True, slots=True)
class Counts:
    """Texts of a part or a delivery. The identity `read = embedded + skipped + rejected` holds."""

    read: int = 0
    embedded: int = 0
    skipped: int = 0
    rejected: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.read + other.read,
            self.embedded + other.embedded,
            self.skipped + other.skipped,
            self.rejected + other.rejected,
        )

    @property
    def identity_holds(self) -> bool:
        """Whether every text that was read is accounted for exactly once."""
        return self.read == self.embedded + self.skipped + self.rejected


@dataclass(frozen=True, slots=True)
class EmbedOptions:
    """How one `Encoder.embed` call is cut into model batches; none of it changes a vector.

    `model_batch_tokens` 0 means the encoder's automatic budget, `workers` 0 as many as the device
    has (CPU: usable cores; CUDA: one).
    """

    model_batch_size: int = 64
    model_batch_tokens: int = 0
    workers: int = 0


@dataclass(frozen=True, slots=True)
class SparseVectors:
    """n sparse vectors in CSR form; row i is `[indptr[i], indptr[i + 1])` of the other two.

    Within a row the weights are strictly positive and fall; equal weights stand by index.

    *Shape:* indptr int64[n + 1], indices int32[nnz], values float32[nnz].
    """

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TextFailure:
    """A text of an `EmbeddedBatch` without a usable vector; `row` counts from 0 in input order."""

    row: int
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class EmbeddedBatch:
    """Vectors for n texts, in input order; dense or sparse, never both.

    Rows named in `failures` hold zeros (dense) or nothing (sparse) and must not be written.
    `token_count` counts the tokens of the whole text with its special tokens, before truncation;
    where `token_count_exact` is False the text was too long to be tokenised whole and the count is
    a lower bound. `events` are sentences for the run's log (back-offs, fallbacks).

    *Shape:* dense float32[n, dimensions]; token_count int32[n]; token_count_exact, truncated bool[n].
    """

    token_count: IntVector
    token_count_exact: BoolVector
    truncated: BoolVector
    dense: FloatMatrix | None = None
    sparse: SparseVectors | None = None
    failures: Sequence[TextFailure] = ()
    events: Sequence[str] = ()
    compute_seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.token_count)


RECORDS_SCHEMA = pa.schema(
    [
        pa.field("record_id", pa.string(), nullable=False),
        pa.field("chunk", pa.int32(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("text_hash", pa.string(), nullable=False),
        pa.field("position", pa.string(), nullable=False),
    ]
)
"""A records part: the texts of one slice of a source file for one strategy."""

REJECTS_SCHEMA = pa.schema(
    [
        pa.field("record_id", pa.string()),
        pa.field("delivery", pa.string(), nullable=False),
        pa.field("strategy", pa.string(), nullable=False),
        pa.field("chunk", pa.int32(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("position", pa.string(), nullable=False),
    ]
)
"""The rejects of one part."""


def dataset_schema(kind: str, dimensions: int, precision: str = "float32") -> pa.Schema:
    """Return the schema of a dataset file of the generic layout.

    Args:
        kind: `dense` or `sparse`.
        dimensions: width of a dense vector; a sparse one has no fixed width.
        precision: `float32` or `float16`, of a dense vector's numbers.
    """
    if kind == "dense":
        number = pa.float16() if precision == "float16" else pa.float32()
        vector = [pa.field("embedding", pa.list_(number, dimensions), nullable=False)]
    else:
        vector = [
            pa.field("sparse_indices", pa.list_(pa.int32()), nullable=False),
            pa.field("sparse_values", pa.list_(pa.float32()), nullable=False),
            pa.field("sparse_tokens", pa.list_(pa.string()), nullable=False),
        ]
    return pa.schema(
        [
            pa.field("record_id", pa.string(), nullable=False),
            pa.field("strategy", pa.string(), nullable=False),
            pa.field("chunk", pa.int32(), nullable=False),
            pa.field("delivery", pa.string(), nullable=False),
            pa.field("text_hash", pa.string(), nullable=False),
            pa.field("token_count", pa.int32(), nullable=False),
            pa.field("truncated", pa.bool_(), nullable=False),
            *vector,
            pa.field("model", pa.string(), nullable=False),
            pa.field("revision", pa.string()),
            pa.field("fingerprint", pa.string(), nullable=False),
            pa.field("embedded_at", pa.timestamp("us", tz="UTC"), nullable=False),
        ]
    )
