"""A delivery's dataset changes as a whole, loses nothing, and carries over what is unchanged."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest

from embeddings_pipeline.errors import BatchFailedError, ManifestError, PublishConflictError, VerificationError
from embeddings_pipeline.pipeline.inspection import summary
from embeddings_pipeline.records import Counts
from embeddings_pipeline.storage.verify import verify
from tests.fakes import Bench, FakeEncoder, vector_of, works

SLUG = "tests--fake/full_record/whole"


def changed(count: int, *numbers: int) -> list[dict]:
    records = works(count)
    for number in numbers:
        records[number]["title"] = f"changed {number}"
    return records


def embedded_at(bench: Bench) -> dict[str, object]:
    return {row["record_id"]: row["embedded_at"] for row in bench.rows()}


# The set


def test_published_names_carry_the_digest_of_their_content(bench: Bench) -> None:
    bench.put("a.jsonl", works(7))
    bench.run(part_texts=3)
    entry = bench.manifest().find("tests--fake", "full_record")
    assert entry is not None
    names = [f"dataset/{SLUG}/part-{n:05d}-{file.digest[:16]}.parquet" for n, file in enumerate(entry.files)]
    assert [file.path for file in entry.files] == names
    assert sorted(f"dataset/{name}" for name in bench.dataset_files()) == names
    assert [file.rows for file in entry.files] == [3, 3, 1]


def test_the_manifest_says_what_was_done_with_what(bench: Bench) -> None:
    bench.put("a.jsonl", works(2))
    report = bench.run(run_id="run-7").publish
    manifest = json.loads(bench.output.manifest.path.read_text(encoding="utf-8"))
    assert (manifest["corpus"], manifest["delivery"], manifest["run_id"]) == ("bench", "whole", "run-7")
    assert manifest["format_version"] == 1
    assert manifest["versions"]["pyarrow"]
    assert manifest["sets"][0]["counts"] == {"read": 2, "embedded": 2, "skipped": 0, "rejected": 0}
    assert (report.dataset_location, report.manifest_location) == (
        str(bench.out / "dataset"),
        str(bench.out / "manifests" / "whole.json"),
    )


def test_nothing_is_left_in_scratch_or_staging(bench: Bench) -> None:
    bench.put("a.jsonl", works(7))
    bench.run(part_texts=3)
    assert bench.leftovers() == []
    assert sorted(path.name for path in bench.out.iterdir()) == ["corpus.json", "dataset", "manifests", "records"]


def test_polars_duckdb_and_pandas_read_the_folder(bench: Bench) -> None:
    """No `=` in any path and nothing but parquet below it, so that no engine invents columns."""
    strategies = [{"name": "full_record"}, {"name": "titles", "fields": ["title"]}]
    bench.put("a.jsonl", works(5))
    bench.run(part_texts=2, strategies=strategies)
    folder = bench.out / "dataset"
    columns = bench.output.dataset.path.rglob("*.parquet").__next__()
    names = pq.read_schema(columns).names
    assert pl.read_parquet(folder / "**/*.parquet").columns == names
    assert pl.read_parquet(folder / "**/*.parquet").height == 10
    with duckdb.connect() as connection:
        found = connection.sql(f"SELECT * FROM '{folder}/**/*.parquet'")
        assert found.columns == names
        assert len(found.fetchall()) == 10
    frame = pd.read_parquet(folder)
    assert (list(frame.columns), len(frame)) == (names, 10)


def test_several_strategies_are_published_side_by_side(bench: Bench) -> None:
    """Case 4: records without a text for one strategy are there for the other."""
    bench.put("a.jsonl", [*works(3), {"id": "bare"}])
    report = bench.run(strategies=[{"name": "full_record"}, {"name": "titles", "fields": ["title"]}]).publish
    assert report.rows_by_strategy == {"full_record": 4, "titles": 3}
    assert report.identities_hold


def test_a_strategy_without_any_text_does_not_hide_the_dimensions_of_the_others(bench: Bench) -> None:
    bench.put("a.jsonl", [{"id": "a", "note": None}])
    strategies = [{"name": "notes", "fields": ["note"]}, {"name": "full_record"}]
    report = bench.run(strategies=strategies).publish
    assert report.rows_by_strategy == {"notes": 0, "full_record": 1}
    assert report.schema.field("embedding").type.list_size == 8
    assert summary(bench.spec(strategies=strategies), bench.delivery).dimensions == 8


def test_the_same_run_twice_changes_no_byte(bench: Bench) -> None:
    bench.put("a.jsonl", works(7))
    bench.run(part_texts=3)
    before = bench.dataset_files()
    report = bench.run(part_texts=3).publish
    assert bench.dataset_files() == before
    assert (report.files, report.files_kept, report.files_removed) == (3, 3, 0)
    assert report.counts == Counts(read=7, skipped=7)


def test_publishing_twice_is_publishing_once(bench: Bench) -> None:
    bench.put("a.jsonl", works(4))
    first = bench.run().publish
    manifest = bench.manifest()
    second = bench.publish()
    assert bench.manifest() == manifest
    assert (second.counts, second.published_rows) == (first.counts, 4)


# Changes


def test_one_changed_record_is_one_text_computed(bench: Bench) -> None:
    """Case 27. Its part is written anew with the other vectors as they were; other parts keep their very files."""
    bench.put("a.jsonl", works(9))
    bench.run(part_texts=3)
    files, times = bench.dataset_files(), embedded_at(bench)
    bench.encoder = FakeEncoder()
    bench.put("a.jsonl", changed(9, 4))
    run = bench.run(part_texts=3)
    assert run.embed.counts == Counts(read=9, embedded=1, skipped=8)
    assert bench.encoder.texts == ['id: "r4"\ntitle: "changed 4"\n']
    after = bench.dataset_files()
    assert [name for name in sorted(files) if name in after] == [
        name for name in sorted(files) if "part-00001" not in name
    ]
    assert len(after) == 3
    assert all(after[name] == files[name] for name in after if name in files)
    assert {key for key, time in embedded_at(bench).items() if time != times[key]} == {"r4"}
    assert (run.publish.files_kept, run.publish.files_removed) == (2, 1)


def test_every_row_still_has_its_own_vector_after_many_changes(bench: Bench) -> None:
    bench.put("a.jsonl", works(20))
    bench.run(part_texts=6, batch=4)
    bench.put("a.jsonl", [*changed(12, 0, 5, 11), *works(10, 15)])
    run = bench.run(part_texts=5, batch=3)
    assert run.embed.counts == Counts(read=22, embedded=8, skipped=14)
    texts = bench.texts()
    assert {row["record_id"]: row["embedding"] for row in bench.rows()} == {
        key: vector_of(text).tolist() for key, text in texts.items()
    }
    assert run.publish.identities_hold


def test_removed_records_leave_the_dataset(bench: Bench) -> None:
    bench.put("a.jsonl", works(9))
    bench.run(part_texts=3)
    bench.put("a.jsonl", [record for record in works(9) if record["id"] not in ("r1", "r6", "r7", "r8")])
    run = bench.run(part_texts=3)
    assert run.embed.counts == Counts(read=5, skipped=5)
    assert bench.keys() == ["r0", "r2", "r3", "r4", "r5"]


@pytest.mark.parametrize("left", ["no file", "an empty file", "nothing but rejects"])
def test_a_source_that_gives_no_text_any_more_removes_nothing_and_says_so(
    bench: Bench, left: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A mount that is missing or an export that failed would otherwise empty the dataset over night."""
    file = bench.put("a.jsonl", works(3))
    bench.run(part_texts=2)
    before, commit = bench.dataset_files(), bench.manifest().commit
    if left == "no file":
        file.unlink()
    else:
        file.write_text("" if left == "an empty file" else "<html>\nno JSON\n", encoding="utf-8")
    run = bench.run(part_texts=2)
    rejected = 2 if left == "nothing but rejects" else 0
    assert run.publish.counts == Counts(read=rejected, rejected=rejected)
    assert (run.publish.published_rows, run.publish.rows_kept, run.publish.partial) == (3, 3, True)
    assert run.publish.identities_hold
    assert bench.dataset_files() == before
    assert bench.manifest().commit != commit
    (warning,) = run.publish.warnings
    assert warning in caplog.messages
    assert "gave no text" in warning
    assert "the 3 rows that are published stay" in warning
    assert "output.allow_empty: true" in warning
    assert verify(bench.output.root).passed
    bench.put("a.jsonl", works(3))
    run = bench.run(part_texts=2)
    assert (run.embed.counts, run.publish.partial, run.publish.warnings) == (Counts(read=3, skipped=3), False, ())


