"""Deliveries: what a source has, one of them at a time through the use cases, what is due, and what was withdrawn."""

import datetime as dt
import os
import shutil
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import embeddings_pipeline
from embeddings_pipeline import pipeline
from embeddings_pipeline.errors import ConfigurationError, CorpusSpecError, DeliveryNotFoundError, LocationNotFoundError
from embeddings_pipeline.pipeline import cleanup
from embeddings_pipeline.storage import runs, sources
from embeddings_pipeline.storage.location import Location
from embeddings_pipeline.storage.verify import verify
from tests.fakes import Bench, works
from tests.storage.test_timdex import RECORDS, record


@pytest.fixture
def files(bench: Bench) -> Bench:
    """Give three deliveries that arrived an hour ago: a.jsonl, b.jsonl and deep/c.jsonl, with two records each."""
    bench.changes["deliveries"] = "files"
    for number, name in enumerate(("a.jsonl", "b.jsonl", "deep/c.jsonl")):
        put(bench, name, 2, start=10 * number)
    (bench.source / "_SUCCESS").touch()
    return bench


def put(bench: Bench, name: str, count: int, start: int = 0) -> None:
    file = bench.put(name, works(count, start))
    settle(file)


def settle(file: Path) -> None:
    """Let a file look an hour old; the change time stays, and so two seconds have to pass, or its version is unsure."""
    os.utime(file, (time.time() - 3600,) * 2)


@pytest.fixture(autouse=True)
def times_are_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a file's times as sure at once, as they are on a file system that keeps nanoseconds."""
    monkeypatch.setattr("embeddings_pipeline.storage.location._SETTLED_NS", -1)


def run(bench: Bench, name: str, **more):
    bench.chosen = name
    return bench.run(**more)


def names(bench: Bench) -> list[str]:
    return [found.name for found in pipeline.discover(bench.spec()).deliveries]


def due(bench: Bench, **changes) -> list[str]:
    spec = bench.spec(**changes)
    return [entry.delivery.name for entry in pipeline.due(spec, pipeline.discover(spec))]


def test_each_file_is_a_delivery_named_by_its_path(files: Bench) -> None:
    found = pipeline.discover(files.spec())
    assert [entry.name for entry in found.deliveries] == ["a.jsonl", "b.jsonl", "deep/c.jsonl"]
    assert (found.strays, found.missing, found.withdrawn) == (1, None, ())
    first = found.deliveries[0]
    assert first.bytes == (files.source / "a.jsonl").stat().st_size
    assert first.modified is not None
    assert 3590 < (dt.datetime.now(dt.UTC) - first.modified).total_seconds() < 3700
    assert first.version == pipeline.discover(files.spec()).deliveries[0].version


def test_a_whole_corpus_is_one_delivery_whose_version_changes_with_any_file(bench: Bench) -> None:
    put(bench, "a.jsonl", 1)
    (before,) = pipeline.discover(bench.spec()).deliveries
    put(bench, "b.jsonl", 1)
    (after,) = pipeline.discover(bench.spec()).deliveries
    assert (before.name, after.name) == ("whole", "whole")
    assert before.version != after.version
    assert after.bytes > before.bytes


