"""What a model's folder says of itself, without loading it.

What belongs here: its kind, the digest of what can change a vector, which of its files are needed, and
what in it would run code. What does not: finding the folder (`store`), fetching it (`fetch`), and
rewriting what is found wrong (`gte`, `conversion`).
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from embeddings_pipeline.errors import UnsafeModelError

_NO_WEIGHT_SUFFIXES = {".md", ".py", ".pyc", ".png", ".jpg", ".svg", ".onnx", ".h5", ".msgpack", ".ot", ".pdf"}
_NO_WEIGHT_FOLDERS = {"onnx", "openvino", "__pycache__"}
_PICKLE_SUFFIXES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}
_SAFE = ".safetensors"
_LIBRARY = "sentence_transformers."

Stamp = tuple[tuple[str, int, int], ...]


def kind_of(path: Path) -> str:
    """Tell from the folder's own files whether it is a sparse encoder.

    sentence-transformers writes the class into config_sentence_transformers.json (`model_type`), which
    alone tells where a router hides the modules; older versions only wrote a SpladePooling or
    SparseStaticEmbedding module into modules.json. A bare masked-language-model checkpoint is what
    `SparseEncoder` loads with SPLADE pooling.
    """
    config = path / "config_sentence_transformers.json"
    stated = json.loads(config.read_text(encoding="utf-8")).get("model_type") if config.is_file() else None
    if stated in ("SparseEncoder", "SentenceTransformer"):
        return "sparse" if stated == "SparseEncoder" else "dense"
    modules = path / "modules.json"
    if modules.is_file():
        listed = json.loads(modules.read_text(encoding="utf-8"))
        return "sparse" if any("sparse_encoder" in entry["type"] for entry in listed) else "dense"
    architectures = json.loads((path / "config.json").read_text(encoding="utf-8")).get("architectures") or []
    return "sparse" if any(name.endswith("ForMaskedLM") for name in architectures) else "dense"


def normalizes(path: Path) -> bool:
    """Tell whether the model's last module scales vectors to length 1."""
    modules = path / "modules.json"
    listed = json.loads(modules.read_text(encoding="utf-8")) if modules.is_file() else []
    return bool(listed) and str(listed[-1]["type"]).rpartition(".")[2] == "Normalize"


def looks_like_a_model(path: Path) -> bool:
    """Tell whether a folder has one of the files that every model has."""
    return (path / "config.json").is_file() or (path / "modules.json").is_file()


def model_files(path: Path) -> list[Path]:
    """Return the files that can change a vector, sorted."""
    return sorted(
        file
        for file in path.rglob("*")
        if file.is_file()
        and file.suffix.lower() not in _NO_WEIGHT_SUFFIXES
        and not any(part.startswith(".") or part in _NO_WEIGHT_FOLDERS for part in file.relative_to(path).parts)
    )


def digest_of(path: Path) -> str:
    """Return the digest of the names and contents of all files that can change a vector."""
    return _digest(path, tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in model_files(path)))


@lru_cache(maxsize=64)
def _digest(path: Path, stamp: Stamp) -> str:
    """Digest the files in `stamp`, which also keys the cache."""
    digest = hashlib.sha256()
    for name, _, _ in stamp:
        digest.update(f"{Path(name).relative_to(path).as_posix()} {file_digest(Path(name))}\n".encode())
    return digest.hexdigest()


def file_digest(file: Path) -> str:
    """Return the sha256 of a file; it is read again when its time or size has changed."""
    status = file.stat()
    return _file_digest(file, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=512)
def _file_digest(file: Path, size: int, mtime_ns: int) -> str:  # noqa: ARG001 (parts of the cache key)
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def needed(names: Iterable[str], model: str, *, pickles: bool = False) -> list[str]:
    """Choose from the files of a model those that loading it needs, and its licence.

    Args:
        names: paths relative to the model's root, with `/`.
        model: its name, for the message.
        pickles: take pickled weights where there are no others, to convert them.

    Raises:
        UnsafeModelError: a name leaves the folder, or weights are there as a pickle only.
    """
    names = [safe_name(name, model) for name in names]
    chosen = [name for name in names if _is_needed(PurePosixPath(name))]
    pickled = only_pickled(names)
    if pickled and not pickles:
        raise UnsafeModelError(
            model,
            f"has weights as a pickle only ({pickled[0]}), and reading a pickle can run any code",
            f"run `embeddings models convert --model {model}`, which rewrites them as safetensors in a process of "
            "its own, or use another revision",
        )
    return sorted([*chosen, *pickled])