def test_a_source_that_became_empty_empties_the_dataset_where_that_is_allowed(bench: Bench) -> None:
    file = bench.put("a.jsonl", works(3))
    bench.run()
    file.unlink()
    run = bench.run(output={"location": str(bench.out), "allow_empty": True})
    assert (run.publish.published_rows, run.publish.files_removed, bench.rows()) == (0, 1, [])
    assert run.publish.identities_hold
    assert run.extract.warnings == (f"the source {bench.source} has no jsonl file: 0 records",)


def test_a_source_that_was_empty_from_the_start_is_a_success_with_a_warning(bench: Bench) -> None:
    run = bench.run()
    assert (run.publish.counts, run.publish.published_rows, run.publish.warnings) == (Counts(), 0, ())
    assert run.extract.warnings == (f"the source {bench.source} has no jsonl file: 0 records",)


def test_new_files_listed_before_the_old_ones_move_nothing(bench: Bench) -> None:
    bench.put("m.jsonl", works(4))
    bench.run()
    before = bench.dataset_files()
    bench.put("a.jsonl", works(3, 10))
    run = bench.run()
    assert run.embed.counts == Counts(read=7, embedded=3, skipped=4)
    assert before.items() <= bench.dataset_files().items()


def test_a_record_that_moved_to_another_file_is_not_computed_again(bench: Bench) -> None:
    bench.put("a.jsonl", works(4))
    bench.put("b.jsonl", works(4, 4))
    bench.run()
    bench.put("a.jsonl", works(3))
    bench.put("b.jsonl", [*works(4, 4), *works(1, 3)])
    assert bench.run().embed.counts == Counts(read=8, skipped=8)
    assert bench.keys() == [f"r{number}" for number in range(8)]


