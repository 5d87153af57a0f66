"""The names of deliveries: as partition keys of Dagster, and as folders of an output.

What belongs here: both mappings, each reversible, so that no two deliveries ever share a name or a
folder. What does not: which deliveries there are (`pipeline.deliveries`).

A sign that a name cannot hold is written as `@` and the two hexadecimal digits of each of its UTF-8
bytes; `@` itself is `@40`. A file's delivery is named by its path below the source's location, so
`2024/works.parquet` keeps its name and lies in the folder `2024@2Fworks@2Eparquet`.
"""

import hashlib
import re

_MOST_BYTES = 200
"""Of a folder's name; file systems take 255, and a manifest's name is longer by its suffix."""

_KEPT_BYTES = 150
_NOT_IN_NAMES = re.compile(r"[@,\x00-\x1f\x7f]|(?<=\.\.)\.|^\s|\s$")
"""Dagster refuses control characters and `...` in a partition key, and its command line splits at commas."""

_NOT_IN_FOLDERS = re.compile(r"[^\w.\- ()']|^[._]|\.(?=(?:parquet|parq|pq)$)|[ .]$", re.IGNORECASE)
"""Else a folder would nest, be hidden or taken for a parquet file, or read as `name=value` by query engines."""

_ESCAPED = re.compile(r"(?:@[0-9A-F]{2})+")


def name_of(source: str) -> str:
    """Return the name of the delivery that is a file at a path below the source, or a run with an id."""
    return _NOT_IN_NAMES.sub(_escape, source)


def source_of(name: str) -> str:
    """Return the path or the run id that a delivery is named by."""
    return _ESCAPED.sub(_unescape, name)


def folder_of(name: str) -> str:
    """Return the name of a delivery's folders and manifest: one step of a path.

    A long one is cut and ends with `@-` and a digest of the name, which then only its manifest tells.
    """
    folder = _NOT_IN_FOLDERS.sub(_escape, name)
    if len(folder.encode()) <= _MOST_BYTES:
        return folder
    kept = folder.encode()[:_KEPT_BYTES].decode("utf-8", "ignore")
    return f"{kept}@-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def _escape(found: re.Match[str]) -> str:
    return "".join(f"@{byte:02X}" for byte in found[0].encode())


def _unescape(found: re.Match[str]) -> str:
    return bytes.fromhex(found[0].replace("@", "")).decode("utf-8", "replace")
