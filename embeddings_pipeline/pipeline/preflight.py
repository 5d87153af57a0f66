"""What is checked before any work starts.

What belongs here: asking each layer whether a run can work at all. What does not: checks that need
the records themselves (`extraction`) or the loaded model (`inference`).
"""

import os
from collections.abc import Sequence

from embeddings_pipeline.errors import ConfigurationError, LocationNotFoundError
from embeddings_pipeline.inference.device import require_device
from embeddings_pipeline.inference.options import check_dtype
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.records import Delivery
from embeddings_pipeline.settings import CorpusSpec, EmbedSettings, ExtractSettings
from embeddings_pipeline.storage.location import Location, Place
from embeddings_pipeline.storage.parts import Output
from embeddings_pipeline.storage.s3 import locate
from embeddings_pipeline.storage.sources import is_hidden, source_location


def preflight(
    corpora: Sequence[CorpusSpec],
    *,
    device: str,
    extract: ExtractSettings | None = None,
    embed: EmbedSettings | None = None,
    prefix: str = "",
    source: bool = True,
    model: bool = True,
) -> None:
    """Check a run's settings, device, models and locations; loads no model, and lists and reads no source.

    Args:
        corpora: the corpora that the run touches.
        device: `cpu` or `cuda`, as the run asks for it.
        extract: settings to check, if the run extracts.
        embed: settings to check, if the run embeds.
        prefix: where these settings stand in the run's config, for messages.
        source: whether the run reads the corpora's sources.
        model: whether it needs their models.

    Raises:
        ConfigurationError: the first thing that cannot work, with field, value and remedy.
    """
    for settings in (extract, embed):
        if settings is not None:
            settings.check(prefix)
    require_device(device)
    for spec in corpora:
        if model:
            check_dtype(resolve(spec.model).spec, device)
        output = output_of(spec, Delivery(spec.name))
        place = source_location(spec.source) if source else None
        _check_output(output)
        if place is not None:
            _check_apart(spec, place, output.root)


def output_of(spec: CorpusSpec, delivery: Delivery) -> Output:
    """Return where a corpus writes a delivery."""
    root = locate(spec.output.location, "output.location", spec.output.options())
    if spec.output.layout == "timdex":
        # Beside data/, where TIMDEX's own tools read whatever is there.
        return Output(root / "embeddings_pipeline" / spec.name, delivery, root)
    return Output(root, delivery)


def _check_output(output: Output) -> None:
    root = output.root
    if not isinstance(root, Location):
        # Asks the store, and so fails for a bucket that is not there or not ours.
        output.check_owner()
        return
    nearest = next(folder for folder in (root.path, *root.path.parents) if os.path.lexists(folder))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise LocationNotFoundError(
            "output.location", str(root), f"and '{nearest}' is no folder that this user may write to; correct it"
        )
    output.check_owner()


def _check_apart(spec: CorpusSpec, source: Place, output: Place) -> None:
    """Refuse an output among the source's files: the next run would read what this one writes."""
    if isinstance(source, Location) and isinstance(output, Location):
        source = Location(source.path.resolve())
        if not source.path.is_dir():
            return
        output = Location(output.path.resolve())
    above, below = f"{str(source).rstrip('/')}/", f"{str(output).rstrip('/')}/"
    if below.startswith(above) and not is_hidden(below.removeprefix(above).rstrip("/")):
        raise ConfigurationError(
            f"output.location '{spec.output.location}' lies in source.location '{spec.source.location}', where the "
            "next run would read it as records; choose a folder outside of it"
        )
