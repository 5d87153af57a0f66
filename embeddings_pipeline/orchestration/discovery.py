"""The op that looks for a corpus's deliveries, for the command line and for whoever wants a list.

What belongs here: adding partitions for new deliveries and showing them all. What does not: finding them
(`pipeline.discover`) and starting runs for them (`sensors`, `schedules`).
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from embeddings_pipeline import pipeline
from embeddings_pipeline.orchestration.metadata import table
from embeddings_pipeline.orchestration.ops import verb
from embeddings_pipeline.orchestration.partitions import add_partitions
from embeddings_pipeline.records import Discovery
from embeddings_pipeline.settings import CorpusSpec

MOST_SHOWN = 100
"""Rows of the table: metadata is a row of the event log, and 10,000 deliveries would be a megabyte of it."""

_COLUMNS = {"delivery": "string", "state": "string", "modified": "string", "bytes": "int", "version": "string"}


def build_discover(spec: CorpusSpec) -> dg.OpDefinition:
    """Return the op of a corpus; its output is the list of all deliveries, those that are due before others."""

    @dg.op(
        name=f"{spec.name}__discover",
        description=f"List the deliveries of corpus '{spec.name}', and make partitions of new ones; embeds nothing.",
    )
    def discover(context: dg.OpExecutionContext) -> list:
        with verb(context):
            found = pipeline.discover(spec)
            waiting = {entry.delivery.name for entry in pipeline.due(spec, found)}
        if found.missing is not None:
            raise dg.Failure(description=found.missing, allow_retries=False)
        added = add_partitions(context.instance, spec, [delivery.name for delivery in found.deliveries])
        rows = _rows(found, waiting)
        counts = {"deliveries": len(found.deliveries), "due": len(waiting), "withdrawn": len(found.withdrawn)}
        context.add_output_metadata(
            {
                **counts,
                "partitions_added": added,
                "strays": found.strays,
                "source_location": dg.MetadataValue.path(found.location),
                f"first_{MOST_SHOWN}" if len(rows) > MOST_SHOWN else "table": table(_COLUMNS, rows[:MOST_SHOWN]),
            }
        )
        names = [row["delivery"] for row in rows if row["state"] == "due"]
        shown = ", ".join(names[:20]) + (" and more" if len(names) > 20 else "")
        context.log.info(
            f"{counts['deliveries']} deliveries, {added} of them new partitions; "
            f"{counts['due']} due: {shown or 'none'}; {counts['withdrawn']} withdrawn"
        )
        return rows

    return discover


def _rows(found: Discovery, waiting: set[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "delivery": delivery.name,
            "state": "due" if delivery.name in waiting else "published",
            "modified": delivery.modified.isoformat(timespec="seconds") if delivery.modified else "",
            "bytes": delivery.bytes,
            "version": delivery.version,
        }
        for delivery in found.deliveries
    ]
    rows.sort(key=lambda row: row["state"])
    return rows + _withdrawn(found.withdrawn)


def _withdrawn(names: Sequence[str]) -> list[dict[str, Any]]:
    return [{"delivery": name, "state": "withdrawn", "modified": "", "bytes": 0, "version": ""} for name in names]
