"""Words for what a record holds or lacks, as the details of rejects say it to whoever repairs the source.

What belongs here: the names of types and the reasons why something is no JSON, without Python's terms. What
does not: which of them is a reject.
"""

import datetime as dt
import decimal
import json
from typing import Any

_TYPES: dict[type, str] = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    decimal.Decimal: "a number",
    str: "a text",
    bytes: "bytes",
    list: "a list",
    dict: "an object",
    dt.date: "a date",
    dt.datetime: "a time",
    type(None): "null",
}


def described(value: Any) -> str:
    """Return what a value is."""
    return _TYPES.get(type(value), "a value")


def json_problem(error: Exception) -> str:
    """Return why `json.loads` refused a text.

    Args:
        error: what it raised; anything else is shown as it is.
    """
    if isinstance(error, RecursionError):
        return "lists or objects are nested too deeply in it"
    if isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError | UnicodeError):
        # The only other one: Python converts no whole number of more digits (sys.get_int_max_str_digits).
        return "a whole number in it has over 4,300 digits"
    return str(error)
