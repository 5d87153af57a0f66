"""A model host seen from a run: the same interface as a cache and an encoder of this process.

What belongs here: requests to one host, giving them up, and sending them again after a host's death.
What does not: starting a host (`lifecycle`), and verbs over all hosts (`machine`). Imports no torch.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import logging
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from embeddings_pipeline.errors import (
    DeviceFailedError,
    EmbeddingCancelledError,
    HostUnavailableError,
    ModelNotInCacheError,
)
from embeddings_pipeline.host import wire
from embeddings_pipeline.host.lifecycle import LOG_LINES, Hosts, home_of, physical_device
from embeddings_pipeline.inference.cache import Cache, Ejection, ModelCache
from embeddings_pipeline.inference.device import require_device
from embeddings_pipeline.inference.encoder import DEFAULT_OPTIONS
from embeddings_pipeline.models.store import ResolvedModel
from embeddings_pipeline.records import EmbeddedBatch, EmbedOptions
from embeddings_pipeline.settings import CacheSettings, Environment

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.05
"""How often a waiting caller looks at its cancel event, which wakes nobody of ours."""

_CONNECT_SECONDS = 15.0
_MOST_EVENTS = 20
_TIMES = ("loaded_at", "last_used_at")


class _Line:
    """Requests over one Unix socket from any thread, each of which can be given up.

    They run on an event loop of their own, since only there can a request be cancelled: its
    connection closes, and the host sees that its client has left.
    """

    def __init__(self, socket: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="model-host-client", daemon=True)
        self._thread.start()
        self._client = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(uds=str(socket)),
            base_url="http://model-host",
            timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
        )

    def send(self, method: str, url: str, cancel: threading.Event | None, **request: Any) -> httpx2.Response:
        """Send a request and wait for the answer, however long a batch may take.

        Raises:
            EmbeddingCancelledError: `cancel` was set.
            httpx2.TransportError: there is no host, or it has gone.
        """
        running = asyncio.run_coroutine_threadsafe(self._client.request(method, url, **request), self._loop)
        try:
            while True:
                try:
                    return running.result(_POLL_SECONDS if cancel is not None else None)
                except TimeoutError:
                    if running.done():
                        raise
                    if cancel is not None and cancel.is_set():
                        raise EmbeddingCancelledError from None
        finally:
            # Also when this very thread is interrupted (Ctrl-C).
            running.cancel()

    def close(self) -> None:
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._client.aclose(), self._loop).result(_CONNECT_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class RemoteCache:
    """The model cache of one device, kept by its host; all methods may be called from any thread.

    Nothing is started before a model is needed; listing, ejecting and asking start nothing at all.
    """

    def __init__(self, device: str, hosts: Hosts, settings: CacheSettings | None = None) -> None:
        """Connect to nothing yet.

        Args:
            device: a device as this process sees it.
            hosts: those of this user's Dagster home.
            settings: what the host has to have; None takes a running one as it is.
        """
        self.device, _ = physical_device(device, hosts.environment)
        self.hosts = hosts
        self._settings = settings
        self._seen = device
        self._lock = threading.Lock()
        self._line: _Line | None = None
        self._info: dict[str, Any] | None = None

    @contextlib.contextmanager
    def lease(self, model: ResolvedModel) -> Generator["RemoteEncoder"]:
        """Give out an encoder for the length of a block; the host loads the model if need be.

        Between two calls of its `embed` anybody may eject the model; the next call loads it again.
        """
        yield RemoteEncoder(self, model, self._load(model))

    def load(self, model: ResolvedModel) -> dict[str, Any]:
        """Load a model without using it, and return its row."""
        return _row(self._load(model)["model"])

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per loaded model; none where no host runs."""
        response, _ = self.call("GET", "/models", start=False)
        return [_row(row) for row in response.json()["models"]] if response is not None else []

    def eject(
        self, name: str, *, fingerprint: str | None = None, force: bool = False, wait_s: float | None = None
    ) -> Ejection:
        """Unload a model; see `ModelCache.eject`."""
        wanted = {"model_name": name, "fingerprint": fingerprint, "force": force, "wait_s": wait_s}
        query = {key: value for key, value in wanted.items() if value is not None}
        response, _ = self.call("DELETE", "/models", start=False, params=query)
        if response is None:
            raise ModelNotInCacheError(name, self.device, [])
        done = response.json()
        return Ejection(
            name, self.device, done["fingerprint"], done["freed_bytes"], done["returned_bytes"], done["forced"]
        )

    def device_info(self) -> dict[str, Any]:
        """Return the memory of the device and what of it the host's models take."""
        response, _ = self.call("GET", f"/device/{self.device}", start=False)
        if response is not None:
            return response.json()
        return ModelCache(self._seen, name=self.device).device_info() | (
            {"memory_usage": "0.0 GiB", "memory_usage_bytes": 0} if self.device == "cpu" else {}
        )

    def close(self) -> None:
        """Close the connections; the host stays. Idempotent."""
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            line.close()

    def call(
        self, method: str, url: str, *, start: bool = True, cancel: threading.Event | None = None, **request: Any
    ) -> tuple[httpx2.Response | None, list[str]]:
        """Send a request, once more if the host dies meanwhile; return the answer and what there is to tell.

        Args:
            method: of HTTP.
            url: of the route.
            start: start a host where none runs; otherwise the answer is None then.
            cancel: gives the request up when set.
            request: what httpx2 takes.

        Raises:
            EmbeddingsError: what the host answers with, as it was raised there.
            EmbeddingCancelledError: `cancel` was set.
            HostUnavailableError: no host starts, or two have died of this request.
        """
        problem, before = "", None
        for _ in range(2):
            info = self._connect(start)
            if info is None:
                return None, []
            try:
                response = self._open_line().send(method, url, cancel, **request)
            except httpx2.TransportError as error:
                problem = f"{type(error).__name__}: {error}".rstrip(": ")
            else:
                failure = _failure(response)
                if failure is None:
                    return response, self._tell(before, info, problem)
                if not isinstance(failure, DeviceFailedError):
                    raise failure
                problem = str(failure)
            _log.warning("the model host of %s does not answer (%s); asking again", self.device, problem)
            before = info
            with self._lock:
                self._info = None
        raise self._unavailable(f"ended twice while it computed this: {problem}")

    def _tell(self, before: dict[str, Any] | None, now: dict[str, Any], problem: str) -> list[str]:
        if before is None or before["instance"] == now["instance"]:
            return []
        event = (
            f"the model host of {self.device} (pid {before['pid']}) ended with a request in flight ({problem}); "
            f"another (pid {now['pid']}) was started and the request sent again"
        )
        _log.warning("%s", event)
        return [event]

    def _connect(self, start: bool) -> dict[str, Any] | None:
        with self._lock:
            info = self._info
        if info is None:
            # Not under the lock: `ensure` lets one of all threads and processes start a host.
            if start:
                require_device(self._seen)
            info = self.hosts.ensure(self.device, self._settings) if start else self.hosts.ask(self.device)
            with self._lock:
                self._info = info
        return info

    def _open_line(self) -> _Line:
        with self._lock:
            if self._line is None:
                self._line = _Line(self.hosts.files(self.device).socket)
            return self._line

    def _load(self, model: ResolvedModel) -> dict[str, Any]:
        response, _ = self.call("PUT", "/models", json=wire.model_message(model))
        facts: dict[str, Any] = response.json() if response is not None else {}
        pid = (self._info or {}).get("pid", 0)
        how = "loaded" if facts["loaded_now"] else "is loaded already"
        _log.info("model %s %s on %s by its model host (pid %s)", model.name, how, self.device, pid)
        return facts

    def _unavailable(self, problem: str) -> HostUnavailableError:
        home = self.hosts.folder.parent
        by_hand = f"DAGSTER_HOME={home} embeddings host start --device {self.device}"
        return HostUnavailableError(self.device, problem, self.hosts.log_lines(self.device, LOG_LINES // 4), by_hand)


class RemoteEncoder:
    """An `Encoder` whose model is in the memory of a host."""

    def __init__(self, cache: RemoteCache, model: ResolvedModel, facts: dict[str, Any]) -> None:
        """Describe a model as its host has answered."""
        row = facts["model"]
        self.model = model
        self.device: str = cache.device
        self.kind: str = row["kind"]
        self.dimensions: int = row["dimensions"]
        self.max_length: int = facts["max_length"]
        self.path: str = row["path"]
        self.path_reason: str = facts["path_reason"]
        self.bytes: int = row["bytes"]
        self._cache = cache
        self._workers: int = facts["workers"]
        self._automatic_tokens: int = facts["model_batch_tokens"]
        self._learned_tokens: int | None = None
        self._loaded_at = dt.datetime.fromisoformat(row["loaded_at"])
        self._events = 0
        self._vocabulary: pa.Array | None = None
        self._lock = threading.Lock()

    def embed(
        self,
        texts: Sequence[str],
        options: EmbedOptions = DEFAULT_OPTIONS,
        cancel: threading.Event | None = None,
    ) -> EmbeddedBatch:
        """Compute the vectors of some texts in one request; see `Encoder.embed`.

        Raises:
            EmbeddingCancelledError: `cancel` was set; the host drops what it has not begun.
            HostUnavailableError: the host died, was started again, and died again.
        """
        if cancel is not None and cancel.is_set():
            raise EmbeddingCancelledError
        body = wire.pack_texts(self.model, texts, options)
        headers = {"content-type": wire.ARROW}
        response, events = self._cache.call("POST", "/embed", cancel=cancel, content=body, headers=headers)
        batch, facts = wire.read_vectors(response.content if response is not None else b"")
        events = [*batch.events, *self._reloaded(facts, host_died=bool(events)), *events]
        return dataclasses.replace(batch, events=events)

    def workers(self, options: EmbedOptions) -> int:
        """Return how many threads of the host compute; see `Encoder.workers`."""
        return options.workers or self._workers

    def model_batch_tokens(self, options: EmbedOptions) -> int:
        """Return the token budget as the host has last used it; see `Encoder.model_batch_tokens`."""
        wanted = options.model_batch_tokens or self._automatic_tokens
        return wanted if self._learned_tokens is None else min(wanted, self._learned_tokens)

    def token_strings(self, indices: npt.NDArray[np.int32]) -> pa.Array:
        """Return the vocabulary's strings, which are asked for once; see `Encoder.token_strings`."""
        vocabulary = self._vocabulary
        if vocabulary is None:
            vocabulary = self._vocabulary = self._fetch_vocabulary()
        return vocabulary.take(pa.array(indices, pa.int32()))

    def close(self) -> None:
        """Do nothing: the model is the host's."""

    def _fetch_vocabulary(self) -> pa.Array:
        url = f"/models/{self.model.fingerprint}/tokens"
        try:
            response, _ = self._cache.call("GET", url)
        except ModelNotInCacheError:
            # Ejected since the last batch.
            self._cache.load(self.model)
            response, _ = self._cache.call("GET", url)
        return wire.read_strings(response.content if response is not None else b"")

    def _reloaded(self, facts: dict[str, Any], *, host_died: bool) -> list[str]:
        """Tell that the model was ejected since the last call, if it was; once for both calls in flight."""
        loaded_at = dt.datetime.fromisoformat(facts["loaded_at"])
        with self._lock:
            self._learned_tokens = facts["model_batch_tokens"]
            if loaded_at <= self._loaded_at:
                return []
            self._loaded_at = loaded_at
            self._events += 1
            if host_died or self._events > _MOST_EVENTS:
                return []
        event = f"model {self.model.name} had been ejected from {self.device} and was loaded again for this batch"
        _log.warning("%s", event)
        return [event]


def open_cache(
    device: str,
    environment: Environment,
    *,
    mode: str | None = None,
    home: Path | None = None,
    settings: CacheSettings | None = None,
) -> Cache:
    """Return the model cache of a device, in this process or in a host; nothing is loaded or started.

    Args:
        device: as this process sees it.
        environment: says the mode and the home where they are not given.
        mode: `host` or `in_process`.
        home: where hosts have their files.
        settings: budget, policy and idle time.

    Raises:
        ConfigurationError: the mode is `host`, and there is no home.
    """
    if (mode or environment.mode) == "in_process":
        return ModelCache(device, settings=settings)
    return RemoteCache(device, Hosts(home or home_of(environment), environment), settings)


def _failure(response: httpx2.Response) -> Any:
    """Return what the host answers with as the error that it is, or None."""
    if response.status_code < 400:
        return None
    try:
        body = response.json()
    except ValueError:
        body = {"message": response.text or f"HTTP status {response.status_code}"}
    return wire.read_error(body, response.headers.get(wire.IDS_HEADER))


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: dt.datetime.fromisoformat(value) if name in _TIMES and value else value for name, value in row.items()
    }
