"""Pickles: refused, and rewritten only when somebody asks for it, elsewhere."""

import os
import pickle
import shutil
from pathlib import Path

import pytest

from embeddings_pipeline.errors import UnsafeModelError
from embeddings_pipeline.models.conversion import CHILD_ENVIRONMENT, convert
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.settings import ModelSpec
from tests.models.checkpoints import pickled


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.trace}",)


def test_a_folder_with_pickled_weights_is_refused_with_the_way_out(bert: Path, tmp_path: Path) -> None:
    folder = pickled(Path(shutil.copytree(bert, tmp_path / "pickled")))
    with pytest.raises(
        UnsafeModelError,
        match=r"weights as a pickle only \(pytorch_model.bin\).*"
        rf"`embeddings models convert --model m --source {folder} --to FOLDER`",
    ):
        resolve(ModelSpec(name="m", source=str(folder)))


def test_a_pickle_beside_safetensors_is_left_alone(bert: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bert, tmp_path / "both"))
    (folder / "pytorch_model.bin").write_bytes(b"never read")
    (folder / "heads.pt").write_bytes(b"never read")
    assert resolve(ModelSpec(name="m", source=str(folder))).spec.kind == "dense"


def test_converted_weights_are_the_same_numbers(bert: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    folder = pickled(Path(shutil.copytree(bert, tmp_path / "pickled")))
    (folder / "2_Dense").mkdir()
    torch.save({"linear.weight": torch.ones(2, 2)}, folder / "2_Dense" / "pytorch_model.bin")
    assert convert(folder, "m") == ["2_Dense/pytorch_model.bin", "pytorch_model.bin"]
    assert not list(folder.rglob("*.bin"))
    before, after = load_file(bert / "model.safetensors"), load_file(folder / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert load_file(folder / "2_Dense" / "model.safetensors")["linear.weight"].sum() == 4


@pytest.mark.parametrize(
    "content", ["code", *(pytest.param(content, marks=pytest.mark.slow) for content in ("no tensors", "noise"))]
)
def test_a_pickle_that_holds_more_than_tensors_runs_nothing_and_is_refused(tmp_path: Path, content: str) -> None:
    trace = tmp_path / "trace"
    made = {"code": pickle.dumps({"x": Evil(trace)}), "no tensors": b"", "noise": b"noise"}[content]
    (tmp_path / "model").mkdir()
    file = tmp_path / "model" / "pytorch_model.bin"
    if content == "no tensors":
        import torch

        torch.save({"x": 3}, file)
    else:
        file.write_bytes(made)
    with pytest.raises(
        UnsafeModelError, match=r"in pytorch_model.bin a pickle that holds more than tensors, or is dam"
    ):
        convert(tmp_path / "model", "m")
    assert not trace.exists()
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["pytorch_model.bin"]


def test_the_process_that_reads_a_pickle_sees_no_token() -> None:
    assert set(CHILD_ENVIRONMENT) == {"PATH", "LC_ALL", "OMP_NUM_THREADS"}
