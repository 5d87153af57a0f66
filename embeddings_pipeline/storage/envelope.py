"""TIMDEX records as JSON lines, as the timdex-embeddings app takes them.

What belongs here: taking the record out of its line. What does not: reading lines (`lines`) and what a
TIMDEX record is (`timdex`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from embeddings_pipeline.records import Reason, Record
from embeddings_pipeline.settings import SourceSpec, StrategySpec
from embeddings_pipeline.storage.chunks import encodable, missing_column
from embeddings_pipeline.storage.lines import JsonlReader
from embeddings_pipeline.storage.location import FileEntry
from embeddings_pipeline.storage.timdex import KEY, record_of


class EnvelopeReader(JsonlReader):
    """Records whose lines have `timdex_record_id`, `run_id`, `run_record_offset` and `transformed_record`."""

    def __init__(self, spec: SourceSpec, first_offset: int = 0) -> None:
        super().__init__(spec.model_copy(update={"id": KEY[0]}))
        self._first_offset = first_offset

    def check(self, files: Sequence[FileEntry], needed: Sequence[tuple[str, StrategySpec]]) -> None:  # noqa: ARG002
        """Look at the first readable line: the fields of an envelope are there."""
        first = next(
            (line.values for file in files for line in super(EnvelopeReader, self).read(file) if line.values), {}
        )
        for name in (*KEY, "transformed_record") if first else ():
            if name not in first:
                raise missing_column("source.envelope", name, "the first record", list(first))

    def read(self, file: FileEntry) -> Iterator[Record]:
        """Yield the file's records; holds one line."""
        for line in super().read(file):
            if line.problem is not None:
                yield Record(None, {}, line.position, line.problem)
            elif (problem := _problem(line.values)) is not None:
                yield Record(None, {}, line.position, problem)
            elif line.values["run_record_offset"] >= self._first_offset:
                yield record_of(line.values, line.position)


def _problem(values: Mapping[str, Any]) -> tuple[Reason, str] | None:
    """Say what is wrong with the rest of a key, of which `timdex_record_id` is right."""
    run, offset = values.get("run_id"), values.get("run_record_offset")
    if run is None or offset is None:
        missing = ", ".join(name for name in KEY if values.get(name) is None)
        return Reason.NULL_KEY, f"null or missing: {missing}"
    if not isinstance(run, str) or not run or " " in run or not encodable(run):
        return Reason.BAD_KEY, f"run_id is {json.dumps(run)}; a run's id is a text without blanks"
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset < 2**31:
        return Reason.BAD_KEY, f"run_record_offset is {json.dumps(offset)}, which is no whole number of 32 bits"
    return None
