"""The threads that compute: one pool per encoder, shared by all callers, first in, first out.

What belongs here: handing items to threads, stopping, and bringing every error to its caller. What
does not: what an item is and how many threads there should be (both: `engine`).
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from embeddings_pipeline.errors import EmbeddingCancelledError, ModelError

T = TypeVar("T")
R = TypeVar("R")

_IDLE_SECONDS = 1.0
"""An idle thread ends after this time, so that a process that forgot `close` still ends."""

_POLL_SECONDS = 0.05
"""How often a waiting caller looks at its cancel event, which wakes nobody of ours."""


class _Call:
    """One `WorkerPool.run`: its results, its first error, and how much is still to come."""

    def __init__(
        self,
        work: Callable[[Any, Callable[[], bool]], Any],
        count: int,
        limit: int,
        cancel: threading.Event | None,
        ticket: int,
    ) -> None:
        self.work = work
        self.ticket = ticket
        self.results: list[Any] = [None] * count
        self.limit = limit
        self.cancel = cancel
        self.left = count
        self.error: BaseException | None = None

    def stopped(self) -> bool:
        """Whether what is left of this call need not be computed any more."""
        return self.error is not None or (self.cancel is not None and self.cancel.is_set())


class WorkerPool:
    """Threads that start when there is work and end when there is none for a while, or in `close`.

    Calls that run at once share the threads; the items of an earlier ticket are started first.
    """

    def __init__(self, name: str, prepare: Callable[[], None]) -> None:
        """Make a pool, as yet without threads.

        Args:
            name: the threads are called this and a number.
            prepare: run first in each new thread.
        """
        self._name = name
        self._prepare = prepare
        self._lock = threading.Lock()
        self._work_came = threading.Condition(self._lock)
        self._work_done = threading.Condition(self._lock)
        self._queue: deque[tuple[_Call, int, Any]] = deque()
        self._threads: set[threading.Thread] = set()
        self._running = 0
        self._started = 0
        self._closed = False
        self._tickets = itertools.count()

    def ticket(self) -> int:
        """Return a place in the order of calls, to be taken before a call prepares its items.

        Without it the call that is prepared sooner would compute first, and an application batch
        would wait for the one after it.
        """
        return next(self._tickets)

    def run(
        self,
        work: Callable[[T, Callable[[], bool]], R],
        items: Sequence[T],
        limit: int,
        cancel: threading.Event | None = None,
        ticket: int | None = None,
    ) -> list[R]:
        """Compute all items and return their results in the order of the items.

        The first error of an item, or a set `cancel`, drops the items that are not yet started,
        waits for those that are, and is raised. No call sees the error of another.

        Args:
            work: gets an item and a function that tells whether the call has been stopped.
            items: what to compute.
            limit: at most this many threads compute when an item of this call is started.
            cancel: gives the call up when set.
            ticket: the call's place among others, from `ticket`; None for the last place.

        Raises:
            EmbeddingCancelledError: `cancel` was set.
            ModelError: the pool is closed.
        """
        call = _Call(work, len(items), max(1, limit), cancel, self.ticket() if ticket is None else ticket)
        with self._lock:
            if self._closed:
                raise _closed_error(self._name)
            try:
                entries = [(call, position, item) for position, item in enumerate(items)]
                # Sorting is stable, so that the items of one call keep their order.
                self._queue = deque(sorted([*self._queue, *entries], key=lambda entry: entry[0].ticket))
                self._start_threads(min(call.limit, self._running + len(self._queue)))
                self._work_came.notify_all()
                while call.left:
                    self._work_done.wait(_POLL_SECONDS if cancel is not None else None)
                    if call.stopped():
                        self._drop(call)
            finally:
                # Also when this very thread is interrupted (Ctrl-C): nobody would fetch the results.
                self._drop(call)
        if call.error is not None:
            raise call.error
        if call.stopped():
            raise EmbeddingCancelledError
        return call.results

    def close(self) -> None:
        """Stop all threads and wait for them; calls under way end with `ModelError`. Idempotent."""
        with self._lock:
            self._closed = True
            for call, _, _ in self._queue:
                call.error = call.error or _closed_error(self._name)
                call.left -= 1
            self._queue.clear()
            self._work_came.notify_all()
            self._work_done.notify_all()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def _drop(self, call: _Call) -> None:
        """Take what is left of a call out of the queue; the lock is held."""
        kept = [entry for entry in self._queue if entry[0] is not call]
        call.left -= len(self._queue) - len(kept)
        if len(kept) != len(self._queue):
            self._queue = deque(kept)
            self._work_came.notify_all()

    def _start_threads(self, wanted: int) -> None:
        """Make sure that `wanted` threads exist; the lock is held."""
        while len(self._threads) < wanted:
            self._started += 1
            thread = threading.Thread(target=self._loop, name=f"{self._name}-{self._started}")
            thread.start()
            self._threads.add(thread)

    def _loop(self) -> None:
        try:
            self._prepare()
            while (task := self._next()) is not None:
                self._compute(*task)
                # A reference kept while waiting would keep a whole batch and its caller's results alive.
                del task
        except BaseException as error:  # noqa: BLE001 (what ends a thread is raised again in those who wait for it)
            self._fail_everything(error)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _next(self) -> tuple[_Call, int, Any] | None:
        """Wait for an item that may start now; None ends the thread."""
        with self._lock:
            while not self._closed:
                if self._queue and self._running < self._queue[0][0].limit:
                    self._running += 1
                    return self._queue.popleft()
                if not self._work_came.wait(_IDLE_SECONDS) and not self._queue:
                    # Under the lock, so that `_start_threads` never counts a thread that is about to end.
                    self._threads.discard(threading.current_thread())
                    return None
        return None

    def _compute(self, call: _Call, position: int, item: Any) -> None:
        error: BaseException | None = None
        result = None
        if not call.stopped():
            try:
                result = call.work(item, call.stopped)
            except BaseException as raised:  # noqa: BLE001 (raised again in the thread of the caller)
                error = raised
        with self._lock:
            self._running -= 1
            call.results[position] = result
            call.left -= 1
            call.error = call.error or error
            self._work_came.notify()
            self._work_done.notify_all()

    def _fail_everything(self, error: BaseException) -> None:
        with self._lock:
            for call, _, _ in self._queue:
                call.error = call.error or ModelError(f"a worker thread of {self._name} ended: {error}; run again")
            self._work_done.notify_all()


def _closed_error(name: str) -> ModelError:
    return ModelError(
        f"the encoder of {name} was ejected while it was in use; load the model again and repeat the call"
    )
