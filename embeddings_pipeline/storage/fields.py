"""Finding a field of a record: by its name, or by a path into nested ones, such as `metadata.id`.

What belongs here: what a name means, in a record, in an arrow schema and in a batch. What does not: turning
values into texts (`strategies`) or into declared types (`casting`).

A field whose own name is the whole path wins over a nested one; of several ways to split a path, the one
with the longest first step does.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def has_field(values: Mapping[str, Any], path: str) -> bool:
    """Tell whether a record has the field, null or not."""
    return path in values or any(has_field(inner, rest) for inner, rest in _nested(values, path))


def find_field(values: Mapping[str, Any], path: str) -> Any:
    """Return a field's value, None where the record does not have it."""
    if path in values:
        return values[path]
    for inner, rest in _nested(values, path):
        if has_field(inner, rest):
            return find_field(inner, rest)
    return None


def with_field(values: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return the record with another value of a field that it has; what it shares with the first is not changed."""
    if path not in values:
        for head, rest in _splits(path):
            inner = values.get(head)
            if isinstance(inner, Mapping) and has_field(inner, rest):
                return {**values, head: with_field(inner, rest, value)}
    return {**values, path: value}


def field_names(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of a record's fields and the paths of nested ones."""
    for name, value in values.items():
        yield prefix + name
        if isinstance(value, Mapping):
            yield from field_names(value, f"{prefix}{name}.")


def steps_to(schema: pa.Schema, path: str) -> tuple[str, ...] | None:
    """Return the names from a column to the field of it that a path means, None where there is none."""
    return _steps({column.name: column.type for column in schema}, path)


def type_of(schema: pa.Schema, steps: tuple[str, ...]) -> pa.DataType:
    """Return the type of the field to which `steps_to` leads."""
    kind = schema.field(steps[0]).type
    for step in steps[1:]:
        kind = kind.field(step).type
    return kind


def column_paths(schema: pa.Schema, prefix: str = "") -> Iterator[str]:
    """Yield the names of columns and the paths of what is nested in them."""
    for column in schema:
        yield prefix + column.name
        if pa.types.is_struct(column.type):
            inner = pa.schema([column.type.field(index) for index in range(column.type.num_fields)])
            yield from column_paths(inner, f"{prefix}{column.name}.")


def column_of(batch: pa.RecordBatch, path: str) -> pa.Array | None:
    """Return the values that a path means, None where there are none; below a null all is null."""
    steps = steps_to(batch.schema, path)
    if steps is None:
        return None
    column = batch.column(steps[0])
    for step in steps[1:]:
        column = pc.struct_field(column, [column.type.get_field_index(step)])
    return column


def _splits(path: str) -> Iterator[tuple[str, str]]:
    """Yield the ways to split a path in two, the longest first step first."""
    at = path.rfind(".")
    while at > 0:
        yield path[:at], path[at + 1 :]
        at = path.rfind(".", 0, at)


def _nested(values: Mapping[str, Any], path: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    for head, rest in _splits(path):
        inner = values.get(head)
        if isinstance(inner, Mapping):
            yield inner, rest


def _steps(fields: Mapping[str, pa.DataType], path: str) -> tuple[str, ...] | None:
    if path in fields:
        return (path,)
    for head, rest in _splits(path):
        kind = fields.get(head)
        if kind is None or not pa.types.is_struct(kind):
            continue
        inner = {kind.field(index).name: kind.field(index).type for index in range(kind.num_fields)}
        if (found := _steps(inner, rest)) is not None:
            return (head, *found)
    return None
