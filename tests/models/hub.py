"""A model hub on this machine: the routes that huggingface_hub uses, over HTTP, with the trouble that hubs make.

It throttles (429), cuts answers short, asks for a token, and sends large files from another address.
"""

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret_of_the_tests"
_PAGE = 4
_LARGE = 4_096


@dataclass
class StubHub:
    """What the hub serves and how it behaves; `calls` are the requests that it has had, as (method, path, token)."""

    models: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    throttle: int = 0
    cut: dict[str, int] = field(default_factory=dict)
    lies: dict[str, bytes] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    extra: list[str] = field(default_factory=list)
    here: set[str] = field(default_factory=set)
    calls: list[tuple[str, str, str | None]] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    endpoint: str = ""
    elsewhere: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def downloads(self) -> Counter[str]:
        """Count how often each file was asked for from its start or a later byte."""
        return Counter(path for method, path, _ in self.calls if method == "GET" and "/resolve/" in path)


@contextmanager
def serve() -> Iterator[StubHub]:
    """Run a hub, and the address from which it sends large files."""
    hub = StubHub()

    class Handler(_Handler):
        stub = hub

    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    hub.endpoint = f"http://127.0.0.1:{servers[0].server_port}"
    # Another host for whoever asks, so that a token must not travel there.
    hub.elsewhere = f"http://localhost:{servers[1].server_port}"
    threads = [threading.Thread(target=server.serve_forever, args=(0.05,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    stub: StubHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path, query = unquote(url.path), parse_qs(url.query)
        with self.stub.lock:
            self.stub.calls.append((self.command, path, self.headers.get("authorization")))
            if asked := self.headers.get("range"):
                self.stub.ranges.append(asked)
            throttled = self.stub.throttle > 0
            self.stub.throttle -= throttled
        if throttled:
            self._answer(429, b"slow down", {"Retry-After": "0"})
            return
        model = next((name for name in self.stub.models if f"/{name}/" in f"{path}/"), None)
        if model is None:
            self._answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif self._is_refused(model, path):
            self._answer(403 if self.headers.get("authorization") else 401, b"{}", {"X-Error-Code": "GatedRepo"})
        elif path.startswith("/api/models/"):
            self._api(model, path, query)
        else:
            self._file(model, path)

    def _is_refused(self, model: str, path: str) -> bool:
        """A gated model can be listed by everybody, and its files are for those who may have them."""
        allowed = self.headers.get("authorization") == f"Bearer {TOKEN}"
        return model in self.stub.gated and "/resolve/" in path and not allowed

    def _api(self, model: str, path: str, query: dict[str, list[str]]) -> None:
        kind, revision = path.removeprefix(f"/api/models/{model}/").split("/", 1)
        if revision == "f" * 40:
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        files = self._files(model)
        if kind == "revision":
            siblings = [{"rfilename": entry["path"]} for entry in files]
            self._json({"id": model, "sha": COMMIT, "private": False, "tags": [], "downloads": 0, "siblings": siblings})
            return
        start = int(query.get("cursor", ["0"])[0])
        more = {}
        if start + _PAGE < len(files):
            query_ = f"recursive=true&expand=false&cursor={start + _PAGE}"
            more = {"Link": f'<{self.stub.endpoint}/api/models/{model}/tree/{revision}?{query_}>; rel="next"'}
        self._json(files[start : start + _PAGE], more)

    def _files(self, model: str) -> list[dict]:
        root = self.stub.models[model]
        found = [
            {"type": "directory", "oid": "0" * 40, "size": 0, "path": p.name}
            for p in sorted(root.iterdir())
            if p.is_dir()
        ]
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            content = file.read_bytes()
            entry = {"type": "file", "size": len(content), "path": file.relative_to(root).as_posix()}
            entry["oid"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry["size"] = self.stub.sizes.get(entry["path"], len(content))
            if len(content) >= _LARGE:
                sha = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": sha, "size": len(content), "pointerSize": 130}
            found.append(entry)
        found += [{"type": "file", "size": 1, "path": name, "oid": "0" * 40} for name in self.stub.extra]
        return found

    def _file(self, model: str, path: str) -> None:
        revision, name = path.removeprefix(f"/{model}/resolve/").split("/", 1)
        file = self.stub.models[model] / name
        if not file.is_file():
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content = self.stub.lies.get(name, file.read_bytes())
        sha, blob = hashlib.sha256(content).hexdigest(), hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        facts = {"X-Repo-Commit": COMMIT, "ETag": f'"{blob}"', "Accept-Ranges": "bytes"}
        if len(content) >= _LARGE:
            facts |= {"X-Linked-Etag": f'"{sha}"', "X-Linked-Size": str(len(content))}
            if not self.headers["host"].startswith("localhost") and name not in self.stub.here:
                facts["Location"] = f"{self.stub.elsewhere}/{model}/resolve/{revision}/{name}"
                self._answer(302, b"", facts)
                return
        start = int((self.headers.get("range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        status = 206 if start else 200
        if start:
            facts["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        with self.stub.lock:
            most = self.stub.cut.pop(name, None)
        self._answer(status, content[start:], facts, most)

    def _json(self, value: object, headers: dict[str, str] | None = None) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _answer(self, status: int, body: bytes, headers: dict[str, str], most: int | None = None) -> None:
        """Send an answer; with `most`, promise all of it and close the connection after that many bytes."""
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if most is None else body[:most])
        if most is not None:
            self.close_connection = True
