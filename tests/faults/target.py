"""One run of the fault corpus, on disk or in S3, with a fault armed: what a process does that may be lost.

What belongs here: everything that such a process needs, so that `nursery` has it imported before it forks. What does
not: choosing faults (`scenarios`) and judging what is left (`backend`).
"""

import resource
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from embeddings_pipeline.errors import EmbeddingsError
from embeddings_pipeline.storage import s3
from tests.fakes import Bench, FakeEncoder
from tests.faults.plan import WideEncoder, run
from tests.faults.points import arm
from tests.s3 import S3Bench

DONE, SENTENCE, CRASH = 0, 3, 4


@dataclass(frozen=True)
class Order:
    """What one process has to do.

    `endpoint` and `bucket` are empty on disk; `temporary` stands for TMPDIR. `point` and `moment` say where it is
    killed, `file_bytes` how large a file may grow (0: any), `seconds` how long the encoder takes for a batch,
    `attempts` how often a request is tried. With `wide` vectors a part has 6 MB, and S3 gets it in pieces.
    """

    root: str
    temporary: str
    version: int
    endpoint: str = ""
    bucket: str = ""
    seconds: float = 0.0
    point: str = ""
    moment: str = ""
    file_bytes: int = 0
    attempts: int = 8
    wide: bool = False


def bench_of(order: Order) -> Bench:
    """Return the corpus that the order is about."""
    root = Path(order.root)
    bench = S3Bench(root, order.endpoint, order.bucket) if order.endpoint else Bench(root)
    bench.encoder = WideEncoder() if order.wide else FakeEncoder(seconds=order.seconds)
    return bench


def settle(order: Order) -> None:
    """Set what is the process's own: its folder for temporary files, and its patience with the store."""
    tempfile.tempdir = order.temporary
    s3._READ_TIMEOUT = 1.0
    s3._ATTEMPTS = order.attempts
    s3._MULTIPART_BYTES = s3._PIECE_BYTES = 5 << 20


@contextmanager
def files_of_at_most(limit: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes meanwhile; 0 sets no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def obey(order: Order) -> int:
    """Run the corpus once; print the sentence of an error of ours, or the traceback of any other."""
    settle(order)
    bench = bench_of(order)
    if order.point:
        arm(order.point, order.moment)
    try:
        with files_of_at_most(order.file_bytes):
            run(bench, order.version, "attempt", wide=order.wide)
    except EmbeddingsError as error:
        print(f"{type(error).__name__}: {error}")
        return SENTENCE
    except Exception:  # noqa: BLE001 (a child has nobody to raise to)
        traceback.print_exc(file=sys.stdout)
        return CRASH
    return DONE
