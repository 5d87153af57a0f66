"""From a model's source to the model store.

What belongs here: bringing the needed files together from a hub, S3, an archive or a folder, and
making them safe to load before they are kept. What does not: the store's layout (`content`), and
deciding that something is fetched (`store`, `download`).
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from embeddings_pipeline.errors import LocationNotFoundError, ModelFetchError
from embeddings_pipeline.models import archives, conversion, gte
from embeddings_pipeline.models.content import KeptModel, ModelStore
from embeddings_pipeline.models.folder import check_safe, is_alibaba, looks_like_a_model, needed, read_json
from embeddings_pipeline.models.hub import Hub
from embeddings_pipeline.models.objects import Objects
from embeddings_pipeline.settings import Environment, ModelSpec
from embeddings_pipeline.settings.model import HUB

_ZIP = ".zip"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is fetched for whom: a spec with a source, and whether pickled weights may be taken and converted."""

    spec: ModelSpec
    pickles: bool = False

    @property
    def name(self) -> str:
        """The model's name, for messages."""
        return self.spec.name

    @property
    def source(self) -> str:
        """Where it comes from."""
        return self.spec.source or ""


def fetch(wanted: Wanted, store: ModelStore, environment: Environment, *, force: bool = False) -> KeptModel:
    """Bring a model into the store; of many processes at once, one downloads and the others find it done.

    Args:
        wanted: what.
        store: where to.
        environment: the hub's address and token.
        force: fetch again what is there.

    Raises:
        GatedModelError, UnsafeModelError, ConfigurationError: it is not to be had, or not to be trusted.
        ModelFetchError, ModelDigestError: it did not arrive whole.
    """
    source, revision = wanted.source, wanted.spec.revision
    before = store.find(source, revision)
    with store.lock(source, revision, wanted.name) as incoming:
        kept = store.find(source, revision)
        stamp = stamp_of(source)
        if kept is not None and kept.stamp == stamp and (not force or kept != before):
            shutil.rmtree(incoming)
            return kept
        fill(wanted, incoming, environment)
        changes = prepare(incoming, wanted)
        return store.keep(incoming, source, revision, changes=changes, stamp=stamp)


def stamp_of(source: str) -> str:
    """Return the state of a local archive: when it changes, it is taken apart again."""
    path = Path(source).expanduser()
    if source.startswith(("s3://", HUB)) or not path.is_file():
        return ""
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"


def is_fetched(source: str) -> bool:
    """Tell whether a source is brought into the store first, and not used where it lies."""
    return source.startswith((HUB, "s3://")) or source.lower().endswith(_ZIP)


def fill(wanted: Wanted, into: Path, environment: Environment) -> None:
    """Bring the needed files of a model into a folder."""
    source = wanted.source
    try:
        if source.startswith(HUB):
            _from_hub(wanted, into, environment)
            return
        _clear(into)
        if source.startswith("s3://"):
            _from_objects(wanted, into)
        elif source.lower().endswith(_ZIP):
            _from_archive(Path(source).expanduser(), wanted, into)
        else:
            copy(Path(source), wanted, into)
    except OSError as error:
        raise ModelFetchError(
            wanted.name, f"{into} cannot be written ({error})", "free space, then run it again"
        ) from error


def _from_hub(wanted: Wanted, into: Path, environment: Environment) -> None:
    model, revision = wanted.source.removeprefix(HUB), wanted.spec.revision or ""
    with Hub(environment.hub, environment.hub_token) as hub:
        listed = {file.path: file for file in hub.files(model, wanted.name, revision)}
        names = needed(listed, wanted.name, pickles=wanted.pickles)
        _clear(into, keep=names)
        there = sum(file.stat().st_size for file in into.rglob("*") if file.is_file())
        _check_room(wanted, into, sum(listed[name].size for name in names) - there)
        for name in names:
            hub.fetch(model, wanted.name, revision, listed[name], into / name)


def _from_objects(wanted: Wanted, into: Path) -> None:
    objects = Objects(wanted.source)
    if wanted.source.lower().endswith(_ZIP):
        archive = into.with_name(f"{into.name}{_ZIP}")
        objects.fetch("", archive)
        _from_archive(archive, wanted, into)
        archive.unlink()
        return
    sizes = objects.sizes()
    if not sizes:
        raise LocationNotFoundError("model.source", wanted.source, "name a prefix with the model's files below it")
    names = needed(sizes, wanted.name, pickles=wanted.pickles)
    _check_room(wanted, into, sum(sizes[name] for name in names))
    for name in names:
        objects.fetch(name, into / name)


def _from_archive(archive: Path, wanted: Wanted, into: Path) -> None:
    if not archive.is_file():
        raise LocationNotFoundError("model.source", wanted.source, "name a .zip with the model's files")
    archives.extract(archive, into, wanted.name, pickles=wanted.pickles)


def copy(folder: Path, wanted: Wanted, into: Path) -> None:
    """Copy the needed files of a model from a local folder."""
    names = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    for name in needed(names, wanted.name, pickles=wanted.pickles):
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, into / name)


def prepare(folder: Path, wanted: Wanted) -> list[str]:
    """Make fetched files loadable without their own code, and return what was rewritten, in words.

    Raises:
        UnsafeModelError: that is not possible.
        ModelFetchError: they are no model.
    """
    if not looks_like_a_model(folder):
        raise ModelFetchError(
            wanted.name,
            f"'{wanted.source}' holds neither modules.json nor config.json",
            "name the place that has the model's files, and run it again",
        )
    changes: list[str] = []
    if wanted.pickles:
        changes += [f"{name}: a pickle, rewritten as safetensors" for name in conversion.convert(folder, wanted.name)]
    try:
        for file in sorted(folder.rglob("config.json")):
            if is_alibaba(read_json(file)):
                gte.rewrite(file.parent, wanted.name)
                changes.append(f"{file.relative_to(folder).as_posix()}: rewritten for transformers' own GTE")
        check_safe(folder, wanted.name, wanted.source)
    except ValueError as error:
        raise ModelFetchError(
            wanted.name, f"a file of it is no JSON ({error})", "fetch it again with --force"
        ) from error
    return changes


def _check_room(wanted: Wanted, into: Path, size: int) -> None:
    free = shutil.disk_usage(into).free
    if size > free:
        raise ModelFetchError(
            wanted.name,
            f"{size:,} bytes are to come, and {into} has {free:,} bytes free",
            "free space or set EMBEDDINGS_MODEL_STORE to another disk, then run it again",
        )


def _clear(folder: Path, keep: Iterable[str] = ()) -> None:
    """Remove what an earlier attempt left, but for files of these names and their beginnings."""
    wanted = {folder / f"{name}{end}" for name in keep for end in ("", ".part")}
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path not in wanted:
            path.unlink()
