"""What is staged is read at once, on disk and in a store alike, and of two answers for a part one remains."""

from pathlib import Path

import pytest

from embeddings_pipeline.errors import ManifestError
from embeddings_pipeline.records import Counts
from embeddings_pipeline.storage.manifests import DatasetFile, PartManifest, dump
from embeddings_pipeline.storage.parts import Output
from embeddings_pipeline.storage.scratch import Scratch
from embeddings_pipeline.storage.staged import StagedParts
from tests.fakes import Bench


@pytest.fixture(params=["disk", "s3"])
def output(request: pytest.FixtureRequest, bench: Bench) -> Output:
    return bench.output if request.param == "disk" else request.getfixturevalue("s3_bench").output


def stage(output: Output, scratch: Scratch, part: str, size: int = 3) -> DatasetFile:
    """Write a finished part of that many bytes."""
    place = output.staged("title", "print") / f"part-{part}.parquet"
    path: Path = scratch.file(part)
    path.write_bytes(b"x" * size)
    place.put(path)
    file = DatasetFile(output.relative(place), 1, size, part, part, "print")
    counts = Counts(read=1, embedded=1)
    manifest = PartManifest(part, "title", "print", "run", counts, 1, 0, "dense", 8, file, False, 1.0, {})
    scratch.put_text(output.staged("title", "print") / f"part-{part}.json", dump(manifest))
    return file


def test_finished_parts_are_found_with_their_files(output: Output) -> None:
    with Scratch(output.scratch) as scratch:
        assert StagedParts(output, "title", "print").manifest("a") is None
        files = {part: stage(output, scratch, part) for part in ("a", "b", "c")}
        stage(output, scratch, "b", size=7)
        (output.root / files["c"].path).delete()
    staged = StagedParts(output, "title", "print")
    assert {part: staged.manifest(part).file.path for part in files} == {
        part: file.path for part, file in files.items()
    }
    assert [staged.holds(file) for file in files.values()] == [True, False, False]
    assert StagedParts(output, "title", "another").manifest("a") is None


def test_parts_that_stay_are_named_in_one_file_and_lose_the_manifest_of_an_attempt(output: Output) -> None:
    with Scratch(output.scratch) as scratch:
        stage(output, scratch, "a")
        stage(output, scratch, "b")
        StagedParts(output, "title", "print").keep(scratch, "run", {"a": "dataset/a.parquet", "z": "dataset/z.parquet"})
        staged = StagedParts(output, "title", "print")
        assert [staged.kept(part) for part in "abz"] == ["dataset/a.parquet", None, "dataset/z.parquet"]
        assert [staged.manifest(part) is None for part in "abz"] == [True, False, True]
        staged.keep(scratch, "run", {})
        assert StagedParts(output, "title", "print").kept("a") is None


def test_a_broken_manifest_is_named(output: Output) -> None:
    with Scratch(output.scratch) as scratch:
        scratch.put_text(output.staged("title", "print") / "part-a.json", "{")
    with pytest.raises(ManifestError, match="part-a.json"):
        StagedParts(output, "title", "print")
