"""The encoders of one device: each loaded once, counted, kept within a budget, and given back.

What belongs here: who uses which encoder, one construction per key, listing, ejecting, budget and
idle times. What does not: loading (`encoder`), measuring memory (`memory`), and sharing between
processes (`host`).
"""

import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from embeddings_pipeline.errors import (
    ModelAmbiguousError,
    ModelDoesNotFitError,
    ModelEjectedError,
    ModelError,
    ModelInUseError,
    ModelNotInCacheError,
)
from embeddings_pipeline.inference.device import canonical_device
from embeddings_pipeline.inference.encoder import Encoder, load_encoder
from embeddings_pipeline.inference.memory import (
    device_memory,
    expected_bytes,
    is_out_of_memory,
    return_memory,
    used_by_process,
)
from embeddings_pipeline.models.store import ResolvedModel
from embeddings_pipeline.settings import CacheSettings, HostLimits

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ejection:
    """What an eject did: `freed_bytes` of weights; `returned_bytes` are what the process holds less.

    `forced` says that calls under way were cancelled.
    """

    model_name: str
    device: str
    fingerprint: str
    freed_bytes: int
    returned_bytes: int
    forced: bool


@dataclass(slots=True)
class _Entry:
    """One encoder, perhaps still loading; changed under the cache's lock only.

    `leaving` keeps new users waiting until the model is gone or stays; `cancelled` tells the present
    ones why their calls ended.
    """

    model: ResolvedModel
    encoder: Future[Encoder] = field(default_factory=Future)
    users: int = 0
    uses: int = 0
    leaving: bool = False
    cancelled: bool = False
    loaded_at: datetime | None = None
    last_used_at: datetime | None = None
    idle_since: float = field(default_factory=time.monotonic)

    @property
    def loaded(self) -> bool:
        """Whether there is an encoder; the lock is held."""
        return self.encoder.done() and not self.encoder.exception()


class Cache(Protocol):
    """What the pipeline asks of a model cache, in this process (`ModelCache`) or in a host's."""

    device: str

    def lease(self, model: ResolvedModel) -> Any:
        """Give out the encoder of a model for the length of a `with` block; load it if need be."""
        ...

    def load(self, model: ResolvedModel) -> dict[str, Any]:
        """Load a model without using it, and return its row."""
        ...

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per loaded model."""
        ...

    def eject(
        self, name: str, *, fingerprint: str | None = None, force: bool = False, wait_s: float | None = None
    ) -> Ejection:
        """Unload a model."""
        ...

    def device_info(self) -> dict[str, Any]:
        """Return the memory of the device and what of it is the models'."""
        ...

    def close(self) -> None:
        """Let go of what this object holds. Idempotent."""
        ...


