"""S3 holds what a local disk holds: whole objects, one atomic change, and reads that notice a replaced object."""

import datetime as dt
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embeddings_pipeline.errors import (
    LocationNotFoundError,
    LocationOwnedError,
    LocationUnavailableError,
    PublishConflictError,
    SourceChangedError,
    VerificationError,
)
from embeddings_pipeline.pipeline import preflight
from embeddings_pipeline.records import Counts
from embeddings_pipeline.settings import S3Spec
from embeddings_pipeline.storage import s3
from embeddings_pipeline.storage.location import Location
from embeddings_pipeline.storage.s3 import S3Location, locate
from embeddings_pipeline.storage.sources import list_source
from tests.fakes import Bench, FakeEncoder, works
from tests.s3 import S3Bench


def finished(bench: Bench, text: str) -> Path:
    path = bench.root / "finished"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_location_is_s3_or_local_by_its_scheme() -> None:
    place = locate("s3://bucket/a/b/", "f", S3Spec(region="eu-west-1"))
    assert isinstance(place, S3Location)
    assert (place.bucket, place.key, str(place), str(place / "c"), place.name) == (
        *("bucket", "a/b", "s3://bucket/a/b", "s3://bucket/a/b/c", "b"),
    )
    assert isinstance(locate("/tmp/x", "f"), Location)
    assert (place / "c" / "d").relative_to(place) == "c/d"


def test_what_is_put_is_read_listed_and_deleted(s3_bench: S3Bench) -> None:
    root = s3_bench.location("some")
    assert not root.exists()
    assert (root.read_text(), root.files(), root.size(), root.delete(), root.delete_tree()) == (
        *(None, [], None, False, False),
    )
    for name in ("b/2", "a", "b/1"):
        (root / name).put(finished(s3_bench, f"text of {name}"))
    s3_bench.client.put_object(Bucket=s3_bench.bucket, Key="some/empty/")
    assert [(entry.name, entry.size) for entry in root.files()] == [("a", 9), ("b/1", 11), ("b/2", 11)]
    assert root.exists()
    assert (root / "b/1").read_text() == "text of b/1"
    assert (root / "a").size() == 9
    assert [entry.name for entry in (root / "a").files()] == ["a"]
    assert (root / "a").fetch(s3_bench.root / "deep" / "copy").read_text(encoding="utf-8") == "text of a"
    assert (root / "a").delete()
    assert (root / "b").delete_tree()
    assert s3_bench.keys_below("some/") == ["some/empty/"]


def test_a_swap_needs_the_version_that_was_read(s3_bench: S3Bench) -> None:
    place = s3_bench.location("manifest.json")
    assert place.swap(finished(s3_bench, "one"), None)
    assert not place.swap(finished(s3_bench, "two"), None)
    text, version = place.read_version()
    assert text == "one"
    assert place.swap(finished(s3_bench, "two"), version)
    assert not place.swap(finished(s3_bench, "three"), version)
    assert place.read_text() == "two"


def test_a_swap_whose_answer_was_lost_and_that_was_sent_again_has_won(s3_bench: S3Bench) -> None:
    place = s3_bench.location("manifest.json")
    place.put(finished(s3_bench, "mine"))
    assert place.swap(finished(s3_bench, "mine"), None)


