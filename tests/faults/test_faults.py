"""`make faults` in small: some rows of every kind, on disk and against an S3 server in a process of its own."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from embeddings_pipeline import read
from embeddings_pipeline.storage import s3
from tests.faults import run, scenarios
from tests.faults.backend import Backend
from tests.faults.nursery import Nursery
from tests.faults.plan import rows_of
from tests.faults.points import BEFORE, MOMENTS
from tests.faults.proxy import operation
from tests.faults.scenarios import Table


@pytest.fixture(autouse=True)
def settings_of_ours() -> Iterator[None]:
    """Put back what the fault runs set for this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", tempfile.tempdir)
        for name in ("_READ_TIMEOUT", "_ATTEMPTS", "_MULTIPART_BYTES", "_PIECE_BYTES"):
            patch.setattr(s3, name, getattr(s3, name))
        yield
    s3._client.cache_clear()


def test_a_reader_that_follows_manifests_meets_whole_sets_while_runs_publish_and_die(tmp_path: Path) -> None:
    table = Table()
    with Nursery(tmp_path) as nursery:
        backend = Backend("disk", tmp_path)
        scenarios.at_random(backend, nursery, table, 3, seed=1)
        scenarios.at_once(backend, nursery, table, seed=1, rounds=1)
    assert table.rows
    assert table.failed == []


@pytest.mark.parametrize("moment", MOMENTS[:: len(MOMENTS) - 1])
def test_a_run_that_dies_at_the_commit_leaves_the_set_before_or_the_one_after_it(tmp_path: Path, moment: str) -> None:
    with Nursery(tmp_path) as nursery:
        backend = Backend("disk", tmp_path)
        backend.reset()
        assert nursery.run(backend.attempt(2, point="publish", moment=moment)).status == -9
        rows = read(str(backend.bench.out)).collect().to_dicts()
        assert rows_of(rows) == backend.expected[1 if moment == BEFORE else 2]
        assert backend.problem(2) == ""


def test_what_is_broken_is_told_apart() -> None:
    """A check that calls everything good would make the table worthless."""
    with tempfile.TemporaryDirectory() as folder:
        backend = Backend("disk", Path(folder))
        backend.reset()
        assert backend.problem(1) == ""
        stray = backend.bench.out / "dataset" / "stray.bin"
        stray.write_bytes(b"x")
        assert backend.left_behind() == ["dataset/stray.bin"]
        stray.unlink()
        (backend.temporary / "left").mkdir()
        assert backend.left_behind() == [str(backend.temporary / "left")]
        (backend.temporary / "left").rmdir()
        backend.expected[1] = backend.expected[2]
        assert backend.problem(1).startswith("THE ROWS DIFFER")


@pytest.mark.parametrize(
    ("request_line", "kind"),
    [
        ("GET /b/key", "GET"),
        ("HEAD /b/key", "HEAD"),
        ("GET /b?list-type=2&prefix=x", "LIST"),
        ("POST /b?delete", "DELETE"),
        ("POST /b/key?uploads", "MULTIPART"),
        ("PUT /b/key?uploadId=1&partNumber=2", "MULTIPART"),
        ("PUT /b/key", "PUT"),
    ],
)
def test_requests_are_told_apart(request_line: str, kind: str) -> None:
    assert operation(*request_line.split()) == kind


@pytest.mark.slow
def test_some_rows_of_every_kind_hold_on_disk_and_in_s3(tmp_path: Path) -> None:
    table = Table()
    run.run(tmp_path, table, seed=7, times=50, only=None, quick=True)
    assert len(table.rows) > 35
    assert table.failed == []
