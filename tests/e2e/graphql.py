"""Dagster's GraphQL interface, as the UI and people's scripts use it.

What belongs here: queries and mutations, one method each, with plain data as results. What does not:
what a scene expects of them.
"""

import json
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.e2e.waiting import eventually

LOCATION = "embeddings_pipeline"
REPOSITORY = {"repositoryName": "__repository__", "repositoryLocationName": LOCATION}
FINISHED = ("SUCCESS", "FAILURE", "CANCELED")

_RUN = """
  runId jobName status startTime endTime rootRunId parentRunId
  tags { key value }
"""
_EVENTS = """
query Events($runId: ID!, $cursor: String) {
  logsForRun(runId: $runId, afterCursor: $cursor, limit: 1000) {
    __typename
    ... on EventConnection {
      cursor hasMore
      events {
        __typename
        ... on MessageEvent { message timestamp stepKey eventType }
        ... on ErrorEvent { error { message cause { message } errorChain { error { message } } } }
        ... on MaterializationEvent { assetKey { path } partition metadataEntries { ...Entry } }
        ... on AssetCheckEvaluationEvent {
          evaluation { checkName success severity description metadataEntries { ...Entry } }
        }
        ... on ExecutionStepOutputEvent { outputName metadataEntries { ...Entry } }
        ... on HandledOutputEvent { metadataEntries { ...Entry } }
      }
    }
  }
}
fragment Entry on MetadataEntry {
  __typename label
  ... on TextMetadataEntry { text }
  ... on IntMetadataEntry { intValue intRepr }
  ... on FloatMetadataEntry { floatValue }
  ... on BoolMetadataEntry { boolValue }
  ... on MarkdownMetadataEntry { mdStr }
  ... on JsonMetadataEntry { jsonString }
  ... on PathMetadataEntry { path }
  ... on TableMetadataEntry { table { records } }
}
"""


@dataclass(frozen=True)
class Run:
    """What Dagster says of a run; times are seconds since the epoch."""

    id: str
    job: str
    status: str
    start: float | None
    end: float | None
    root: str | None
    parent: str | None
    tags: Mapping[str, str]

    @property
    def finished(self) -> bool:
        return self.status in FINISHED