@pytest.mark.parametrize("listed", [True, False])
def test_an_object_that_is_replaced_while_it_is_read_is_noticed(
    s3_bench: S3Bench, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_WHOLE_BYTES", 1000)
    opened = pq.ParquetFile(put_table(s3_bench, listed).parquet())
    assert opened.read_row_group(3).num_rows == 100
    s3_bench.client.put_object(Bucket=s3_bench.bucket, Key="a.parquet", Body=b"other")
    with pytest.raises(SourceChangedError, match="s3://.*/a.parquet' was replaced or removed while it was read; run"):
        opened.read_row_group(4)


@pytest.mark.parametrize("listed", [True, False])
def test_a_small_parquet_object_is_read_as_it_was_when_it_was_opened(s3_bench: S3Bench, listed: bool) -> None:
    opened = pq.ParquetFile(put_table(s3_bench, listed).parquet())
    s3_bench.client.put_object(Bucket=s3_bench.bucket, Key="a.parquet", Body=b"other")
    assert opened.read().column("id").to_pylist() == [str(number) for number in range(1000)]
    with pytest.raises(FileNotFoundError):
        s3_bench.location("nothing.parquet").parquet()
    s3_bench.client.put_object(Bucket=s3_bench.bucket, Key="empty.parquet", Body=b"")
    with pytest.raises(pa.ArrowInvalid):
        pq.ParquetFile(s3_bench.location("empty.parquet").parquet())


def test_pieces_of_an_upload_that_was_not_ended_go_by_age_and_where_they_are(s3_bench: S3Bench) -> None:
    """What a killed process leaves of a large upload costs money and shows in no listing."""
    for key in ("out/staging/a.parquet", "out/staging-of-another/a.parquet"):
        s3_bench.client.create_multipart_upload(Bucket=s3_bench.bucket, Key=key)
    place = s3_bench.location("out/staging")
    # To moto all uploads began in 2010.
    assert place.delete_uploads(dt.datetime(2009, 1, 1, tzinfo=dt.UTC).timestamp()) == 0
    assert place.delete_uploads(dt.datetime(2011, 1, 1, tzinfo=dt.UTC).timestamp()) == 1
    left = s3_bench.client.list_multipart_uploads(Bucket=s3_bench.bucket)["Uploads"]
    assert [upload["Key"] for upload in left] == ["out/staging-of-another/a.parquet"]


def test_what_a_dead_publisher_left_goes_with_the_next_commit_and_what_is_younger_stays(
    s3_bench: S3Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is older than the manifest nobody can name any more; a younger one may be a live run's."""
    s3_bench.put("a.jsonl", works(3))
    s3_bench.run()
    folder = next(iter(s3_bench.keys_below("out/dataset/"))).rpartition("/")[0]
    dead, alive = f"{folder}/part-00000-dead.parquet", f"{folder}/part-00000-alive.parquet"
    s3_bench.client.put_object(Bucket=s3_bench.bucket, Key=dead, Body=b"dead")
    time.sleep(1.1)
    swap = S3Location.swap

    def meanwhile(place: S3Location, *arguments: Any) -> bool:
        done = swap(place, *arguments)
        s3_bench.client.put_object(Bucket=s3_bench.bucket, Key=alive, Body=b"alive")
        return done

    monkeypatch.setattr(S3Location, "swap", meanwhile)
    s3_bench.run()
    there = s3_bench.keys_below("out/dataset/")
    assert alive in there
    assert dead not in there
    assert len(there) == 2


def test_requests_of_a_rerun_do_not_grow_with_the_parts(s3_bench: S3Bench) -> None:
    """A thousand parts would be a thousand round trips, several times over."""
    s3_bench.put("a.jsonl", works(24))
    counts: list[int] = []
    requests: list[str] = []
    events = s3_bench.output.root.client.meta.events
    events.register("before-call.s3", lambda model, **_: requests.append(model.name))
    for part_texts in (12, 2):
        s3_bench.run(part_texts=part_texts)
        requests.clear()
        assert s3_bench.run(part_texts=part_texts).publish.counts == Counts(read=24, skipped=24)
        counts.append(len(requests))
    assert counts[1] <= counts[0] + 2, counts


def put_table(bench: S3Bench, listed: bool) -> S3Location:
    """Put ten row groups and return their place, as a listing gives it or by its name alone."""
    table = pa.table({"id": [str(number) for number in range(1000)]})
    pq.write_table(table, bench.root / "a.parquet", row_group_size=100)
    bench.client.upload_file(str(bench.root / "a.parquet"), bench.bucket, "a.parquet")
    (entry,) = bench.location("a.parquet").files()
    return entry.location if listed else bench.location("a.parquet")


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_corpus_in_s3_goes_from_source_to_dataset(s3_bench: S3Bench, kind: str) -> None:
    s3_bench.remote("source", "out", kind)
    for name, start in (("a", 0), ("deep/b", 7)):
        s3_bench.put(f"{name}.{kind}", works(7, start))
    s3_bench.client.put_object(Bucket=s3_bench.bucket, Key="source/_SUCCESS", Body=b"")
    preflight([s3_bench.spec()], device="cpu")
    run = s3_bench.run(part_texts=3)
    assert (run.extract.files, run.extract.strays) == (2, 1)
    assert run.publish.counts == Counts(read=14, embedded=14)
    assert [row["record_id"] for row in s3_bench.rows()] == sorted(f"r{number}" for number in range(14))
    assert run.publish.dataset_location == f"s3://{s3_bench.bucket}/out/dataset"
    assert s3_bench.leftovers() == []
    before = s3_bench.dataset_files()
    assert s3_bench.run(part_texts=3).publish.counts == Counts(read=14, skipped=14)
    assert s3_bench.dataset_files() == before


def test_one_changed_record_in_s3_is_one_text_computed(s3_bench: S3Bench) -> None:
    s3_bench.put("a.jsonl", works(9))
    s3_bench.run(part_texts=3)
    s3_bench.encoder = FakeEncoder()
    s3_bench.put("a.jsonl", [*works(4), {"id": "r4", "title": "changed"}, *works(3, 5)])
    run = s3_bench.run(part_texts=3)
    assert run.publish.counts == Counts(read=8, embedded=1, skipped=7)
    assert s3_bench.encoder.texts == ['id: "r4"\ntitle: "changed"\n']
    assert (run.publish.files_kept, run.publish.files_removed, len(s3_bench.rows())) == (1, 2, 8)


def test_a_run_with_a_limit_adds_to_what_is_published_in_s3(s3_bench: S3Bench) -> None:
    s3_bench.put("a.jsonl", works(6))
    s3_bench.run(part_texts=3)
    s3_bench.put("a.jsonl", [{"id": "r0", "title": "changed"}, *works(5, 1)])
    run = s3_bench.run(part_texts=3, limit=1)
    assert (run.publish.counts, len(s3_bench.rows())) == (Counts(read=1, embedded=1), 6)


def test_two_publishers_at_once_publish_one_set_and_the_other_is_told(
    s3_bench: S3Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have read the same manifest; the store lets only one of them replace it."""
    s3_bench.put("a.jsonl", works(3))
    s3_bench.run(run_id="first")
    s3_bench.put("a.jsonl", works(4))
    s3_bench.extract()
    s3_bench.embed()
    original = S3Location.read_version

    def read_and_be_overtaken(self: S3Location) -> tuple[str | None, str | None]:
        found = original(self)
        if self.name == "whole.json" and found[0] is not None and threading.current_thread().name == "publisher":
            other = json.loads(found[0]) | {"commit": "other", "run_id": "winner"}
            s3_bench.client.put_object(Bucket=self.bucket, Key=self.key, Body=json.dumps(other).encode())
        return found

    monkeypatch.setattr(S3Location, "read_version", read_and_be_overtaken)
    caught: list[BaseException] = []

    def publish() -> None:
        try:
            s3_bench.publish(run_id="loser")
        except PublishConflictError as error:
            caught.append(error)

    thread = threading.Thread(target=publish, name="publisher")
    thread.start()
    thread.join()
    assert "was published by run 'winner' after this run had read its records; run the job again" in str(caught[0])
    manifest = s3_bench.published_json()
    assert manifest["commit"] == "other"
    keys = s3_bench.keys_below("out/")
    assert all(f"out/{file['path']}" in keys for entry in manifest["sets"] for file in entry["files"])


def test_a_staged_object_that_was_changed_is_not_published(s3_bench: S3Bench) -> None:
    s3_bench.put("a.jsonl", works(3))
    s3_bench.extract()
    s3_bench.embed()
    (key,) = [key for key in s3_bench.keys_below("out/staging/") if key.endswith(".parquet")]
    data = bytearray(s3_bench.client.get_object(Bucket=s3_bench.bucket, Key=key)["Body"].read())
    data[100] ^= 0xFF
    s3_bench.client.put_object(Bucket=s3_bench.bucket, Key=key, Body=bytes(data))
    with pytest.raises(VerificationError, match="sha256 differs.*; run again"):
        s3_bench.publish()
    assert s3_bench.rows() == []
    s3_bench.embed()
    s3_bench.publish()
    assert len(s3_bench.rows()) == 3


def test_a_pattern_chooses_files_below_its_folder(s3_bench: S3Bench) -> None:
    for name in ("2024/a.jsonl", "2024/b.jsonl", "2025/a.jsonl", "2025/deep/a.jsonl"):
        s3_bench.put(name, works(1))
    for place in (f"s3://{s3_bench.bucket}/source", str(s3_bench.source)):
        for pattern, expected in {
            "*/a.jsonl": ["2024/a.jsonl", "2025/a.jsonl"],
            "**/a.jsonl": ["2024/a.jsonl", "2025/a.jsonl", "2025/deep/a.jsonl"],
            "2025/**": ["2025/a.jsonl", "2025/deep/a.jsonl"],
            "202?/b*": ["2024/b.jsonl"],
        }.items():
            source = s3_bench.changes["source"] | {"location": f"{place}/{pattern}"}
            source = source if place.startswith("s3") else {key: source[key] for key in source if key != "s3"}
            found = list_source(s3_bench.spec(source=source).source).files
            base = "2025/" if pattern.startswith("2025/") else ""
            assert [base + entry.name for entry in found] == expected


def test_encryption_and_storage_class_are_asked_of_every_upload(s3_bench: S3Bench) -> None:
    s3_bench.put("a.jsonl", works(2))
    output = s3_bench.changes["output"] | {"encryption": "AES256", "storage_class": "STANDARD_IA"}
    s3_bench.run(output=output)
    for key in s3_bench.keys_below("out/"):
        head = s3_bench.client.head_object(Bucket=s3_bench.bucket, Key=key)
        assert (head["ServerSideEncryption"], head["StorageClass"]) == ("AES256", "STANDARD_IA"), key


def test_what_is_not_there_is_named(s3_bench: S3Bench) -> None:
    with pytest.raises(LocationNotFoundError, match="source.location 's3://bucket-.*/source' does not exist"):
        s3_bench.extract()
    nowhere = s3_bench.changes["output"] | {"location": "s3://no-such-bucket-here/out"}
    s3_bench.put("a.jsonl", works(1))
    with pytest.raises(LocationUnavailableError, match=r"NoSuchBucket.*check the bucket, the credentials"):
        preflight([s3_bench.spec(output=nowhere)], device="cpu")


def test_an_output_of_another_corpus_or_among_the_source_is_refused(s3_bench: S3Bench) -> None:
    s3_bench.put("a.jsonl", works(1))
    s3_bench.client.put_object(Bucket=s3_bench.bucket, Key="out/corpus.json", Body=b"other\n")
    with pytest.raises(LocationOwnedError, match="holds the dataset of corpus 'other'"):
        preflight([s3_bench.spec()], device="cpu")
    s3_bench.remote("source", "source/out")
    with pytest.raises(Exception, match="lies in source.location"):
        preflight([s3_bench.spec()], device="cpu")


class _Credentials(BaseHTTPRequestHandler):
    """Hands out credentials as ECS does to a task, others each time, which end in a minute."""

    handed: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.handed.append(f"KEY{len(self.handed)}")
        ends = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=60)
        answer = {
            "AccessKeyId": self.handed[-1],
            "SecretAccessKey": "secret",
            "Token": "token",
            "Expiration": ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_credentials_that_end_are_asked_for_anew(s3_bench: S3Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 28: a role's credentials last an hour and jobs a night; whoever keeps the first ones fails at the end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Credentials)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    s3._client.cache_clear()
    signed: list[str] = []
    try:
        s3_bench.put_lines("a.jsonl", works(4))
        place = s3_bench.output.root
        assert isinstance(place, S3Location)
        place.client.meta.events.register(
            "before-send.s3",
            lambda request, **_: signed.extend(re.findall(r"Credential=(\w+)", str(request.headers["Authorization"]))),
        )
        assert s3_bench.run(part_texts=2).publish.published_rows == 4
    finally:
        s3._client.cache_clear()
        server.shutdown()
        thread.join()
        server.server_close()
    assert len(set(signed)) > 10
    assert signed[-1] == _Credentials.handed[-1]
