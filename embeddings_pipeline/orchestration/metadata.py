"""What the materializations of a corpus show: numbers, tables and locations.

What belongs here: turning a report of the core into Dagster metadata. What does not: measuring
anything; every value comes from the report or the corpus's spec.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa

from embeddings_pipeline.orchestration import pictures
from embeddings_pipeline.records import Counts, Reject
from embeddings_pipeline.reports import EmbedReport, ExtractReport, PartReport, PublishReport, TopToken
from embeddings_pipeline.settings import CorpusSpec

Metadata = dict[str, Any]

MOST_PARTS_SHOWN = 20
"""Rows of the parts table: metadata is a row of the event log and is loaded with each page of the run."""

MOST_EVENTS_SHOWN = 20

LONGEST_CELL = 160
"""Signs of a cell of the rejects' table: the whole detail is in the rejects file."""


COLUMN_DESCRIPTIONS = {
    "record_id": "Key of the record, as the source has it.",
    "strategy": "How the record became this text.",
    "chunk": "Piece of a long text; 0 where the text is whole.",
    "delivery": "The delivery that the record came with.",
    "text_hash": "Hash of the text; the vector is kept as long as this and the fingerprint are the same.",
    "token_count": "Tokens of the text, those beyond the model's limit included.",
    "truncated": "Whether the text is longer than the model takes, so that only its head was embedded.",
    "embedding": "The vector.",
    "sparse_indices": "Vocabulary numbers of the tokens that have a weight.",
    "sparse_values": "Weights, in the order of sparse_indices.",
    "sparse_tokens": "The same tokens in words.",
    "model": "Name of the model.",
    "revision": "The model's revision, where it has one.",
    "fingerprint": "Hash of all that changes a vector: the model's weights and options.",
    "embedded_at": "When the vector was computed.",
}
"""What a dataset's columns hold, as the UI shows it beside their types."""


def asset_metadata(spec: CorpusSpec) -> Metadata:
    """Return what a corpus's assets show before they were ever materialized."""
    return {
        "source": spec.source.location,
        "strategies": ", ".join(strategy.name for strategy in spec.strategies),
        "model": spec.model.name,
        "output": spec.output.location,
    }


def records_metadata(spec: CorpusSpec, report: ExtractReport) -> Metadata:
    """Describe the records that were extracted, of the whole source or of one delivery."""
    return {
        **_rows(spec, report.counts.read - report.counts.rejected),
        "dagster/uri": report.records_location,
        **_counts(report.counts, ("read", "rejected")),
        "records": report.records,
        "source_files": report.files,
        "source_files_unchanged": report.files_reused,
        "source_files_unreadable": report.unreadable,
        "parts": report.parts,
        "parts_reused": report.parts_reused,
        "strays": report.strays,
        **_rejects(report.rejects_by_reason, report.first_rejects),
        **_warnings(report.warnings),
        "source_location": dg.MetadataValue.path(report.source_location),
        "records_location": dg.MetadataValue.path(report.records_location),
        "seconds": round(report.seconds, 3),
        "texts_per_second": _rate(report.counts.read, report.seconds),
    }


def embeddings_metadata(spec: CorpusSpec, report: EmbedReport) -> Metadata:
    """Describe how the texts were embedded, with the effective sizes and pictures.

    A run that computed nothing has no rates: in Dagster's plots a rate of 0 would look like an accident.
    """
    return {
        **_rows(spec, report.counts.embedded),
        "dagster/uri": report.staging_location,
        **_counts(report.counts, ("read", "embedded", "skipped", "rejected")),
        "computed": report.computed,
        "finished_before": report.finished_before,
        **_skips(report.skips_by_reason),
        "tokens": report.tokens,
        "truncated": report.truncated,
        "truncated_share": round(report.truncated_share, 4),
        "seconds": round(report.seconds, 3),
        **(_rates(report) if report.computed else {}),
        "token_lengths": dg.MetadataValue.md(pictures.token_lengths(report)),
        "throughput": dg.MetadataValue.md(pictures.throughput(report)),
        "projection": dg.MetadataValue.md(pictures.projection(report)),
        "device": report.device,
        "workers": report.workers,
        "application_batch_size": report.application_batch_size,
        "model_batch_size": report.model_batch_size,
        "model_batch_tokens": report.model_batch_tokens,
        **_model(report.model),
        **_top_tokens(report.statistics.top_tokens),
        **_rejects(report.rejects_by_reason, report.first_rejects),
        **_parts(report.parts),
        **_events(report.events),
        "staging_location": dg.MetadataValue.path(report.staging_location),
        "rejects_location": dg.MetadataValue.path(report.rejects_location),
    }


def dataset_metadata(spec: CorpusSpec, report: PublishReport) -> Metadata:
    """Describe the published delivery."""
    return {
        **_rows(spec, report.published_rows),
        "dagster/uri": report.dataset_location,
        "dagster/column_schema": column_schema(report.schema),
        **_counts(report.counts, ("read", "embedded", "skipped", "rejected")),
        "published_rows": report.published_rows,
        "rows_kept": report.rows_kept,
        **_skips(report.skips_by_reason),
        **_warnings(report.warnings),
        "partial_run": report.partial,
        "files": report.files,
        "files_kept": report.files_kept,
        "files_removed": report.files_removed,
        "bytes": report.bytes,
        **_dimensions(report.schema),
        "model": report.model,
        "fingerprint": report.fingerprint,
        "rows_by_strategy": table(
            {"strategy": "string", "rows": "int"},
            [{"strategy": strategy, "rows": rows} for strategy, rows in report.rows_by_strategy.items()],
        ),
        "dataset_location": dg.MetadataValue.path(report.dataset_location),
        "manifest_location": dg.MetadataValue.path(report.manifest_location),
        "seconds": round(report.seconds, 3),
    }


