"""The `embeddings` command: its groups, and how errors leave it.

What belongs here: putting the commands together, and exit codes. What does not: a command; those are
in `create`, `corpora`, `datasets`, `models` and `hosts`.

Exit codes: 0 done; 1 the run failed; 2 the command line or a configuration is wrong.
"""

import json
import logging
import sys

import click

from embeddings_pipeline.cli.corpora import show
from embeddings_pipeline.cli.create import create_embeddings
from embeddings_pipeline.cli.datasets import gc, scan, verify
from embeddings_pipeline.cli.hosts import host
from embeddings_pipeline.cli.models import devices, models
from embeddings_pipeline.cli.store import download_model, test_model_load
from embeddings_pipeline.errors import ConfigurationError, EmbeddingsError
from embeddings_pipeline.host.wire import error_body


@click.group()
@click.option("-v", "--verbose", is_flag=True, help="Log what libraries do, too: requests to S3 and the like.")
@click.version_option(package_name="embeddings-pipeline")
def embeddings(verbose: bool) -> None:
    """Embed collections that are declared as corpora, and look at what came out."""
    if verbose:
        logging.basicConfig(level=logging.DEBUG, format="%(asctime)s %(name)s %(message)s")


@embeddings.command()
def ping() -> None:
    """Print 'pong': the command is installed and starts."""
    click.echo("pong")


for command in (create_embeddings, show, verify, scan, gc, models, devices, host, download_model, test_model_load):
    embeddings.add_command(command)


def main() -> None:
    """Run the command; our own errors become one sentence on stderr, or JSON on stdout, and an exit code."""
    try:
        embeddings()
    except EmbeddingsError as error:
        if "--json" in sys.argv:
            click.echo(json.dumps(error_body(error), ensure_ascii=False))
        else:
            click.echo(f"Error: {error}", err=True)
        sys.exit(2 if isinstance(error, ConfigurationError) else 1)
