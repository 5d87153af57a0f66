"""Where records come from and where a corpus writes: `source`, `output` and how S3 is reached."""

import codecs
import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from embeddings_pipeline.settings.spec import Spec


class S3Spec(Spec):
    """How an object store is reached; what is left out comes from the standard AWS variables and profiles.

    Credentials never stand here: the default chain finds them, and refreshes those that expire.
    """

    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    encryption: Literal["AES256", "aws:kms"] | None = None
    kms_key: str | None = None
    storage_class: str | None = None

    def upload(self) -> dict[str, str]:
        """Return what an upload asks of the store."""
        asked = {
            "ServerSideEncryption": self.encryption,
            "SSEKMSKeyId": self.kms_key,
            "StorageClass": self.storage_class,
        }
        return {name: value for name, value in asked.items() if value}


class SourceSpec(Spec):
    """Where records come from. `id` names the field whose value is a record's key.

    `location` is a file, a folder, or a pattern with `*`, `?` or `**`. `on_unreadable: skip` passes a
    file over that cannot be opened, and counts it, instead of failing.

    Files of lines (`jsonl`, `csv`) have an `encoding`, a `compression` (left out: by the file's suffix)
    and a limit for a line, over which it is a reject. `timdex` reads the records of a `run_id`, or the
    current ones of a `source`, with that `action`, from the TIMDEX dataset at `location`. With
    `envelope: timdex` each JSON line is such a record: its key fields, and itself as JSON in
    `transformed_record`.

    Fields may be nested: `id`, the strategies' fields and `types` take paths such as `metadata.id`. `types`
    declares what a field is, whatever the files hold it as; `optional` names fields that may be missing
    from every file.
    """

    kind: Literal["parquet", "jsonl", "csv", "timdex"]
    location: str = Field(min_length=1)
    id: str = Field(default="id", min_length=1)
    on_unreadable: Literal["fail", "skip"] = "fail"
    s3: S3Spec | None = None
    encoding: str = "utf-8"
    compression: Literal["gzip", "zstd", "none"] | None = None
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    max_line_bytes: int = Field(default=256 << 20, ge=1)
    run_id: str | None = None
    source: str | None = None
    action: str = "index"
    envelope: Literal["timdex"] | None = None
    types: dict[str, Literal["string", "int", "float", "bool", "date", "timestamp"]] | None = None
    optional: tuple[str, ...] | None = None

    @property
    def timdex(self) -> bool:
        """Whether its records are TIMDEX's, with a key of three parts."""
        return self.kind == "timdex" or self.envelope == "timdex"

    @field_validator("encoding")
    @classmethod
    def _encoding_has_lines(cls, value: str) -> str:
        try:
            found = codecs.lookup(value).name
        except LookupError:
            raise ValueError(f"'{value}' is no encoding that Python knows; use one such as utf-8 or cp1252") from None
        if "\n,".encode(found) != b"\n,":
            raise ValueError(f"'{value}' does not write a line's end as one byte; convert the files to utf-8")
        return found

    @model_validator(mode="after")
    def _options_belong_to_the_kind(self) -> Self:
        owners = {
            "encoding": ("jsonl", "csv"),
            "compression": ("jsonl", "csv"),
            "max_line_bytes": ("jsonl", "csv"),
            "delimiter": ("csv",),
            "envelope": ("jsonl",),
            "types": ("parquet", "jsonl", "csv"),
            "optional": ("parquet", "jsonl", "csv"),
            "run_id": ("timdex",),
            "source": ("timdex",),
            "action": ("timdex",),
        }
        for name, kinds in owners.items():
            if name in self.model_fields_set and self.kind not in kinds:
                raise ValueError(f"{name} belongs to kind: {' or '.join(kinds)}, and kind is {self.kind}; remove it")
        if self.envelope is not None and (self.types or self.optional):
            raise ValueError("types and optional do not go with envelope: timdex, whose fields are known; remove them")
        if self.optional and self.id in self.optional:
            raise ValueError(f"optional names '{self.id}', the field of the key, which every record needs; remove it")
        if self.types and self.types.get(self.id) not in (None, "string", "int"):
            raise ValueError(f"types.{self.id} is {self.types[self.id]}, but a key is a string or an int; use either")
        if self.run_id is not None and self.source is not None:
            raise ValueError("kind: timdex needs run_id (a run) or source (its current records), one of them")
        return self

    @field_validator("location")
    @classmethod
    def _location_is_built(cls, value: str) -> str:
        return check_scheme(value)

    @model_validator(mode="after")
    def _s3_belongs_to_s3(self) -> Self:
        check_s3(self.location, self.s3 is not None)
        return self


class OutputSpec(Spec):
    """Where a corpus writes; the dataset lies in `<location>/dataset`.

    `layout: timdex` writes the embeddings of a TIMDEX dataset as well, to `<location>/data/embeddings`.
    With `keep`, records that are gone from the source stay published. A source that gives no text at all
    removes nothing from the dataset, since that is more often a mount that is missing than a collection
    that is empty; with `allow_empty` it does. `encryption` (`AES256` or
    `aws:kms`, with `kms_key`) and `storage_class` are asked of S3 with every upload.
    """

    location: str = Field(min_length=1)
    layout: Literal["generic", "timdex"] = "generic"
    keep: bool = False
    allow_empty: bool = False
    s3: S3Spec | None = None
    encryption: Literal["AES256", "aws:kms"] | None = None
    kms_key: str | None = None
    storage_class: str | None = None

    @field_validator("location")
    @classmethod
    def _location_is_built(cls, value: str) -> str:
        if value.startswith("package:"):
            raise ValueError(f"'{value}' is inside an installed package, where nothing is written; name a folder")
        return check_scheme(value)

    @model_validator(mode="after")
    def _s3_belongs_to_s3(self) -> Self:
        check_s3(self.location, bool(self.s3 or self.encryption or self.kms_key or self.storage_class))
        if self.kms_key and self.encryption != "aws:kms":
            raise ValueError(f"kms_key is '{self.kms_key}', which belongs to encryption: aws:kms; set that as well")
        return self

    def options(self) -> S3Spec:
        """Return how the object store is reached and what is asked of it."""
        asked = {
            name: value
            for name in ("encryption", "kms_key", "storage_class")
            if (value := getattr(self, name)) is not None
        }
        return (self.s3 or S3Spec()).model_copy(update=asked)


def check_scheme(value: str) -> str:
    """Return a local path or an S3 location as it is; raise ValueError for any other."""
    if (scheme := re.match(r"^([a-z][a-z0-9+.-]*)://", value)) and scheme[1] != "s3":
        raise ValueError(
            f"'{value}': {scheme[1]}:// locations are not built yet; use a local path or s3://bucket/prefix"
        )
    if value.startswith("s3://") and not re.match(r"^s3://[^/]+", value):
        raise ValueError(f"'{value}' names no bucket; write s3://bucket/prefix")
    return value


def check_s3(location: str, given: bool) -> None:
    """Raise ValueError where S3 options are given beside a local path."""
    if given and not location.startswith("s3://"):
        raise ValueError(f"'{location}' is no s3:// location; remove s3, encryption, kms_key and storage_class")
