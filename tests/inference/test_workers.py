"""The worker pool: whose items are computed first."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from embeddings_pipeline.inference.workers import WorkerPool


def test_a_call_with_an_earlier_ticket_computes_before_one_that_was_ready_sooner():
    """A short application batch is tokenised sooner than the long one before it, and must not overtake it."""
    pool = WorkerPool("order", lambda: None)
    gate = threading.Event()
    order: list[str] = []

    def work(item: str, stopped: object) -> None:
        if item == "gate":
            gate.wait(10)
        else:
            order.append(item)

    first = pool.ticket()
    with ThreadPoolExecutor(3) as threads:
        calls = [threads.submit(pool.run, work, ["gate"], 1)]
        _until(lambda: pool._running == 1)
        calls.append(threads.submit(pool.run, work, ["late 1", "late 2"], 1))
        _until(lambda: len(pool._queue) == 2)
        calls.append(threads.submit(pool.run, work, ["early 1", "early 2"], 1, None, first))
        _until(lambda: len(pool._queue) == 4)
        gate.set()
        for call in calls:
            call.result(10)
    pool.close()
    assert order == ["early 1", "early 2", "late 1", "late 2"]


def _until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
