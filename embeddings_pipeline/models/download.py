"""The verbs of the model store: download a model, convert one, verify what is there.

What belongs here: what the CLI and the op have in common, so that both say the same. What does not:
fetching (`fetch`) and the store's layout (`content`).
"""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from embeddings_pipeline.errors import ConfigurationError, ModelFetchError
from embeddings_pipeline.models import archives, registry
from embeddings_pipeline.models.content import ModelStore
from embeddings_pipeline.models.fetch import Wanted, copy, fetch, is_fetched, prepare
from embeddings_pipeline.models.hub import Hub
from embeddings_pipeline.models.objects import Objects
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.packages import PREFIX, path_in_package
from embeddings_pipeline.settings import Environment, ModelSpec
from embeddings_pipeline.settings.model import HUB, is_commit
from embeddings_pipeline.settings.spec import sentence


@dataclass(frozen=True, slots=True)
class Downloaded:
    """Where a model is now. `path` is its folder, or the place that `to` named.

    `fingerprint` is that of the model without options of a corpus; `changes` say what was rewritten.
    """

    model_name: str
    source: str
    revision: str | None
    kind: str
    fingerprint: str
    path: str
    files: int
    bytes: int
    changes: Sequence[str]

    @property
    def message(self) -> str:
        """One sentence for a person."""
        size = f"{self.files} files, {self.bytes / 2**20:.1f} MiB"
        pinned = f" at revision {self.revision}" if self.revision else ""
        return f"model `{self.model_name}`{pinned} is in {self.path} ({size}, fingerprint {self.fingerprint})"


def spec_of(name: str, source: str | None, revision: str | None, environment: Environment) -> ModelSpec:
    """Return the spec of a model that somebody names; a branch of a hub becomes the commit that it is now.

    Raises:
        UnknownModelError: the name is not known and no source is given.
    """
    known = registry.known_models().get(name)
    taken = source or (known.source if known else None)
    wanted = revision or (known.revision if known and source in (None, known.source) else None)
    if taken is not None and taken.startswith(HUB) and not is_commit(wanted):
        with Hub(environment.hub, environment.hub_token) as hub:
            wanted = hub.commit(taken.removeprefix(HUB), name, wanted or "main")
    return registry.complete(checked_spec(name, source, wanted if is_commit(wanted) else revision))


def checked_spec(name: str, source: str | None, revision: str | None) -> ModelSpec:
    """Return a spec of what somebody typed.

    Raises:
        ConfigurationError: naming the field that cannot be so.
    """
    try:
        return ModelSpec(name=name, source=source, revision=revision)
    except ValidationError as error:
        raise ConfigurationError("; ".join(sentence(item) for item in error.errors())) from None


def download(
    spec: ModelSpec,
    environment: Environment,
    *,
    to: str | None = None,
    force: bool = False,
    pickles: bool = False,
) -> Downloaded:
    """Bring a model into the store, or a copy of it to another place.

    Args:
        spec: which model; what it leaves out comes from the registry.
        environment: with the store's place and the hub's address and token.
        to: a folder, a .zip or an s3:// location that gets a copy, ready to be a source.
        force: fetch again what is in the store.
        pickles: rewrite pickled weights as safetensors.

    Raises:
        ConfigurationError: the model or its source is not known, not to be had, or not safe.
        ModelFetchError, ModelDigestError: it did not arrive whole.
    """
    spec = registry.complete(spec)
    source = spec.source or ""
    wanted = Wanted(spec, pickles)
    changes: Sequence[str] = ()
    if is_fetched(source):
        changes = fetch(wanted, ModelStore(environment.model_store), environment, force=force).changes
        folder = resolve(spec, environment).path
        return _described(spec, environment, folder, to, changes)
    if to is None and not pickles:
        # Used where it lies.
        return _described(spec, environment, resolve(spec, environment).path, None, ())
    if to is None:
        raise ConfigurationError(f"'{source}' is a folder that is used where it lies; name another one with --to")
    origin = path_in_package(source, "model.source") if source.startswith(PREFIX) else Path(source).expanduser()
    with tempfile.TemporaryDirectory(prefix="embeddings-model-") as scratch:
        folder = Path(scratch) / "model"
        folder.mkdir()
        copy(origin, wanted, folder)
        changes = prepare(folder, wanted)
        return _described(spec, environment, folder, to, changes)


def verify(environment: Environment) -> dict[str, list[str]]:
    """Return the problems of each entry of the store, by source and revision; reads every file."""
    store = ModelStore(environment.model_store)
    return {
        f"{kept.source}{f' at {kept.revision}' if kept.revision else ''}": store.problems(kept)
        for kept in store.entries()
    }


def _described(
    spec: ModelSpec, environment: Environment, folder: Path, to: str | None, changes: Sequence[str]
) -> Downloaded:
    model = resolve(spec.model_copy(update={"source": str(folder)}), environment)
    files = [file for file in folder.rglob("*") if file.is_file()]
    return Downloaded(
        model.name,
        spec.source or "",
        spec.revision,
        model.spec.kind or "",
        model.fingerprint,
        str(folder) if to is None else _export(folder, to, spec.name),
        len(files),
        sum(file.stat().st_size for file in files),
        tuple(changes),
    )


def _export(folder: Path, to: str, name: str) -> str:
    """Copy a model's folder to another place, and return it."""
    if to.startswith("s3://"):
        _upload(folder, to)
        return to
    target = Path(to).expanduser().absolute()
    try:
        if to.lower().endswith(".zip"):
            archives.make(folder, target)
        else:
            _copy_folder(folder, target)
    except OSError as error:
        raise ModelFetchError(name, f"{target} cannot be written ({error})", "free space, then run it again") from error
    return str(target)


def _upload(folder: Path, to: str) -> None:
    objects = Objects(to)
    if not to.lower().endswith(".zip"):
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            objects.upload(file, file.relative_to(folder).as_posix())
        return
    with tempfile.TemporaryDirectory(prefix="embeddings-model-") as scratch:
        archive = Path(scratch) / "model.zip"
        archives.make(folder, archive)
        objects.upload(archive, "")


def _copy_folder(folder: Path, target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigurationError(f"--to '{target}' exists and is no empty folder; name another one")
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(folder, part)
    if target.exists():
        target.rmdir()
    part.rename(target)
