"""The sensor for failed runs: a line in the log, and one JSON for a webhook, which may be down."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import dagster as dg
import pytest

from embeddings_pipeline.definitions import defs
from embeddings_pipeline.orchestration import failures


class Hook(HTTPServer):
    """Keeps what is posted to it, and answers with `status`."""

    status = 200

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://user:pass@127.0.0.1:{self.server_port}/services/secret-token?key=hidden"


class Handler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append(json.loads(body) | {"type": self.headers["Content-Type"]})
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def failed(corpora) -> Iterator[tuple[dg.DagsterInstance, dg.RunFailureSensorContext]]:
    """Give the context that Dagster makes for a run which failed since a column is missing."""
    corpora.declare(strategies=[{"name": "card", "template": "{titel}"}])
    with dg.instance_for_test() as instance:
        job = defs().resolve_job_def("small_job")
        done = job.execute_in_process(
            instance=instance, raise_on_error=False, tags={"embeddings/delivery": "small/whole"}
        )
        yield (
            instance,
            dg.build_run_status_sensor_context(
                failures.SENSOR_NAME, done.get_run_failure_event(), instance, done.dagster_run
            ).for_run_failure(),
        )


def evaluate(context) -> list[str]:
    """Run the sensor's function and return what it logged."""
    lines: list[str] = []
    context.log.info = context.log.error = context.log.warning = lines.append
    failures.build_failure_sensor()(context)
    return lines


def test_it_runs_from_the_start():
    sensor = defs().get_repository_def().get_sensor_def("run_failure_sensor")
    assert sensor.default_status == dg.DefaultSensorStatus.RUNNING


def test_a_failed_run_is_one_line_in_the_log_without_a_webhook(failed, monkeypatch):
    monkeypatch.delenv("EMBEDDINGS_FAILURE_WEBHOOK", raising=False)
    _, context = failed
    (line,) = evaluate(context)
    assert line.startswith(f"run {context.dagster_run.run_id} of small_job (small/whole) failed: ")
    assert "'titel'" in line
    assert "\n" not in line


def test_a_webhook_is_told_once_what_failed_and_where_to_look(failed, hook, monkeypatch):
    monkeypatch.setenv("EMBEDDINGS_FAILURE_WEBHOOK", hook.url.replace("user:pass@", ""))
    monkeypatch.setenv("EMBEDDINGS_WEBSERVER_URL", "https://dagster.example/")
    _, context = failed
    assert len(evaluate(context)) == 1
    (told,) = hook.posted
    run_id = context.dagster_run.run_id
    assert told["error"].startswith("strategies[0].template names the column 'titel'")
    assert {name: told[name] for name in told if name != "error"} == {
        "run_id": run_id,
        "job": "small_job",
        "corpus": "small",
        "delivery": "whole",
        "url": f"https://dagster.example/runs/{run_id}",
        "type": "application/json",
    }


def test_a_webhook_that_is_down_or_refuses_is_a_warning_that_shows_no_secret(failed, hook, monkeypatch):
    _, context = failed
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    addresses = {
        f"http://127.0.0.1:{port}/services/secret-token": "cannot be reached (Connection refused)",
        "ftp://host/secret-token": "is no http:// or https:// address",
        "http://host name/secret-token\n": "it is no address that can be called",
        "secret-token": "is no http:// or https:// address",
        hook.url.replace("user:pass@", ""): "answered 500",
    }
    hook.status = 500
    for address, problem in addresses.items():
        monkeypatch.setenv("EMBEDDINGS_FAILURE_WEBHOOK", address)
        line, warning = evaluate(context)
        assert problem in warning
        assert "secret" not in line + warning
        assert "hidden" not in warning