def only_pickled(names: Iterable[str]) -> list[str]:
    """Return the pickled weights that lie in a folder without safetensors, where the library would read them."""
    paths = [PurePosixPath(name) for name in names]
    safe = {path.parent for path in paths if path.suffix == _SAFE}
    # The library reads pickles of this name alone; any other is left where it is.
    return sorted(
        str(path) for path in paths if path.match("pytorch_model*.bin") and path.parent not in safe and _is_seen(path)
    )


def _is_seen(path: PurePosixPath) -> bool:
    return not any(part.startswith(".") or part in _NO_WEIGHT_FOLDERS for part in path.parts)


def _is_needed(path: PurePosixPath) -> bool:
    if path.name.upper().startswith(("LICENSE", "LICENCE", "NOTICE")):
        return _is_seen(path)
    return _is_seen(path) and path.suffix.lower() not in _NO_WEIGHT_SUFFIXES | _PICKLE_SUFFIXES


def safe_name(name: str, model: str) -> str:
    """Return a file's name if it stays inside the folder that it is meant for.

    Raises:
        UnsafeModelError: it is absolute, climbs out, or means something else on another system.
    """
    path = PurePosixPath(name)
    if not name or name.startswith(("/", "~")) or "\\" in name or "\0" in name or ":" in name or ".." in path.parts:
        raise UnsafeModelError(
            model,
            f"holds a file called {name!r}, which would be written outside of its folder",
            "do not use it, and tell whoever gave it to you",
        )
    return str(path)


def check_safe(path: Path, model: str, source: str) -> None:
    """Refuse a folder that would run code of its own, or be read as a pickle; nothing is imported.

    Raises:
        UnsafeModelError: naming the file, and what would be right.
    """
    for file in sorted(path.rglob("*.json")):
        if file.name not in ("modules.json", "router_config.json", "config.json"):
            continue
        place, content = file.relative_to(path).as_posix(), read_json(file)
        for type_ in _types(content) if file.name != "config.json" else ():
            if not type_.startswith(_LIBRARY):
                raise UnsafeModelError(
                    model,
                    f"asks in {place} for the class {type_!r}, which is code of its own",
                    "code of a model's folder is never run here: use a model of sentence-transformers' own classes",
                )
        if is_alibaba(content):
            raise UnsafeModelError(
                model,
                f"is in {place} a checkpoint for code of Alibaba-NLP/new-impl, which is not run",
                f"run `embeddings download-model --model {model} --source {source} --to FOLDER`, which rewrites it for "
                "transformers' own GTE, and use that folder as its source",
            )
    if pickled := only_pickled(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()):
        raise UnsafeModelError(
            model,
            f"has weights as a pickle only ({pickled[0]}), and reading a pickle can run any code",
            f"run `embeddings models convert --model {model} --source {source} --to FOLDER`, which rewrites them as "
            "safetensors in a process of its own, and use that folder as its source",
        )


def is_alibaba(config: Any) -> bool:
    """Tell whether a config.json is that of a checkpoint for Alibaba's own code."""
    if not isinstance(config, dict):
        return False
    return config.get("model_type") == "new" or (config.get("model_type") == "gte" and "auto_map" in config)


def _types(content: Any) -> Sequence[str]:
    """Return the classes that a modules.json (a list) or a router_config.json (a mapping) asks for."""
    if isinstance(content, list):
        return [str(entry.get("type", "")) for entry in content if isinstance(entry, dict)]
    types = content.get("types") if isinstance(content, dict) else None
    return [str(type_) for type_ in types.values()] if isinstance(types, dict) else []


def read_json(file: Path) -> Any:
    """Return what a JSON file of a model's folder holds; raises ValueError where it is none."""
    return json.loads(file.read_text(encoding="utf-8"))
