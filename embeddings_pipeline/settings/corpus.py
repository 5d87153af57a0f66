"""One corpus, as its YAML's `attributes` declare it."""

from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from embeddings_pipeline.errors import CorpusSpecError
from embeddings_pipeline.settings.automation import ScheduleSpec, SensorSpec
from embeddings_pipeline.settings.locations import OutputSpec, SourceSpec
from embeddings_pipeline.settings.model import ModelSpec
from embeddings_pipeline.settings.spec import NAME_PATTERN, Spec, sentence
from embeddings_pipeline.settings.strategy import BUILT_IN_STRATEGIES, StrategySpec


class RejectLimits(Spec):
    """How many texts of a delivery may be rejected before its run fails: a count, a share of those read, or both."""

    count: int | None = Field(default=None, ge=0)
    share: float | None = Field(default=None, ge=0, le=1)

    def broken(self, rejected: int, read: int) -> str | None:
        """Return the limit that is exceeded, in words."""
        if self.count is not None and rejected > self.count:
            return f"count: {self.count}"
        if self.share is not None and read and rejected / read > self.share:
            return f"share: {self.share:g}"
        return None


class CorpusSpec(Spec):
    """One corpus, as its YAML's `attributes` declare it.

    `part_texts` bounds a part: the unit of work, resume and retry. More rejects than `max_rejects` fail
    the run before anything is published; a larger share of truncated texts than `max_truncated` is a
    warning. `deliveries` says whether the source is one delivery (`whole`), or each of its files (`files`)
    or TIMDEX runs (`runs`) is one. `run_config` and `run_tags` are the defaults of the corpus's job, which
    its `schedule` and `sensor` start; `owners`, `kinds` and `deps` (asset keys with slashes, upstream of the
    records) appear on its assets.
    """

    name: str
    source: SourceSpec
    strategies: tuple[StrategySpec, ...]
    model: ModelSpec
    output: OutputSpec
    deliveries: Literal["whole", "files", "runs"] = "whole"
    part_texts: int = Field(default=10_000, ge=1)
    max_rejects: RejectLimits | None = None
    max_truncated: float | None = Field(default=None, ge=0, le=1)
    description: str | None = None
    run_config: dict[str, Any] = Field(default_factory=dict)
    run_tags: dict[str, str] = Field(default_factory=dict)
    owners: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    deps: tuple[str, ...] = ()
    schedule: ScheduleSpec | None = None
    sensor: SensorSpec | None = None

    @field_validator("name")
    @classmethod
    def _name_is_a_word(cls, value: str) -> str:
        if not NAME_PATTERN.match(value):
            raise ValueError(f"'{value}' does not match ^[a-z][a-z0-9_]*$; use lower-case letters, digits and _")
        return value

    @field_validator("strategies")
    @classmethod
    def _names_are_unique(cls, value: tuple[StrategySpec, ...]) -> tuple[StrategySpec, ...]:
        names = [strategy.name for strategy in value]
        if not names:
            raise ValueError(f"there is no strategy; add one, such as name: {BUILT_IN_STRATEGIES[0]}")
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"the strategy name '{repeated[0]}' stands there twice; give each strategy its own name")
        return value

    @model_validator(mode="after")
    def _deliveries_fit_the_source(self) -> Self:
        kind, run_id, source = self.source.kind, self.source.run_id, self.source.source
        match self.deliveries:
            case "runs" if kind != "timdex":
                raise ValueError(f"deliveries: runs needs source.kind timdex, not {kind}; use files or whole")
            case "runs" if run_id is not None:
                raise ValueError(
                    f"deliveries: runs embeds every run, and source.run_id is '{run_id}'; remove one of them"
                )
            case "files" if kind == "timdex":
                raise ValueError(
                    "deliveries: files does not fit source.kind timdex, whose records come in runs; use runs"
                )
            case "whole" if kind == "timdex" and run_id is None and source is None:
                raise ValueError(
                    "source: kind: timdex needs run_id (a run) or source (its current records), one of them, or "
                    "deliveries: runs"
                )
            case _:
                return self

    @model_validator(mode="after")
    def _timdex_goes_to_timdex(self) -> Self:
        if self.output.layout == "timdex" and not self.source.timdex:
            raise ValueError(
                f"output.layout timdex needs source.kind timdex, not {self.source.kind}; use generic, or say that its "
                "lines are TIMDEX records with source.envelope: timdex"
            )
        return self

    @model_validator(mode="after")
    def _strategies_take_the_declared_types(self) -> Self:
        types = self.source.types or {}
        for strategy in self.strategies:
            for name in strategy.needed_fields() or ():
                kind = types.get(name, "string")
                if kind == "float" or (kind != "string" and strategy.fields is not None):
                    raise ValueError(
                        f"strategy '{strategy.name}' takes the field '{name}' as text, but source.types declares it "
                        f"{kind}; declare it string"
                    )
        return self

    def rendered_strategies(self) -> tuple[StrategySpec, ...]:
        """Return the strategies as they are rendered: TIMDEX escapes what is not ASCII in `full_record`."""
        if not self.source.timdex:
            return self.strategies
        return tuple(
            strategy.model_copy(update={"ascii": True}) if strategy.name == "full_record" else strategy
            for strategy in self.strategies
        )

    def facts(self) -> dict[str, Any]:
        """Return what decides which rows a delivery is published with, and whether it is: not how a run is started."""
        excluded = {
            "description",
            "run_config",
            "run_tags",
            "owners",
            "kinds",
            "deps",
            "schedule",
            "sensor",
            "max_truncated",
        }
        # Without defaults, so that a field that is new in a version leaves the corpora of an older one as they are.
        return self.model_dump(mode="json", exclude=excluded, exclude_defaults=True)

    @classmethod
    def parse(cls, attributes: Any, where: str) -> Self:
        """Check the attributes of a corpus YAML.

        Args:
            attributes: the mapping under `attributes:`.
            where: the file they come from, for the message.

        Raises:
            CorpusSpecError: naming each bad field, its value and what would be right.
        """
        try:
            return cls.model_validate(attributes)
        except ValidationError as error:
            problems = "; ".join(sentence(item) for item in error.errors())
            raise CorpusSpecError(f"corpus file {where}: {problems}") from None
