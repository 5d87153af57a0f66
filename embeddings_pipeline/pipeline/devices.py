"""Parts spread over the devices of a run.

What belongs here: which part gets which device's encoder, and bringing the results back in order.
What does not: embedding a part (`embedding`) and choosing devices (`execution.config` does).
"""

import contextlib
import queue
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from embeddings_pipeline.inference.cache import Cache
from embeddings_pipeline.inference.encoder import Encoder
from embeddings_pipeline.models.store import ResolvedModel

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")


class Encoders:
    """The encoders of a run's devices, loaded when they are first needed, each lent to one part at a time.

    `first` is the one that was loaded first, None while no text needed any.
    """

    def __init__(
        self,
        caches: Sequence[Cache],
        model: ResolvedModel,
        leases: contextlib.ExitStack,
        loaded: Callable[[Encoder], None],
    ) -> None:
        """Load nothing yet.

        Args:
            caches: one per device.
            model: the one that all devices load.
            leases: is given the leases, to end them.
            loaded: called with each encoder when it is there.
        """
        self.first: Encoder | None = None
        self._caches = caches
        self._model = model
        self._leases = leases
        self._loaded = loaded
        self._free: queue.SimpleQueue[tuple[Cache, Encoder | None]] = queue.SimpleQueue()
        for cache in caches:
            self._free.put((cache, None))

    @contextlib.contextmanager
    def one(self) -> Generator[Encoder]:
        """Lend the encoder of a device that has nothing to do."""
        cache, encoder = self._free.get()
        try:
            if encoder is None:
                encoder = self._leases.enter_context(cache.lease(self._model))
                self._loaded(encoder)
                self.first = self.first or encoder
            yield encoder
        finally:
            self._free.put((cache, encoder))

    def row(self) -> dict[str, Any] | None:
        """Return how a cache describes the model; None where it was not needed."""
        caches = self._caches if self.first is not None else ()
        rows = (row for cache in caches for row in cache.rows())
        return next((row for row in rows if row["fingerprint"] == self._model.fingerprint), None)


def in_order(work: Sequence[tuple[A, B]], do: Callable[[A, B], R], at_once: int) -> Iterator[R]:
    """Yield what becomes of each item, in order; after a failure no other item is begun."""
    if at_once == 1:
        yield from (do(*item) for item in work)
        return
    with ThreadPoolExecutor(at_once, thread_name_prefix="part") as threads:
        futures = [threads.submit(do, *item) for item in work]
        try:
            for future in futures:
                yield future.result()
        finally:
            threads.shutdown(wait=True, cancel_futures=True)
