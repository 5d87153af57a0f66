"""What happens without a person: schedules, backfills, queue limits; asked for and looked at by GraphQL."""

import itertools
from pathlib import Path

import duckdb

from tests.e2e.corpora import declare, records, write_lines
from tests.e2e.graphql import GraphQL
from tests.e2e.stage import Stage
from tests.e2e.waiting import eventually

CPU = {"execution": {"config": {"cpu": {"workers": 1}}}}
CUDA = {"execution": {"config": {"cuda": {}}}}


def rows(output: Path) -> int:
    """Return how many rows a dataset has, read as a consumer reads it."""
    ((count,),) = duckdb.sql(f"SELECT count(*) FROM '{output}/dataset/**/*.parquet'").fetchall()
    return count


def test_a_schedules_tick_adds_partitions_and_embeds_each_new_delivery(stage: Stage, graphql: GraphQL):
    source, output = stage.data / "nightly", stage.data / "nightly-out"
    for name in ("monday", "tuesday"):
        write_lines(source / f"{name}.jsonl", records(name, 4))
    declare(
        stage.corpora,
        "nightly",
        source,
        output,
        deliveries="files",
        schedule={"cron": "* * * * *", "timezone": "Europe/Berlin"},
        run_config=CPU,
        run_tags={"team": "catalogue"},
    )
    graphql.reload()

    def tick():
        ticks = graphql.ticks("nightly_schedule")
        assert [found["error"] for found in ticks if found["error"]] == []
        return next((found for found in ticks if found["status"] == "SUCCESS"), None)

    asked = eventually(tick, 240, "a successful tick of nightly_schedule")["runIds"]
    assert graphql.partitions("nightly_job") == ["monday.jsonl", "tuesday.jsonl"]
    runs = [graphql.finish(run, 240) for run in asked]
    assert [run.status for run in runs] == ["SUCCESS", "SUCCESS"]
    assert {run.tags["dagster/partition"] for run in runs} == {"monday.jsonl", "tuesday.jsonl"}
    assert {(run.tags["team"], run.tags["embeddings/device"]) for run in runs} == {("catalogue", "cpu")}
    assert rows(output) == 8
    # Nothing is new: the next tick asks for nothing, and says why.
    later = eventually(
        lambda: next((found for found in graphql.ticks("nightly_schedule") if found["status"] == "SKIPPED"), None),
        240,
        "a tick that finds nothing to do",
    )
    assert "published" in later["skipReason"]
    declare(stage.corpora, "nightly", source, output, deliveries="files")
    graphql.reload()


def test_a_backfill_of_twenty_deliveries_survives_a_poisoned_one(stage: Stage, graphql: GraphQL, figures):
    source, output = stage.data / "parcels", stage.data / "parcels-out"
    names = [f"parcel-{number:02}.jsonl" for number in range(20)]
    for name in names:
        write_lines(source / name, records(name, 5))
    (source / names[7]).write_text('{"id": "broken\n' * 5, encoding="utf-8")
    declare(stage.corpora, "parcels", source, output, deliveries="files", max_rejects={"share": 0.5})
    graphql.reload()
    assert graphql.finish(graphql.launch("parcels_discover")).status == "SUCCESS"
    assert graphql.partitions("parcels_job") == names

    backfill = graphql.backfill("parcels_job", names, CPU)

    def over() -> bool:
        found = graphql.runs(tags={"dagster/backfill": backfill})
        return len(found) == 20 and all(run.finished for run in found)

    eventually(over, 600, "the 20 runs of the backfill", poll=1)
    runs = graphql.runs(tags={"dagster/backfill": backfill})
    figures["seconds for a backfill of 20 deliveries"] = round(
        max(run.end or 0 for run in runs) - min(run.start or 0 for run in runs), 1
    )
    failed = [run for run in runs if run.status == "FAILURE"]
    assert sorted(run.status for run in runs) == ["FAILURE"] + 19 * ["SUCCESS"]
    assert [run.tags["dagster/partition"] for run in failed] == [names[7]]
    reason = graphql.errors(failed[0].id)
    assert "max_rejects" in reason
    assert "share: 0.5" in reason
    assert rows(output) == 95

    before = {path: path.stat().st_mtime_ns for path in (output / "dataset").rglob("*.parquet")}
    write_lines(source / names[7], records(names[7], 5))
    again = graphql.finish(graphql.reexecute(failed[0].id), 120)
    assert again.status == "SUCCESS", graphql.errors(again.id)
    assert again.tags["dagster/partition"] == names[7]
    assert graphql.materialization(again.id, "parcels/embeddings")["computed"] == 5
    after = {path: path.stat().st_mtime_ns for path in (output / "dataset").rglob("*.parquet")}
    assert rows(output) == 100
    assert before.items() <= after.items()
    assert len(after) == len(before) + 1
    assert len(graphql.runs("parcels_job")) == 21


