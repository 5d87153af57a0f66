"""What materializations show, on reports as the core makes them."""

import dagster as dg
import pyarrow as pa

from embeddings_pipeline.orchestration import metadata
from embeddings_pipeline.records import Counts, Reason, Reject, dataset_schema
from embeddings_pipeline.reports import EmbedReport, EmbedStatistics, ExtractReport, PartReport, PublishReport, TopToken
from embeddings_pipeline.settings import CorpusSpec


def spec(**changes):
    attributes = {
        "name": "small",
        "source": {"kind": "jsonl", "location": "works.jsonl"},
        "strategies": [{"name": "full_record"}],
        "model": {"name": "m"},
        "output": {"location": "out"},
    }
    return CorpusSpec.parse(attributes | changes, "here")


SPEC = spec()
COUNTS = Counts(read=10, embedded=8, skipped=1, rejected=1)


def embed_report(**changes):
    fields = {
        "counts": COUNTS,
        "parts": [PartReport(f"p{number}", "full_record", COUNTS, tokens=80, truncated=2) for number in range(25)],
        "computed": 8,
        "tokens": 80,
        "truncated": 2,
        "seconds": 2.0,
        "compute_share": 0.97,
        "device": "cpu",
        "workers": 2,
        "application_batch_size": 3,
        "model_batch_size": 4,
        "model_batch_tokens": 1024,
        "model": {"model_name": "tests/tiny", "dimensions": 16, "fingerprint": "0123456789abcdef", "revision": None},
        "rejects_by_reason": {"null_text": 1, "blank_text": 0},
        "staging_location": "/out/staging",
        "rejects_location": "/out/rejects",
        "events": (),
    }
    return EmbedReport(**fields | changes)


def test_embeddings_show_counts_rates_and_the_effective_sizes():
    shown = metadata.embeddings_metadata(SPEC, embed_report())
    wanted = {
        "read": 10,
        "embedded": 8,
        "skipped": 1,
        "rejected": 1,
        "texts_per_second": 4.0,
        "tokens_per_second": 40.0,
        "truncated_share": 0.25,
        "dimensions": 16,
        "model": "tests/tiny",
        "fingerprint": "0123456789abcdef",
        "device": "cpu",
        "workers": 2,
        "application_batch_size": 3,
        "model_batch_size": 4,
        "model_batch_tokens": 1024,
        "dagster/row_count": 8,
        "rejects_location": dg.MetadataValue.path("/out/rejects"),
    }
    assert {name: shown[name] for name in wanted} == wanted


def test_tables_show_rejects_the_model_and_twenty_parts():
    shown = metadata.embeddings_metadata(SPEC, embed_report())
    assert [record.data for record in shown["rejects_by_reason"].records] == [{"reason": "null_text", "texts": 1}]
    assert {record.data["property"] for record in shown["model_row"].records} == {
        "model_name",
        "dimensions",
        "fingerprint",
    }
    assert len(shown["parts_table"].records) == 20
    assert shown["parts"] == 25


def test_a_run_without_texts_has_no_rates_and_no_empty_tables():
    report = embed_report(
        counts=Counts(), parts=(), computed=0, truncated=0, seconds=0.0, rejects_by_reason={}, model={}
    )
    shown = metadata.embeddings_metadata(SPEC, report)
    assert shown["truncated_share"] == 0.0
    assert not {"texts_per_second", "tokens_per_second", "compute_share"} & shown.keys()
    assert not {"parts_table", "rejects_by_reason", "first_rejects", "top_tokens", "model", "events"} & shown.keys()


def test_pictures_are_shown_as_markdown_and_are_never_missing():
    """A place that is empty in one run and full in the next would look like a fault of the UI."""
    for report in (embed_report(), embed_report(statistics=EmbedStatistics({8: 8}, 16))):
        shown = metadata.embeddings_metadata(SPEC, report)
        for name in ("token_lengths", "throughput", "projection"):
            assert isinstance(shown[name], dg.MarkdownMetadataValue)
            assert shown[name].value
    assert shown["token_lengths"].value.startswith("![Token lengths](<data:image/svg+xml,")


