"""The plain data: counts that add up, and the schemas of the files."""

import dataclasses

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddings_pipeline.records import RECORDS_SCHEMA, REJECTS_SCHEMA, Counts, Reason, dataset_schema
from embeddings_pipeline.reports import PublishReport

NUMBERS = st.integers(0, 1000)
COUNTS = st.builds(lambda e, s, r: Counts(e + s + r, e, s, r), NUMBERS, NUMBERS, NUMBERS)


@given(st.lists(COUNTS, max_size=5))
def test_counts_that_hold_add_up_to_counts_that_hold(counts: list[Counts]) -> None:
    total = sum(counts, Counts())
    assert total.identity_holds
    assert total.read == sum(count.read for count in counts)


def test_a_text_that_is_lost_breaks_the_identity() -> None:
    assert not Counts(read=3, embedded=1, skipped=1).identity_holds


@pytest.mark.parametrize(
    ("counts", "rows", "partial", "holds"),
    [
        (Counts(5, 3, 1, 1), 4, False, True),
        (Counts(5, 3, 1, 1), 5, False, False),
        (Counts(5, 3, 1, 1), 3, False, False),
        (Counts(5, 3, 1, 1), 9, True, True),
        (Counts(5, 3, 1, 1), 3, True, False),
        (Counts(6, 3, 1, 1), 4, False, False),
    ],
)
def test_published_rows_are_those_embedded_and_skipped(counts: Counts, rows: int, partial: bool, holds: bool) -> None:
    report = PublishReport(
        counts=counts,
        published_rows=rows,
        partial=partial,
        files=1,
        files_kept=0,
        files_removed=0,
        rows_by_strategy={},
        bytes=0,
        dataset_location="",
        manifest_location="",
        schema=dataset_schema("dense", 1),
        model="",
        fingerprint="",
        seconds=0.0,
    )
    assert report.identities_hold == holds


def test_the_schemas_are_the_ones_of_the_design() -> None:
    assert dataset_schema("dense", 3).names == [
        "record_id",
        "strategy",
        "chunk",
        "delivery",
        "text_hash",
        "token_count",
        "truncated",
        "embedding",
        "model",
        "revision",
        "fingerprint",
        "embedded_at",
    ]
    assert dataset_schema("sparse", 3).field("sparse_indices").type == pa.list_(pa.int32())
    assert RECORDS_SCHEMA.names == ["record_id", "chunk", "text", "text_hash", "position"]
    assert REJECTS_SCHEMA.field("record_id").nullable
    assert not REJECTS_SCHEMA.field("reason").nullable


def test_reasons_are_written_as_their_code() -> None:
    assert f"{Reason.NULL_TEXT}" == str(Reason.NULL_TEXT) == "null_text"


def test_counts_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Counts().read = 1  # pyright: ignore[reportAttributeAccessIssue]
