"""From a record to the text of a strategy.

What belongs here: rendering a record's fields into text, and saying why that is not possible. What
does not: reading records (`sources`) or turning text into vectors (`inference`).
"""

import base64
import datetime as dt
import decimal
import hashlib
import json
import math
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from embeddings_pipeline.records import Reason
from embeddings_pipeline.settings import StrategySpec
from embeddings_pipeline.storage.casting import Misfit
from embeddings_pipeline.storage.fields import find_field
from embeddings_pipeline.storage.wording import described

RENDERER_VERSION = 1
"""Part of a strategy's identity: raised when the same record would give another text."""


class Unusable(ValueError):
    """A record that gives no text for a strategy; becomes a reject."""

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(detail)


def renderer(spec: StrategySpec) -> Callable[[Mapping[str, Any]], str]:
    """Return the function from a record's fields to its text.

    The function raises `Unusable` where the text would be null, blank, or made of what is no text.
    """
    if spec.fields is not None:
        fields = spec.fields
        return lambda values: _join_fields(fields, values)
    if spec.template is not None:
        pieces = [(before, name) for before, name, _, _ in string.Formatter().parse(spec.template)]
        names = spec.template_fields()
        return lambda values: _fill_template(pieces, names, values)
    ascii_only = spec.ascii
    return lambda values: _full_record(values, ascii_only)


def definition_hash(spec: StrategySpec) -> str:
    """Return 12 hexadecimal digits that change when the strategy would give other texts."""
    definition = json.dumps({"version": RENDERER_VERSION, **spec.model_dump()}, sort_keys=True)
    return hashlib.sha256(definition.encode()).hexdigest()[:12]


def hash_text(data: bytes) -> str:
    """Return the hash of a text: BLAKE2b over its UTF-8 bytes, 128 bits, 32 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def column_problem(spec: StrategySpec, kind: pa.DataType) -> str | None:
    """Say why a column of this Arrow type cannot serve the strategy, or return None.

    `full_record` writes any value as JSON. `fields` takes text and lists of text; a `template` takes
    whole numbers, booleans and dates as well. Fractional numbers have no one spelling, so they are
    refused rather than embedded as, say, "nan".
    """
    if spec.needed_fields() is None or _is_text(kind):
        return None
    if pa.types.is_null(kind):
        return None
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if listed and _is_text(kind.value_type):
        return None
    plain = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date(kind)
    if spec.template is not None and plain:
        return None
    return f"has the type {kind}, which is no text"


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _full_record(values: Mapping[str, Any], ascii_only: bool) -> str:
    """Write each field as ``name: <JSON value>`` and a newline, in the record's order."""
    return "".join(f"{name}: {_to_json(value, ascii_only)}\n" for name, value in values.items())


def _join_fields(fields: tuple[str, ...], values: Mapping[str, Any]) -> str:
    """Put the non-blank fields below one another."""
    texts = [_as_text(name, find_field(values, name), numbers=False) for name in fields]
    return "\n".join(_require_some(fields, texts))


def _fill_template(pieces: Sequence[tuple[str, str | None]], names: tuple[str, ...], values: Mapping[str, Any]) -> str:
    texts = {name: _as_text(name, find_field(values, name), numbers=True) for name in names}
    _require_some(names, list(texts.values()))
    return "".join(before + (texts[name] or "" if name else "") for before, name in pieces)


def _require_some(names: tuple[str, ...], texts: list[str | None]) -> list[str]:
    usable = [text for text in texts if text is not None and text.strip()]
    if usable:
        return usable
    fields = ", ".join(names)
    if all(text is None for text in texts):
        raise Unusable(Reason.NULL_TEXT, f"null or missing: {fields}")
    raise Unusable(Reason.BLANK_TEXT, f"empty, or nothing but white space, in: {fields}")


def _as_text(name: str, value: Any, *, numbers: bool) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Misfit):
        raise Unusable(Reason.WRONG_TYPE, value.detail)
    if isinstance(value, list | tuple):
        items = [item for item in value if item is not None]
        if all(isinstance(item, str) for item in items):
            return ", ".join(item for item in items if item.strip()) if items else None
    elif numbers and isinstance(value, bool | int | dt.date):
        return _to_json(value, ascii_only=False).strip('"')
    raise Unusable(
        Reason.NOT_TEXT, f"the field '{name}' holds {described(value)}, not text; use full_record or repair the field"
    )


def _to_json(value: Any, ascii_only: bool) -> str:
    try:
        try:
            return json.dumps(value, ensure_ascii=ascii_only, default=_plain, allow_nan=False)
        except ValueError:
            return json.dumps(_without_nan(value), ensure_ascii=ascii_only, default=_plain)
    except RecursionError:
        raise Unusable(Reason.NOT_TEXT, "a value is nested too deeply to be written as JSON") from None


def _without_nan(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    """Give JSON a form of the types that parquet has and JSON lacks."""
    if isinstance(value, Misfit):
        raise Unusable(Reason.WRONG_TYPE, value.detail)
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return base64.b64encode(value).decode("ascii")
    return str(value)