def test_cuda_runs_take_turns_while_a_cpu_run_goes_on(stage: Stage, graphql: GraphQL):
    """Where there is no CUDA device, such a run fails before its first step; the queue treats it as any other."""
    corpora = ["queue_a", "queue_b", "queue_c", "queue_d"]
    for name in corpora:
        write_lines(stage.data / f"{name}.jsonl", records(name, 3))
        declare(stage.corpora, name, stage.data / f"{name}.jsonl", stage.data / f"{name}-out")
    graphql.reload()
    cuda = [graphql.launch(f"{name}_job", CUDA) for name in corpora[:3]]
    cpu = graphql.launch(f"{corpora[3]}_job", CPU)
    assert [graphql.run(run).tags["embeddings/device"] for run in [*cuda, cpu]] == ["cuda", "cuda", "cuda", "cpu"]
    ended = [graphql.finish(run, 240) for run in [*cuda, cpu]]
    assert ended[3].status == "SUCCESS"
    assert {run.tags["embeddings/device"] for run in ended[:3]} == {"cuda"}
    spans = sorted((started(graphql, run.id), over(graphql, run.id)) for run in ended[:3])
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert end <= start
    assert started(graphql, cpu) < spans[2][0]


def started(graphql: GraphQL, run: str) -> int:
    """Return when the queue let a run go, in milliseconds."""
    return moment(graphql, run, "RunStartingEvent")


def over(graphql: GraphQL, run: str) -> int:
    """Return when a run ended, in milliseconds."""
    return moment(graphql, run, "RunSuccessEvent", "RunFailureEvent")


def moment(graphql: GraphQL, run: str, *kinds: str) -> int:
    """Return when the one event of these kinds was."""
    (found,) = [int(event["timestamp"]) for event in graphql.events(run) if event["__typename"] in kinds]
    return found


def test_a_run_whose_process_is_killed_is_started_again_by_the_daemon_and_resumes(stage: Stage, graphql: GraphQL):
    output = stage.data / "lost-out"
    write_lines(stage.data / "lost.jsonl", records("lost", 900, words=60))
    declare(stage.corpora, "lost", stage.data / "lost.jsonl", output, part_texts=75)
    graphql.reload()
    first = graphql.launch("lost_job")

    def finished_parts() -> int:
        assert not graphql.run(first).finished, graphql.errors(first)
        return len(list((output / "staging").rglob("part-*.json")))

    eventually(lambda: finished_parts() >= 2, 300, "two finished parts")
    for process in stage.run_workers():
        process.kill()
    assert graphql.finish(first, 150).status == "FAILURE"
    eventually(lambda: not stage.run_workers(), 15, "the processes of the killed run to be gone")
    again = eventually(
        lambda: next((run for run in graphql.runs("lost_job") if run.parent == first), None),
        150,
        "the daemon to start the killed run again",
    )
    done = graphql.finish(again.id, 300)
    assert done.status == "SUCCESS", graphql.errors(again.id)
    assert done.tags["dagster/retry_number"] == "1"
    metadata = graphql.materialization(again.id, "lost/embeddings")
    assert 2 <= metadata["parts_resumed"] < 12
    assert metadata["read"] == metadata["embedded"] == rows(output) == 900
