"""`embeddings show`: what is published of a corpus.

What belongs here: its options and what is printed. What does not: any work; that is `pipeline`'s.
"""

import shutil
from collections.abc import Sequence

import click

from embeddings_pipeline import pipeline
from embeddings_pipeline.cli.models import print_table
from embeddings_pipeline.corpora import find_corpus
from embeddings_pipeline.errors import ManifestError
from embeddings_pipeline.host.client import open_cache
from embeddings_pipeline.pipeline import inspection
from embeddings_pipeline.records import Delivery
from embeddings_pipeline.settings import CorpusSpec, Environment

_MOST_NEIGHBOURS = 3

_MOST_SHOWN = 50
"""Deliveries, the last by name; a corpus may have 10,000."""


@click.command()
@click.argument("corpus")
@click.option("--delivery", help="One delivery of a corpus that has several.")
@click.option("--query", "queries", multiple=True, help="Print the nearest texts to this one; repeatable.")
@click.option("--device", default="cpu", show_default=True, help="Where the queries are embedded.")
def show(corpus: str, delivery: str | None, queries: Sequence[str], device: str) -> None:
    """Show what is published of CORPUS, and what is nearest to each query."""
    environment = Environment.read()
    spec = find_corpus(corpus, environment)
    if spec.deliveries == "whole" or delivery is not None:
        shown = [Delivery(spec.name) if delivery is None else Delivery(spec.name, delivery)]
        print_summary(spec, shown[0])
    else:
        shown = _print_deliveries(spec)
    if not queries:
        return
    cache = open_cache(device, environment)
    try:
        found = [inspection.nearest(spec, one, queries, cache) for one in shown]
    finally:
        cache.close()
    width = shutil.get_terminal_size((120, 24)).columns
    for number, query in enumerate(queries):
        nearest = sorted((one for each in found for one in each[number]), key=lambda one: -one.similarity)
        click.echo(f"\n{query}")
        for neighbour in nearest[:_MOST_NEIGHBOURS]:
            line = f"  {neighbour.similarity:.3f}  {neighbour.record_id}  {' · '.join(neighbour.text.split(chr(10)))}"
            click.echo(line if len(line) <= width else line[: width - 1] + "…")


def _print_deliveries(spec: CorpusSpec) -> list[Delivery]:
    """Print a line for each delivery and the sums; return the deliveries that are published."""
    discovery = pipeline.discover(spec)
    waiting = {one.delivery.name for one in pipeline.due(spec, discovery)}
    rows: list[dict[str, object]] = []
    published: list[Delivery] = []
    for name in [*(one.name for one in discovery.deliveries), *discovery.withdrawn]:
        state = "withdrawn" if name in discovery.withdrawn else "due" if name in waiting else "published"
        try:
            facts = inspection.summary(spec, Delivery(spec.name, name))
        except ManifestError:
            waiting.add(name)
            rows.append({"delivery": name, "state": "due", "rows": 0, "rejected": 0, "files": 0})
            continue
        published.append(Delivery(spec.name, name))
        counts = {"rows": facts.rows, "rejected": facts.counts.rejected, "files": facts.files}
        rows.append({"delivery": name, "state": state, **counts})
    if len(rows) > _MOST_SHOWN:
        click.echo(f"the last {_MOST_SHOWN} of {len(rows)} deliveries:")
    if rows:
        print_table(rows[-_MOST_SHOWN:])
    if discovery.missing:
        click.echo(discovery.missing)
    click.echo(f"{len(published)} deliveries of corpus {spec.name} are published, {len(waiting)} are due")
    return published


def print_summary(spec: CorpusSpec, delivery: Delivery) -> None:
    """Print what is published of a delivery, and what the last run did."""
    facts = inspection.summary(spec, delivery)
    rate = f"{facts.records_per_second:.1f}" if facts.counts.embedded else "-"
    rows = {
        "corpus": spec.name,
        "model": facts.model,
        "read": facts.counts.read,
        "embedded": facts.counts.embedded,
        "skipped": facts.counts.skipped,
        "rejected": facts.counts.rejected,
        "records/s": rate,
        "dimensions": facts.dimensions,
        "rows published": facts.rows,
        "dataset": f"{facts.dataset} ({facts.files} files, {facts.bytes / 2**20:.1f} MiB)",
        "manifest": facts.manifest,
    }
    if facts.counts.rejected:
        rows["rejects"] = facts.rejects
    for name, value in rows.items():
        click.echo(f"{name:>15}  {value}")
