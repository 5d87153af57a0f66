"""Reading what is published, by manifest, as a polars frame.

What belongs here: which files and rows are current. What does not: search; the frame goes into whatever
does that.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from embeddings_pipeline.errors import ConfigurationError, LocationNotFoundError
from embeddings_pipeline.records import dataset_schema
from embeddings_pipeline.settings import S3Spec
from embeddings_pipeline.storage.location import Place
from embeddings_pipeline.storage.manifests import DeliveryManifest, PublishedSet, load, published_deliveries
from embeddings_pipeline.storage.s3 import S3Location, locate

if TYPE_CHECKING:
    import polars as pl

_KEY = ["record_id", "strategy", "chunk", "model"]


def read(
    location: str,
    *,
    model: str | None = None,
    strategy: str | None = None,
    delivery: str | None = None,
    s3: S3Spec | None = None,
) -> "pl.LazyFrame":
    """Return the current rows of a dataset; nothing is read until the frame is collected.

    The manifests are read now: if a file they name is gone when the frame is collected, the dataset was
    published anew meanwhile, and `read` has to be called again. Where a key is published in several
    deliveries, its newest row is returned.

    Args:
        location: the `output.location` of a corpus.
        model: rows of this model only; needed where models with vectors of different shapes are published.
        strategy: rows of this strategy only.
        delivery: rows of this delivery only.
        s3: how an object store is reached, where the standard AWS variables do not say it.

    Raises:
        LocationNotFoundError: nothing is published there.
        ConfigurationError: the rows asked for have no common columns.
    """
    import polars as pl

    root = locate(location, "location", s3)
    manifests = [load(place, DeliveryManifest) for place in published_deliveries(root).values()]
    published = [
        (manifest, entry) for manifest in manifests if manifest is not None for entry in manifest.sets if entry.files
    ]
    if not manifests:
        raise LocationNotFoundError(
            "location", location, "or nothing is published there; name the output.location of a corpus"
        )
    chosen = [
        (manifest.delivery, entry)
        for manifest, entry in published
        if model in (None, entry.model) and strategy in (None, entry.strategy) and delivery in (None, manifest.delivery)
    ]
    if not chosen:
        wanted = {"model": model, "strategy": strategy, "delivery": delivery}
        _refuse_unknown({name: value for name, value in wanted.items() if value is not None}, published, location)
        entry = next((entry for manifest in manifests if manifest for entry in manifest.sets), None)
        schema = dataset_schema("dense", 1)
        if entry is not None:
            schema = dataset_schema(entry.kind, entry.dimensions or 1, entry.precision)
        return pl.LazyFrame(pl.from_arrow(schema.empty_table()))
    shapes = {(entry.kind, entry.dimensions, entry.precision) for _, entry in chosen}
    if len(shapes) > 1:
        names = ", ".join(sorted({entry.model for _, entry in chosen}))
        raise ConfigurationError(
            f"'{location}' holds vectors of different shapes, of the models {names}; name one: read(location, model=…)"
        )
    files = [str(root / file.path) for _, entry in chosen for file in entry.files]
    frame = pl.scan_parquet(files, glob=False, storage_options=_storage_options(root))
    if len({name for name, _ in chosen}) > 1:
        frame = frame.sort("embedded_at", "delivery").unique(_KEY, keep="last", maintain_order=True)
    return frame


def _refuse_unknown(
    wanted: dict[str, str], published: Iterable[tuple[DeliveryManifest, PublishedSet]], location: str
) -> None:
    """Say which names there are, where a filter names none of them."""
    known: dict[str, set[str]] = {"model": set(), "strategy": set(), "delivery": set()}
    for manifest, entry in published:
        known["model"].add(entry.model)
        known["strategy"].add(entry.strategy)
        known["delivery"].add(manifest.delivery)
    for name, value in wanted.items():
        if known[name] and value not in known[name]:
            raise ConfigurationError(
                f"'{location}' holds no {name} '{value}'; there is {', '.join(sorted(known[name]))}"
            )


def _storage_options(root: Place) -> dict[str, Any] | None:
    if not isinstance(root, S3Location):
        return None
    client = root.client
    endpoint = client.meta.endpoint_url
    plain = endpoint.startswith("http://")
    options: dict[str, Any] = {"aws_region": client.meta.region_name or "us-east-1"}
    if root.options.endpoint or "amazonaws.com" not in endpoint:
        options["aws_endpoint_url"] = endpoint
    return options | ({"aws_allow_http": "true"} if plain else {})
