"""What all parts of a corpus YAML share: they are frozen, and refuse unknown and unfinished fields by name."""

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from embeddings_pipeline.errors import did_you_mean

NAME_PATTERN = re.compile(r"^[a-z][a-z0-9_]*$")


class Spec(BaseModel):
    """A frozen part of a corpus YAML that refuses unknown and unfinished fields by name."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=False)

    not_built_yet: ClassVar[frozenset[str]] = frozenset()
    """Fields that DESIGN names and this version does not have."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_fields(cls, data: Any) -> Any:
        if isinstance(data, cls):
            return data
        known = list(cls.model_fields)
        if not isinstance(data, Mapping):
            raise ValueError(f"{_shown(data)} has no fields; write {{{known[0]}: …}} (fields here: {', '.join(known)})")
        for name in data:
            if name in cls.not_built_yet:
                raise ValueError(f"the field '{name}' is not built yet; remove it (fields here: {', '.join(known)})")
            if name not in known:
                hint = did_you_mean(str(name), known)
                raise ValueError(f"the field '{name}' is unknown{hint}; fields here: {', '.join(known)}")
        return data


def sentence(item: Any) -> str:
    """Turn one pydantic error into words: the field, then what is wrong with its value."""
    path = ""
    for step in item["loc"]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    path = path.lstrip(".") or "attributes"
    match item["type"]:
        case "value_error":
            message = str(item["ctx"]["error"])
            return f"{path}: {message}"
        case "missing":
            return f"{path} is missing; add it"
        case "tuple_type" | "list_type":
            return f"{path} is {_shown(item['input'])}; write a list, one '- …' for each"
        case _:
            return f"{path} is {_shown(item['input'])}: {item['msg'][:1].lower()}{item['msg'][1:]}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
