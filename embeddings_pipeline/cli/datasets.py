"""`embeddings verify`, `scan` and `gc`: looking at, reading and tidying up what is published.

What belongs here: their options and what they print. What does not: any work (`storage`, `pipeline`).
"""

import json
import sys
from dataclasses import asdict
from typing import Any

import click

from embeddings_pipeline import pipeline
from embeddings_pipeline.cli.models import json_option
from embeddings_pipeline.corpora import find_corpus
from embeddings_pipeline.pipeline import cleanup
from embeddings_pipeline.settings import Environment, S3Spec
from embeddings_pipeline.storage import reading
from embeddings_pipeline.storage.s3 import locate
from embeddings_pipeline.storage.verify import verify as verify_location

_endpoint = click.option("--endpoint", help="Of an S3 store; default: the standard AWS variables.")
_region = click.option("--region", help="Likewise.")


@click.command()
@click.argument("location")
@_endpoint
@_region
@json_option
def verify(location: str, endpoint: str | None, region: str | None, as_json: bool) -> None:
    """Prove the dataset at LOCATION, the output.location of a corpus; exit code 1 if anything is wrong."""
    found = verify_location(locate(location, "location", S3Spec(endpoint=endpoint, region=region)))
    if as_json:
        click.echo(json.dumps({"passed": found.passed} | asdict(found), ensure_ascii=False))
    else:
        click.echo(
            f"{found.location}: {found.rows} rows in {found.files} files, {found.sets} sets, "
            f"{found.deliveries} deliveries ({found.bytes / 2**20:.1f} MiB)"
        )
        if found.norms is not None:
            click.echo(f"lengths of vectors: {found.norms[0]:.6f} to {found.norms[1]:.6f}")
        for problem in found.problems:
            click.echo(f"{problem.kind}: {problem.place}: {problem.detail}")
        click.echo("verified" if found.passed else f"{len(found.problems)} problems")
    if not found.passed:
        sys.exit(1)


@click.command()
@click.argument("location")
@click.option("--model", help="Rows of this model only.")
@click.option("--strategy", help="Rows of this strategy only.")
@click.option("--delivery", help="Rows of this delivery only.")
@click.option("--limit", type=click.IntRange(min=0), default=0, show_default=True, help="Rows at most; 0 for all.")
@click.option("--vectors", is_flag=True, help="With the vectors.")
@click.option("--count", is_flag=True, help="Print the number of rows only.")
@_endpoint
@_region
def scan(
    location: str,
    model: str | None,
    strategy: str | None,
    delivery: str | None,
    limit: int,
    vectors: bool,
    count: bool,
    endpoint: str | None,
    region: str | None,
) -> None:
    """Print the current rows of the dataset at LOCATION, one JSON object a line."""
    s3 = S3Spec(endpoint=endpoint, region=region)
    frame = reading.read(location, model=model, strategy=strategy, delivery=delivery, s3=s3)
    if not vectors:
        wide = [name for name in frame.collect_schema().names() if name == "embedding" or name.startswith("sparse_")]
        frame = frame.drop(wide)
    if limit:
        frame = frame.limit(limit)
    if count:
        import polars as pl

        click.echo(frame.select(pl.len()).collect().item())
        return
    for batch in frame.collect_batches(chunk_size=1000):
        for row in batch.iter_rows(named=True):
            click.echo(json.dumps(row, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else list(value)


@click.command()
@click.argument("corpus")
@click.option(
    "--older-than-days", type=click.FloatRange(min=0), default=7.0, show_default=True, help="Longer than any run."
)
@click.option("--withdrawn", is_flag=True, help="Remove published deliveries that the source does not have any more.")
@json_option
def gc(corpus: str, older_than_days: float, withdrawn: bool, as_json: bool) -> None:
    """Remove what no manifest of CORPUS needs: orphans, old staging, and records that are published."""
    spec = find_corpus(corpus, Environment.read())
    with pipeline.attach_log_handler():
        done = cleanup.gc(spec, older_than=older_than_days * 86400, withdrawn=withdrawn)
        left = cleanup.withdrawn_deliveries(spec)
    if as_json:
        click.echo(json.dumps(asdict(done) | {"withdrawn_left": left}, ensure_ascii=False))
        return
    click.echo(
        f"removed {done.dataset} orphans, {done.staging} staged files, {done.records} files of records, "
        f"{done.attempts} dead attempts and {done.uploads} broken uploads ({done.bytes / 2**20:.1f} MiB)"
    )
    for name in done.withdrawn:
        click.echo(f"removed the withdrawn delivery {name}")
    for name in left:
        click.echo(f"delivery {name} is withdrawn from the source and still published; --withdrawn removes it")
