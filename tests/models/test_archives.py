"""Archives: taken apart safely, and the same archive from the same model."""

import os
import stat
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from embeddings_pipeline.errors import LocationNotFoundError, ModelFetchError, UnsafeModelError
from embeddings_pipeline.models import archives
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.settings import Environment, ModelSpec


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return replace(Environment.read(), model_store=str(tmp_path / "store"), model_download=False)


def make(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as opened:
        for name, text in files.items():
            opened.writestr(name, text)
    return path


@pytest.mark.parametrize("top", ["", "model-main/"])
def test_an_archive_is_a_source_without_any_network(
    bert: Path, tmp_path: Path, environment: Environment, top: str
) -> None:
    archive = tmp_path / "bert.ZIP"
    with zipfile.ZipFile(archive, "w") as opened:
        for file in sorted(path for path in bert.rglob("*") if path.is_file()):
            opened.write(file, top + file.relative_to(bert).as_posix())
    model = resolve(ModelSpec(name="m", source=str(archive)), environment)
    assert model.fingerprint == resolve(ModelSpec(name="m", source=str(bert))).fingerprint
    archive.unlink()
    assert resolve(ModelSpec(name="m", source=str(archive)), environment) == model


def test_an_archive_that_was_replaced_is_taken_apart_again(
    bert: Path, tmp_path: Path, environment: Environment
) -> None:
    archive = tmp_path / "m.zip"
    archives.make(bert, archive)
    before = resolve(ModelSpec(name="m", source=str(archive)), environment).fingerprint
    (tmp_path / "other").mkdir()
    for file in bert.rglob("*.json"):
        if file.parent == bert:
            (tmp_path / "other" / file.name).write_bytes(file.read_bytes())
    archives.make(tmp_path / "other", archive)
    os.utime(archive, ns=(1, 1))
    assert resolve(ModelSpec(name="m", source=str(archive)), environment).fingerprint != before


def test_the_same_model_is_the_same_archive(bert: Path, tmp_path: Path) -> None:
    archives.make(bert, tmp_path / "one.zip")
    archives.make(bert, tmp_path / "two.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


@pytest.mark.parametrize("name", ["../evil.json", "/evil.json", "a/../../evil.json", "C:evil.json", "a\\..\\evil.json"])
def test_a_path_cannot_escape(tmp_path: Path, environment: Environment, name: str) -> None:
    archive = make(tmp_path / "m.zip", {"config.json": "{}", name: "{}"})
    with pytest.raises(UnsafeModelError, match="which would be written outside of its folder"):
        resolve(ModelSpec(name="m", source=str(archive)), environment)
    assert not list(tmp_path.rglob("evil.json"))


def test_a_link_in_an_archive_is_refused(tmp_path: Path, environment: Environment) -> None:
    archive = make(tmp_path / "m.zip", {"config.json": "{}"})
    with zipfile.ZipFile(archive, "a") as opened:
        link = zipfile.ZipInfo("model.safetensors")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        opened.writestr(link, "/etc/passwd")
    with pytest.raises(UnsafeModelError, match="an archive in which 'model.safetensors' is a link"):
        resolve(ModelSpec(name="m", source=str(archive)), environment)


def test_an_archive_that_unpacks_to_more_than_the_disk_has_is_refused(
    tmp_path: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make(tmp_path / "m.zip", {"config.json": "{}"})
    sizes = zipfile.ZipFile.infolist

    def huge(self: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
        found = sizes(self)
        found[0].file_size = 1 << 60
        return found

    monkeypatch.setattr(zipfile.ZipFile, "infolist", huge)
    with pytest.raises(ModelFetchError, match="it unpacks to 1,152,921,504,606,846,976 bytes, and .* bytes free"):
        resolve(ModelSpec(name="m", source=str(archive)), environment)


def test_what_is_no_archive_is_named(tmp_path: Path, environment: Environment) -> None:
    (tmp_path / "m.zip").write_bytes(b"PK no archive")
    with pytest.raises(ModelFetchError, match="m.zip' is no zip archive that can be read .*; make it again"):
        resolve(ModelSpec(name="m", source=str(tmp_path / "m.zip")), environment)
    with pytest.raises(ModelFetchError, match="holds neither modules.json nor config.json"):
        resolve(ModelSpec(name="m", source=str(make(tmp_path / "n.zip", {"notes.json": "{}"}))), environment)


def test_an_archive_that_is_not_there_is_named(tmp_path: Path, environment: Environment) -> None:
    with pytest.raises(LocationNotFoundError, match="nothing.zip' does not exist; name a .zip with the model's files"):
        resolve(ModelSpec(name="m", source=str(tmp_path / "nothing.zip")), environment)
