"""The store on disk: what it holds is what was fetched, or it says so."""

import json
from pathlib import Path

import pytest

from embeddings_pipeline.errors import ModelFetchError
from embeddings_pipeline.models.content import KeptModel, ModelStore


def keep(store: ModelStore, source: str, content: str, revision: str | None = None) -> KeptModel:
    with store.lock(source, revision, source) as incoming:
        (incoming / "a").mkdir()
        (incoming / "a" / "config.json").write_text(content, encoding="utf-8")
        return store.keep(incoming, source, revision)


def test_equal_content_from_two_sources_is_kept_once(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    one, two, other = keep(store, "one", "x"), keep(store, "two", "x"), keep(store, "one", "y", "revision")
    assert store.path(one) == store.path(two) != store.path(other)
    assert len(list((tmp_path / "content").iterdir())) == 2
    assert sorted(kept.source for kept in store.entries()) == ["one", "one", "two"]
    assert list((tmp_path / "incoming").iterdir()) == []
    assert store.find("one", None) == one
    assert store.find("one", "revision") == other
    assert store.find("none", None) is None


def test_what_was_changed_is_found_and_a_new_download_repairs_it(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    kept = keep(store, "one", "x")
    assert store.problems(kept) == []
    (store.path(kept) / "a" / "config.json").write_text("z", encoding="utf-8")
    (store.path(kept) / "stray").write_text("z", encoding="utf-8")
    assert store.problems(kept) == ["stray does not belong to it", "a/config.json has other bytes than were fetched"]
    (store.path(kept) / "a" / "config.json").unlink()
    assert "a/config.json is missing" in store.problems(kept)
    again = keep(store, "one", "x")
    assert again.digest == kept.digest
    assert store.problems(again) == []


def test_a_download_that_was_killed_before_its_name_was_written_counts_as_none(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    keep(store, "one", "x")
    (name,) = (tmp_path / "names").iterdir()
    name.unlink()
    assert store.find("one", None) is None
    assert store.problems(keep(store, "one", "x")) == []


def test_a_name_whose_content_is_gone_counts_as_none(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    store.path(keep(store, "one", "x")).rename(tmp_path / "elsewhere")
    assert store.find("one", None) is None


@pytest.mark.parametrize(("content", "message"), [("{", "cannot be read"), (None, "has format 99, and this version")])
def test_a_name_that_cannot_be_read_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    store = ModelStore(tmp_path)
    keep(store, "one", "x")
    (name,) = (tmp_path / "names").iterdir()
    newer = json.dumps(json.loads(name.read_text(encoding="utf-8")) | {"format_version": 99})
    name.write_text(newer if content is None else content, encoding="utf-8")
    with pytest.raises(ModelFetchError, match=message):
        store.find("one", None)


def test_an_attempt_in_which_nothing_arrived_leaves_nothing(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    with pytest.raises(KeyError), store.lock("one", None, "one"):
        raise KeyError
    assert list((tmp_path / "incoming").iterdir()) == []


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(ModelFetchError, match="set EMBEDDINGS_MODEL_STORE to a folder that can be written"):
        keep(ModelStore(tmp_path / "file" / "store"), "one", "x")
