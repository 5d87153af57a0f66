"""How a model cache keeps its models and what a model host takes; no field changes a vector."""

import re
from dataclasses import dataclass

from embeddings_pipeline.errors import RunConfigError


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """How a model cache keeps its models, and how long a model host stays; no field changes a vector.

    `memory_budget` is in bytes of weights, 0 for no limit other than the device's. Over it,
    `on_full` decides: `error` refuses the load, `evict` ejects the least recently used idle models.
    A model that nobody uses for `idle_timeout_s` is ejected, and a host that nobody uses for as long
    leaves; 0 keeps both for ever.
    """

    memory_budget: int = 0
    on_full: str = "error"
    idle_timeout_s: float = 600.0

    def check(self, prefix: str) -> None:
        """Raise `RunConfigError` for a field out of bounds; `prefix` is its path in the run config."""
        if self.memory_budget < 0:
            raise RunConfigError(f"{prefix}.memory_budget is {self.memory_budget}; use 0 for no limit, or 4 GiB")
        if self.on_full not in ("error", "evict"):
            raise RunConfigError(f"{prefix}.on_full is '{self.on_full}'; use error or evict")
        if not 0 <= self.idle_timeout_s < float("inf"):
            raise RunConfigError(f"{prefix}.idle_timeout_s is {self.idle_timeout_s}; use seconds, or 0 for no timeout")


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i)?)?B?", re.IGNORECASE)


def parse_bytes(text: str, field: str) -> int:
    """Return the bytes that a person writes as `4 GiB`, `500MB` or `1000000`.

    Raises:
        RunConfigError: it is no size; `field` names where it stands.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise RunConfigError(f"{field} is '{text}', which is no size; use one such as 4 GiB, 500 MB or 0")
    power = " KMGT".index((match[2] or " ").upper())
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


@dataclass(frozen=True, slots=True)
class HostLimits:
    """What a model host takes and how long things may last; `request_bytes` bounds one application batch.

    `requests` computes that many application batches at once; the rest wait. `start_s` bounds the
    start of a host, `drain_s` what an old one may still compute before it leaves, `eject_s` how long
    an eject waits for the model's users.
    """

    request_bytes: int = 256 << 20
    requests: int = 8
    start_s: float = 90.0
    drain_s: float = 120.0
    eject_s: float = 30.0
