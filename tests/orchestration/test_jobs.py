"""The job of a corpus."""

import dagster as dg
import pytest

from embeddings_pipeline.definitions import defs


def test_the_job_takes_the_three_assets_in_order_with_the_corpuss_tags(corpora):
    corpora.declare(run_tags={"team": "search"}, description="Ten works.")
    job = defs().resolve_job_def("small_job")
    assert job.run_tags["team"] == "search"
    assert "corpus 'small'" in job.description
    assert {key.to_user_string() for key in job.asset_layer.executable_asset_keys} == {
        "small/records",
        "small/embeddings",
        "small/dataset",
    }
    assert [op.name for op in job.nodes_in_topological_order] == [
        "small__records",
        "small__embeddings",
        "small__dataset",
    ]


def test_the_job_takes_run_config_as_the_design_writes_it(corpora):
    run_config = {
        "execution": {"config": {"cuda": {"devices": [], "workers": 0}}},
        "ops": {
            "small__records": {"config": {"limit": 0, "offset": 0}},
            "small__embeddings": {
                "config": {
                    "application_batch_size": 1000,
                    "model_batch_size": 64,
                    "model_batch_tokens": 0,
                    "force": False,
                }
            },
        },
    }
    assert dg.validate_run_config(defs().resolve_job_def("small_job"), run_config)


KNOBS = {
    "execution": {"config": {"cpu": {"workers": 0, "max_concurrent": 1, "isolate_steps": False}}},
    "ops": {
        "small__records": {"config": {"limit": 0, "offset": 0}},
        "small__embeddings": {
            "config": {"application_batch_size": 1000, "model_batch_size": 64, "model_batch_tokens": 0, "force": False}
        },
    },
}


@pytest.mark.parametrize("deliveries", ["whole", "files"])
def test_a_launchpad_shows_every_knob_whether_or_not_the_yaml_has_a_run_config(corpora, deliveries):
    """Of a job with a config of its own, or with partitions, Dagster shows that config and nothing else."""

    def shown():
        job = defs().resolve_job_def("small_job")
        return job.partitioned_config.get_run_config_for_partition_key("a") if deliveries == "files" else job.run_config

    source = {"kind": "jsonl", "location": str(corpora.source.parent), "id": "id"}
    place = {"source": source} if deliveries == "files" else {}
    corpora.declare(deliveries=deliveries, **place)
    assert shown() == KNOBS
    assert dg.validate_run_config(defs().resolve_job_def("small_job"), shown())
    run_config = {
        "execution": {"config": {"cuda": {"devices": [1]}}},
        "ops": {"small__embeddings": {"config": {"application_batch_size": 32}}},
    }
    corpora.declare(deliveries=deliveries, run_config=run_config, **place)
    assert shown()["execution"]["config"] == {"cuda": {**KNOBS["execution"]["config"]["cpu"], "devices": [1]}}
    assert shown()["ops"]["small__embeddings"]["config"]["application_batch_size"] == 32
    assert shown()["ops"]["small__embeddings"]["config"]["model_batch_size"] == 64
    assert shown()["ops"]["small__records"] == KNOBS["ops"]["small__records"]
    corpora.declare(deliveries=deliveries, run_config={"execution": {"config": {"cpu": None}}}, **place)
    assert shown() == KNOBS
