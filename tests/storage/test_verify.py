"""`embeddings verify`, `scan`, `read` and `gc`: a dataset is proved, read by manifest, and kept tidy."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

import embeddings_pipeline
from embeddings_pipeline.errors import ConfigurationError, LocationNotFoundError, ManifestError
from embeddings_pipeline.pipeline import cleanup
from embeddings_pipeline.settings import S3Spec
from embeddings_pipeline.storage.collect import ORPHAN_SECONDS
from embeddings_pipeline.storage.verify import verify
from tests.fakes import Bench, vector_of, works
from tests.s3 import S3Bench


def first_file(bench: Bench) -> Path:
    return sorted(bench.output.dataset.path.rglob("*.parquet"))[0]


def published(bench: Bench) -> Bench:
    bench.put("a.jsonl", works(7))
    bench.run(part_texts=3)
    return bench


def edit_manifest(bench: Bench, change: Callable[[dict], None]) -> None:
    path = bench.output.manifest.path
    manifest = json.loads(path.read_text(encoding="utf-8"))
    change(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_published_dataset_passes(bench: Bench, kind: str) -> None:
    bench.encoder.kind = kind
    bench.changes["model"] = {"name": "tests/fake", "source": str(bench.model), "kind": kind}
    found = verify(published(bench).output.root)
    assert (found.passed, found.deliveries, found.sets, found.files, found.rows) == (True, 1, 1, 3, 7)
    assert (found.norms is not None) == (kind == "dense")


def test_a_dataset_in_s3_passes_and_a_lost_object_is_found(s3_bench: S3Bench) -> None:
    s3_bench.put("a.jsonl", works(5))
    s3_bench.run(part_texts=2)
    assert verify(s3_bench.output.root).passed
    s3_bench.client.delete_object(Bucket=s3_bench.bucket, Key=s3_bench.keys_below("out/dataset/")[1])
    assert [problem.kind for problem in verify(s3_bench.output.root).problems] == ["missing"]


def overwrite(bench: Bench) -> None:
    file = first_file(bench)
    file.write_bytes(b"x" * file.stat().st_size)


def duplicate(bench: Bench) -> None:
    def twice(manifest: dict) -> None:
        manifest["sets"][0]["files"].append(manifest["sets"][0]["files"][0])

    edit_manifest(bench, twice)


DAMAGES = {
    "missing": lambda bench: first_file(bench).unlink(),
    "digest": overwrite,
    "cut": lambda bench: os.truncate(first_file(bench), 100),
    "dangling": lambda bench: shutil.copy(first_file(bench), first_file(bench).with_name("part-9-x.parquet")),
    "uniqueness": duplicate,
    "identity": lambda bench: edit_manifest(bench, lambda manifest: manifest["sets"][0]["counts"].update(read=99)),
    "mixture": lambda bench: edit_manifest(
        bench, lambda manifest: manifest["sets"][0]["files"][0].update(fingerprint="other")
    ),
    "schema": lambda bench: edit_manifest(bench, lambda manifest: manifest["sets"][0].update(dimensions=9)),
    "manifest": lambda bench: bench.output.manifest.path.write_bytes(b"\xff{"),
    "newer": lambda bench: edit_manifest(bench, lambda manifest: manifest.update(format_version=99)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_wrong_is_named(bench: Bench, damage: str) -> None:
    DAMAGES[damage](published(bench))
    kind = {"cut": "digest", "newer": "manifest"}.get(damage, damage)
    assert kind in {problem.kind for problem in verify(bench.output.root).problems}


def test_a_place_without_a_dataset_is_no_verified_one(tmp_path: Path, bench: Bench) -> None:
    with pytest.raises(LocationNotFoundError, match="name the output.location of a corpus"):
        verify(bench.output.root)
    with pytest.raises(LocationNotFoundError, match="or nothing is published there"):
        embeddings_pipeline.read(str(tmp_path))


# Reading


def test_read_gives_the_current_rows_and_filters_them(bench: Bench) -> None:
    strategies = [{"name": "full_record"}, {"name": "titles", "fields": ["title"]}]
    bench.put("a.jsonl", works(5))
    bench.run(part_texts=2, strategies=strategies)
    frame = embeddings_pipeline.read(str(bench.out))
    assert isinstance(frame, pl.LazyFrame)
    assert frame.collect().height == 10
    titles = embeddings_pipeline.read(str(bench.out), strategy="titles", delivery="whole", model="tests/fake").collect()
    assert {row["record_id"]: row["embedding"] for row in titles.iter_rows(named=True)} == {
        f"r{number}": vector_of(f"work {number}").tolist() for number in range(5)
    }
    with pytest.raises(ConfigurationError, match="holds no strategy 'cards'; there is full_record, titles"):
        embeddings_pipeline.read(str(bench.out), strategy="cards")


def test_files_that_no_manifest_names_are_not_read(bench: Bench) -> None:
    DAMAGES["dangling"](published(bench))
    assert embeddings_pipeline.read(str(bench.out)).collect().height == 7


def test_models_with_vectors_of_different_shapes_have_to_be_named(bench: Bench) -> None:
    published(bench)
    bench.encoder.kind = "sparse"
    bench.run(model={"name": "tests/sparse", "source": str(bench.model), "kind": "sparse"})
    with pytest.raises(ConfigurationError, match="of the models tests/fake, tests/sparse; name one"):
        embeddings_pipeline.read(str(bench.out))
    assert embeddings_pipeline.read(str(bench.out), model="tests/sparse").collect().height == 7


def test_a_key_in_two_deliveries_is_read_once_as_it_is_in_the_newest(bench: Bench) -> None:
    """As `deliveries: files` will publish them: here a second delivery is made of a copy."""
    published(bench)
    old = first_file(bench)
    other = bench.out / "dataset/tests--fake/full_record/other/part-00000-0.parquet"
    other.parent.mkdir()
    table = pq.read_table(old)
    names = table.column_names
    newer = table.set_column(names.index("delivery"), table.schema.field("delivery"), [["other"] * 3])
    pq.write_table(newer, other)
    manifest = asdict(bench.manifest()) | {"delivery": "other"}
    entry = manifest["sets"][0]
    entry["files"] = [entry["files"][0] | {"path": other.relative_to(bench.out).as_posix()}]
    (bench.out / "manifests/other.json").write_text(json.dumps(manifest), encoding="utf-8")
    frame = embeddings_pipeline.read(str(bench.out)).collect()
    assert frame.height == 7
    assert sorted(frame["delivery"].to_list()) == ["other"] * 0 + ["whole"] * 7
    assert embeddings_pipeline.read(str(bench.out), delivery="other").collect().height == 3
    assert cleanup.withdrawn_deliveries(bench.spec()) == ("other",)
    assert cleanup.gc(bench.spec(), older_than=0, withdrawn=True).withdrawn == ("other",)
    assert embeddings_pipeline.read(str(bench.out)).collect().height == 7
    assert not other.parent.exists()


def test_a_dataset_in_s3_is_read(s3_bench: S3Bench) -> None:
    s3_bench.put("a.jsonl", works(5))
    s3_bench.run(part_texts=2)
    where = f"s3://{s3_bench.bucket}/out"
    assert embeddings_pipeline.read(where, s3=S3Spec(endpoint=s3_bench.endpoint)).collect().height == 5


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from embeddings_pipeline.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_the_commands_print_json_and_exit_by_what_they_found(bench: Bench) -> None:
    published(bench)
    done = command("verify", str(bench.out), "--json")
    assert (done.returncode, json.loads(done.stdout)["passed"]) == (0, True)
    rows = command("scan", str(bench.out), "--limit", "2")
    assert [set(json.loads(line)) >= {"record_id", "text_hash"} for line in rows.stdout.splitlines()] == [True, True]
    assert command("scan", str(bench.out), "--count").stdout == "7\n"
    first_file(bench).unlink()
    done = command("verify", str(bench.out))
    assert done.returncode == 1
    assert "missing: dataset/tests--fake/full_record/whole/part-" in done.stdout
    assert command("verify", str(bench.root / "nowhere")).returncode == 2


# Tidying up


def test_gc_removes_orphans_staging_and_published_records_by_age(bench: Bench) -> None:
    published(bench)
    DAMAGES["dangling"](bench)
    staged = bench.out / "staging" / "whole" / "full_record" / "f" / "part-x.parquet"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"x")
    done = cleanup.gc(bench.spec(), older_than=3600)
    assert (done.dataset, done.staging, done.records) == (0, 0, 0)
    done = cleanup.gc(bench.spec(), older_than=-1)
    assert (done.dataset, done.staging, done.records) == (1, 1, 5)
    assert sorted(path.name for path in bench.out.iterdir()) == ["corpus.json", "dataset", "manifests"]
    assert verify(bench.output.root).passed
    run = bench.run(part_texts=3)
    assert (run.publish.counts.skipped, run.publish.published_rows) == (7, 7)


def test_gc_leaves_records_that_are_not_published_and_what_a_live_attempt_has_staged(bench: Bench) -> None:
    bench.put("a.jsonl", works(7))
    bench.extract()
    bench.embed()
    from embeddings_pipeline.storage.scratch import Scratch

    with Scratch(bench.output.scratch):
        assert cleanup.gc(bench.spec(), older_than=-1).staging == 0
    assert cleanup.gc(bench.spec(), older_than=-1).records == 0
    assert bench.run().publish.published_rows == 7


def test_gc_removes_nothing_where_a_manifest_cannot_be_read(bench: Bench) -> None:
    """Nobody can tell what it names."""
    DAMAGES["manifest"](published(bench))
    with pytest.raises(ManifestError, match="cannot be read"):
        cleanup.gc(bench.spec(), older_than=-1)
    assert len(bench.dataset_files()) == 3


def test_old_orphans_in_s3_go_with_the_next_publish_and_young_ones_stay(
    s3_bench: S3Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model that nothing is published of: beside published files, those older than the manifest go with it."""
    s3_bench.put("a.jsonl", works(3))
    s3_bench.run()
    orphan = "out/dataset/another-model/full_record/whole/part-00009-orphan.parquet"
    s3_bench.client.put_object(Bucket=s3_bench.bucket, Key=orphan, Body=b"x")
    s3_bench.put("a.jsonl", works(4))
    s3_bench.run()
    assert orphan in s3_bench.keys_below("out/dataset/")
    assert ORPHAN_SECONDS > 86400
    monkeypatch.setattr("embeddings_pipeline.storage.collect.ORPHAN_SECONDS", -10.0)
    s3_bench.run()
    assert orphan not in s3_bench.keys_below("out/dataset/")
    assert verify(s3_bench.output.root).passed


def test_records_that_are_gone_from_the_source_stay_where_the_corpus_keeps_them(bench: Bench) -> None:
    keep = {"output": {"location": str(bench.out), "keep": True}}
    bench.put("a.jsonl", works(6))
    bench.run(part_texts=2, **keep)
    bench.put("a.jsonl", [{"id": "r3", "title": "changed"}, *works(1, 5), *works(1, 9)])
    run = bench.run(part_texts=2, **keep)
    assert (run.publish.partial, run.publish.identities_hold, run.publish.published_rows) == (True, True, 7)
    assert sorted(bench.keys()) == ["r0", "r1", "r2", "r3", "r4", "r5", "r9"]
    assert verify(bench.output.root).passed
