"""A person at Dagster's UI, from the first look to a refusal; each scene leaves its pictures."""

import time

import pytest
import yaml

from tests.e2e.corpora import MODEL, declare, records, write_lines
from tests.e2e.screen import Screen
from tests.e2e.stage import Stage
from tests.e2e.waiting import eventually

BATCHES = """\
ops:
  demo__embeddings:
    config: {application_batch_size: 50, model_batch_size: 16}
execution:
  config:
    cpu: {workers: 2}
"""
EJECT = f"ops:\n  eject_model:\n    config: {{model_name: {MODEL}}}\n"


@pytest.fixture(scope="session")
def demo_run(window):
    """Materialise the demo from the launchpad with other batch sizes, and return the run's id."""
    shown = yaml.safe_load(window.launchpad("demo_job"))
    window.place_cursor("model_batch_size")
    window.see("Texts that go through the model at once, at most.")
    window.shot("04-launchpad-help")
    window.place_cursor("limit:")
    window.see("Take at most this many records")
    window.write_config(BATCHES)
    window.shot("05-launchpad-other-batch-sizes")
    run = window.launch()
    window.wait_for_run("Success", 300)
    window.shot("06-run-success")
    return run, shown


def test_the_ui_opens_on_a_graph_of_three_assets_with_descriptions(screen: Screen):
    screen.open("/", "Timeline")
    screen.shot("01-first-look")
    screen.open("/locations/embeddings_pipeline/asset-groups/demo", "Latest event")
    for name in ("records", "embeddings", "dataset"):
        assert screen.page.get_by_text(name, exact=True).locator("visible=true").count() == 1
    screen.shot("02-demo-graph")
    screen.page.get_by_text("embeddings", exact=True).locator("visible=true").click()
    screen.see(f"Vectors of the texts by {MODEL}, staged and not yet published.")
    screen.see("Books, papers, films and artworks in several scripts, bundled with the package.")
    screen.shot("03-description")


def test_the_launchpad_shows_every_knob_and_takes_other_batch_sizes(demo_run, graphql):
    run, shown = demo_run
    assert set(shown["execution"]["config"]) == {"cpu"}
    assert shown["ops"]["demo__embeddings"]["config"].keys() >= {"application_batch_size", "model_batch_size"}
    assert shown["ops"]["demo__records"]["config"].keys() >= {"limit", "offset"}
    metadata = graphql.materialization(run, "demo/embeddings")
    assert (metadata["application_batch_size"], metadata["model_batch_size"]) == (50, 16)
    assert (metadata["read"], metadata["embedded"], metadata["rejected"]) == (217, 217, 0)
    assert graphql.run(run).tags["embeddings/device"] == "cpu"


def test_the_graph_is_green_afterwards(demo_run, screen: Screen):
    screen.open("/locations/embeddings_pipeline/asset-groups/demo", "Materialized")
    eventually(lambda: screen.text().count("Materialized") == 3, 30, "three green assets")
    assert "Failed" not in screen.text()
    screen.shot("07-graph-green")


def test_the_metadata_shows_pictures_that_chromium_renders(demo_run, screen: Screen):
    with screen.tall():
        screen.open("/assets/demo/embeddings?view=events", "Materialized in run")
        found = eventually(screen.pictures, 30, "inline pictures")
        screen.shot("08-embeddings-metadata")
        screen.open("/assets/demo/dataset?view=events", "Materialized in run")
        screen.shot("09-dataset-metadata")
        screen.open("/assets/demo/records?view=events", "Materialized in run")
        screen.shot("10-records-metadata")
    assert len(found) >= 3
    assert [picture for picture in found if not (picture["width"] > 100 and picture["height"] > 50)] == []
    assert [picture for picture in found if picture["shown"] < 100] == []
    assert [picture for picture in found if picture["bytes"] > 12_000] == []


def test_the_checks_are_seen_to_pass(demo_run, screen: Screen):
    screen.open("/assets/demo/dataset?view=checks", "identities")
    screen.see("Passed")
    screen.shot("11-checks")


