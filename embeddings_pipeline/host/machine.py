"""The verbs of the design over all model caches of a machine: list, load, eject, describe devices.

What belongs here: what the CLI and the ops have in common, so that both say the same. What does not:
printing (`cli`) and Dagster's tables (`orchestration`).
"""

from collections.abc import Callable, Sequence
from typing import Any

from embeddings_pipeline.errors import ModelNotInCacheError
from embeddings_pipeline.host.client import RemoteCache
from embeddings_pipeline.host.lifecycle import Hosts, physical_device
from embeddings_pipeline.host.wire import row_message
from embeddings_pipeline.inference.cache import Cache
from embeddings_pipeline.inference.device import canonical_device, cuda_devices
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.settings import CacheSettings, ModelSpec

ALL = "all"
"""The word for every device."""

MODEL_COLUMNS = (
    *("model_name", "device", "kind", "dimensions", "revision", "fingerprint", "dtype", "path", "bytes"),
    *("loaded_at", "last_used_at", "uses", "in_use"),
)
"""The columns of a model's row, as DESIGN section 5 has them."""


class Machine:
    """All model caches that a caller can reach: those of hosts, or those of its own process."""

    def __init__(self, cache_of: Callable[[str], Cache], devices: Callable[[], Sequence[str]]) -> None:
        """Open nothing.

        Args:
            cache_of: gives the cache of a device as this process sees it; it is closed after use.
            devices: tells which devices' caches may hold something.
        """
        self._cache_of = cache_of
        self._devices = devices

    def models(self, device: str = ALL) -> list[dict[str, Any]]:
        """Return one row per loaded model; starts nothing."""
        return [row_message(row) for name in self._chosen(device) for row in self._ask(name, lambda c: c.rows())]

    def load(self, spec: ModelSpec, device: str) -> dict[str, Any]:
        """Load a model onto one device, and return the message of the design with its row."""
        model = resolve(spec)
        row = row_message(self._ask(device, lambda cache: cache.load(model)))
        message = f"successfully loaded model `{row['model_name']}` on device `{row['device']}`"
        return {"result": "successful", "message": message, "model": row}

    def eject(
        self, name: str, device: str = ALL, *, fingerprint: str | None = None, force: bool = False
    ) -> list[dict[str, Any]]:
        """Unload a model from a device, or from all that have it; one message of the design for each.

        Raises:
            ModelNotInCacheError: none of them has it.
        """
        done: list[dict[str, Any]] = []
        for chosen in self._chosen(device):
            if device == ALL and not any(row["model_name"] == name for row in self._ask(chosen, lambda c: c.rows())):
                continue
            ejection = self._ask(chosen, lambda cache: cache.eject(name, fingerprint=fingerprint, force=force))
            message = f"successfully ejected model `{name}` from device `{ejection.device}`"
            done.append(
                {
                    "result": "successful",
                    "message": message,
                    "device": ejection.device,
                    "freed_bytes": ejection.freed_bytes,
                    "returned_bytes": ejection.returned_bytes,
                }
            )
        if not done:
            there = sorted({f"{row['model_name']} on {row['device']}" for row in self.models()})
            raise ModelNotInCacheError(name, device, there)
        return done

    def devices(self, device: str = ALL) -> list[dict[str, Any]]:
        """Return the memory of a device, or of all that this process sees."""
        seen = ["cpu", *(f"cuda:{number}" for number in range(cuda_devices().count))]
        chosen = seen if device == ALL else [canonical_device(device)]
        return [self._ask(name, lambda cache: cache.device_info()) for name in chosen]

    def _chosen(self, device: str) -> Sequence[str]:
        return self._devices() if device == ALL else [canonical_device(device)]

    def _ask(self, device: str, question: Callable[[Cache], Any]) -> Any:
        cache = self._cache_of(device)
        try:
            return question(cache)
        finally:
            # A cache of hosts lets go of its connection; one of this process is the caller's to close.
            if isinstance(cache, RemoteCache):
                cache.close()


def of_hosts(hosts: Hosts, settings: CacheSettings | None = None) -> Machine:
    """Return the machine of all hosts of a Dagster home."""

    def seen() -> list[str]:
        """Return the devices of living hosts, as this process sees them."""
        living = set(hosts.devices())
        mine = {physical_device(f"cuda:{n}", hosts.environment)[0]: f"cuda:{n}" for n in range(cuda_devices().count)}
        return sorted({"cpu": "cpu", **mine}.get(name, name) for name in living)

    return Machine(lambda device: RemoteCache(device, hosts, settings), seen)
