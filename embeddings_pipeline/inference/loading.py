"""From a model's folder to the library's loaded model and what has to be known of it.

What belongs here: loading with sentence-transformers, quietly and offline, and comparing what was
loaded with what the corpus says of it. What does not: how its forward pass is run (`forward`,
`packed`, `sparse`), nor finding the folder (`models.store`).
"""

import json
import logging
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from embeddings_pipeline.errors import ConfigurationError, ModelLoadError
from embeddings_pipeline.inference.forward import first_module, position_offset
from embeddings_pipeline.models.store import ResolvedModel, kind_of

_MISSING = re.compile(r"^(\S.*?) +\| MISSING", re.MULTILINE)
"""A line of the report that transformers logs about a checkpoint."""

NO_LIMIT = 2**31 - 1
"""The maximum length of a model that has none; token counts are int32."""


def load_library_model(model: ResolvedModel, device: str) -> Any:
    """Load a `SentenceTransformer` or a `SparseEncoder`, in the spec's dtype whatever the checkpoint says.

    No network is used and no code of the folder is run.

    Raises:
        ConfigurationError: the folder holds a model of the other kind.
        ModelLoadError: the library cannot load it, or would invent weights that its files lack.
    """
    _check_kind(model)
    _check_architectures(model)
    import torch
    from sentence_transformers import SentenceTransformer, SparseEncoder

    library = SparseEncoder if model.spec.kind == "sparse" else SentenceTransformer
    dtype = getattr(torch, model.spec.dtype)
    try:
        with _quiet() as reports:
            loaded = library(
                str(model.path),
                device=device,
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs={"dtype": dtype, "use_safetensors": True},
            )
    except Exception as error:
        raise ModelLoadError(
            model.name,
            f"{type(error).__name__}: {error}",
            f"check the files in {model.path} against what sentence-transformers can load",
        ) from error
    if missing := reports.missing():
        raise ModelLoadError(
            model.name,
            f"its files lack {len(missing)} weights ({', '.join(missing[:3])}, ...), which would be random numbers",
            "use a checkpoint that has them, or the kind of model that it was trained as",
        )
    return loaded.to(dtype).eval().requires_grad_(False)


def task_of(library: Any) -> str | None:
    """Return the task that selects the document side of a model with routes, or None.

    Sparse encoders are always told that these are documents, as their `encode_document` does.
    """
    if type(library).__name__ == "SparseEncoder":
        return "document"
    for module in library.children():
        if type(module).__name__ == "Router":
            routed = {*module.sub_modules, *(task for task, _ in module.route_mappings)}
            return "document" if "document" in routed else None
    return None


def effective_max_length(model: ResolvedModel, library: Any, task: str | None) -> int:
    """Return the limit in tokens: the spec's, else the model's own, never more than it has positions.

    Raises:
        ConfigurationError: the spec asks for more positions than the model has.
    """
    positions = _positions(library, task)
    given = model.spec.max_length
    if given is not None:
        if given > positions:
            raise ConfigurationError(
                f"model.max_length is {given}, but '{model.name}' has {positions} positions; use {positions} or less"
            )
        return given
    module = first_module(library, task)
    own = getattr(module, "document_length", None) if task == "document" else None
    own = own or getattr(module, "max_seq_length", None)
    return int(min(own, positions, NO_LIMIT)) if own is not None else positions


def set_max_length(library: Any, task: str | None, max_length: int) -> None:
    """Make the library truncate at the same length, for the paths that leave tokenising to it."""
    transformer = first_module(library, task)
    if max_length < NO_LIMIT and getattr(transformer, "max_seq_length", None) != max_length:
        transformer.max_seq_length = max_length
    if getattr(transformer, "document_length", None) is not None:
        transformer.document_length = max_length


def loaded_bytes(library: Any) -> int:
    """Return the memory of all parameters and buffers; what is shared (tied) counts once."""
    tensors = {tensor.data_ptr(): tensor.nbytes for tensor in (*library.parameters(), *library.buffers())}
    return sum(tensors.values())


def _positions(library: Any, task: str | None) -> int:
    transformer = getattr(first_module(library, task), "model", None)
    config = getattr(transformer, "config", None)
    if config is None:
        return NO_LIMIT
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return NO_LIMIT
    return positions - position_offset(transformer)


def _check_kind(model: ResolvedModel) -> None:
    """Refuse a kind that the folder contradicts: the library would add an untrained head in silence."""
    kinds = {kind_of(model.path)}
    if not (model.path / "modules.json").is_file():
        # A bare transformer can always be pooled, a masked language model too.
        kinds.add("dense")
    if model.spec.kind not in kinds:
        raise ConfigurationError(
            f"model.kind is '{model.spec.kind}', but the files of '{model.name}' in {model.path} are those of a "
            f"{' or '.join(sorted(kinds))} model; remove the field or correct it"
        )


def _check_architectures(model: ResolvedModel) -> None:
    """Say which version of transformers knows a model that the installed one does not."""
    import transformers

    for file in sorted(model.path.rglob("config.json")):
        config = json.loads(file.read_text(encoding="utf-8"))
        kind = config.get("model_type") if isinstance(config, dict) else None
        if kind is None or kind in transformers.CONFIG_MAPPING or "transformers_version" not in config:
            continue
        saved, installed = config["transformers_version"], transformers.__version__
        raise ModelLoadError(
            model.name,
            f"its architecture '{kind}' is not in transformers {installed}, and it was saved with {saved}",
            f"install transformers {saved} or newer, if that has it without code of the model's own",
        )


class _Reports(logging.Handler):
    """Collects the loading reports of transformers."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text of a record."""
        self.texts.append(record.getMessage())

    def missing(self) -> list[str]:
        """Return the parameters that no file had, but for the pooler's, which no vector of ours needs."""
        names = [name for text in self.texts for name in _MISSING.findall(text)]
        return [name for name in names if "pooler." not in name]


@contextmanager
def _quiet() -> Generator[_Reports]:
    """Silence progress bars and notices while a model loads, and collect the reports of missing weights.

    These switches are the process's, which is one more reason why loads go one after the other.
    """
    from transformers.utils import logging as transformers_logging

    bars, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    loader, library = logging.getLogger("transformers.modeling_utils"), logging.getLogger("sentence_transformers")
    levels, propagate = (loader.level, library.level), loader.propagate
    reports = _Reports()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    library.setLevel(logging.ERROR)
    loader.setLevel(logging.WARNING)
    loader.propagate = False
    loader.addHandler(reports)
    try:
        yield reports
    finally:
        loader.removeHandler(reports)
        loader.propagate = propagate
        loader.setLevel(levels[0])
        library.setLevel(levels[1])
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
