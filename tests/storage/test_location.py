"""Names are given to finished files only, and a listing is of what is there."""

import os
import threading
import time
from pathlib import Path

import pytest

from embeddings_pipeline.errors import LocationNotFoundError
from embeddings_pipeline.storage.location import Location
from embeddings_pipeline.storage.scratch import Scratch


def test_relative_paths_start_at_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(Location.parse("a/../b", "f")) == str(tmp_path / "b")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert str(Location.parse("~/x", "f")) == str(tmp_path / "home" / "x")


def test_a_file_in_a_package_is_found() -> None:
    assert Location.parse("package:embeddings_pipeline/samples/works.jsonl", "f").exists()
    with pytest.raises(LocationNotFoundError, match="model.source 'package:not_there/x' does not exist"):
        Location.parse("package:not_there/x", "model.source")


def test_put_replaces_a_file_as_a_whole_and_makes_its_folder(tmp_path: Path) -> None:
    target = Location(tmp_path / "out" / "deep" / "file")
    with Scratch(Location(tmp_path / "out" / "scratch")) as scratch:
        for text in ("one", "two"):
            scratch.put_text(target, text)
            assert target.read_text() == text
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["deep", "file"]


def test_reading_what_is_not_there_gives_none(tmp_path: Path) -> None:
    assert Location(tmp_path / "no").read_text() is None
    assert Location(tmp_path / "no").files() == []
    assert not Location(tmp_path / "no").delete()


def test_a_lock_keeps_others_out_until_it_is_left(tmp_path: Path) -> None:
    lock = Location(tmp_path / "manifests" / "whole.lock")
    order: list[str] = []

    def second() -> None:
        with lock.lock():
            order.append("second")

    with lock.lock():
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_empty_folders_are_removed_up_to_a_limit(tmp_path: Path) -> None:
    deep = tmp_path / "root" / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "root" / "kept").touch()
    Location(deep).delete_if_empty(up_to=Location(tmp_path / "root"))
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["kept"]


def test_a_folder_that_another_process_removes_meanwhile_can_be_listed(tmp_path: Path) -> None:
    root = Location(tmp_path / "staging")
    files = [root.path / strategy / f"part-{n}.json" for strategy in ("a", "b", "c") for n in range(3)]
    done = threading.Event()

    def make_and_remove() -> None:
        while not done.is_set():
            for file in files:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()
            root.delete_tree()

    thread = threading.Thread(target=make_and_remove)
    thread.start()
    try:
        until = time.monotonic() + 1
        while time.monotonic() < until:
            assert {entry.name for entry in root.files()} <= {file.relative_to(root.path).as_posix() for file in files}
            assert (root / "a/part-1.json").size() in {None, 0}
    finally:
        done.set()
        thread.join()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_may_not_be_read_is_no_empty_one(tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0)
    with pytest.raises(PermissionError):
        Location(tmp_path).files()
