"""The only reader of the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from embeddings_pipeline.errors import RunConfigError

MODES = ("host", "in_process")

_MODEL_STORE = ".embeddings/models"
_HUB = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment variables that this package reads, read once by `Environment.read`.

    `device` and `workers` are set by the device executor for the steps of its run (0 workers means
    automatic), and `run_worker` is the process id of the run worker, for steps in processes of their
    own; `model_cache` says where models live; `dagster_home` is Dagster's; `thread_variables` are
    those of OMP_NUM_THREADS and MKL_NUM_THREADS that are set; `variables` are all of them, for
    `{{ env.X }}` in a corpus YAML and for the processes that are started. `model_store` is where fetched
    models lie, `model_download` whether one may be fetched when it is first used; `hub` and `hub_token`
    are huggingface_hub's own variables.
    """

    device: str | None
    workers: int
    corpora: str | None
    thread_variables: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    model_cache: str | None = None
    dagster_home: str | None = None
    run_worker: int = 0
    model_store: str = _MODEL_STORE
    model_download: bool = False
    hub: str = _HUB
    hub_token: str | None = field(default=None, repr=False)

    DEVICE: ClassVar[str] = "EMBEDDINGS_DEVICE"
    WORKERS: ClassVar[str] = "EMBEDDINGS_WORKERS"
    RUN_WORKER: ClassVar[str] = "EMBEDDINGS_RUN_WORKER"
    MODEL_CACHE: ClassVar[str] = "EMBEDDINGS_MODEL_CACHE"
    MODEL_STORE: ClassVar[str] = "EMBEDDINGS_MODEL_STORE"
    MODEL_DOWNLOAD: ClassVar[str] = "EMBEDDINGS_MODEL_DOWNLOAD"
    FAILURE_WEBHOOK: ClassVar[str] = "EMBEDDINGS_FAILURE_WEBHOOK"
    WEBSERVER_URL: ClassVar[str] = "EMBEDDINGS_WEBSERVER_URL"

    @property
    def failure_webhook(self) -> str | None:
        """The address that is told of each failed run."""
        return self.variables.get(self.FAILURE_WEBHOOK) or None

    @property
    def webserver_url(self) -> str | None:
        """Where people reach Dagster's UI, for links in what the webhook is told."""
        return self.variables.get(self.WEBSERVER_URL) or None

    @property
    def model_uri(self) -> str | None:
        """The model that the command line takes without --model-uri, as the timdex-embeddings app does."""
        return self.variables.get("TE_MODEL_URI") or None

    @property
    def model_path(self) -> str | None:
        """The folder of that model."""
        return self.variables.get("TE_MODEL_PATH") or None

    @property
    def batch_size(self) -> int | None:
        """The application batch size of the command line, by the name that the same app uses.

        Raises:
            RunConfigError: it is no whole number.
        """
        value = self.variables.get("EMBEDDING_BATCH_SIZE") or ""
        if value and not value.isdecimal():
            raise RunConfigError(f"EMBEDDING_BATCH_SIZE is '{value}', which is no whole number; use one such as 1000")
        return int(value) if value else None

    @property
    def mode(self) -> str:
        """Where models live by default: `host` where a Dagster home outlives the run, else `in_process`."""
        return self.model_cache or ("host" if self.dagster_home else "in_process")

    @classmethod
    def read(cls) -> "Environment":
        """Read the process's environment.

        Raises:
            RunConfigError: EMBEDDINGS_WORKERS is no whole number, or another variable none of its choices.
        """
        workers = os.environ.get(cls.WORKERS) or "0"
        if not workers.isdecimal():
            raise RunConfigError(f"{cls.WORKERS} is '{workers}', which is no whole number; use 0 for an automatic one")
        mode = os.environ.get(cls.MODEL_CACHE) or None
        if mode is not None and mode not in MODES:
            raise RunConfigError(f"{cls.MODEL_CACHE} is '{mode}'; use {' or '.join(MODES)}")
        download = os.environ.get(cls.MODEL_DOWNLOAD) or "never"
        if download not in ("allowed", "never"):
            raise RunConfigError(f"{cls.MODEL_DOWNLOAD} is '{download}'; use allowed or never")
        offline = (os.environ.get("HF_HUB_OFFLINE") or "").lower() in ("1", "true", "yes", "on")
        run_worker = os.environ.get(cls.RUN_WORKER) or "0"
        return cls(
            device=os.environ.get(cls.DEVICE) or None,
            workers=int(workers),
            corpora=os.environ.get("EMBEDDINGS_CORPORA") or None,
            thread_variables={
                name: value for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if (value := os.environ.get(name))
            },
            variables=dict(os.environ),
            model_cache=mode,
            dagster_home=os.environ.get("DAGSTER_HOME") or None,
            run_worker=int(run_worker) if run_worker.isdecimal() else 0,
            model_store=os.environ.get(cls.MODEL_STORE) or _MODEL_STORE,
            model_download=download == "allowed" and not offline,
            hub=(os.environ.get("HF_ENDPOINT") or _HUB).rstrip("/"),
            hub_token=os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or None,
        )