def test_loaded_models_are_listed_and_ejected_in_tables(demo_run, screen: Screen, graphql):
    def job(name, config=None):
        screen.launchpad(name)
        if config:
            screen.write_config(config)
        run = screen.launch()
        screen.wait_for_run("Success")
        return run

    before = job("get_loaded_models_job")
    screen.see(MODEL)
    screen.shot("12-models-listed")
    job("eject_model_job", EJECT)
    screen.see(f"successfully ejected model `{MODEL}` from device `cpu`")
    screen.shot("13-model-ejected")
    after = job("get_loaded_models_job")
    screen.see("RUN_SUCCESS")
    screen.shot("14-nothing-loaded")
    rows = [graphql.output(run, "get_loaded_models")["models"] for run in (before, after)]
    assert [[row["model_name"] for row in found] for found in rows] == [[MODEL], []]


def test_a_file_dropped_into_a_watched_folder_is_embedded_by_itself(stage: Stage, screen: Screen, graphql, figures):
    folder, output_folder = stage.data / "inbox", stage.data / "inbox-out"
    folder.mkdir()
    declare(stage.corpora, "inbox", folder, output_folder, deliveries="files", sensor={"settle_seconds": 1})
    graphql.reload()
    screen.open("/locations/embeddings_pipeline/sensors/inbox_sensor", "inbox_sensor")
    screen.see("Running")
    dropped = time.monotonic()
    write_lines(folder / "letters.jsonl", records("letters", 6))
    (run,) = eventually(lambda: graphql.runs("inbox_job"), 90, "the sensor's run")
    figures["seconds from a dropped file to its run"] = round(time.monotonic() - dropped, 1)
    # The page looks for new ticks by itself every few seconds.
    screen.see("1 run requested", 60)
    screen.shot("15-sensor-tick")
    screen.page.goto(f"/runs/{run.id}")
    screen.wait_for_run("Success", 180)
    screen.shot("16-sensor-run")
    assert run.tags["dagster/partition"] == "letters.jsonl"
    assert run.tags["dagster/sensor_name"] == "inbox_sensor"
    assert graphql.materialization(run.id, "inbox/embeddings")["embedded"] == 6
    screen.open("/assets/inbox/dataset", "letters.jsonl")
    screen.shot("17-deliveries-as-partitions")


def test_a_terminated_run_resumes_when_it_is_executed_again(stage: Stage, screen: Screen, graphql, figures):
    output_folder = stage.data / "long-out"
    write_lines(stage.data / "long.jsonl", records("long", 1500, words=60))
    declare(
        stage.corpora,
        "long",
        stage.data / "long.jsonl",
        output_folder,
        part_texts=75,
        description="A run to interrupt.",
    )
    screen.open("/locations", "embeddings_pipeline")
    graphql.reload()
    screen.launchpad("long_job")
    first = screen.launch()

    def staged() -> int:
        """Return how many parts are finished; a run that is over by itself cannot be terminated."""
        assert graphql.run(first).status not in ("FAILURE", "SUCCESS"), graphql.errors(first)
        return len(list((output_folder / "staging").rglob("part-*.json")))

    eventually(lambda: staged() >= 2, 300, "two finished parts")
    screen.shot("20-long-run")
    screen.click("Terminate")
    screen.see("1 run will be terminated")
    screen.shot("21-terminate")
    clicked = time.monotonic()
    screen.click("Terminate 1 run")
    eventually(lambda: graphql.run(first).status == "CANCELED", 15, "the terminated run to be CANCELED")
    figures["seconds from Terminate to CANCELED"] = round(time.monotonic() - clicked, 1)
    eventually(lambda: not stage.run_workers(), 15 - (time.monotonic() - clicked), "its processes to be gone")
    figures["seconds from Terminate to no process"] = round(time.monotonic() - clicked, 1)
    finished = staged()
    screen.wait_for_run("Canceled")
    screen.shot("22-canceled")
    screen.click("Re-execute all (*)")
    second = screen.new_run(first)
    screen.wait_for_run("Success", 600)
    screen.shot("23-resumed")
    metadata = graphql.materialization(second, "long/embeddings")
    assert 2 <= metadata["parts_resumed"] < 20
    assert metadata["parts_resumed"] == finished
    assert metadata["read"] == metadata["embedded"] == 1500
    eventually(lambda: not stage.run_workers(), 15, "the processes of the second run to be gone")


def test_cuda_is_refused_before_any_step_where_there_is_none(screen: Screen, graphql):
    screen.launchpad("demo_job")
    screen.write_config("execution:\n  config:\n    cuda: {}\n")
    run = screen.launch()
    screen.wait_for_run("Failure")
    screen.shot("24-cuda-refused")
    assert "no usable CUDA device" in graphql.errors(run)
    assert [event for event in graphql.events(run) if event["__typename"] == "ExecutionStepStartEvent"] == []
