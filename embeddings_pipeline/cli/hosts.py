"""`embeddings host …`: starting, looking at and stopping model hosts by hand.

What belongs here: options and what is printed. What does not: the life of a host (`host.lifecycle`).
"""

import json

import click

from embeddings_pipeline.cli.models import json_option, print_table
from embeddings_pipeline.errors import HostUnavailableError
from embeddings_pipeline.host.lifecycle import Hosts, home_of, physical_device
from embeddings_pipeline.host.machine import ALL
from embeddings_pipeline.inference.device import require_device
from embeddings_pipeline.settings import CacheSettings, Environment, parse_bytes

_SHOWN = ("device", "pid", "version", "in_flight", "unused_s", "models", "started_at")
_DEFAULTS = CacheSettings()


@click.group()
def host() -> None:
    """Start, look at and stop the processes that keep models between runs, one for each device."""


@host.command()
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda:0 and so on.")
@click.option("--idle-timeout", default=_DEFAULTS.idle_timeout_s, show_default=True, help="Seconds; 0 stays for ever.")
@click.option("--memory-budget", default="0", show_default=True, help="For weights, such as 4 GiB; 0 for no limit.")
@click.option("--on-full", type=click.Choice(["error", "evict"]), default=_DEFAULTS.on_full, show_default=True)
@json_option
def start(device: str, idle_timeout: float, memory_budget: str, on_full: str, as_json: bool) -> None:
    """Start the host of a device, unless it runs already with these settings."""
    settings = CacheSettings(parse_bytes(memory_budget, "--memory-budget"), on_full, idle_timeout)
    settings.check("embeddings host start")
    require_device(device)
    hosts = _hosts()
    info = hosts.ensure(physical_device(device, hosts.environment)[0], settings)
    words = f"the host of `{info['device']}` runs (pid {info['pid']}, {info['socket']})"
    click.echo(json.dumps(info) if as_json else words)


@host.command()
@json_option
def status(as_json: bool) -> None:
    """Show which hosts run; starts nothing."""
    hosts = _hosts()
    rows = [info for device in hosts.devices() if (info := hosts.ask(device)) is not None]
    if as_json:
        click.echo(json.dumps({"hosts": rows}))
    elif rows:
        print_table([{name: row[name] for name in _SHOWN} for row in rows])
    else:
        click.echo("no host runs")


@host.command()
@click.option("--device", default=ALL, show_default=True, help="cpu, cuda:0 and so on.")
@click.option("--force", is_flag=True, help="Do not wait for what is being computed.")
@json_option
def stop(device: str, force: bool, as_json: bool) -> None:
    """Let hosts finish what they compute, and end them."""
    hosts = _hosts()
    chosen = hosts.devices() if device == ALL else [physical_device(device, hosts.environment)[0]]
    stopped = [name for name in chosen if hosts.stop(name, force=force)]
    if as_json:
        click.echo(json.dumps({"stopped": stopped}))
    else:
        click.echo(f"stopped: {', '.join(stopped)}" if stopped else "no host runs")


@host.command()
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda:0 and so on.")
@click.option("--lines", default=50, show_default=True, help="How many of the last lines.")
@json_option
def logs(device: str, lines: int, as_json: bool) -> None:
    """Print the last lines of a host's log."""
    hosts = _hosts()
    name, _ = physical_device(device, hosts.environment)
    found = hosts.log_lines(name, lines)
    if not found:
        raise HostUnavailableError(name, "has no log", [], f"embeddings host start --device {name}")
    click.echo(json.dumps({"device": name, "lines": found}) if as_json else "\n".join(found))


def _hosts() -> Hosts:
    environment = Environment.read()
    return Hosts(home_of(environment), environment)
