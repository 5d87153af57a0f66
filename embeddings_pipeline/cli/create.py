"""`embeddings create-embeddings`: extract, embed and publish, without Dagster.

What belongs here: its options, the order of the deliveries, and what is printed. What does not: which
corpus the options mean (`asked`) and any work; that is `pipeline`'s.
"""

import json
import logging
import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import click

from embeddings_pipeline import pipeline
from embeddings_pipeline.cli.asked import Asked, work_location
from embeddings_pipeline.cli.corpora import print_summary
from embeddings_pipeline.cli.models import print_table
from embeddings_pipeline.errors import (
    BatchFailedError,
    ColumnError,
    ConfigurationError,
    DeliveryNotFoundError,
    EmbeddingsError,
    LocationNotFoundError,
    ManifestError,
    PublishConflictError,
    SourceChangedError,
    SourceUnreadableError,
    TooManyRejectsError,
    VerificationError,
)
from embeddings_pipeline.host.client import open_cache
from embeddings_pipeline.inference.cache import Cache
from embeddings_pipeline.pipeline.lines import lines_place, write_lines, write_rejects
from embeddings_pipeline.pipeline.preflight import output_of
from embeddings_pipeline.records import Counts, Delivery
from embeddings_pipeline.reports import EmbedReport, PublishReport
from embeddings_pipeline.settings import CorpusSpec, EmbedSettings, Environment, ExtractSettings
from embeddings_pipeline.storage.location import Location, Place
from embeddings_pipeline.storage.s3 import locate

_log = logging.getLogger(__name__)

_OF_ONE_DELIVERY = (
    BatchFailedError,
    ColumnError,
    DeliveryNotFoundError,
    LocationNotFoundError,
    ManifestError,
    PublishConflictError,
    SourceChangedError,
    SourceUnreadableError,
    TooManyRejectsError,
    VerificationError,
)
"""What may be wrong with one delivery and right with the next; a full disk or a model that fails stops them all."""

_WIDTH = 15

_COLUMNS = ("delivery", "read", "embedded", "skipped", "rejected", "published_rows")

_EPILOG = """\b
Exit codes:
  0  done; texts that were rejected are counted and kept with their reason
  1  the work failed or was interrupted; run the same command again, and
     it goes on after the last finished part
  2  an option, a corpus or the environment is wrong; nothing was done"""


@dataclass(frozen=True, slots=True)
class _Run:
    """How the records are taken and embedded; the same for every delivery."""

    taken: ExtractSettings
    embedded: EmbedSettings
    workers: int
    run_id: str


@dataclass(frozen=True, slots=True)
class _Done:
    """What became of one delivery."""

    delivery: Delivery
    embedded: EmbedReport
    published: PublishReport


