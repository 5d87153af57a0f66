"""The code location: assembly only.

What belongs here: putting together what `defs/` and EMBEDDINGS_CORPORA declare, the resource, the
executor and the sensor for failed runs. What does not: any definition; those are in `orchestration`.
Nothing here imports torch, so that the code server starts quickly and small.
"""

from typing import Literal, cast

import dagster as dg

from embeddings_pipeline.orchestration.corpus import check_run_configs, load_corpora
from embeddings_pipeline.orchestration.executor import build_executor
from embeddings_pipeline.orchestration.failures import build_failure_sensor
from embeddings_pipeline.orchestration.jobs import build_model_jobs
from embeddings_pipeline.orchestration.resources import MODEL_CACHE, ModelCacheResource
from embeddings_pipeline.settings import Environment


@dg.definitions
def defs() -> dg.Definitions:
    """Return everything that Dagster sees of this project."""
    environment = Environment.read()
    corpora, declared = load_corpora(environment.corpora)
    model_cache = ModelCacheResource(mode=cast("Literal['host', 'in_process']", environment.mode))
    shared = dg.Definitions(
        jobs=build_model_jobs(model_cache),
        sensors=[build_failure_sensor()],
        resources={MODEL_CACHE: model_cache},
        executor=build_executor([corpus.spec for corpus in corpora]),
    )
    definitions = dg.Definitions.merge(declared, shared)
    check_run_configs(corpora, definitions)
    return definitions