def test_going_back_to_an_earlier_state_is_a_change_like_any_other(bench: Bench) -> None:
    for state in (works(6), changed(6, 2), works(6)):
        bench.put("a.jsonl", state)
        run = bench.run(part_texts=3)
        assert run.publish.identities_hold
        assert {row["record_id"]: row["text_hash"] for row in bench.rows()} == {
            row["record_id"]: row["text_hash"] for row in bench.record_rows()
        }


def test_another_strategy_leaves_the_published_one_alone(bench: Bench) -> None:
    bench.put("a.jsonl", works(3))
    bench.run()
    before = bench.dataset_files()
    bench.run(strategies=[{"name": "titles", "fields": ["title"]}])
    assert before.items() <= bench.dataset_files().items()
    assert [row["strategy"] for row in bench.rows()] == ["full_record"] * 3 + ["titles"] * 3


def test_a_redefined_strategy_replaces_its_rows(bench: Bench) -> None:
    bench.put("a.jsonl", [{"id": "a", "title": "t", "note": "n"}])
    bench.run(strategies=[{"name": "card", "fields": ["title"]}])
    run = bench.run(strategies=[{"name": "card", "template": "{title}: {note}"}])
    assert run.embed.counts == Counts(read=1, embedded=1)
    assert [row["embedding"] for row in bench.rows()] == [vector_of("t: n").tolist()]


def test_another_model_is_published_beside_the_first(bench: Bench) -> None:
    bench.put("a.jsonl", works(2))
    bench.run()
    bench.run(model={"name": "tests/other", "source": str(bench.model), "kind": "dense"})
    assert {row["model"] for row in bench.rows()} == {"tests/fake", "tests/other"}
    assert len(bench.rows()) == 4


# Skips


def test_each_skip_is_counted_with_its_reason(bench: Bench) -> None:
    """In the report of both steps and in the manifest."""
    bench.put("a.jsonl", works(9))
    first = bench.run(part_texts=3)
    assert (first.embed.skips_by_reason, first.publish.skips_by_reason) == ({}, {})
    bench.put("a.jsonl", changed(9, 4))
    run = bench.run(part_texts=3)
    reasons = {"unchanged_part": 6, "unchanged_text": 2}
    assert run.embed.counts.skipped == sum(reasons.values())
    assert (run.embed.skips_by_reason, run.publish.skips_by_reason) == (reasons, reasons)
    assert bench.manifest().sets[0].skips_by_reason == reasons
    assert [part.skips_by_reason for part in run.embed.parts] == [
        {"unchanged_part": 3},
        {"unchanged_text": 2},
        {"unchanged_part": 3},
    ]


def test_texts_that_an_earlier_attempt_finished_are_told_apart_from_those_computed(bench: Bench) -> None:
    bench.put("a.jsonl", works(9))
    bench.extract(part_texts=3)
    bench.encoder.fail_call = lambda texts: any("work 7" in text for text in texts)
    with pytest.raises(BatchFailedError):
        bench.embed(part_texts=3)
    bench.encoder.fail_call = lambda texts: False
    report = bench.embed(part_texts=3)
    assert (report.counts, report.computed, report.finished_before) == (Counts(read=9, embedded=9), 3, 6)
    assert report.skips_by_reason == {}


