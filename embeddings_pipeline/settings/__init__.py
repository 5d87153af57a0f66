"""What people configure, checked once, at construction; and the only reader of the environment.

What belongs here: the frozen models of a corpus YAML and of a run's config, with messages that name
field, value and remedy. What does not: whether a model or a location really exists (`models`,
`storage`; `pipeline.preflight` asks them), and anything that differs between two rows of data.
"""

from embeddings_pipeline.settings.automation import ScheduleSpec, SensorSpec
from embeddings_pipeline.settings.cache import CacheSettings, HostLimits, parse_bytes
from embeddings_pipeline.settings.corpus import CorpusSpec, RejectLimits
from embeddings_pipeline.settings.environment import Environment
from embeddings_pipeline.settings.locations import OutputSpec, S3Spec, SourceSpec
from embeddings_pipeline.settings.model import ModelSpec
from embeddings_pipeline.settings.run import EmbedSettings, ExtractSettings
from embeddings_pipeline.settings.strategy import StrategySpec

DEVICES = ("cpu", "cuda")

__all__ = [
    "DEVICES",
    "CacheSettings",
    "CorpusSpec",
    "EmbedSettings",
    "Environment",
    "ExtractSettings",
    "HostLimits",
    "ModelSpec",
    "OutputSpec",
    "RejectLimits",
    "S3Spec",
    "ScheduleSpec",
    "SensorSpec",
    "SourceSpec",
    "StrategySpec",
    "parse_bytes",
]
