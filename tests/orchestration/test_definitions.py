"""The code location as a whole: what loads, what it costs, and what the launchpad offers."""

import subprocess
import sys
from pathlib import Path

import dagster as dg
import yaml

# What the UI's launchpad calls for its first text; GraphQL has no way to it without a server.
from dagster._core.snap import JobSnap
from dagster._core.snap.snap_to_yaml import default_values_yaml_from_type_snap

import embeddings_pipeline
from embeddings_pipeline.definitions import defs
from embeddings_pipeline.orchestration.corpus import Corpus

PACKAGE = Path(embeddings_pipeline.__file__).parent

ASSETS = {
    "demo/dataset": {
        "group": "demo",
        "deps": ["demo/embeddings"],
        "kinds": ["parquet"],
        "checks": ["identities (blocking)", "vectors (blocking)"],
    },
    "demo/embeddings": {
        "group": "demo",
        "deps": ["demo/records"],
        "kinds": ["sentence-transformers"],
        "checks": ["rejects (blocking)", "truncated (not blocking)"],
    },
    "demo/records": {"group": "demo", "deps": [], "kinds": ["jsonl"], "checks": ["rejects (blocking)"]},
}


def test_the_bundled_definitions_are_these(monkeypatch):
    """A change here is a change for everyone who has a deployment; make it on purpose."""
    monkeypatch.delenv("EMBEDDINGS_CORPORA", raising=False)
    definitions = defs()
    graph = definitions.resolve_asset_graph()
    seen = {}
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        checks = [graph.get_check_spec(check) for check in sorted(node.check_keys)]
        seen[key.to_user_string()] = {
            "group": node.group_name,
            "deps": sorted(parent.to_user_string() for parent in node.parent_keys),
            "kinds": sorted(node.kinds),
            "checks": [f"{check.name} ({'blocking' if check.blocking else 'not blocking'})" for check in checks],
        }
    assert seen == ASSETS
    repository = definitions.get_repository_def()
    assert sorted(job.name for job in repository.get_all_jobs() if not job.name.startswith("__")) == [
        "demo_discover",
        "demo_job",
        "download_model_job",
        "eject_model_job",
        "get_device_info_job",
        "get_loaded_models_job",
        "load_model_job",
    ]
    assert repository.schedule_defs == []
    assert [sensor.name for sensor in repository.sensor_defs] == ["run_failure_sensor"]
    assert sorted(set(repository.get_top_level_resources()) - {"io_manager"}) == ["model_cache"]


def test_loading_them_imports_no_torch():
    """The code server, every run worker and every step process load them; torch would cost each seconds."""
    code = (
        "import sys; from embeddings_pipeline.definitions import defs; defs().get_repository_def(); "
        "print([name for name in ('torch', 'transformers', 'sentence_transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""


def test_the_launchpads_default_yaml_shows_every_knob():
    """A null default would vanish there, and with the last one of an arm the whole execution block."""
    snap = JobSnap.from_job_def(defs().resolve_job_def("demo_job"))
    root = snap.config_schema_snapshot.get_config_snap(snap.mode_def_snaps[0].root_config_key)
    assert yaml.safe_load(default_values_yaml_from_type_snap(snap.config_schema_snapshot, root)) == {
        "execution": {"config": {"cpu": {"workers": 0, "max_concurrent": 1, "isolate_steps": False}}},
        "ops": {
            "demo__records": {"config": {"limit": 0, "offset": 0}},
            "demo__embeddings": {
                "config": {
                    # The demo's own run config.
                    "application_batch_size": 32,
                    "model_batch_size": 64,
                    "model_batch_tokens": 0,
                    "force": False,
                }
            },
        },
        "resources": {
            "model_cache": {
                "config": {"mode": "in_process", "idle_timeout_s": 600.0, "memory_budget": "0", "on_full": "error"}
            }
        },
    }


def test_dagsters_own_tools_find_the_bundled_corpora_through_dg_toml():
    (corpus,) = dg.ComponentTree.for_project(PACKAGE).get_all_components(Corpus)
    assert corpus.spec.name == "demo"
