"""What the routes of a host share: its cache, the threads that work for requests, counts of use.

What belongs here: the work behind a request, and giving it up. What does not: routes and status codes
(`server`), and bodies (`wire`).
"""

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import Request

from embeddings_pipeline.errors import (
    DeviceFailedError,
    EmbeddingsError,
    ModelNotInCacheError,
    UnknownDeviceError,
)
from embeddings_pipeline.host import wire
from embeddings_pipeline.inference.cache import ModelCache
from embeddings_pipeline.inference.device import canonical_device
from embeddings_pipeline.inference.engine import is_device_error
from embeddings_pipeline.models.store import ResolvedModel
from embeddings_pipeline.records import EmbedOptions
from embeddings_pipeline.settings import HostLimits

R = TypeVar("R")

_ADMIN_THREADS = 16


class Desk:
    """What the routes share: the cache, the threads that work for requests, and counts of use."""

    def __init__(self, cache: ModelCache, target: str, limits: HostLimits, facts: Mapping[str, Any]) -> None:
        """Start nothing.

        Args:
            cache: the device's cache.
            target: the device as this process sees it.
            limits: of requests.
            facts: what `GET /host` shows of the process.
        """
        self.cache = cache
        self.target = target
        self.limits = limits
        self.facts = dict(facts)
        self.in_flight = 0
        self.last_used = time.monotonic()
        self.failed = ""
        self.leave: Callable[[], None] = lambda: None
        self._turns = asyncio.Semaphore(limits.requests)
        self._computing = ThreadPoolExecutor(limits.requests, thread_name_prefix="request")
        self._admin = ThreadPoolExecutor(_ADMIN_THREADS, thread_name_prefix="admin")

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Count a request that uses a model; it waits until few enough others compute."""
        self.in_flight += 1
        try:
            async with self._turns:
                yield
        finally:
            self.in_flight -= 1
            self.last_used = time.monotonic()

    @contextlib.contextmanager
    def using(self) -> Any:
        """Count a request that uses the host without computing."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
            self.last_used = time.monotonic()

    async def admin(self, work: Callable[[], R]) -> R:
        """Run something that may block, apart from what computes."""
        return await asyncio.get_running_loop().run_in_executor(self._admin, work)

    async def compute(self, request: Request, work: Callable[[threading.Event], R]) -> R:
        """Run an embed call; when its client leaves, it is given up within one model batch.

        Raises:
            EmbeddingCancelledError: the client has left.
        """
        cancel = threading.Event()
        running = asyncio.get_running_loop().run_in_executor(self._computing, work, cancel)
        leaving = asyncio.create_task(_left(request))
        try:
            await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                cancel.set()
            return await running
        finally:
            cancel.set()
            leaving.cancel()

    def embed(self, body: bytes, cancel: threading.Event) -> memoryview:
        """Embed an application batch; runs in a thread.

        Raises:
            DeviceFailedError: the device has failed; the host leaves.
        """
        request = wire.read_texts(body)
        model = self.model(request.model)
        try:
            with self.cache.lease(model) as encoder:
                batch = encoder.embed(request.texts, request.options, cancel)
                facts = {
                    "loaded_at": self.loaded_at(model),
                    "workers": encoder.workers(request.options),
                    "model_batch_tokens": encoder.model_batch_tokens(request.options),
                }
        except EmbeddingsError as error:
            if is_device_error(error):
                self.failed = str(error)
                raise DeviceFailedError(self.cache.device, str(error)) from error
            raise
        return wire.pack_vectors(batch, facts)

    def model(self, message: Mapping[str, Any]) -> ResolvedModel:
        """Find a model; what is loaded already is not looked for in the files."""
        fingerprint = message.get("fingerprint")
        loaded = self.cache.holds(fingerprint) if isinstance(fingerprint, str) else None
        return loaded or wire.read_model(message)

    def load(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Load a model and describe its encoder; runs in a thread."""
        model = self.model(message)
        loaded_before = self.cache.holds(model.fingerprint) is not None
        row = self.cache.load(model)
        with self.cache.lease(model, counted=False) as encoder:
            facts = {
                "max_length": encoder.max_length,
                "path_reason": encoder.path_reason,
                "workers": encoder.workers(EmbedOptions()),
                "model_batch_tokens": encoder.model_batch_tokens(EmbedOptions()),
                "loaded_now": not loaded_before,
            }
        return {"model": wire.row_message(row), **facts}

    def loaded_at(self, model: ResolvedModel) -> str:
        """Return when a model was loaded: another time means that it was ejected in between."""
        rows = (row for row in self.cache.rows() if row["fingerprint"] == model.fingerprint)
        return str(next((row["loaded_at"] for row in rows), ""))

    def tokens(self, fingerprint: str) -> memoryview:
        """Return the string of each sparse dimension of a loaded model; runs in a thread."""
        import numpy as np

        model = self.cache.holds(fingerprint)
        if model is None:
            loaded = [f"{row['model_name']} ({row['fingerprint']})" for row in self.cache.rows()]
            raise ModelNotInCacheError(fingerprint, self.cache.device, loaded)
        with self.cache.lease(model, counted=False) as encoder:
            return wire.pack_strings(encoder.token_strings(np.arange(encoder.dimensions, dtype=np.int32)))

    def own(self, device: str) -> None:
        """Refuse a device that is not this host's.

        Raises:
            UnknownDeviceError: naming the device that is.
        """
        if canonical_device(device) != self.cache.device:
            raise UnknownDeviceError(device, [self.cache.device], " in this host")

    def probe(self) -> None:
        """Compute something on the device.

        Raises:
            DeviceFailedError: it cannot.
        """
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "ones"):
            try:
                torch.ones(2, device=self.target).sum().item()
            except RuntimeError as error:
                self.failed = str(error)
        if self.failed:
            raise DeviceFailedError(self.cache.device, self.failed)

    def close(self) -> None:
        """End the threads that wait; those that work end with their work."""
        for pool in (self._computing, self._admin):
            pool.shutdown(wait=False, cancel_futures=True)


async def _left(request: Request) -> None:
    """Return when the client has closed its connection; its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        continue
