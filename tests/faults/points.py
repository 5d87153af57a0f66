"""The points at which a run is killed: before, in and after each step that reads, writes or removes files.

"In" is somewhere inside the step where the outside world has seen half of it: half an application batch is in a file,
half a request is sent, a file is complete and has no name yet. The two moments in it are called early and late.
"""

import functools
import http.client
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from embeddings_pipeline.storage import location, publish
from embeddings_pipeline.storage.lines import JsonlReader
from embeddings_pipeline.storage.location import Location
from embeddings_pipeline.storage.parts import RecordsPartWriter, VectorsWriter
from embeddings_pipeline.storage.s3 import S3Location

BEFORE, EARLY, LATE, AFTER = "before", "in, early", "in, late", "after"
MOMENTS = (BEFORE, EARLY, LATE, AFTER)


@dataclass(frozen=True)
class Point:
    """A step: the methods that do it, which of their calls are meant, and the how many-th of them."""

    methods: tuple[tuple[Any, str], ...]
    number: int = 2
    wanted: Callable[..., bool] = lambda *_: True


def _put(part: str, ending: str, number: int = 2) -> Point:
    """Giving a finished file its name: whole upload, or fsync and rename."""
    return Point(
        ((Location, "put"), (S3Location, "put")),
        number,
        lambda place, *_: f"/{part}/" in str(place) and str(place).endswith(ending),
    )


POINTS = {
    "read": Point(((JsonlReader, "_parse"),), 20),
    "write (texts)": Point(((RecordsPartWriter, "close"),)),
    "write (vectors)": Point(((VectorsWriter, "write"),)),
    "upload (records)": _put("records", ".parquet"),
    "upload (staged part)": _put("staging", ".parquet"),
    "upload (dataset)": _put("dataset", ".parquet"),
    "manifest (records)": _put("records", ".json", 1),
    "manifest (part)": _put("staging", ".json"),
    "publish": Point(
        ((Location, "swap"), (S3Location, "swap")), 1, lambda place, *_: str(place).endswith("/manifests/whole.json")
    ),
    "sweep (dataset)": Point(((publish, "sweep"),), 1),
    "sweep (staging)": Point(((publish, "clear_staging"),), 1),
}


def kill() -> None:
    """End this process as the kernel does."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def arm(point: str, moment: str) -> None:
    """Kill this process when it comes to that moment of the point."""
    chosen = POINTS[point]
    left = [chosen.number]
    for owner, name in chosen.methods:
        _wrap(owner, name, moment, left, chosen.wanted)


def _wrap(owner: Any, name: str, moment: str, left: list[int], wanted: Callable[..., bool]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        left[0] -= wanted(*args)
        if left[0] or not wanted(*args):
            return original(*args, **kwargs)
        if moment == BEFORE:
            kill()
        if moment in (EARLY, LATE):
            _inside(args[0], name, moment)
        result = original(*args, **kwargs)
        kill()
        return result

    setattr(owner, name, wrapped)


def _inside(owner: Any, name: str, moment: str) -> None:
    """Have the process killed at what happens within the step, from now on."""
    match owner, name:
        case S3Location(), "put" | "swap":
            if moment == EARLY:
                _before(http.client.HTTPConnection, "send", lambda connection, data: _send_half(connection, data))
            else:
                # All is sent: the server may do what was asked, and nobody here will know.
                _before(http.client.HTTPConnection, "getresponse", lambda *_: time.sleep(0.03))
        case Location(), "put" | "swap":
            if moment == EARLY:
                _before(Path, "replace")
            else:
                _before(location, "_sync_folder")
        case _, "write" | "close":
            _before(pq.ParquetWriter, "write_table" if moment == EARLY else "close")
        case _, "sweep" | "clear_staging":
            _after_one(moment)
        case _:
            # Reading has nothing inside that anybody else sees; the process dies at once.
            kill()


def _before(owner: Any, name: str, first: Callable[..., None] = lambda *_: None) -> None:
    def dies(*args: Any, **_: Any) -> None:
        first(*args)
        kill()

    setattr(owner, name, dies)


_SEND = http.client.HTTPConnection.send


def _send_half(connection: http.client.HTTPConnection, data: Any) -> None:
    whole = data if isinstance(data, bytes) else data.read()
    _SEND(connection, whole[: len(whole) // 2])
    time.sleep(0.01)


def _after_one(moment: str) -> None:
    """Die at the first removal, or when it is done."""
    for owner, name in ((S3Location, "delete"), (S3Location, "delete_tree"), (Path, "unlink"), (os, "unlink")):
        original = getattr(owner, name)

        def dies(*args: Any, original: Callable[..., Any] = original, **kwargs: Any) -> None:
            if moment == LATE:
                original(*args, **kwargs)
            kill()

        setattr(owner, name, dies)
