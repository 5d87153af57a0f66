"""Which model, and everything about it that changes a vector: a corpus YAML's `model`."""

import re
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from embeddings_pipeline.settings.spec import Spec

HUB = "hub:"
"""How a source on a model hub begins: `hub:organisation/model`."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_ALWAYS = ("name", "kind", "revision", "max_length", "max_active_dims", "special_tokens")
"""Fields that the fingerprint has always covered; the others enter it only where they are set."""

_DENSE_ONLY = {"truncate_dim": None, "normalize": None, "precision": "float32"}
_SPARSE_ONLY = {"max_active_dims": None, "prune_ratio": None, "special_tokens": "keep"}


class ModelSpec(Spec):
    """Everything that changes a vector. `source` says where the weights are and changes nothing.

    A property left out comes from the registry or the loaded model; one that is given and disagrees is
    an error. `source` is a folder, a `.zip`, `s3://bucket/prefix`, `package:module/path`, or
    `hub:organisation/model` with the commit as `revision`.

    `prompt` is put before every text; `prompt_name` takes one of the model's own. `max_length` is in
    tokens, special ones included; None is the model's own limit. `dtype` is that of weights and
    computation, `precision` that of the stored vectors.

    Of a dense vector, `truncate_dim` keeps the first so many numbers and scales them to length 1
    (unless `normalize: false`); `normalize: true` scales every vector to length 1, `false` leaves out
    the model's own scaling. Of a sparse one, in this order: `special_tokens: drop` removes the weights
    of special tokens, `prune_ratio` those below that share of the text's largest weight, and
    `max_active_dims` keeps that many of the largest.
    """

    not_built_yet = frozenset({"pooling"})

    name: str = Field(min_length=1)
    source: str | None = Field(default=None, min_length=1)
    kind: Literal["dense", "sparse"] | None = None
    revision: str | None = None
    dimensions: int | None = Field(default=None, ge=1)
    max_length: int | None = Field(default=None, ge=3)
    max_active_dims: int | None = Field(default=None, ge=1)
    special_tokens: Literal["keep", "drop"] = "keep"
    prompt: str | None = None
    prompt_name: str | None = Field(default=None, min_length=1)
    truncate_dim: int | None = Field(default=None, ge=1)
    normalize: bool | None = None
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    precision: Literal["float32", "float16"] = "float32"
    prune_ratio: float | None = Field(default=None, gt=0, lt=1)

    @model_validator(mode="before")
    @classmethod
    def _no_remote_code(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "trust_remote_code" in data:
            raise ValueError(
                "the field 'trust_remote_code' does not exist, since code of a model's folder is never run; remove it "
                "(docs/models.md says which models load without)"
            )
        return data

    @field_validator("name")
    @classmethod
    def _name_has_letters(cls, value: str) -> str:
        if not any(sign.isalnum() for sign in value):
            raise ValueError(f"'{value}' has no letter or digit; use the model's name, which also names its folder")
        return value

    @field_validator("source")
    @classmethod
    def _source_is_known(cls, value: str | None) -> str | None:
        return None if value is None else check_source(value)

    @model_validator(mode="after")
    def _options_go_together(self) -> Self:
        if self.prompt is not None and self.prompt_name is not None:
            raise ValueError(f"prompt and prompt_name '{self.prompt_name}' are both given; keep one of them")
        if self.source is not None and self.source.startswith(HUB) and not is_commit(self.revision):
            raise ValueError(
                f"source '{self.source}' has the revision {self.revision!r}, which is no commit of 40 hexadecimal "
                f"digits, so that it could change; `embeddings download-model --model {self.name} --source "
                f"{self.source} --revision main` prints the present one"
            )
        if self.kind is not None and (problem := self.misplaced(self.kind)):
            raise ValueError(problem)
        return self

    def misplaced(self, kind: str) -> str | None:
        """Return what is wrong with the options for a model of that kind, in words."""
        others, right = (_SPARSE_ONLY, "sparse") if kind == "dense" else (_DENSE_ONLY, "dense")
        wrong = [name for name, default in others.items() if getattr(self, name) != default]
        if not wrong:
            return None
        *some, last = others
        belong = f"{', '.join(some)} and {last} belong to {right} models"
        return f"{wrong[0]} is set, but {belong}; remove it or set kind: {right}"

    @property
    def width(self) -> int | None:
        """The width of the stored vectors, where it is known without loading the model."""
        return self.truncate_dim or self.dimensions

    def identity(self) -> dict[str, Any]:
        """Return what the fingerprint covers: every option that changes a vector (`dimensions` is a check).

        Options that are younger than the first datasets enter only where they are set, so that the
        fingerprint of a spec without them stays what it was.
        """
        left_out = {"source", "dimensions"}
        fields = type(self).model_fields
        return {
            name: value
            for name, value in self.model_dump().items()
            if name not in left_out and (name in _ALWAYS or value != fields[name].default)
        }


def check_source(value: str) -> str:
    """Return a model's source as it is; raise ValueError for one that cannot be."""
    if value.startswith(HUB):
        if not _HUB_ID.fullmatch(value.removeprefix(HUB)):
            raise ValueError(f"'{value}' names no model of a hub; write hub:organisation/model")
        return value
    if (scheme := re.match(r"^([a-z][a-z0-9+.-]*)://", value)) and scheme[1] != "s3":
        raise ValueError(
            f"'{value}': {scheme[1]}:// is no source; use a folder, a .zip, s3://bucket/prefix, package:module/path "
            "or hub:organisation/model"
        )
    if value.startswith("s3://") and not re.match(r"^s3://[^/]+/.", value):
        raise ValueError(f"'{value}' names no bucket and prefix; write s3://bucket/prefix")
    return value


def is_commit(revision: str | None) -> bool:
    """Tell whether a revision is a whole commit, which never stands for something else later."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None