class GraphQL:
    """One webserver's GraphQL address."""

    def __init__(self, base: str) -> None:
        self.base = base

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """Return the answer's data; fails the test at a GraphQL error."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.base}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    def locations(self) -> dict[str, str]:
        """Return the state of each code location: LOADED, LOADING, or the reason why it does not load."""
        query = """{ workspaceOrError { __typename ... on Workspace { locationEntries { name loadStatus
          locationOrLoadError { __typename ... on PythonError { message } } } } } }"""
        entries = self.ask(query)["workspaceOrError"]["locationEntries"]
        return {
            entry["name"]: (entry["locationOrLoadError"] or {}).get("message") or entry["loadStatus"]
            for entry in entries
        }

    def jobs(self) -> set[str]:
        query = """query($selector: RepositorySelector!) { repositoryOrError(repositorySelector: $selector) {
          ... on Repository { jobs { name } } } }"""
        return {job["name"] for job in self.ask(query, selector=REPOSITORY)["repositoryOrError"]["jobs"]}

    def daemons(self) -> dict[str, bool]:
        """Return which daemons are healthy, of those that this instance needs."""
        query = "{ instance { daemonHealth { allDaemonStatuses { daemonType required healthy } } } }"
        statuses = self.ask(query)["instance"]["daemonHealth"]["allDaemonStatuses"]
        return {status["daemonType"]: bool(status["healthy"]) for status in statuses if status["required"]}

    def reload(self) -> None:
        """Reload the code location, as the UI's button does, and wait until it is there again."""
        query = """mutation($name: String!) { reloadRepositoryLocation(repositoryLocationName: $name) { __typename
          ... on PythonError { message }
          ... on WorkspaceLocationEntry { locationOrLoadError { __typename ... on PythonError { message } } } } }"""
        done = self.ask(query, name=LOCATION)["reloadRepositoryLocation"]
        assert done["locationOrLoadError"]["__typename"] == "RepositoryLocation", done
        eventually(lambda: self.locations().get(LOCATION) == "LOADED", 60, "the code location after its reload")

    def launch(self, job: str, config: Mapping[str, Any] | None = None, tags: Mapping[str, str] | None = None) -> str:
        """Launch a run of a job and return its id."""
        query = """mutation($params: ExecutionParams!) { launchRun(executionParams: $params) { __typename
          ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
          ... on RunConfigValidationInvalid { errors { message } } ... on PipelineNotFoundError { message } } }"""
        listed = [{"key": key, "value": value} for key, value in (tags or {}).items()]
        params = {
            "selector": {**REPOSITORY, "jobName": job},
            "runConfigData": config or {},
            "executionMetadata": {"tags": listed},
        }
        done = self.ask(query, params=params)["launchRun"]
        assert done["__typename"] == "LaunchRunSuccess", done
        return done["run"]["runId"]

    def reexecute(self, run_id: str, strategy: str = "ALL_STEPS") -> str:
        """Re-execute a run and return the new run's id."""
        query = """mutation($params: ReexecutionParams!) { launchRunReexecution(reexecutionParams: $params) {
          __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
        done = self.ask(query, params={"parentRunId": run_id, "strategy": strategy})["launchRunReexecution"]
        assert done["__typename"] == "LaunchRunSuccess", done
        return done["run"]["runId"]

    def terminate(self, run_id: str) -> None:
        query = """mutation($runId: String!) { terminateRun(runId: $runId, terminatePolicy: SAFE_TERMINATE) { __typename
          ... on TerminateRunFailure { message } ... on PythonError { message } } }"""
        done = self.ask(query, runId=run_id)["terminateRun"]
        assert done["__typename"] == "TerminateRunSuccess", done

    def runs(self, job: str | None = None, tags: Mapping[str, str] | None = None) -> list[Run]:
        """Return the runs, newest first."""
        query = f"""query($filter: RunsFilter) {{ runsOrError(filter: $filter) {{
          ... on Runs {{ results {{ {_RUN} }} }} }} }}"""
        wanted: dict[str, Any] = {}
        if job:
            wanted["pipelineName"] = job
        if tags:
            wanted["tags"] = [{"key": key, "value": value} for key, value in tags.items()]
        return [_run(entry) for entry in self.ask(query, filter=wanted)["runsOrError"]["results"]]

    def run(self, run_id: str) -> Run:
        query = f"query($id: ID!) {{ runOrError(runId: $id) {{ __typename ... on Run {{ {_RUN} }} }} }}"
        return _run(self.ask(query, id=run_id)["runOrError"])

    def finish(self, run_id: str, seconds: float = 120) -> Run:
        """Wait until a run is over."""
        return eventually(
            lambda: run if (run := self.run(run_id)).finished else None, seconds, f"the end of run {run_id}"
        )

    def events(self, run_id: str) -> list[dict[str, Any]]:
        """Return all events of a run, oldest first; metadata entries as a mapping under `metadata`."""
        found: list[dict[str, Any]] = []
        cursor = None
        while True:
            page = self.ask(_EVENTS, runId=run_id, cursor=cursor)["logsForRun"]
            found += page["events"]
            cursor = page["cursor"]
            if not page["hasMore"]:
                break
        for event in found:
            holder = event.get("evaluation") or event
            event["metadata"] = {entry["label"]: _value(entry) for entry in holder.get("metadataEntries") or []}
        return found

    def errors(self, run_id: str) -> str:
        """Return all that a run's events say of errors, in one text."""
        words: list[str] = []
        for event in self.events(run_id):
            if error := event.get("error"):
                words += [event["message"], error["message"], (error["cause"] or {}).get("message", "")]
                words += [link["error"]["message"] for link in error["errorChain"]]
        return "\n".join(words)

    def materialization(self, run_id: str, asset: str) -> dict[str, Any]:
        """Return the metadata of the one materialization that a run has of an asset."""
        path = asset.split("/")
        (found,) = [
            event["metadata"]
            for event in self.events(run_id)
            if event["__typename"] == "MaterializationEvent" and event["assetKey"]["path"] == path
        ]
        return found

    def output(self, run_id: str, step: str) -> dict[str, Any]:
        """Return the metadata of the one output of a step."""
        (found,) = [
            event["metadata"]
            for event in self.events(run_id)
            if event["__typename"] == "ExecutionStepOutputEvent" and event["stepKey"] == step
        ]
        return found

    def backfill(self, job: str, partitions: Sequence[str], config: Mapping[str, Any] | None = None) -> str:
        """Launch a backfill of a job's partitions and return its id."""
        query = """mutation($params: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $params) {
          __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message }
          ... on PartitionSetNotFoundError { message } ... on PartitionKeysNotFoundError { message } } }"""
        selector = {
            "partitionSetName": f"{job}_partition_set",
            "repositorySelector": REPOSITORY,
        }
        params = {"selector": selector, "partitionNames": list(partitions)}
        if config:
            params["runConfigData"] = dict(config)
        done = self.ask(query, params=params)["launchPartitionBackfill"]
        assert done["__typename"] == "LaunchBackfillSuccess", done
        return done["backfillId"]

    def backfill_status(self, backfill_id: str) -> str:
        query = """query($id: String!) { partitionBackfillOrError(backfillId: $id) { __typename
          ... on PartitionBackfill { status } ... on PythonError { message } } }"""
        return self.ask(query, id=backfill_id)["partitionBackfillOrError"]["status"]

    def default_config(self, job: str) -> str:
        """Return the YAML that a job's launchpad starts with."""
        query = """query($selector: PipelineSelector!) { runConfigSchemaOrError(selector: $selector) { __typename
          ... on RunConfigSchema { rootDefaultYaml } } }"""
        return self.ask(query, selector={**REPOSITORY, "pipelineName": job})["runConfigSchemaOrError"][
            "rootDefaultYaml"
        ]

    def partitions(self, job: str) -> list[str]:
        """Return the partition keys of a job."""
        query = """query($selector: PipelineSelector!) { pipelineOrError(params: $selector) { __typename
          ... on Pipeline { partitionKeysOrError { ... on PartitionKeys { partitionKeys } } } } }"""
        selector = {**REPOSITORY, "pipelineName": job}
        return self.ask(query, selector=selector)["pipelineOrError"]["partitionKeysOrError"]["partitionKeys"]

    def ticks(self, name: str) -> list[dict[str, Any]]:
        """Return the ticks of a sensor or schedule, newest first."""
        query = """query($selector: InstigationSelector!) { instigationStateOrError(instigationSelector: $selector) {
          __typename ... on InstigationState { status ticks(limit: 20) { tickId status timestamp skipReason runIds
          cursor error { message } } } } }"""
        state = self.ask(query, selector={**REPOSITORY, "name": name})["instigationStateOrError"]
        return state.get("ticks", [])


def _run(entry: Mapping[str, Any]) -> Run:
    assert "runId" in entry, entry
    return Run(
        id=entry["runId"],
        job=entry["jobName"],
        status=entry["status"],
        start=entry["startTime"],
        end=entry["endTime"],
        root=entry["rootRunId"],
        parent=entry["parentRunId"],
        tags={tag["key"]: tag["value"] for tag in entry["tags"]},
    )


def _value(entry: Mapping[str, Any]) -> Any:
    if entry["__typename"] == "IntMetadataEntry":
        return int(entry["intRepr"])
    if entry["__typename"] == "TableMetadataEntry":
        return [json.loads(record) for record in entry["table"]["records"]]
    if entry["__typename"] == "JsonMetadataEntry":
        return json.loads(entry["jsonString"])
    return next((value for key, value in entry.items() if key not in ("__typename", "label")), None)
