"""The `embeddings` command: the use cases and the model hosts, without Dagster."""

from embeddings_pipeline.cli.main import main

__all__ = ["main"]