@click.command("create-embeddings", epilog=_EPILOG)
@click.option("--corpus", help="A corpus that a defs.yaml declares.")
@click.option("--delivery", multiple=True, help="A delivery of it; repeatable. Default: all that are new or changed.")
@click.option("--model-uri", help="Without --corpus: the model's name. Default: TE_MODEL_URI.")
@click.option("--model-path", help="The folder with the model's files. Default: TE_MODEL_PATH.")
@click.option("--dataset-location", help="A TIMDEX dataset: records come from it, and embeddings go into it.")
@click.option("--run-id", help="Records of this run of the TIMDEX dataset.")
@click.option("--source", help="Or the current records of this source of it.")
@click.option("--input-jsonl", help="Or the records of this file of JSON lines, as timdex-embeddings takes them.")
@click.option("--id-field", help="The lines are plain records, and this field is the key.")
@click.option("--strategy", multiple=True, help="How a record becomes a text, such as full_record; repeatable.")
@click.option("--output-jsonl", help="Write the embeddings to this file of JSON lines (.gz compresses).")
@click.option("--run-record-offset", default=0, show_default=True, help="Of a TIMDEX run: the first record's number.")
@click.option("--record-offset", default=0, show_default=True, help="Records to leave out at the start.")
@click.option("--record-limit", default=0, show_default=True, help="Records to take; 0 for all.")
@click.option("--batch-size", type=int, help="Application batch: texts in memory at once.  [default: 1000]")
@click.option("--model-batch-size", default=64, show_default=True, help="Texts that go through the model at once.")
@click.option("--model-batch-tokens", default=0, show_default=True, help="Tokens likewise; 0 is automatic.")
@click.option("--device", default="cpu", show_default=True, help="cpu, or cuda:0 and so on.")
@click.option(
    "--workers", type=click.IntRange(min=0), default=0, show_default=True, help="Worker threads on CPU; 0 is automatic."
)
@click.option("--force", is_flag=True, help="Compute vectors that are published already, too.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def create_embeddings(**options: Any) -> None:
    r"""Extract, embed and publish a corpus, or records that options name.

    \b
    embeddings create-embeddings --corpus demo
    embeddings create-embeddings --model-uri NAME --strategy full_record \
        --dataset-location s3://timdex/dataset --run-id RUN
    embeddings create-embeddings --model-uri NAME --strategy full_record \
        --input-jsonl records.jsonl --output-jsonl embeddings.jsonl

    The summary goes to stdout, the log and on a terminal a progress bar to stderr.
    """
    asked = Asked(**{field.name: options.pop(field.name) for field in fields(Asked)})
    _create(asked, **options)


def _create(
    asked: Asked,
    run_record_offset: int,
    record_offset: int,
    record_limit: int,
    batch_size: int | None,
    model_batch_size: int,
    model_batch_tokens: int,
    device: str,
    workers: int,
    force: bool,
    as_json: bool,
) -> None:
    environment = Environment.read()
    size = (environment.batch_size or EmbedSettings().application_batch_size) if batch_size is None else batch_size
    run = _Run(
        ExtractSettings(record_limit, record_offset, run_record_offset),
        EmbedSettings(size, model_batch_size, model_batch_tokens, force),
        workers,
        f"cli-{secrets.token_hex(4)}",
    )
    work: Place | None = None
    if asked.corpus:
        spec = asked.of_a_declared_corpus(environment)
    else:
        spec, work = asked.of_options(environment, repr(run.taken) if run.taken.partial else "")
    if run.taken.run_record_offset and not spec.source.timdex:
        raise click.UsageError(
            f"run_record_offset is {run.taken.run_record_offset}, but source.kind is {spec.source.kind}, whose records "
            "have no number in a TIMDEX run; use --record-offset"
        )
    target = lines_place(asked.output_jsonl) if asked.output_jsonl else None
    with pipeline.attach_log_handler():
        pipeline.preflight([spec], device=device, extract=run.taken, embed=run.embedded)
        deliveries, meant = _deliveries(spec, asked.delivery, everything=force or run.taken.partial)
        cache = open_cache(device, environment)
        try:
            done, failed = _each(spec, deliveries, run, cache)
        finally:
            cache.close()
        lines = _lines(spec, meant, asked, target, work) if target is not None and not failed else None
    if spec.output.layout == "timdex":
        lines = {"timdex_embeddings": f"{spec.output.location.rstrip('/')}/data/embeddings"} | (lines or {})
    if as_json:
        click.echo(json.dumps(_facts(spec, done, failed, lines), ensure_ascii=False))
    elif work is not None:
        _print(_facts(spec, done, {}, lines), ("model", "read", "embedded", "rejected"), lines)
    elif spec.deliveries == "whole":
        print_summary(spec, done[0].delivery)
        _print({}, (), lines)
    else:
        if done:
            print_table([{name: facts[name] for name in _COLUMNS} for facts in map(_delivery_facts, done)])
        names = ("corpus", "model", "read", "embedded", "skipped", "rejected", "published_rows")
        _print(_facts(spec, done, {}, lines), names, lines)
    if failed and as_json:
        # The summary names them, and is to stay the only JSON there.
        sys.exit(1)
    if failed:
        raise EmbeddingsError(_sentence(failed, len(deliveries)))


def _deliveries(spec: CorpusSpec, names: Sequence[str], *, everything: bool) -> tuple[list[Delivery], list[Delivery]]:
    """Return the deliveries to embed (those named, or the new and changed ones), and all that were meant."""
    if names or spec.deliveries == "whole":
        named = [Delivery(spec.name, name) for name in dict.fromkeys(names)] or [Delivery(spec.name)]
        return named, named
    found = pipeline.discover(spec)
    if found.missing:
        raise ConfigurationError(found.missing)
    all_there = [Delivery(spec.name, one.name) for one in found.deliveries]
    if everything:
        return all_there, all_there
    # A file of the last two seconds has no version yet that could be compared.
    due = {one.delivery.name for one in pipeline.due(spec, found)} | {
        one.name for one in found.deliveries if not one.version
    }
    waiting = [one for one in all_there if one.name in due]
    _log.info("%d of %d deliveries are new or changed", len(waiting), len(all_there))
    return waiting, all_there


def _each(
    spec: CorpusSpec, deliveries: Sequence[Delivery], run: _Run, cache: Cache
) -> tuple[list[_Done], dict[str, EmbeddingsError]]:
    """Embed one delivery after the other; what is wrong with one is kept, and the others go on."""
    done: list[_Done] = []
    failed: dict[str, EmbeddingsError] = {}
    for delivery in deliveries:
        try:
            done.append(_one(spec, delivery, run, cache))
        except _OF_ONE_DELIVERY as error:
            if len(deliveries) == 1:
                raise
            _log.error("delivery %s: %s", delivery.name, error)
            failed[delivery.name] = error
    return done, failed


def _one(spec: CorpusSpec, delivery: Delivery, run: _Run, cache: Cache) -> _Done:
    mine = pipeline.extract(spec, delivery, run.taken, run_id=run.run_id).extraction
    embedded = pipeline.embed(
        spec, delivery, run.embedded, cache, workers=run.workers, run_id=run.run_id, extraction=mine
    )
    published = pipeline.publish(spec, delivery, run_id=run.run_id, extraction=mine)
    if not published.identities_hold:
        raise EmbeddingsError(
            f"{published.published_rows} rows are published, but {published.counts} were counted; run the command again"
        )
    return _Done(delivery, embedded, published)


def _lines(
    spec: CorpusSpec, deliveries: Sequence[Delivery], asked: Asked, target: Place, work: Place | None
) -> dict[str, Any]:
    """Write the file of lines; what is made of options leaves nothing else, but a file of its rejects."""
    name = asked.output_jsonl or ""
    scratch = locate(work_location(name, "scratch"), "output-jsonl")
    near = scratch if isinstance(scratch, Location) else output_of(spec, Delivery(spec.name)).scratch
    facts: dict[str, Any] = {"output_jsonl": str(target), "lines": write_lines(spec, deliveries, target, near)}
    if work is not None:
        stem = name.removesuffix(".gz").removesuffix(".jsonl")
        rejects = locate(f"{stem}.rejects.jsonl", "output-jsonl")
        if write_rejects(spec, deliveries, rejects, near):
            facts["rejects_jsonl"] = str(rejects)
        work.delete_tree()
    return facts


def _facts(
    spec: CorpusSpec, done: Sequence[_Done], failed: dict[str, EmbeddingsError], lines: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the summary for programs: the sums, and each delivery's own."""
    each = [_delivery_facts(one) for one in done]
    counts = sum((one.published.counts for one in done), Counts())
    seconds = sum(one.embedded.seconds for one in done)
    reasons = sum((Counter(one.embedded.rejects_by_reason) for one in done), Counter[str]())
    facts = {"corpus": spec.name, "model": spec.model.name} | asdict(counts)
    facts |= {
        "published_rows": sum(one.published.published_rows for one in done),
        "records_per_second": round(sum(one.embedded.computed for one in done) / seconds, 2) if seconds else 0.0,
        "rejects_by_reason": dict(reasons),
        "skips_by_reason": dict(sum((Counter(one.embedded.skips_by_reason) for one in done), Counter[str]())),
        "rows_kept": sum(one.published.rows_kept for one in done),
        "warnings": [warning for one in done for warning in one.published.warnings],
    }
    if len(done) == 1:
        facts |= {name: each[0][name] for name in ("dataset", "manifest", "rejects")}
    facts["deliveries"] = each
    if failed:
        facts["failed"] = {name: {"code": error.code, "message": str(error)} for name, error in failed.items()}
    return facts | (lines or {})


def _delivery_facts(one: _Done) -> dict[str, Any]:
    return {
        "delivery": one.delivery.name,
        **asdict(one.published.counts),
        "published_rows": one.published.published_rows,
        "records_per_second": round(one.embedded.records_per_second, 2),
        "rejects_by_reason": dict(one.embedded.rejects_by_reason),
        "skips_by_reason": dict(one.embedded.skips_by_reason),
        "finished_before": one.embedded.finished_before,
        "rows_kept": one.published.rows_kept,
        "warnings": list(one.published.warnings),
        "dataset": one.published.dataset_location,
        "manifest": one.published.manifest_location,
        "rejects": one.embedded.rejects_location,
    }


def _print(facts: dict[str, Any], names: Sequence[str], lines: dict[str, Any] | None) -> None:
    for name, value in ({name: facts[name] for name in names} | (lines or {})).items():
        click.echo(f"{name:>{_WIDTH}}  {value}")


def _sentence(failed: dict[str, EmbeddingsError], of: int) -> str:
    first, error = next(iter(failed.items()))
    rest = "; the log above names the others" if len(failed) > 1 else ""
    return f"{len(failed)} of {of} deliveries failed, the others are published; '{first}': {error}{rest}"
