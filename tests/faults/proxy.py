"""A proxy before an S3 server that breaks answers, of one kind of operation in one way, or any of them."""

import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

OPERATIONS = ("GET", "HEAD", "LIST", "PUT", "DELETE", "MULTIPART")
FAULTS = ("500", "503 SlowDown", "reset", "reset after it was done", "truncated body", "timeout")
NO_BODY = {("HEAD", "truncated body"), ("PUT", "truncated body")}
"""Answers without a body cannot be cut."""


def operation(method: str, path: str) -> str:
    """Return which kind of operation a request is."""
    query = parse_qs(urlsplit(path).query, keep_blank_values=True)
    if {"uploads", "uploadId", "partNumber"} & query.keys():
        return "MULTIPART"
    if "delete" in query:
        return "DELETE"
    return "LIST" if "list-type" in query else method


class FaultyProxy:
    """Passes requests on to `endpoint` and breaks some; `counts` says of which operation, in which way, how often.

    `aim` gives the operation and fault of the moment (None: any), `share` of the requests meant are broken, at most
    `most` of them; `stall` is how many seconds a request that times out waits.
    """

    def __init__(self, endpoint: str, seed: int, stall: float) -> None:
        self.stall = stall
        self.target = urlsplit(endpoint).netloc
        self.chance = random.Random(seed)
        self.counts: Counter[tuple[str, str]] = Counter()
        self.aim(None, None, 0.0, 0)
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def aim(self, wanted: str | None, fault: str | None, share: float, most: int, after: int = 0) -> None:
        """Break these from now on, beginning `after` as many requests."""
        self._wanted, self._fault, self.share, self._most, self._after = wanted, fault, share, most, after
        self.counts.clear()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fault(self, method: str, path: str) -> str | None:
        """Choose what happens to the next request."""
        kind = operation(method, path)
        if self._wanted not in (None, kind):
            return None
        self._after -= 1
        if self._after >= 0 or self.counts.total() >= self._most or self.chance.random() >= self.share:
            return None
        fault = self._fault or self.chance.choice([fault for fault in FAULTS if (kind, fault) not in NO_BODY])
        self.counts[kind, fault] += 1
        return fault


class _Handler(BaseHTTPRequestHandler):
    owner: FaultyProxy
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        # A client that was killed, or that waited long enough, is no error of the proxy.
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            # Half a request, whose sender is dead: a store does not take it.
            self.close_connection = True
            return
        fault = self.owner.fault(self.command, self.path)
        if fault == "reset":
            self._reset()
        elif fault == "timeout":
            time.sleep(self.owner.stall)
            self.close_connection = True
        elif fault in ("500", "503 SlowDown"):
            code = "SlowDown" if "Slow" in fault else "InternalError"
            self._answer(int(fault[:3]), [], f"<Error><Code>{code}</Code><Message>broken</Message></Error>".encode())
        else:
            self._pass_on(body, fault)

    def _pass_on(self, body: bytes, fault: str | None) -> None:
        connection = http.client.HTTPConnection(self.owner.target, timeout=60)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if fault == "reset after it was done":
            self._reset()
        else:
            self._answer(answer.status, answer.getheaders(), data, cut=fault == "truncated body")

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, cut: bool = False) -> None:
        self.send_response_only(status)
        length = str(len(data))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value
            elif name.lower() not in ("connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve
