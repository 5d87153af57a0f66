"""From a model spec to a folder on this machine and a fingerprint.

What belongs here: finding a model's folder, in place or in the model store, checking it against what
is pinned, and the fingerprint. What does not: the store's files (`content`), fetching (`fetch`), and
building an encoder (`inference.encoder`).
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from embeddings_pipeline.errors import (
    ConfigurationError,
    LocationNotFoundError,
    ModelNotInStoreError,
)
from embeddings_pipeline.models import registry
from embeddings_pipeline.models.content import ModelStore
from embeddings_pipeline.models.fetch import Wanted, fetch, is_fetched, stamp_of
from embeddings_pipeline.models.folder import check_safe, digest_of, file_digest, kind_of, looks_like_a_model
from embeddings_pipeline.packages import PREFIX, path_in_package
from embeddings_pipeline.settings import Environment, ModelSpec
from embeddings_pipeline.settings.model import HUB, is_commit

__all__ = ["ResolvedModel", "download_command", "kind_of", "resolve"]


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model whose files are found.

    `spec` is complete as far as the registry and the folder tell. `fingerprint` is stored with every
    row: 16 hexadecimal digits over the spec's identity and the digest of all files that can change a
    vector.
    """

    spec: ModelSpec
    path: Path
    weights_digest: str
    fingerprint: str

    @property
    def name(self) -> str:
        """The name as the corpus gives it."""
        return self.spec.name

    @property
    def slug(self) -> str:
        """The name as a folder: lower case, `/` as `--`, other signs as `-`; never a hidden one."""
        parts = self.spec.name.strip("/").split("/")
        slug = "--".join("".join(c if c.isalnum() or c in "._" else "-" for c in part.lower()) for part in parts)
        return slug.lstrip("._-")


def resolve(spec: ModelSpec, environment: Environment | None = None) -> ResolvedModel:
    """Find the model's folder and compute its fingerprint; loads no weights.

    A folder or a package is used where it lies. Everything else comes from the model store, without a
    connection to anywhere; what is not there is fetched first only where the environment allows it.

    Raises:
        UnknownModelError: neither the registry nor the spec says where the model is.
        LocationNotFoundError: the source does not exist.
        ModelNotInStoreError: it has to be fetched first.
        ModelDigestError: its files are not those that were fetched, or not the pinned weights.
        ConfigurationError: the source is no model folder, runs code of its own, or contradicts the spec.
    """
    spec = registry.complete(spec)
    path = _folder(spec, environment or Environment.read())
    if not looks_like_a_model(path):
        raise ConfigurationError(
            f"model.source '{spec.source}' of '{spec.name}' holds neither modules.json nor config.json; "
            "name the folder that has the model's files"
        )
    try:
        check_safe(path, spec.name, spec.source or "")
        kind = spec.kind or kind_of(path)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"model.source '{spec.source}' of '{spec.name}' has a modules.json or config.json that cannot be read "
            f"({error}); fetch the model's files again"
        ) from error
    if problem := spec.misplaced(kind):
        raise ConfigurationError(f"model '{spec.name}' is {kind}: {problem}")
    spec = spec.model_copy(update={"kind": kind})
    digest = digest_of(path)
    _check_pinned(spec, path)
    identity = json.dumps(spec.identity(), sort_keys=True)
    fingerprint = hashlib.sha256(f"{identity}\n{digest}".encode()).hexdigest()[:16]
    return ResolvedModel(spec=spec, path=path, weights_digest=digest, fingerprint=fingerprint)


def download_command(spec: ModelSpec) -> str:
    """Return the command that brings a model into the store."""
    known = registry.known_models().get(spec.name)
    command = f"embeddings download-model --model {spec.name}"
    if known is None or spec.source != known.source:
        command += f" --source {spec.source}"
    if spec.revision and (known is None or spec.revision != known.revision):
        command += f" --revision {spec.revision}"
    return command


def _check_pinned(spec: ModelSpec, path: Path) -> None:
    """Compare the weights with those that the registry pins, where it pins some for this revision."""
    known, weights = registry.known_models().get(spec.name), path / "model.safetensors"
    if known is None or known.weights is None or known.revision != spec.revision or not weights.is_file():
        return
    if file_digest(weights) != known.weights:
        again = f"install {known.package} again" if known.package else f"run `{download_command(spec)} --force`"
        raise ConfigurationError(
            f"model.source '{spec.source}' does not hold the weights that the registry pins for '{spec.name}'; "
            f"{again}, or give your own weights a name of their own"
        )


def _folder(spec: ModelSpec, environment: Environment) -> Path:
    source = spec.source or ""
    if source.startswith(PREFIX):
        known = registry.known_models().get(spec.name)
        module, _, inside = source.removeprefix(PREFIX).partition("/")
        path = path_in_package(source, "model.source", known.package if known and known.package else module)
        if not path.is_dir():
            raise LocationNotFoundError("model.source", source, f"the package {module} has no folder '{inside}'")
        return path
    if is_fetched(source):
        return _kept(spec, environment)
    path = Path(source).expanduser().absolute()
    if not path.is_dir():
        raise LocationNotFoundError("model.source", source, "name a folder with the model's files")
    return path


def _kept(spec: ModelSpec, environment: Environment) -> Path:
    """Return the folder in the store, fetched now where that is allowed, or needs no network."""
    store, source = ModelStore(environment.model_store), spec.source or ""
    if source.startswith(HUB) and not is_commit(spec.revision):
        raise ConfigurationError(
            f"model.revision of '{spec.name}' is {spec.revision!r}, which is no commit of 40 hexadecimal digits; "
            f"`{download_command(spec)} --revision main` fetches the present one and prints it"
        )
    kept = store.find(source, spec.revision)
    stamp = stamp_of(source)
    if kept is None or (stamp and stamp != kept.stamp):
        if source.startswith((HUB, "s3://")) and not environment.model_download:
            where = source if spec.revision is None else f"{source} at {spec.revision}"
            raise ModelNotInStoreError(spec.name, where, str(store.root), download_command(spec))
        kept = fetch(Wanted(spec), store, environment)
    return store.check(kept, spec.name)
