"""What cannot work fails before any step starts, and leaves no file behind."""

from typing import Any

import pytest

from embeddings_pipeline.errors import (
    ConfigurationError,
    DeviceUnavailableError,
    LocationNotFoundError,
    LocationOwnedError,
    RunConfigError,
    UnknownModelError,
)
from embeddings_pipeline.inference.device import cuda_devices
from embeddings_pipeline.pipeline import preflight
from embeddings_pipeline.settings import EmbedSettings, ExtractSettings
from tests.fakes import Bench, works


@pytest.fixture
def ready(bench: Bench) -> Bench:
    bench.put("a.jsonl", works(2))
    return bench


def check(bench: Bench, *, device: str = "cpu", **changes: Any) -> None:
    preflight([bench.spec(**changes)], device=device)


def test_what_works_passes_and_writes_nothing(ready: Bench) -> None:
    check(ready)
    assert not ready.out.exists()


def test_settings_are_checked_with_their_place_in_the_run_config(ready: Bench) -> None:
    with pytest.raises(RunConfigError, match="^ops.bench__embeddings.config.model_batch_size is 0"):
        preflight([], device="cpu", embed=EmbedSettings(model_batch_size=0), prefix="ops.bench__embeddings.config")
    with pytest.raises(RunConfigError, match="^limit is -1"):
        preflight([], device="cpu", extract=ExtractSettings(limit=-1))


@pytest.mark.skipif(cuda_devices().count > 0, reason="this machine has a CUDA device")
def test_cuda_on_a_machine_without_it_is_refused_with_the_reason(ready: Bench) -> None:
    """Case 45: no silent fall-back that runs a hundred times slower."""
    with pytest.raises(DeviceUnavailableError, match="has no usable CUDA device: .*; choose execution"):
        check(ready, device="cuda")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": {"name": "no/such"}}, UnknownModelError, "model.name 'no/such' is not in the registry"),
        ({"model": {"name": "x", "source": "/nowhere"}}, LocationNotFoundError, "model.source '/nowhere'"),
        ({"source": {"kind": "jsonl", "location": "/nowhere"}}, LocationNotFoundError, "source.location '/nowhere'"),
        ({"output": {"location": "/etc/hostname"}}, LocationNotFoundError, "'/etc/hostname' is no folder"),
    ],
)
def test_what_does_not_exist_is_named(ready: Bench, changes: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check(ready, **changes)


def test_an_output_that_is_a_dead_link_is_refused(ready: Bench) -> None:
    ready.out.symlink_to(ready.root / "nowhere")
    with pytest.raises(LocationNotFoundError, match="is no folder that this user may write to"):
        check(ready)
    with pytest.raises(FileExistsError):
        ready.extract()


def test_an_output_of_another_corpus_is_refused(ready: Bench) -> None:
    ready.run()
    with pytest.raises(LocationOwnedError, match="'bench', so corpus 'other'"):
        check(ready, name="other")


@pytest.mark.parametrize("inside", ["", "out", "deep/er/out", "link/out"])
def test_an_output_among_the_sources_files_is_refused(ready: Bench, inside: str) -> None:
    (ready.source / "real").mkdir()
    (ready.source / "link").symlink_to(ready.source / "real")
    ready.out = ready.source / inside
    with pytest.raises(ConfigurationError, match="where the next run would read it as records"):
        check(ready)


def test_an_output_in_a_hidden_folder_of_the_source_is_fine_since_it_is_not_read(ready: Bench) -> None:
    ready.out = ready.source / ".embeddings" / "out"
    check(ready)
    ready.run()
    assert ready.run().extract.files == 1


def test_a_source_file_beside_the_output_is_fine(ready: Bench) -> None:
    ready.out = ready.source
    ready.changes["source"] = {"kind": "jsonl", "location": str(ready.source / "a.jsonl")}
    check(ready)