def column_schema(schema: pa.Schema) -> dg.TableSchema:
    """Return the columns of a parquet schema as Dagster shows them."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                column.name,
                str(column.type),
                description=COLUMN_DESCRIPTIONS.get(column.name),
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
            )
            for column in schema
        ]
    )


def _rows(spec: CorpusSpec, rows: int) -> Metadata:
    """Give the rows under the name that Dagster plots, of a whole asset or of one delivery of it."""
    return {"dagster/row_count" if spec.deliveries == "whole" else "dagster/partition_row_count": rows}


def _counts(counts: Counts, names: Sequence[str]) -> Metadata:
    return {name: getattr(counts, name) for name in names}


def _rate(amount: int, seconds: float) -> float:
    return round(amount / seconds, 2) if seconds else 0.0


def _rates(report: EmbedReport) -> Metadata:
    return {
        "texts_per_second": round(report.records_per_second, 2),
        "tokens_per_second": round(report.tokens_per_second, 1),
        "compute_share": round(report.compute_share, 4),
    }


def _dimensions(schema: pa.Schema) -> Metadata:
    index = schema.get_field_index("embedding")
    return {"dimensions": schema.field(index).type.list_size} if index >= 0 else {}


def _model(row: Mapping[str, Any]) -> Metadata:
    """Show the model's row as a table, and the facts that people plot or compare as values of their own."""
    shown = {"model": row.get("model_name"), "fingerprint": row.get("fingerprint"), "dimensions": row.get("dimensions")}
    facts = [{"property": name, "value": str(value)} for name, value in row.items() if value is not None]
    return {name: value for name, value in shown.items() if value is not None} | {
        "model_row": table({"property": "string", "value": "string"}, facts)
    }


def _top_tokens(tokens: Sequence[TopToken]) -> Metadata:
    rows = [{"token": top.token, "texts": top.texts, "weight": round(top.weight, 2)} for top in tokens]
    return {"top_tokens": table({"token": "string", "texts": "int", "weight": "float"}, rows)} if rows else {}


def _rejects(by_reason: Mapping[str, int], first: Sequence[Reject]) -> Metadata:
    reasons = [{"reason": str(reason), "texts": texts} for reason, texts in sorted(by_reason.items()) if texts]
    if not reasons:
        return {}
    columns = ("record_id", "strategy", "stage", "reason", "detail", "position")
    rows = [{name: _cell(getattr(reject, name)) for name in columns} for reject in first]
    return {
        "rejects_by_reason": table({"reason": "string", "texts": "int"}, reasons),
        **({"first_rejects": table(dict.fromkeys(columns, "string"), rows)} if rows else {}),
    }


def _skips(by_reason: Mapping[str, int]) -> Metadata:
    rows = [{"reason": str(reason), "texts": texts} for reason, texts in sorted(by_reason.items()) if texts]
    return {"skips_by_reason": table({"reason": "string", "texts": "int"}, rows)} if rows else {}


def _warnings(warnings: Sequence[str]) -> Metadata:
    return {"warnings": dg.MetadataValue.md("\n".join(f"* {warning}" for warning in warnings))} if warnings else {}


def _cell(value: str | None) -> str:
    if value is None:
        return "(none)"
    text = str(value)
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"


def _events(events: Sequence[str]) -> Metadata:
    if not events:
        return {}
    lines = [f"* {event}" for event in events[:MOST_EVENTS_SHOWN]]
    if (more := len(events) - len(lines)) > 0:
        lines.append(f"* and {more:,} more, which are in the step's log")
    return {"events": dg.MetadataValue.md("\n".join(lines))}


def _parts(parts: Sequence[PartReport]) -> Metadata:
    rows = [
        {
            "part": part.part_id,
            "strategy": part.strategy,
            "read": part.counts.read,
            "embedded": part.counts.embedded,
            "skipped": part.counts.skipped,
            "rejected": part.counts.rejected,
            "tokens": part.tokens,
            "seconds": round(part.seconds, 3),
            "resumed": part.resumed,
        }
        for part in parts[:MOST_PARTS_SHOWN]
    ]
    types = {"part": "string", "strategy": "string", "seconds": "float", "resumed": "bool"}
    columns = {name: types.get(name, "int") for name in rows[0]} if rows else {}
    shown = {"parts_table": table(columns, rows)} if rows else {}
    return {"parts": len(parts), "parts_resumed": sum(part.resumed for part in parts), **shown}


def table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """Return rows as a table of the UI; `columns` are their names and types."""
    return dg.TableMetadataValue(
        records=[dg.TableRecord(dict(row)) for row in rows],
        schema=dg.TableSchema(columns=[dg.TableColumn(name, kind) for name, kind in columns.items()]),
    )