def test_top_tokens_and_the_first_rejects_are_tables():
    lost = Reject(None, "title", 0, "extract", Reason.NULL_KEY, "x" * 500, "works.jsonl line 12")
    statistics = EmbedStatistics(top_tokens=(TopToken("whale", 7, 12.3456),))
    shown = metadata.embeddings_metadata(SPEC, embed_report(statistics=statistics, first_rejects=(lost,)))
    assert [row.data for row in shown["top_tokens"].records] == [{"token": "whale", "texts": 7, "weight": 12.35}]
    (row,) = [row.data for row in shown["first_rejects"].records]
    assert (row["record_id"], row["reason"], row["position"]) == ("(none)", "null_key", "works.jsonl line 12")
    assert len(row["detail"]) == metadata.LONGEST_CELL


def test_rows_are_those_of_a_partition_where_there_are_partitions():
    in_files = spec(deliveries="files")
    assert metadata.embeddings_metadata(in_files, embed_report())["dagster/partition_row_count"] == 8
    assert "dagster/row_count" not in metadata.embeddings_metadata(in_files, embed_report())


def test_events_are_shown_as_a_list():
    shown = metadata.embeddings_metadata(SPEC, embed_report(events=("halved the budget", "halved it again")))
    assert shown["events"].value == "* halved the budget\n* halved it again"
    shown = metadata.embeddings_metadata(SPEC, embed_report(events=("halved the budget",) * 10_000))
    assert shown["events"].value.endswith("* and 9,980 more, which are in the step's log")


def test_records_show_where_they_came_from_and_lie():
    report = ExtractReport(Counts(read=10, rejected=1), 10, 2, 1, 1, 0, {"null_key": 1}, "/in", "/out/records", 0.5)
    shown = metadata.records_metadata(SPEC, report)
    assert shown["dagster/row_count"] == 9
    assert shown["texts_per_second"] == 20.0
    assert shown["records_location"] == dg.MetadataValue.path("/out/records")


def test_the_dataset_shows_its_columns_and_rows():
    report = PublishReport(
        COUNTS, 9, False, 1, 0, 2, {"full_record": 9}, 100, "/d", "/m", dataset_schema("dense", 16), "tiny", "ff", 0.1
    )
    shown = metadata.dataset_metadata(SPEC, report)
    columns = {column.name: column for column in shown["dagster/column_schema"].columns}
    assert columns["embedding"].type == "fixed_size_list<item: float>[16]"
    assert columns["revision"].constraints.nullable
    assert not columns["record_id"].constraints.nullable
    assert (shown["dagster/row_count"], shown["dimensions"], shown["files_removed"]) == (9, 16, 2)


def test_a_sparse_dataset_has_no_dimensions():
    for schema in (dataset_schema("dense", 4), dataset_schema("sparse", 0)):
        assert [column.name for column in metadata.column_schema(schema).columns if not column.description] == []
    assert metadata.column_schema(pa.schema([])).columns == []


def test_skips_show_their_reasons_and_warnings_their_sentences():
    skips = {"unchanged_part": 3, "unchanged_text": 1}
    shown = metadata.embeddings_metadata(SPEC, embed_report(skips_by_reason=skips, computed=5))
    assert [dict(row.data) for row in shown["skips_by_reason"].records] == [
        {"reason": "unchanged_part", "texts": 3},
        {"reason": "unchanged_text", "texts": 1},
    ]
    assert shown["finished_before"] == 3
    report = ExtractReport(
        Counts(), 0, 0, 0, 0, 0, {}, "/in", "/out/records", 0.5, warnings=("the source is empty", "look at it")
    )
    assert metadata.records_metadata(SPEC, report)["warnings"] == dg.MetadataValue.md(
        "* the source is empty\n* look at it"
    )
    assert "skips_by_reason" not in metadata.embeddings_metadata(SPEC, embed_report())
