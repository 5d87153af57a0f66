"""What a run's config says: which records, which batches; no field changes a vector."""

from dataclasses import dataclass

from embeddings_pipeline.errors import RunConfigError


@dataclass(frozen=True, slots=True)
class ExtractSettings:
    """Which records of a delivery a run takes; `limit` 0 means all of them.

    `offset` counts records; `run_record_offset` leaves those out whose own number in their TIMDEX run
    is below it.
    """

    limit: int = 0
    offset: int = 0
    run_record_offset: int = 0

    def check(self, prefix: str) -> None:
        """Raise `RunConfigError` for a field out of bounds; `prefix` is its path in the run config."""
        _at_least(prefix, "limit", self.limit, 0, "0 for no limit")
        _at_least(prefix, "offset", self.offset, 0, "0 to start at the first record")
        _at_least(prefix, "run_record_offset", self.run_record_offset, 0, "0 to start at the first record")

    @property
    def partial(self) -> bool:
        """Whether the run takes only some of the delivery's records."""
        return bool(self.limit or self.offset or self.run_record_offset)


@dataclass(frozen=True, slots=True)
class EmbedSettings:
    """How a run embeds; no field changes a vector. `model_batch_tokens` 0 means automatic."""

    application_batch_size: int = 1000
    model_batch_size: int = 64
    model_batch_tokens: int = 0
    force: bool = False

    def check(self, prefix: str) -> None:
        """Raise `RunConfigError` for a field out of bounds; `prefix` is its path in the run config."""
        _at_least(prefix, "application_batch_size", self.application_batch_size, 1, "1 or more (1000 is the default)")
        _at_least(prefix, "model_batch_size", self.model_batch_size, 1, "1 or more (64 is the default)")
        _at_least(prefix, "model_batch_tokens", self.model_batch_tokens, 0, "0 for an automatic budget")


def _at_least(prefix: str, name: str, value: int, least: int, remedy: str) -> None:
    if value < least:
        field = f"{prefix}.{name}" if prefix else name
        raise RunConfigError(f"{field} is {value}, but has to be at least {least}; use {remedy}")
