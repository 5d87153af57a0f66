"""`embeddings download-model`, `test-model-load`, and `models known|verify|convert`: models before they are loaded.

What belongs here: options and what is printed. What does not: fetching and checking (`models.download`),
and what hosts keep in memory (`models`).
"""

import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import click

from embeddings_pipeline.cli.models import json_option, models, print_table
from embeddings_pipeline.corpora import find_corpus
from embeddings_pipeline.inference.encoder import load_encoder
from embeddings_pipeline.inference.probe import TEXTS, self_test
from embeddings_pipeline.models import download, registry
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.settings import Environment, ModelSpec

_TOP_TOKENS = 8


def _model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options by which a model is named."""
    for option in (
        click.option("--model", "--model-uri", "name", help="A known name, or any name together with --source."),
        click.option("--source", help="hub:organisation/model, a folder, a .zip, s3://…, package:module/path."),
        click.option("--revision", help="On a hub: a commit, or a branch, which becomes the commit that it is now."),
        click.option("--corpus", help="Take the whole model spec of this corpus."),
    ):
        command = option(command)
    return command


@click.command("download-model")
@_model_options
@click.option("--to", help="Copy it here as well: a folder, a .zip or an s3:// location.")
@click.option("--force", is_flag=True, help="Fetch again what is in the store.")
@json_option
def download_model(
    name: str | None,
    source: str | None,
    revision: str | None,
    corpus: str | None,
    to: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Fetch a model into the model store, verified, for machines without a network."""
    environment = Environment.read()
    spec = _spec(name, source, revision, corpus, environment)
    _print(download.download(spec, environment, to=to, force=force), as_json)


@models.command("convert")
@_model_options
@click.option("--to", help="Where the converted model goes; without it, and for a hub or archive, the store.")
@json_option
def convert_model(
    name: str | None, source: str | None, revision: str | None, corpus: str | None, to: str | None, as_json: bool
) -> None:
    """Fetch a model whose weights are pickles, and rewrite them as safetensors in a process of its own."""
    environment = Environment.read()
    spec = _spec(name, source, revision, corpus, environment)
    _print(download.download(spec, environment, to=to, pickles=True), as_json)


@click.command("test-model-load")
@_model_options
@click.option("--device", default="cpu", show_default=True, help="cpu, or cuda:0 and so on.")
@json_option
def test_model_load(
    name: str | None, source: str | None, revision: str | None, corpus: str | None, device: str, as_json: bool
) -> None:
    """Load a model in this process, embed some fixed texts with it and say what came out."""
    started = time.monotonic()
    model = resolve(_spec(name, source, revision, corpus, None))
    encoder = load_encoder(model, device)
    try:
        batch = self_test(encoder)
        facts: dict[str, Any] = {
            "model_name": model.name,
            "device": encoder.device,
            "kind": encoder.kind,
            "dimensions": encoder.dimensions,
            "max_length": encoder.max_length,
            "revision": model.spec.revision,
            "fingerprint": model.fingerprint,
            "dtype": model.spec.dtype,
            "path": encoder.path,
            "path_reason": encoder.path_reason,
            "bytes": encoder.bytes,
            "folder": str(model.path),
            "seconds": round(time.monotonic() - started, 2),
        }
        if batch.sparse is not None:
            indptr, indices = batch.sparse.indptr, batch.sparse.indices
            facts["active_dims"] = [int(n) for n in indptr[1:] - indptr[:-1]]
            facts["top_tokens"] = [
                encoder.token_strings(indices[start : min(stop, start + _TOP_TOKENS)]).to_pylist()
                for start, stop in itertools.pairwise(indptr.tolist())
            ]
    finally:
        encoder.close()
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    top_tokens = facts.pop("top_tokens", ())
    for field, value in facts.items():
        click.echo(f"{field:>12}  {'-' if value in (None, '') else value}")
    for text, tokens in zip(TEXTS, top_tokens, strict=False):
        click.echo(f"{text}\n    {', '.join(tokens) or '-'}")
    click.echo(f"model `{model.name}` works on device `{encoder.device}`")


@models.command("known")
@json_option
def known_models(as_json: bool) -> None:
    """Show the models that a corpus can name without saying more."""
    known = list(registry.known_models().values())
    if as_json:
        click.echo(json.dumps({"models": [asdict(replace(model, prompts=dict(model.prompts))) for model in known]}))
        return
    columns = ("name", "kind", "dimensions", "max_length", "licence", "gated")
    print_table(
        [
            {column: getattr(model, column) for column in columns}
            | {"revision": (model.revision or "")[:12] or None, "unverified": list(model.unverified)}
            for model in known
        ]
    )


@models.command("verify")
@json_option
def verify_models(as_json: bool) -> None:
    """Read every file of the model store and compare it with what was fetched; exit code 1 if anything is wrong."""
    found = download.verify(Environment.read())
    if as_json:
        click.echo(json.dumps({"models": found}, ensure_ascii=False))
    else:
        for entry, problems in found.items():
            click.echo(f"{entry}: {'; '.join(problems) or 'verified'}")
        if not found:
            click.echo("the model store is empty")
    if any(found.values()):
        sys.exit(1)


def _spec(
    name: str | None, source: str | None, revision: str | None, corpus: str | None, environment: Environment | None
) -> ModelSpec:
    """Return the spec that the options name; only with an environment may a hub be asked what a branch is now."""
    if corpus is not None:
        if name or source or revision:
            raise click.UsageError("--corpus names the whole model spec; leave --model, --source and --revision out")
        return find_corpus(corpus, Environment.read()).model
    if name is None:
        raise click.UsageError("name a model with --model, or a corpus with --corpus")
    if environment is not None:
        return download.spec_of(name, source, revision, environment)
    return registry.complete(download.checked_spec(name, source, revision))


def _print(done: download.Downloaded, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(done), ensure_ascii=False))
        return
    for change in done.changes:
        click.echo(change)
    click.echo(done.message)
