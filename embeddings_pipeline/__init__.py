"""Embed large collections: records from files to vectors in parquet, as a Dagster code location."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

__all__ = ["read"]


def read(location: str, **filters: Any) -> "pl.LazyFrame":
    """Return the current rows of the dataset at an output location, by its manifests.

    Args:
        location: the `output.location` of a corpus, local or `s3://`.
        **filters: `model`, `strategy`, `delivery`, and `s3` for how an object store is reached; see
            `embeddings_pipeline.storage.reading.read`.
    """
    # Here, since importing the package must not cost what polars and pyarrow do.
    from embeddings_pipeline.storage import reading

    return reading.read(location, **filters)
