"""A model hub over HTTP, by the routes that huggingface_hub uses.

What belongs here: listing a revision's files and fetching them, with back-off, resume and a check of
every byte. What does not: which files are needed (`folder`) and where they go (`fetch`).

The token goes to the hub only (a redirect to another host does not carry it), and into no message.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2

from embeddings_pipeline.errors import ConfigurationError, GatedModelError, ModelDigestError, ModelFetchError

_TRIES = 8
"""Attempts without progress; a hub that says 429 to many machines behind one address recovers within minutes."""
_LONGEST_WAIT_S = 60.0
_BLOCK = 1 << 20
_LATER = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a revision; `sha256` is that of a large file, `blob` git's name of a small one."""

    path: str
    size: int
    sha256: str | None
    blob: str | None


class Hub:
    """A hub, asked for one model; use it as a context manager."""

    def __init__(self, endpoint: str, token: str | None, *, wait: Callable[[float], None] = time.sleep) -> None:
        """Open nothing yet.

        Args:
            endpoint: the hub's address.
            token: of an account, for private and gated models.
            wait: sleeps for so many seconds.
        """
        self._endpoint = endpoint
        self._token_given = token is not None
        self._wait = wait
        headers = {"user-agent": "embeddings-pipeline"} | ({"authorization": f"Bearer {token}"} if token else {})
        self._client = httpx2.Client(
            headers=headers, follow_redirects=True, timeout=httpx2.Timeout(30.0, connect=10.0), trust_env=True
        )

    def __enter__(self) -> "Hub":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def commit(self, model: str, name: str, revision: str) -> str:
        """Return the commit that a revision (a branch, a tag, a commit) is now."""
        answer = self._json(f"{self._endpoint}/api/models/{model}/revision/{quote(revision, safe='')}", model, name)[0]
        return str(answer["sha"])

    def files(self, model: str, name: str, revision: str) -> list[HubFile]:
        """List the files of a revision, with their digests."""
        found: list[HubFile] = []
        address: str | None = f"{self._endpoint}/api/models/{model}/tree/{revision}?recursive=true&expand=false"
        while address:
            entries, address = self._json(address, model, name)
            for entry in entries:
                if entry.get("type") == "file":
                    large: dict[str, Any] = entry.get("lfs") or {}
                    sha = large.get("oid")
                    found.append(HubFile(entry["path"], int(entry["size"]), sha, None if sha else entry.get("oid")))
        return found

    def fetch(self, model: str, name: str, revision: str, file: HubFile, target: Path) -> None:
        """Bring a file to `target`, unless it is there already; a part of it is continued.

        Raises:
            ModelDigestError: what came is not what the hub lists.
            ModelFetchError: the hub does not answer, or nothing can be written.
        """
        if target.is_file() and _matches(target, file):
            return
        part = target.with_name(target.name + ".part")
        target.parent.mkdir(parents=True, exist_ok=True)
        address = f"{self._endpoint}/{model}/resolve/{revision}/{quote(file.path)}"
        tries = 0
        while (have := part.stat().st_size if part.exists() else 0) < file.size or not part.exists():
            try:
                self._continue(address, have, part, model, name)
            except httpx2.TransportError as error:
                problem, pause = f"{type(error).__name__}: {error}", None
            except _Later as later:
                problem, pause = later.problem, later.pause
            except OSError as error:
                raise ModelFetchError(
                    name, f"{part} cannot be written ({error.strerror})", "free space, then run it again"
                ) from error
            else:
                problem, pause = "the answer was shorter than the file", None
            grown = part.exists() and part.stat().st_size > have
            tries = 0 if grown else tries + 1
            if not grown and tries:
                self._back_off(tries, problem, pause, name)
        if not _matches(part, file):
            part.unlink()
            raise ModelDigestError(name, file.path, "run it again; if it stays, the hub's copy is damaged")
        part.replace(target)

    def _continue(self, address: str, have: int, part: Path, model: str, name: str) -> None:
        headers = {"accept-encoding": "identity"} | ({"range": f"bytes={have}-"} if have else {})
        with self._client.stream("GET", address, headers=headers) as response:
            if response.status_code == 416:
                part.unlink()
                return
            self._refuse(response, model, name)
            # A server that ignores the range sends the file from its start.
            with part.open("ab" if response.status_code == 206 else "wb") as opened:
                for block in response.iter_bytes(_BLOCK):
                    opened.write(block)

    def _json(self, address: str, model: str, name: str) -> tuple[Any, str | None]:
        """Return an answer and the address of its next page."""
        tries = 0
        while True:
            try:
                response = self._client.get(address)
                self._refuse(response, model, name)
                return response.json(), response.links.get("next", {}).get("url")
            except httpx2.TransportError as error:
                problem, pause = f"{type(error).__name__}: {error}", None
            except ValueError as error:
                raise ModelFetchError(
                    name, f"{address} gave no JSON ({error})", "check HF_ENDPOINT, then run it again"
                ) from error
            except _Later as later:
                problem, pause = later.problem, later.pause
            tries += 1
            self._back_off(tries, problem, pause, name)

    def _back_off(self, tries: int, problem: str, pause: float | None, name: str) -> None:
        if tries >= _TRIES:
            remedy = f"check the network and HF_ENDPOINT ({self._endpoint}), then run it again"
            raise ModelFetchError(name, f"{problem}, {tries} times", remedy)
        self._wait(min(_LONGEST_WAIT_S, 0.5 * 2**tries) if pause is None else min(_LONGEST_WAIT_S, pause))

    def _refuse(self, response: httpx2.Response, model: str, name: str) -> None:
        """Raise what an answer other than success means."""
        status, code = response.status_code, response.headers.get("x-error-code", "")
        if response.is_success:
            return
        if status in _LATER:
            after = response.headers.get("retry-after", "")
            raise _Later(f"the hub answered {status}", float(after) if after.replace(".", "", 1).isdigit() else None)
        # A hub says 401 of what it does not have, too, so that nobody can guess names.
        if code == "GatedRepo" or (status in (401, 403) and code != "RepoNotFound"):
            raise GatedModelError(name, f"{self._endpoint}/{model}", token_given=self._token_given)
        if code == "RevisionNotFound":
            raise ConfigurationError(
                f"model.revision of '{name}' is not on the hub; use a commit of {self._endpoint}/{model}"
            )
        if status in (401, 404):
            raise ConfigurationError(
                f"model.source 'hub:{model}' of '{name}' is not on {self._endpoint}, or not there for this token; "
                "correct the name, or set HF_TOKEN"
            )
        raise ModelFetchError(name, f"the hub answered {status}", "run it again later")


class _Later(Exception):
    """An answer that asks for patience; no error of ours, since it ends in a wait."""

    def __init__(self, problem: str, pause: float | None) -> None:
        self.problem = problem
        self.pause = pause


def total(files: Sequence[HubFile]) -> int:
    """Return the bytes of some files."""
    return sum(file.size for file in files)


def _matches(path: Path, file: HubFile) -> bool:
    """Tell whether a file has the size and the digest that the hub lists."""
    if path.stat().st_size != file.size:
        return False
    if file.sha256 is not None:
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256
    if file.blob is None:
        return True
    # Git's name of a file: sha1 of a header and the content.
    return (
        hashlib.sha1(f"blob {file.size}\0".encode() + path.read_bytes(), usedforsecurity=False).hexdigest() == file.blob
    )
