"""The known models, read from `registry.yaml`.

What belongs here: names, pinned facts, and completing a corpus's `ModelSpec` with them. What does
not: looking for the files (`store`) or loading them (`inference`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import MappingProxyType

import yaml
from pydantic import TypeAdapter

from embeddings_pipeline.errors import ConfigurationError, UnknownModelError
from embeddings_pipeline.settings import ModelSpec


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A registry entry; registry.yaml says what each field is."""

    name: str
    source: str
    kind: str
    dimensions: int
    max_length: int
    revision: str | None
    note: str
    licence: str
    size: int | None
    unverified: tuple[str, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    package: str | None = None
    weights: str | None = None
    gated: bool = False
    stored_results: tuple[tuple[float, ...], ...] = ()


@cache
def known_models() -> Mapping[str, KnownModel]:
    """Return the registry's entries by name."""
    entries = yaml.safe_load(
        resources.files("embeddings_pipeline.models").joinpath("registry.yaml").read_text(encoding="utf-8")
    )
    known = TypeAdapter(tuple[KnownModel, ...]).validate_python(entries)
    return MappingProxyType({entry.name: entry for entry in known})


def complete(spec: ModelSpec) -> ModelSpec:
    """Fill what a spec leaves out from the registry; with it the prompt that the model wants before documents.

    Raises:
        UnknownModelError: the name is not known and the spec has no source.
        ConfigurationError: a given property contradicts the registry.
    """
    known = known_models().get(spec.name)
    if known is None:
        if spec.source is None:
            raise UnknownModelError(spec.name, known_models())
        return spec
    for name in ("kind", "dimensions"):
        given, right = getattr(spec, name), getattr(known, name)
        if given is not None and given != right:
            raise ConfigurationError(
                f"model.{name} is {given!r}, but '{spec.name}' has {right!r}; remove the field or correct it"
            )
    prompt = spec.prompt
    if prompt is None and spec.prompt_name is None:
        prompt = known.prompts.get("document")
    filled = {
        "source": spec.source or known.source,
        "kind": known.kind,
        "dimensions": known.dimensions,
        "revision": spec.revision or known.revision,
        "max_length": spec.max_length or known.max_length,
        "prompt": prompt,
    }
    return spec.model_copy(update=filled)


def for_queries(spec: ModelSpec) -> ModelSpec:
    """Return the spec with which queries are embedded: with the query prompt, where the registry knows one.

    A prompt of the corpus's own stays, since only its author knows what belongs before a query.
    """
    known = known_models().get(spec.name)
    spec = complete(spec)
    if known is None or "query" not in known.prompts or spec.prompt_name is not None:
        return spec
    if spec.prompt != known.prompts.get("document"):
        return spec
    return spec.model_copy(update={"prompt": known.prompts["query"]})
