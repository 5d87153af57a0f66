"""`embeddings models …` and `embeddings devices`: what is in which device's memory.

What belongs here: options and what is printed. What does not: asking the hosts (`host.machine`).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from embeddings_pipeline.corpora import find_corpus
from embeddings_pipeline.host.lifecycle import Hosts, home_of
from embeddings_pipeline.host.machine import ALL, Machine, of_hosts
from embeddings_pipeline.models.download import checked_spec
from embeddings_pipeline.settings import Environment

_SHOWN = (
    *("model_name", "device", "kind", "dimensions", "fingerprint", "dtype", "path", "bytes"),
    *("uses", "in_use", "loaded_at", "last_used_at"),
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def models() -> None:
    """List, load and eject the models that hosts keep in memory."""


@models.command("list")
@click.option("--device", default=ALL, show_default=True, help="cpu, cuda:0 and so on.")
@json_option
def list_models(device: str, as_json: bool) -> None:
    """Show what is loaded; starts nothing."""
    rows = _machine().models(device)
    if as_json:
        click.echo(json.dumps({"models": rows}, ensure_ascii=False))
    elif rows:
        print_table([{name: row[name] for name in _SHOWN} for row in rows])
    else:
        click.echo("no model is loaded")


@models.command("load")
@click.argument("name")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda:0 and so on.")
@click.option("--source", help="Where the model's files are, if the registry does not know the name.")
@click.option("--revision", help="On a hub, the commit.")
@click.option("--corpus", help="Take the whole model spec of this corpus, whose model has that name.")
@json_option
def load_model(
    name: str, device: str, source: str | None, revision: str | None, corpus: str | None, as_json: bool
) -> None:
    """Load the model NAME now, and start the device's host if none runs."""
    if corpus is None:
        spec = checked_spec(name, source, revision)
    else:
        spec = find_corpus(corpus, Environment.read()).model
        if spec.name != name:
            raise click.UsageError(f"the model of corpus '{corpus}' is '{spec.name}', not '{name}'")
    done = _machine().load(spec, device)
    click.echo(json.dumps(done, ensure_ascii=False) if as_json else done["message"])


@models.command("eject")
@click.argument("name")
@click.option("--device", default=ALL, show_default=True, help="cpu, cuda:0 and so on.")
@click.option("--fingerprint", help="Which one, where two loaded models have the name.")
@click.option("--force", is_flag=True, help="Cancel what computes with it, instead of waiting for it.")
@json_option
def eject_model(name: str, device: str, fingerprint: str | None, force: bool, as_json: bool) -> None:
    """Unload the model NAME and give its memory back."""
    done = _machine().eject(name, device, fingerprint=fingerprint, force=force)
    if as_json:
        click.echo(json.dumps(done[0] if len(done) == 1 else done, ensure_ascii=False))
        return
    for ejection in done:
        click.echo(f"{ejection['message']} ({ejection['freed_bytes'] / 2**20:.1f} MiB of weights)")


@click.command()
@click.option("--device", default=ALL, show_default=True, help="cpu, cuda:0 and so on.")
@json_option
def devices(device: str, as_json: bool) -> None:
    """Show the memory of the devices, and what of it models take; starts nothing."""
    rows = _machine().devices(device)
    if as_json:
        click.echo(json.dumps({"devices": rows}, ensure_ascii=False))
    else:
        shown = ("device", "memory_usage", "total_device_memory", "models", "models_bytes")
        print_table([{name: row[name] for name in shown} for row in rows])


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows of the same keys, in columns."""
    columns = list(rows[0])
    cells = [columns, *([_cell(row[name]) for name in columns] for row in rows)]
    widths = [max(len(line[number]) for line in cells) for number in range(len(columns))]
    for line in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)


def _machine() -> Machine:
    environment = Environment.read()
    return of_hosts(Hosts(home_of(environment), environment))
