"""`.json` files that hold one JSON document, an object or a list of objects, instead of JSON lines.

What belongs here: telling the two apart and taking a document's records. What does not: reading lines (`lines`).

A document is held as a whole, so it is bounded by the same limit as a line.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from embeddings_pipeline.records import Reason, Record
from embeddings_pipeline.settings import SourceSpec
from embeddings_pipeline.storage.chunks import make_record
from embeddings_pipeline.storage.location import FileEntry
from embeddings_pipeline.storage.wording import described, json_problem

_SUFFIXES = (".json", ".json.gz", ".json.zst", ".json.zstd")
_FIRST_LINES = 2
"""In which JSON lines show themselves; the second one where the first is broken."""


def document_records(
    spec: SourceSpec, file: FileEntry, lines: Iterable[tuple[int, bytes | int]]
) -> Iterator[Record] | None:
    """Return the records of a file that holds one document, None where it holds JSON lines.

    JSON lines are what has an object in its first line, or, where that is broken, in its second. All
    else in a `.json` file is a document; one that cannot be read is one record with a problem.
    """
    if not file.name.lower().endswith(_SUFFIXES):
        return None
    held: list[bytes] = []
    size = 0
    for _, line in lines:
        size += line if isinstance(line, int) else len(line)
        if isinstance(line, int) or size > spec.max_line_bytes:
            detail = (
                f"the file holds one JSON document of more than source.max_line_bytes, {spec.max_line_bytes}; write it "
                "as JSON lines, an object a line"
            )
            return iter([Record(None, {}, file.name, (Reason.TOO_LARGE, detail))])
        if not line.strip():
            continue
        held.append(line)
        if len(held) <= _FIRST_LINES and _is_object(line, spec.encoding):
            return None
    return _records(spec, file, b"".join(held)) if held else iter(())


def _is_object(line: bytes, encoding: str) -> bool:
    try:
        return isinstance(json.loads(line.decode(encoding)), dict)
    except (ValueError, RecursionError):
        return False


def _records(spec: SourceSpec, file: FileEntry, data: bytes) -> Iterator[Record]:
    try:
        document: Any = json.loads(data.decode(spec.encoding))
    except (ValueError, RecursionError) as error:
        detail = f"the file is no JSON document and no JSON lines: {json_problem(error)}"
        yield Record(None, {}, file.name, (Reason.UNPARSABLE, detail))
        return
    items = document if isinstance(document, list) else [document]
    for number, item in enumerate(items, start=1):
        position = f"{file.name} item {number}" if isinstance(document, list) else file.name
        if isinstance(item, dict):
            yield make_record(item, spec.id, position, spec.types)
        else:
            detail = f"the document holds {described(item)} where an object is needed"
            yield Record(None, {}, position, (Reason.UNPARSABLE, detail))