class ModelCache:
    """Encoders of one device by fingerprint. All methods may be called from any thread."""

    def __init__(
        self,
        device: str,
        load: Callable[[ResolvedModel, str], Encoder] = load_encoder,
        settings: CacheSettings | None = None,
        *,
        name: str | None = None,
        expected: Callable[[ResolvedModel], int] = expected_bytes,
        patience_s: float = HostLimits().eject_s,
    ) -> None:
        """Make an empty cache.

        Args:
            device: where the encoders are.
            load: builds an encoder.
            settings: budget, policy and idle time.
            name: how the device is called in rows and messages, if the process sees it under another.
            expected: tells the bytes of a model that is not loaded yet.
            patience_s: how long an eject or an eviction waits for a model's users.
        """
        self._target = canonical_device(device)
        self.device = name or self._target
        self.settings = settings or CacheSettings()
        self._load = load
        self._expected = expected
        self._patience = patience_s
        self._changed = threading.Condition()
        self._loading = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    @contextmanager
    def lease(self, model: ResolvedModel, *, counted: bool = True) -> Generator[Encoder]:
        """Give out the encoder of a model, loaded if it is not yet; it is not evicted meanwhile.

        However many threads ask at once, one loads and the others wait for it. A failed load is
        raised in all of them, leaves nothing behind, and may be tried again. While a model is being
        ejected, new users wait and then load it again.

        Args:
            model: which one.
            counted: whether this is a use, for the rows.

        Raises:
            ModelDoesNotFitError: there is no room, and by policy or use none can be made.
            ModelEjectedError: in the block's embed calls, when somebody ejects the model by force.
        """
        entry = self._enter(model)
        try:
            encoder = entry.encoder.result()
            with self._changed:
                entry.uses += counted
                entry.last_used_at = datetime.now(UTC)
            yield encoder
        except ModelError as error:
            if entry.cancelled:
                raise ModelEjectedError(model.name, self.device) from error
            raise
        finally:
            self._leave(entry)

    def load(self, model: ResolvedModel) -> dict[str, Any]:
        """Load a model without using it, and return its row."""
        entry = self._enter(model)
        try:
            encoder = entry.encoder.result()
            with self._changed:
                return self._row(entry, encoder)
        finally:
            self._leave(entry)

    def holds(self, fingerprint: str) -> ResolvedModel | None:
        """Return the model of that fingerprint if it is loaded."""
        with self._changed:
            entry = self._entries.get(fingerprint)
            return entry.model if entry is not None and entry.loaded and not entry.leaving else None

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per loaded model, by name; DESIGN section 5 names the columns."""
        with self._changed:
            return [
                self._row(entry, entry.encoder.result())
                for entry in sorted(self._loaded(), key=lambda entry: (entry.model.name, entry.model.fingerprint))
            ]

    def eject(
        self, name: str, *, fingerprint: str | None = None, force: bool = False, wait_s: float | None = None
    ) -> Ejection:
        """Unload a model and give its memory back to the system, once its users have finished.

        Args:
            name: the whole name of the model.
            fingerprint: which one, where several have the name.
            force: cancel the users' calls instead of waiting for them.
            wait_s: how long to wait for the users.

        Raises:
            ModelNotInCacheError: no such model is loaded; the message says which are.
            ModelAmbiguousError: several are.
            ModelInUseError: the users did not finish in time; the model stays.
        """
        entry = self._depart(name, fingerprint)
        patience = self._patience if wait_s is None else wait_s
        forced = False
        with self._changed:
            if not force and not self._changed.wait_for(lambda: entry.users == 0, patience):
                entry.leaving = False
                self._changed.notify_all()
                raise ModelInUseError(name, self.device, entry.users, patience)
            forced = entry.cancelled = entry.users > 0
        freed, returned = self._remove(entry)
        _log.info("model %s ejected from %s: %d bytes of weights", name, self.device, freed)
        return Ejection(name, self.device, entry.model.fingerprint, freed, returned, forced)

    def sweep(self, keep: str | None = None) -> list[str]:
        """Eject the models that nobody has used for the idle time (but `keep`), and return their names."""
        gone: list[str] = []
        while self.settings.idle_timeout_s > 0:
            with self._changed:
                latest = time.monotonic() - self.settings.idle_timeout_s
                idle = [
                    entry
                    for entry in self._loaded()
                    if not (entry.users or entry.leaving) and entry.idle_since <= latest
                    if entry.model.fingerprint != keep
                ]
                if not idle:
                    break
                idle[0].leaving = True
            self._remove(idle[0])
            _log.info("model %s ejected from %s: unused", idle[0].model.name, self.device)
            gone.append(idle[0].model.name)
        return gone

    def device_info(self) -> dict[str, Any]:
        """Return the device's memory, what of it this process uses, and what the models take."""
        rows = self.rows()
        sizes = {"models": len(rows), "models_bytes": sum(row["bytes"] for row in rows)}
        return device_memory(self._target, self.device) | sizes | {"memory_budget": self.settings.memory_budget}

    def close(self) -> None:
        """Unload everything; calls that are under way end with `ModelError`. Idempotent."""
        with self._changed:
            entries = self._loaded()
            for entry in entries:
                entry.cancelled = entry.users > 0
            self._entries.clear()
        for entry in entries:
            entry.encoder.result().close()

    def _enter(self, model: ResolvedModel) -> _Entry:
        """Become a user of a model's entry, and fill it if nobody has yet."""
        self.sweep(keep=model.fingerprint)
        with self._changed:
            while (entry := self._entries.get(model.fingerprint)) is not None and entry.leaving:
                self._changed.wait()
            mine = entry is None
            if entry is None:
                entry = self._entries[model.fingerprint] = _Entry(model)
            entry.users += 1
        if mine:
            self._fill(entry)
        return entry

    def _leave(self, entry: _Entry) -> None:
        with self._changed:
            entry.users -= 1
            entry.last_used_at = datetime.now(UTC)
            entry.idle_since = time.monotonic()
            self._changed.notify_all()

    def _fill(self, entry: _Entry) -> None:
        """Load an entry's encoder; what goes wrong is raised in every waiting thread, by `result`."""
        try:
            # Budget and load are one step: two loads at once would both find the room that one needs.
            with self._loading:
                encoder = self._loaded_within_budget(entry)
        except BaseException as error:  # noqa: BLE001 (see the docstring)
            with self._changed:
                self._entries.pop(entry.model.fingerprint, None)
                self._changed.notify_all()
            entry.encoder.set_exception(error)
            return
        with self._changed:
            entry.loaded_at = entry.last_used_at = datetime.now(UTC)
            entry.encoder.set_result(encoder)
            self._changed.notify_all()

    def _loaded_within_budget(self, entry: _Entry) -> Encoder:
        started = time.monotonic()
        needed = self._expected(entry.model)
        self._make_room(entry, needed)
        try:
            encoder = self._load(entry.model, self._target)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return_memory(self._target)
            memory = device_memory(self._target, self.device)
            room = f"{memory['memory_usage']} of {memory['total_device_memory']} in use"
            raise self._does_not_fit(entry, needed, room) from error
        try:
            self._make_room(entry, encoder.bytes)
        except BaseException:
            encoder.close()
            return_memory(self._target)
            raise
        seconds = time.monotonic() - started
        _log.info("model %s loaded on %s in %.1fs (%d bytes)", entry.model.name, self.device, seconds, encoder.bytes)
        return encoder

    def _make_room(self, entry: _Entry, needed: int) -> None:
        """Evict idle models, the least recently used first, until `needed` bytes fit into the budget.

        New users of the chosen model wait, so that it becomes idle however busy it is.
        """
        budget = self.settings.memory_budget
        deadline = time.monotonic() + self._patience
        while budget:
            with self._changed:
                others = self._loaded()
                taken = sum(other.encoder.result().bytes for other in others)
                if taken + needed <= budget:
                    return
                room = f"{budget - taken:,} of a budget of {budget:,} left"
                if self.settings.on_full != "evict" or needed > budget:
                    raise self._does_not_fit(entry, needed, room)
                staying = [other for other in others if not other.leaving]
                if not staying:
                    if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                        raise self._does_not_fit(entry, needed, room)
                    continue
                victim = min(staying, key=lambda other: (other.users > 0, other.idle_since))
                victim.leaving = True
                left = max(0.0, deadline - time.monotonic())
                if not self._changed.wait_for(lambda chosen=victim: chosen.users == 0, left):
                    victim.leaving = False
                    self._changed.notify_all()
                    raise self._does_not_fit(entry, needed, room)
            self._remove(victim)
            _log.info("model %s evicted from %s to make room for %s", victim.model.name, self.device, entry.model.name)

    def _does_not_fit(self, entry: _Entry, needed: int, room: str) -> ModelDoesNotFitError:
        with self._changed:
            there = [
                f"{other.model.name} ({other.encoder.result().bytes:,} bytes{', in use' if other.users else ''})"
                for other in self._loaded()
            ]
        remedy = f"eject one of {', '.join(there)}" if there else "use a smaller model or a larger memory_budget"
        if there and self.settings.on_full == "error":
            remedy += ", or set on_full: evict"
        return ModelDoesNotFitError(entry.model.name, self.device, needed, room, remedy)

    def _depart(self, name: str, fingerprint: str | None) -> _Entry:
        """Mark the one model of that name as leaving; wait for another eject of it that is under way."""
        with self._changed:
            while True:
                named = [
                    e for e in self._loaded() if e.model.name == name and fingerprint in (None, e.model.fingerprint)
                ]
                if not named:
                    raise ModelNotInCacheError(name, self.device, self._loaded_names())
                if len(named) > 1:
                    raise ModelAmbiguousError(name, self.device, _distinguish([entry.model for entry in named]))
                if not named[0].leaving:
                    named[0].leaving = True
                    return named[0]
                self._changed.wait()

    def _remove(self, entry: _Entry) -> tuple[int, int]:
        """Unload a leaving entry; return its bytes and how many fewer this process holds."""
        before = used_by_process(self._target)
        encoder = entry.encoder.result()
        freed = encoder.bytes
        encoder.close()
        del encoder
        with self._changed:
            # Its users, whose calls have ended now, may still be on their way out.
            self._changed.wait_for(lambda: entry.users == 0, self._patience)
            if self._entries.get(entry.model.fingerprint) is entry:
                del self._entries[entry.model.fingerprint]
            # No name of ours may keep the encoder alive when its memory is collected.
            entry.encoder = Future()
        return_memory(self._target)
        with self._changed:
            self._changed.notify_all()
        return freed, max(0, before - used_by_process(self._target))

    def _loaded(self) -> list[_Entry]:
        """Return the entries that are not still loading; the lock is held."""
        return [entry for entry in self._entries.values() if entry.loaded]

    def _loaded_names(self) -> list[str]:
        return sorted({entry.model.name for entry in self._loaded()})

    def _row(self, entry: _Entry, encoder: Encoder) -> dict[str, Any]:
        return {
            "model_name": entry.model.name,
            "device": self.device,
            "kind": encoder.kind,
            "dimensions": encoder.dimensions,
            "revision": entry.model.spec.revision,
            "fingerprint": entry.model.fingerprint,
            "dtype": entry.model.spec.dtype,
            "path": encoder.path,
            "bytes": encoder.bytes,
            "loaded_at": entry.loaded_at,
            "last_used_at": entry.last_used_at,
            "uses": entry.uses,
            "in_use": entry.users,
        }


def _distinguish(models: Sequence[ResolvedModel]) -> list[str]:
    """Describe models of one name by their fingerprint and by what differs between their specs."""
    facts = [model.spec.identity() | {"weights": model.weights_digest[:8], "path": str(model.path)} for model in models]
    names = dict.fromkeys(name for fact in facts for name in fact)
    differing = [name for name in names if len({str(fact.get(name)) for fact in facts}) > 1]
    return [
        f"{model.fingerprint}: {', '.join(f'{name} {fact.get(name)}' for name in differing)}"
        for model, fact in zip(models, facts, strict=True)
    ]
