"""What happens when a run has failed: one line in the log, and one JSON to a webhook where there is one.

What belongs here: the sensor for failed runs, and what the webhook is told. What does not: retrying
(dagster.yaml's `run_retries`) and the sensors that start runs (`sensors`).
"""

import json
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from typing import Any

import dagster as dg

from embeddings_pipeline.orchestration.tags import DELIVERY_TAG, PARTITION_TAG, corpus_of
from embeddings_pipeline.settings import Environment

SENSOR_NAME = "run_failure_sensor"

_SECONDS = 10.0
"""For the webhook to answer: a tick has 60."""


def build_failure_sensor() -> dg.SensorDefinition:
    """Return the sensor that tells people of each failed run of this code location; it runs from the start."""

    @dg.run_failure_sensor(
        name=SENSOR_NAME,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Log each failed run, and post it as JSON to {Environment.FAILURE_WEBHOOK} if that is set.",
    )
    def sensor(context: dg.RunFailureSensorContext) -> None:
        environment = Environment.read()
        report = describe(context, environment)
        context.log.error(sentence(report))
        if environment.failure_webhook is not None and (problem := post(environment.failure_webhook, report)):
            context.log.warning(f"{Environment.FAILURE_WEBHOOK} was not told of run {report['run_id']}: {problem}")

    return sensor


def describe(context: dg.RunFailureSensorContext, environment: Environment) -> dict[str, Any]:
    """Return what is known of a failed run: run_id, job, corpus, delivery, error, and url where the UI's is known."""
    run = context.dagster_run
    corpus, _, delivery = run.tags.get(DELIVERY_TAG, "").partition("/")
    report = {
        "run_id": run.run_id,
        "job": run.job_name,
        "corpus": corpus or corpus_of([key.path for key in run.asset_selection or ()], run.job_name),
        "delivery": delivery or run.tags.get(PARTITION_TAG),
        "error": _error(context),
    }
    if environment.webserver_url is not None:
        report["url"] = f"{environment.webserver_url.rstrip('/')}/runs/{run.run_id}"
    return report


def sentence(report: dict[str, Any]) -> str:
    """Return a report as one line."""
    about = "/".join(str(report[name]) for name in ("corpus", "delivery") if report[name])
    return f"run {report['run_id']} of {report['job']}{f' ({about})' if about else ''} failed: {report['error']}"


def post(url: str, report: dict[str, Any]) -> str | None:
    """Post a report as JSON; return what went wrong, without what of the URL may be secret."""
    shown = "it"
    try:
        shown = f"'{without_secrets(url)}'"
        if not shown.startswith(("'http://", "'https://")):
            return f"{shown} is no http:// or https:// address; correct it"
        data = json.dumps(report, ensure_ascii=False).encode()
        asked = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method="POST")
        with urllib.request.urlopen(asked, timeout=_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        with error:
            return f"{shown} answered {error.code}; correct the address or look there"
    except OSError as error:
        reason = getattr(error, "reason", error)
        words = (reason.strerror if isinstance(reason, OSError) else None) or type(reason).__name__
        return f"{shown} cannot be reached ({words}); correct the address or look there"
    except (ValueError, HTTPException) as error:
        # Their messages quote the address.
        return f"it is no address that can be called ({type(error).__name__}); correct it"


def without_secrets(url: str) -> str:
    """Return the scheme and host of a URL: path, query and user name of a webhook are its password."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or '?'}{'/…' if parts.path or parts.query else ''}"


def _error(context: dg.RunFailureSensorContext) -> str:
    """Return the first sentence that a person can act on: that of the step that failed, else the run's."""
    for event in context.get_step_failure_events():
        data = event.step_failure_data
        if data.user_failure_data is not None and data.user_failure_data.description:
            return data.user_failure_data.description
        if data.error is not None:
            return _root(data.error)
    error = getattr(context.failure_event.event_specific_data, "error", None)
    return _root(error) if error is not None else context.failure_event.message or "no reason is known"


def _root(error: Any) -> str:
    while error.cause is not None:
        error = error.cause
    return " ".join(str(error.message).split())
