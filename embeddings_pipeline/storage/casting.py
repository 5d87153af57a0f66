"""Values as the types that a corpus declares with `source.types`, whatever a file holds them as.

What belongs here: the types' names and what may become which. What does not: finding fields (`fields`) and
rendering them (`strategies`).

A value that cannot become its type is replaced by a `Misfit`, which costs only the texts that use it.
"""

import datetime as dt
import decimal
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from embeddings_pipeline.storage.fields import find_field, has_field, with_field
from embeddings_pipeline.storage.wording import described

_MOST_DIGITS = 40
_TRUTHS = {"true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True, slots=True)
class Misfit:
    """Stands for a value that could not become its declared type; `detail` says why in words."""

    detail: str


def declared(values: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, Any]:
    """Return a record whose declared fields have their types, come first and in the order of the declaration.

    A declared field that the record lacks is null, so that files which drift apart in columns or in their
    order give the same record. A nested field stays where it is.
    """
    cast: dict[str, Any] = dict(values)
    for name, kind in types.items():
        if has_field(cast, name):
            cast = with_field(cast, name, _cast(name, find_field(cast, name), kind))
    first = {name: cast.get(name) for name in types if name in cast or "." not in name}
    return {**first, **{name: value for name, value in cast.items() if name not in first}}


def _cast(name: str, value: Any, kind: str) -> Any:
    """Return the value as its type; NaN, which pandas puts in place of null, is null."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    try:
        return _CASTS[kind](value)
    except (ValueError, TypeError, OverflowError, decimal.InvalidOperation):
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return Misfit(f"the field '{name}' holds {described(value)}, {shown}, which is no {kind}")


def _whole(value: Any) -> int | None:
    if isinstance(value, str):
        if not value.strip():
            return None
        value = decimal.Decimal(value.strip())
    if isinstance(value, decimal.Decimal) and not (value.is_finite() and value.adjusted() <= _MOST_DIGITS):
        raise ValueError
    if not isinstance(value, int | float | decimal.Decimal) or value != int(value):
        raise ValueError
    return int(value)


def _fraction(value: Any) -> float | None:
    if isinstance(value, str):
        if not value.strip():
            return None
        value = float(value)
    if not isinstance(value, int | float | decimal.Decimal) or not math.isfinite(value):
        raise ValueError
    return float(value)


def _text(value: Any) -> str:
    """Write a number as the shortest text that reads back as it; whole ones without a point."""
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case float() if value.is_integer() and abs(value) < 2**53:
            return str(int(value))
        case int() | float() | decimal.Decimal():
            return str(value)
        case dt.date() | dt.time():
            return value.isoformat()
        case bytes():
            return value.decode("utf-8")
        case _:
            raise ValueError


def _truth(value: Any) -> bool | None:
    if isinstance(value, str):
        if not value.strip():
            return None
        value = _TRUTHS.get(value.strip().lower())
    if not isinstance(value, int | float) or value not in (0, 1):
        raise ValueError
    return bool(value)


def _day(value: Any) -> dt.date | None:
    if isinstance(value, str):
        return dt.date.fromisoformat(value.strip()) if value.strip() else None
    if isinstance(value, dt.datetime):
        return value.date()
    if not isinstance(value, dt.date):
        raise ValueError
    return value


def _moment(value: Any) -> dt.datetime | None:
    if isinstance(value, str):
        return dt.datetime.fromisoformat(value.strip()) if value.strip() else None
    if isinstance(value, dt.datetime):
        return value
    if not isinstance(value, dt.date):
        raise ValueError
    return dt.datetime(value.year, value.month, value.day)


_CASTS: Mapping[str, Callable[[Any], Any]] = {
    "string": _text,
    "int": _whole,
    "float": _fraction,
    "bool": _truth,
    "date": _day,
    "timestamp": _moment,
}
