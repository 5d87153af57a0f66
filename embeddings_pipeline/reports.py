"""What the use cases report: plain frozen data, from the pipeline to the command line, the UI and the benchmarks.

What belongs here: what a part, an extraction, an embedding or a publish counted and saw. What does not:
the records, texts and vectors themselves (`records`), and how a report is shown (`orchestration`, `cli`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from embeddings_pipeline.records import Counts, Reject


@dataclass(frozen=True, slots=True)
class PartReport:
    """What happened to one part; `resumed` where a finished attempt was found and nothing was done."""

    part_id: str
    strategy: str
    counts: Counts
    tokens: int
    truncated: int
    seconds: float = 0.0
    compute_seconds: float = 0.0
    resumed: bool = False
    batch_sizes: tuple[int, ...] = ()
    events: tuple[str, ...] = field(default=())
    skips_by_reason: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopToken:
    """A dimension of sparse vectors: how many texts gave it a weight, and the sum of these weights."""

    token: str
    texts: int
    weight: float


@dataclass(frozen=True, slots=True)
class EmbedStatistics:
    """What the pictures of a run are drawn from; its size does not grow with the number of texts.

    `token_lengths` counts texts by the least token count of their bin (`pipeline.statistics.BIN_EDGES`),
    before truncation; `max_length` is the model's limit in tokens, 0 where no part knows it. Item i of the
    two rates covers the seconds from `i * slot_seconds` on, counted from the start of the run. `points` are
    a sample of vectors in two dimensions, as (strategy, x, y) within -1 to 1; `explained` is the share of
    the sample's variance that they show. `top_tokens` is empty for dense vectors.
    """

    token_lengths: Mapping[int, int] = field(default_factory=dict)
    max_length: int = 0
    slot_seconds: float = 0.0
    texts_per_second: Sequence[float] = ()
    tokens_per_second: Sequence[float] = ()
    points: Sequence[tuple[str, float, float]] = ()
    explained: float = 0.0
    top_tokens: Sequence[TopToken] = ()


@dataclass(frozen=True, slots=True)
class ExtractReport:
    """What `pipeline.extract` did. `counts` has read = texts that follow + rejects; nothing embedded yet.

    `files_reused` were not read again, since they are as they were; `unreadable` were passed over.
    """

    counts: Counts
    records: int
    parts: int
    parts_reused: int
    files: int
    strays: int
    rejects_by_reason: Mapping[str, int]
    source_location: str
    records_location: str
    seconds: float
    files_reused: int = 0
    unreadable: int = 0
    extraction: str = ""
    first_rejects: Sequence[Reject] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class EmbedReport:
    """What `pipeline.embed` did with all parts of a delivery; sizes and workers are the effective ones.

    `tokens` counts the tokens that went through the model for the texts embedded, `seconds` the wall
    time of this attempt, `computed` the texts that this attempt (not a resumed one) computed.
    `skips_by_reason` (`SkipReason`) adds up to the skipped ones.
    """

    counts: Counts
    parts: Sequence[PartReport]
    computed: int
    tokens: int
    truncated: int
    seconds: float
    compute_share: float
    device: str
    workers: int
    application_batch_size: int
    model_batch_size: int
    model_batch_tokens: int
    model: Mapping[str, Any]
    rejects_by_reason: Mapping[str, int]
    staging_location: str
    rejects_location: str
    events: Sequence[str]
    statistics: EmbedStatistics = EmbedStatistics()
    first_rejects: Sequence[Reject] = ()
    skips_by_reason: Mapping[str, int] = field(default_factory=dict)

    @property
    def finished_before(self) -> int:
        """Texts that count as embedded, since an earlier attempt at these records had finished their parts."""
        return self.counts.embedded - self.computed

    @property
    def truncated_share(self) -> float:
        """Share of the embedded texts that are longer than the model takes."""
        return self.truncated / self.counts.embedded if self.counts.embedded else 0.0

    @property
    def records_per_second(self) -> float:
        """Texts computed by this attempt per second of its wall time."""
        return self.computed / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens computed by this attempt per second of its wall time."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class VectorFacts:
    """What publishing saw in the vectors of the files that it took in; files kept as they were are not read again.

    `width` is the dense width, 0 for sparse vectors; `min_norm` and `max_norm` are Euclidean, 0.0 where
    there is no row; `constant` is set where all rows hold the same vector, though they have different texts
    that the model took whole.
    """

    rows: int = 0
    width: int = 0
    non_finite: int = 0
    min_norm: float = 0.0
    max_norm: float = 0.0
    constant: bool = False


@dataclass(frozen=True, slots=True)
class PublishReport:
    """What `pipeline.publish` did. `published_rows` is counted in the files that the manifest names.

    `partial` is set by a run with limit or offset: it adds to what is published and removes nothing,
    so that `published_rows` may exceed `embedded + skipped`. `normalized`: the model gives vectors of length 1.
    `warnings` are sentences that somebody has to read, though the run succeeded.
    """

    counts: Counts
    published_rows: int
    partial: bool
    files: int
    files_kept: int
    files_removed: int
    rows_by_strategy: Mapping[str, int]
    bytes: int
    dataset_location: str
    manifest_location: str
    schema: pa.Schema
    model: str
    fingerprint: str
    seconds: float
    vectors: VectorFacts = VectorFacts()
    normalized: bool = False
    skips_by_reason: Mapping[str, int] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    @property
    def rows_kept(self) -> int:
        """Published rows that this run did not read: with limit or offset, `output.keep`, or an empty source."""
        return self.published_rows - self.counts.embedded - self.counts.skipped

    @property
    def identities_hold(self) -> bool:
        """Whether both identities of the design hold: texts accounted for, rows published."""
        expected = self.counts.embedded + self.counts.skipped
        rows_match = self.published_rows >= expected if self.partial else self.published_rows == expected
        return self.counts.identity_holds and rows_match