def test_a_file_that_changed_just_now_has_no_version_since_the_next_change_would_look_the_same(
    files: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embeddings_pipeline.storage.location._SETTLED_NS", 10**12)
    os.utime(files.source / "a.jsonl")
    assert pipeline.discover(files.spec()).deliveries[0].version == ""


def test_a_source_that_is_gone_has_no_deliveries_and_says_why(files: Bench) -> None:
    run(files, "a.jsonl")
    shutil.rmtree(files.source)
    found = pipeline.discover(files.spec())
    assert found.deliveries == found.withdrawn == ()
    assert str(files.source) in str(found.missing)


def test_one_delivery_is_read_embedded_and_published_and_the_others_stay(
    files: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(files, "a.jsonl")
    done = run(files, "deep/c.jsonl")
    assert done.extract.files == 1
    assert done.publish.counts.embedded == 2
    assert files.keys() == ["r0", "r1", "r20", "r21"]
    assert {row["delivery"] for row in files.rows()} == {"a.jsonl", "deep/c.jsonl"}
    manifests = sorted(path.name for path in (files.out / "manifests").glob("*.json"))
    assert manifests == ["a.jsonl.json", "deep@2Fc.jsonl.json"]
    assert verify(Location(files.out)).passed
    assert files.leftovers() == []
    assert run(files, "a.jsonl").publish.counts.skipped == 2


def test_a_delivery_is_found_without_listing_all_the_others(files: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 runs that each list 10,000 files would be 100 million looks at a file."""

    def never(self: Location) -> list[None]:
        raise AssertionError(f"{self} is listed")

    source = files.source
    real = Location.files
    monkeypatch.setattr(Location, "files", lambda self: never(self) if self.path == source else real(self))
    assert run(files, "b.jsonl").extract.counts.read == 2


def test_a_changed_delivery_replaces_its_own_rows_only(files: Bench) -> None:
    run(files, "a.jsonl")
    run(files, "b.jsonl")
    put(files, "a.jsonl", 1, start=5)
    assert due(files) == ["a.jsonl", "deep/c.jsonl"]
    run(files, "a.jsonl")
    assert files.keys() == ["r10", "r11", "r5"]


def test_names_that_dagster_or_folders_do_not_hold_are_deliveries_like_others(files: Bench) -> None:
    odd = ["x=1/a,b.jsonl", "to...be....jsonl", "a@b.jsonl", "Übung 1.jsonl", "a" * 240 + ".jsonl"]
    for number, name in enumerate(odd):
        put(files, name, 1, start=100 + number)
    for name in (found for found in names(files) if found not in ("a.jsonl", "b.jsonl", "deep/c.jsonl")):
        assert run(files, name).publish.published_rows == 1
    assert files.keys() == ["r100", "r101", "r102", "r103", "r104"]
    assert len({row["delivery"] for row in files.rows()}) == 5
    assert verify(Location(files.out)).passed
    assert due(files) == ["a.jsonl", "b.jsonl", "deep/c.jsonl"]


def test_a_delivery_that_the_source_does_not_have_is_refused_by_name(files: Bench) -> None:
    with pytest.raises(DeliveryNotFoundError, match=r"'b.jsnol' of corpus 'bench' .*did you mean 'b.jsonl'"):
        run(files, "b.jsnol")
    with pytest.raises(DeliveryNotFoundError):
        run(files, "_SUCCESS")
    whole = Bench(files.root / "other")
    with pytest.raises(DeliveryNotFoundError, match="deliveries there: whole"):
        run(whole, "a.jsonl")


def test_only_what_matches_the_pattern_is_a_delivery(files: Bench) -> None:
    files.changes["source"] = {"kind": "jsonl", "location": f"{files.source}/deep/*.jsonl", "id": "id"}
    assert names(files) == ["c.jsonl"]
    files.changes["source"] = {"kind": "jsonl", "location": f"{files.source}/*.jsonl", "id": "id"}
    with pytest.raises(DeliveryNotFoundError):
        run(files, "deep/c.jsonl")


def test_what_is_new_or_changed_or_made_by_another_spec_is_due(files: Bench) -> None:
    assert due(files) == ["a.jsonl", "b.jsonl", "deep/c.jsonl"]
    run(files, "a.jsonl")
    assert due(files) == ["b.jsonl", "deep/c.jsonl"]
    assert due(files, run_tags={"team": "search"}, run_config={"ops": {}}, description="x") == [
        "b.jsonl",
        "deep/c.jsonl",
    ]
    fields = [{"name": "title", "fields": ["title"]}]
    assert due(files, strategies=fields) == ["a.jsonl", "b.jsonl", "deep/c.jsonl"]
    run(files, "a.jsonl", strategies=fields)
    assert due(files, strategies=fields) == ["b.jsonl", "deep/c.jsonl"]
    assert due(files) == ["a.jsonl", "b.jsonl", "deep/c.jsonl"]


def test_a_run_with_a_limit_does_not_make_a_delivery_up_to_date_and_leaves_one_so(files: Bench) -> None:
    run(files, "a.jsonl", limit=1)
    assert "a.jsonl" in due(files)
    run(files, "a.jsonl")
    run(files, "a.jsonl", limit=1)
    assert "a.jsonl" not in due(files)


def test_the_key_of_what_is_due_stays_until_files_spec_or_what_is_published_change(files: Bench) -> None:
    def keys(**changes) -> set[str]:
        spec = files.spec(**changes)
        return {entry.key for entry in pipeline.due(spec, pipeline.discover(spec)) if entry.delivery.name == "a.jsonl"}

    fields = {"strategies": [{"name": "title", "fields": ["title"]}]}
    seen = [keys(), keys(**fields)]
    assert keys() == seen[0]
    run(files, "a.jsonl")
    seen.append(keys(**fields))
    run(files, "a.jsonl", **fields)
    seen.append(keys())
    put(files, "a.jsonl", 3)
    seen.append(keys())
    assert len(set().union(*seen)) == 5, "also when files and spec are back to what they were under another commit"


def test_a_withdrawn_delivery_is_listed_and_removed_by_gc_alone(files: Bench) -> None:
    for name in ("a.jsonl", "deep/c.jsonl"):
        run(files, name)
    (files.source / "deep/c.jsonl").unlink()
    assert pipeline.discover(files.spec()).withdrawn == ("deep/c.jsonl",)
    assert cleanup.gc(files.spec(), older_than=0).withdrawn == ()
    assert files.keys() == ["r0", "r1", "r20", "r21"]
    assert cleanup.gc(files.spec(), older_than=0, withdrawn=True).withdrawn == ("deep/c.jsonl",)
    assert files.keys() == ["r0", "r1"]
    assert verify(Location(files.out)).passed
    left = [path.name for path in files.out.rglob("*") if "deep" in path.name]
    assert left == []
    assert pipeline.discover(files.spec()).withdrawn == ()


def test_what_was_published_whole_is_withdrawn_when_a_corpus_comes_in_files(files: Bench) -> None:
    whole = {"deliveries": "whole"}
    run(files, "whole", **whole)
    assert pipeline.discover(files.spec()).withdrawn == ("whole",)


def test_gc_withdraws_nothing_while_the_source_is_gone_or_empty(files: Bench) -> None:
    """An empty folder is what a disk that is not mounted looks like."""
    run(files, "a.jsonl")
    shutil.rmtree(files.source)
    with pytest.raises(LocationNotFoundError, match="bring the source back"):
        cleanup.gc(files.spec(), older_than=0, withdrawn=True)
    files.source.mkdir()
    with pytest.raises(ConfigurationError, match="has no delivery at all, and 1 are published"):
        cleanup.gc(files.spec(), older_than=0, withdrawn=True)
    assert files.keys() == ["r0", "r1"]


def test_a_key_in_two_deliveries_is_published_in_both_and_read_as_the_newest(files: Bench) -> None:
    run(files, "b.jsonl")
    files.put("a.jsonl", [{"id": "r10", "title": "later"}])
    run(files, "a.jsonl")
    assert files.keys() == ["r10", "r10", "r11"]
    frame = embeddings_pipeline.read(str(files.out)).collect().sort("record_id")
    assert frame["record_id"].to_list() == ["r10", "r11"]
    assert frame["delivery"].to_list() == ["a.jsonl", "b.jsonl"]
    assert verify(Location(files.out)).passed


@pytest.fixture
def timdex(bench: Bench) -> Bench:
    """Give a TIMDEX dataset of two runs of one source, a file each, and one of another that shares a file."""
    rows = {
        "one": [record("a:1", "run-1", 0, 1, run_type="full"), record("a:2", "run-1", 1, 1, run_type="full")],
        "two": [record("a:2", "run-2", 0, 2), record("b:1", "run-b", 0, 2, source="other")],
    }
    folder = bench.source / "data" / "records" / "year=2024" / "month=01" / "day=01"
    folder.mkdir(parents=True)
    for name, some in rows.items():
        pq.write_table(pa_table(some), folder / f"{name}.parquet")
    bench.changes |= {
        "source": {"kind": "timdex", "location": str(bench.source)},
        "deliveries": "runs",
        "output": {"location": str(bench.out), "layout": "timdex"},
    }
    return bench


def pa_table(rows):
    import pyarrow as pa

    return pa.Table.from_pylist(rows, schema=RECORDS)


def test_each_run_of_a_timdex_dataset_is_a_delivery(timdex: Bench) -> None:
    assert names(timdex) == ["run-1", "run-2", "run-b"]
    timdex.changes["source"] = timdex.changes["source"] | {"source": "alma"}
    assert names(timdex) == ["run-1", "run-2"]
    done = run(timdex, "run-2")
    assert (done.extract.files, done.publish.published_rows) == (1, 1)
    run(timdex, "run-1")
    assert due(timdex) == []
    exports = sorted((timdex.out / "data" / "embeddings").rglob("*.parquet"))
    rows = [row for file in exports for row in pq.ParquetFile(file).read().to_pylist()]
    assert sorted((row["timdex_record_id"], row["run_id"]) for row in rows) == [
        ("a:1", "run-1"),
        ("a:2", "run-1"),
        ("a:2", "run-2"),
    ]


def test_a_withdrawn_runs_embeddings_leave_the_timdex_dataset_and_no_others(timdex: Bench) -> None:
    """The names of the exports begin with the delivery's, and `run-2` begins as `run-2-more` would."""
    for name in ("run-1", "run-2"):
        run(timdex, name)
    next(timdex.source.rglob("two.parquet")).unlink()
    assert cleanup.gc(timdex.spec(), older_than=0, withdrawn=True).withdrawn == ("run-2",)
    exports = [file.name for file in (timdex.out / "data" / "embeddings").rglob("*.parquet")]
    assert [name.startswith("bench-run-1-") for name in exports] == [True]


def test_a_file_is_opened_once_for_all_its_runs_and_all_processes(
    timdex: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = runs.open_parquet
    monkeypatch.setattr(runs, "open_parquet", lambda file: (opened.append(file.name), real(file))[1])
    assert names(timdex) == names(timdex) == ["run-1", "run-2", "run-b"]
    assert len(opened) == 2
    folder = next(timdex.source.rglob("two.parquet")).parent
    pq.write_table(pa_table([record("a:3", "run-3", 0, 3)]), folder / "three.parquet")
    assert "run-3" in names(timdex)
    assert len(opened) == 3


def test_runs_that_are_remembered_wrongly_are_found_again(timdex: Bench) -> None:
    names(timdex)
    place = next(timdex.out.rglob("source-runs.json"))
    place.write_text("{half", encoding="utf-8")
    assert names(timdex) == ["run-1", "run-2", "run-b"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"deliveries": "runs"}, "deliveries: runs needs source.kind timdex, not jsonl"),
        (
            {"deliveries": "files", "source": {"kind": "timdex", "location": "/x"}},
            "deliveries: files does not fit source.kind timdex",
        ),
        (
            {"deliveries": "runs", "source": {"kind": "timdex", "location": "/x", "run_id": "r"}},
            "source.run_id is 'r'; remove one of them",
        ),
        ({"source": {"kind": "timdex", "location": "/x"}}, "needs run_id (a run) or source"),
        ({"schedule": {"cron": "daily"}}, "schedule.cron: 'daily' is no cron expression"),
        ({"schedule": {"cron": "0 3 * * *", "timezone": "Mars"}}, "schedule.timezone: 'Mars' is no time zone"),
        ({"sensor": {"settle_seconds": -1}}, "sensor.settle_seconds is -1"),
        ({"sensor": {"seconds": 1}}, "the field 'seconds' is unknown"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(bench: Bench, changes, sentence: str) -> None:
    with pytest.raises(CorpusSpecError) as raised:
        bench.spec(**changes)
    assert sentence in str(raised.value)


def test_the_listing_of_one_file_is_that_of_the_whole_source(files: Bench) -> None:
    """Else what one run remembers of a file would not serve another."""
    source = files.spec().source
    (listed,) = [file for file in sources.list_source(source).files if file.name == "deep/c.jsonl"]
    alone = sources.list_file(source, "deep/c.jsonl")
    assert alone is not None
    assert alone.files == (listed,)