def test_rows_that_stay_by_option_are_counted(bench: Bench) -> None:
    bench.put("a.jsonl", works(4))
    bench.run()
    bench.put("a.jsonl", works(3))
    run = bench.run(output={"location": str(bench.out), "keep": True})
    assert (run.publish.published_rows, run.publish.rows_kept) == (4, 1)
    assert run.publish.skips_by_reason == {"unchanged_text": 3}


# Limit and offset


def test_a_limited_run_adds_and_replaces_and_removes_nothing(bench: Bench) -> None:
    bench.put("a.jsonl", works(10))
    bench.run(part_texts=4)
    times = embedded_at(bench)
    bench.put("a.jsonl", [*changed(10, 2, 9), *works(2, 10)])
    run = bench.run(part_texts=4, limit=3)
    assert run.embed.counts == Counts(read=3, embedded=1, skipped=2)
    assert (run.publish.partial, run.publish.published_rows, run.publish.identities_hold) == (True, 10, True)
    assert {key for key, time in embedded_at(bench).items() if time != times[key]} == {"r2"}
    run = bench.run(part_texts=4, offset=9)
    assert run.embed.counts == Counts(read=3, embedded=3)
    assert sorted(bench.keys()) == sorted(f"r{number}" for number in range(12))


def test_a_dataset_can_grow_by_limited_runs(bench: Bench) -> None:
    bench.put("a.jsonl", works(10))
    for offset in range(0, 10, 3):
        run = bench.run(limit=3, offset=offset, batch=2)
        assert run.publish.identities_hold
        assert len(bench.rows()) == min(10, offset + 3)
    assert bench.run().embed.counts == Counts(read=10, skipped=10)
    assert len(set(bench.keys())) == len(bench.keys()) == 10


def test_a_limited_run_with_force_replaces_the_rows_it_took(bench: Bench) -> None:
    bench.put("a.jsonl", works(10))
    bench.run(part_texts=4, run_id="one")
    times = embedded_at(bench)
    run = bench.run(part_texts=4, limit=4, offset=2, force=True, run_id="two")
    assert run.embed.counts == Counts(read=4, embedded=4)
    assert {key for key, time in embedded_at(bench).items() if time != times[key]} == {"r2", "r3", "r4", "r5"}
    assert len(bench.rows()) == 10


def test_a_limited_run_that_took_nothing_leaves_the_dataset_as_it_is(bench: Bench) -> None:
    bench.put("a.jsonl", works(3))
    bench.run()
    before = bench.dataset_files()
    assert bench.run(offset=100).publish.identities_hold
    assert bench.dataset_files() == before


def test_parts_that_a_limited_run_left_staged_do_not_stand_in_for_whole_ones(bench: Bench) -> None:
    """Their files lack the skipped rows, which a run without limit would then remove from the dataset."""
    bench.put("a.jsonl", works(10))
    bench.run()
    bench.put("a.jsonl", changed(10, 0, 1, 2))
    bench.extract(limit=10)
    assert bench.embed().counts == Counts(read=10, embedded=3, skipped=7)
    bench.extract()
    with pytest.raises(ManifestError, match="some parts of delivery 'bench/whole' are not embedded yet"):
        bench.publish()
    assert len(bench.rows()) == 10
    run = bench.run()
    assert (run.publish.published_rows, run.publish.identities_hold) == (10, True)
    assert bench.keys() == sorted(f"r{number}" for number in range(10))


# Conflicts, gaps and damage


def test_of_two_publishers_one_fails_and_says_so(bench: Bench) -> None:
    """Compare-and-swap: the later one would undo what it has never read."""
    bench.put("a.jsonl", works(3))
    bench.run()
    bench.put("a.jsonl", changed(3, 0))
    bench.extract()
    bench.embed()
    manifest, staging = bench.out / "manifests" / "whole.json", bench.out / "staging"
    records = bench.out / "records"
    for folder in (staging, records):
        shutil.copytree(folder, bench.root / folder.name)
    bench.put("a.jsonl", changed(3, 1))
    bench.run(run_id="winner")
    committed = manifest.read_bytes()
    for folder in (staging, records):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(bench.root / folder.name, folder)
    with pytest.raises(PublishConflictError, match="'whole' was published by run 'winner' .* run the job again"):
        bench.publish(run_id="loser")
    assert manifest.read_bytes() == committed
    assert bench.run().embed.counts == Counts(read=3, skipped=3)


def test_two_runs_that_read_the_same_records_may_both_publish(bench: Bench) -> None:
    bench.put("a.jsonl", works(3))
    bench.extract(run_id="one")
    bench.extract(run_id="two")
    bench.embed(run_id="one")
    bench.publish(run_id="one")
    assert bench.publish(run_id="two").published_rows == 3


