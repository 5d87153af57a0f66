"""Which TIMDEX runs the files of a dataset hold, remembered beside the output.

What belongs here: finding run ids in files, and the file that remembers them, so that a file is read
once for all runs and all processes. What does not: reading a run's records (`timdex`).
"""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from embeddings_pipeline.errors import ColumnError, SourceUnreadableError, StorageError
from embeddings_pipeline.storage.location import FileEntry
from embeddings_pipeline.storage.parquet import open_parquet, readable
from embeddings_pipeline.storage.parts import Output
from embeddings_pipeline.storage.scratch import Scratch

_FORMAT = 1
_ROWS_AT_A_TIME = 65_536

_log = logging.getLogger(__name__)

Runs = Sequence[tuple[str, str]]
"""The run ids of a file, each with the source that it is a run of."""


def files_by_run(
    output: Output, files: Sequence[FileEntry], source: str | None, *, opens_only: bool = False
) -> dict[str, list[FileEntry]]:
    """Return the files that hold rows of each run, by run id; only files that are new or changed are read.

    Args:
        output: the corpus's, beside which the run ids are remembered.
        files: all files of the dataset.
        source: only runs of this source; None for all.
        opens_only: pass over files that cannot be read, instead of failing.

    Raises:
        SourceUnreadableError: a file is no parquet file.
        ColumnError: a file has no run ids.
    """
    place = output.root / "source-runs.json"
    known = _load(place.read_text())
    found: dict[str, Runs] = {}
    for file in files:
        before = known.get(file.name)
        if before is not None and before[0] and before[0] == file.version:
            found[file.name] = before[1]
        elif (runs := _read(file, opens_only)) is not None:
            found[file.name] = runs
    now = {file.name: (file.version, found[file.name]) for file in files if file.version and file.name in found}
    if now != known:
        _remember(output, now)
    by_run: dict[str, list[FileEntry]] = {}
    for file in files:
        for run, owner in found.get(file.name, ()):
            if source in (None, owner):
                by_run.setdefault(run, []).append(file)
    return by_run


def _read(file: FileEntry, opens_only: bool) -> Runs | None:
    pairs: set[tuple[str, str]] = set()
    try:
        with open_parquet(file) as opened:
            names = opened.schema_arrow.names
            if missing := [name for name in ("run_id", "source") if name not in names]:
                remedy = f"name the folder of a TIMDEX dataset; columns there: {', '.join(names)}"
                raise ColumnError("source.location", missing[0], f"is not in {file.name}", remedy)
            batches = opened.iter_batches(_ROWS_AT_A_TIME, columns=["run_id", "source"], use_threads=False)
            for batch in readable(batches, file):
                for row in pa.Table.from_batches([batch]).group_by(["run_id", "source"]).aggregate([]).to_pylist():
                    if row.get("run_id"):
                        pairs.add((row["run_id"], row.get("source") or ""))
    except SourceUnreadableError as error:
        if not opens_only:
            raise
        _log.warning("%s; its runs are not seen", error)
        return None
    return sorted(pairs)


def _load(text: str | None) -> dict[str, tuple[str, Runs]]:
    """Return what is remembered; nothing where that is of another format or damaged, since it can be found again."""
    try:
        data: Any = json.loads(text) if text else {}
        files: Mapping[str, Any] = data["files"] if data.get("format_version") == _FORMAT else {}
        return {
            name: (entry["version"], [(run, source) for run, source in entry["runs"]]) for name, entry in files.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _remember(output: Output, now: Mapping[str, tuple[str, Runs]]) -> None:
    files = {name: {"version": version, "runs": runs} for name, (version, runs) in now.items()}
    text = json.dumps({"format_version": _FORMAT, "files": files}, ensure_ascii=False)
    try:
        with Scratch(output.scratch) as scratch:
            scratch.put_text(output.root / "source-runs.json", text)
    except (OSError, StorageError) as error:
        # Whoever may only read, such as a code server, finds the runs anew each time.
        _log.warning("which runs the files hold cannot be remembered below %s (%s)", output.root, error)