def test_publishing_with_parts_missing_says_what_to_do(bench: Bench) -> None:
    bench.put("a.jsonl", works(3))
    bench.extract()
    with pytest.raises(ManifestError, match="are not embedded yet; materialize bench/embeddings first"):
        bench.publish()
    assert not (bench.out / "dataset").exists()


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0xFF
    file.write_bytes(data)


@pytest.mark.parametrize("at", [100, -3], ids=["in the data", "in the footer"])
def test_a_staged_file_that_was_changed_is_not_published_but_made_again(bench: Bench, at: int) -> None:
    bench.put("a.jsonl", works(3))
    bench.extract()
    bench.embed()
    (file,) = bench.output.staging.path.rglob("*.parquet")
    flip(file, at)
    with pytest.raises(VerificationError, match=rf"{file.name}' is not the one that part .*; run again$"):
        bench.publish()
    assert bench.rows() == []
    assert bench.run().publish.published_rows == 3


def test_a_staged_file_that_is_gone_is_computed_again(bench: Bench) -> None:
    bench.put("a.jsonl", works(6))
    bench.extract(part_texts=3)
    bench.embed(part_texts=3)
    file = sorted(bench.output.staging.path.rglob("*.parquet"))[0]
    file.unlink()
    with pytest.raises(VerificationError, match="has no file at .*materialize the corpus's embeddings again"):
        bench.publish()
    run = bench.run(part_texts=3)
    assert run.publish.published_rows == len(bench.rows()) == 6


def delete(file: Path) -> None:
    file.unlink()


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


@pytest.mark.parametrize("damage", [delete, truncate])
@pytest.mark.parametrize("also_changed", [False, True])
def test_a_published_file_that_is_gone_or_cut_is_computed_again(
    bench: Bench, damage: Callable[[Path], None], also_changed: bool
) -> None:
    """A manifest alone is no vector: counting its rows as skipped would report a dataset that is not there."""
    bench.put("a.jsonl", works(6))
    bench.run(part_texts=3)
    damage(sorted(bench.output.dataset.path.rglob("*.parquet"))[0])
    if also_changed:
        bench.put("a.jsonl", [*works(6), {"id": "new"}])
    run = bench.run(part_texts=4 if also_changed else 3)
    assert run.embed.counts == Counts(read=6 + also_changed, embedded=3 + also_changed, skipped=3)
    assert len(bench.rows()) == run.publish.published_rows == 6 + also_changed


def test_a_deleted_dataset_folder_is_built_again(bench: Bench) -> None:
    bench.put("a.jsonl", works(4))
    bench.run()
    before = bench.keys()
    shutil.rmtree(bench.out / "dataset")
    with pytest.raises(VerificationError, match="is gone or was changed; run the job again"):
        bench.publish()
    assert bench.run().embed.counts == Counts(read=4, embedded=4)
    assert bench.keys() == before


def test_a_limited_run_does_not_publish_over_a_gap(bench: Bench) -> None:
    bench.put("a.jsonl", works(6))
    bench.run(part_texts=3)
    sorted(bench.output.dataset.path.rglob("*.parquet"))[1].unlink()
    with pytest.raises(VerificationError, match="run the job once without limit and offset"):
        bench.run(part_texts=3, limit=1)
    assert bench.run(part_texts=3).publish.published_rows == 6


def test_a_lost_delivery_manifest_is_made_again(bench: Bench) -> None:
    """What it named is computed again and the old files go."""
    bench.put("a.jsonl", works(3))
    bench.run()
    bench.output.manifest.path.unlink()
    run = bench.run()
    assert (run.publish.published_rows, len(bench.rows()), len(bench.dataset_files())) == (3, 3, 1)


def test_stray_files_of_an_unfinished_publish_are_removed_by_the_next(bench: Bench) -> None:
    bench.put("a.jsonl", works(3))
    bench.run()
    stray = bench.out / "dataset" / SLUG / "part-00009-0123456789abcdef.parquet"
    shutil.copy(next(bench.output.dataset.path.rglob("*.parquet")), stray)
    bench.put("a.jsonl", changed(3, 1))
    bench.run()
    assert not stray.exists()
    assert len(bench.rows()) == 3


def test_other_peoples_deliveries_below_the_dataset_are_not_touched(bench: Bench) -> None:
    bench.put("a.jsonl", works(3))
    bench.run()
    other = bench.out / "dataset" / "tests--fake" / "full_record" / "another" / "part-00000-x.parquet"
    other.parent.mkdir()
    other.write_bytes(b"x")
    bench.put("a.jsonl", changed(3, 1))
    bench.run()
    assert other.exists()
