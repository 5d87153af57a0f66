"""Whole use cases through a host: its death changes neither rows nor counts, and devices share the parts."""

import os
import signal
import threading

import pytest

from embeddings_pipeline import pipeline
from embeddings_pipeline.host.client import RemoteCache
from embeddings_pipeline.records import Counts
from embeddings_pipeline.settings import CacheSettings, EmbedSettings
from tests.fakes import Bench, works
from tests.host.fake_host import fake_model
from tests.host.test_lifecycle import wait_for

COLUMNS = ("record_id", "strategy", "text_hash", "embedding", "fingerprint")


def rows(bench):
    return [{name: row[name] for name in COLUMNS} for row in bench.rows()]


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path / "bench")
    made.put("a.jsonl", works(240))
    fake_model(made.model, seconds=0.05)
    made.changes["part_texts"] = 80
    return made


def embed(bench, *caches):
    return pipeline.embed(bench.spec(), bench.delivery, EmbedSettings(20), *caches, run_id="run")


def test_a_host_that_is_killed_changes_neither_the_rows_nor_the_identity(bench, hosts, cache):
    expected = bench.run()
    before = rows(bench)
    killed = []

    def kill():
        """Twice, in the middle of batches; not the same batch twice, which is one time too many."""
        watch = RemoteCache("cpu", hosts)
        for _ in range(2):
            wait_for(lambda: [row for row in watch.rows() if row["uses"] > 2 and row["in_use"]])
            killed.append(hosts.ask("cpu")["pid"])
            os.kill(killed[-1], signal.SIGKILL)
            # The next host, not the one that is on its way out.
            wait_for(lambda: (hosts.ask("cpu") or {"pid": killed[-1]})["pid"] not in killed)
        watch.close()

    thread = threading.Thread(target=kill)
    thread.start()
    bench.extract(run_id="again")
    report = pipeline.embed(bench.spec(), bench.delivery, EmbedSettings(20, force=True), cache, run_id="again")
    thread.join()
    published = bench.publish(run_id="again")
    assert rows(bench) == before
    assert report.counts == expected.embed.counts == Counts(read=240, embedded=240)
    assert published.identities_hold
    assert len(killed) == 2
    assert [f"(pid {pid})" in " ".join(report.events) for pid in killed] == [True, True]


def test_a_run_whose_model_was_ejected_goes_on_and_says_so(bench, cache):
    bench.extract()
    ejected = threading.Event()

    def eject():
        wait_for(lambda: cache.rows() and cache.rows()[0]["uses"] >= 2)
        cache.eject("tests/fake")
        ejected.set()

    thread = threading.Thread(target=eject)
    thread.start()
    report = embed(bench, cache)
    thread.join()
    assert ejected.is_set()
    assert report.counts.embedded == 240
    assert "model tests/fake had been ejected from cpu and was loaded again for this batch" in report.events
    assert report.model["model_name"] == "tests/fake"


def test_a_second_run_finds_the_model_loaded(bench, hosts, caplog):
    caplog.set_level("INFO")
    bench.extract()
    for run in ("one", "two"):
        cache = RemoteCache("cpu", hosts, CacheSettings())
        settings = EmbedSettings(20, force=True)
        report = pipeline.embed(bench.spec(), bench.delivery, settings, cache, run_id=run)
        assert report.counts.embedded == 240
        cache.close()
    told = [record.message for record in caplog.records if "by its model host" in record.message]
    assert len(told) == 2
    assert told[0].startswith("model tests/fake loaded on cpu by its model host")
    assert told[1].startswith("model tests/fake is loaded already on cpu by its model host")
    assert report.model["uses"] == 24


def test_several_devices_share_the_parts_and_the_rows_are_the_same(bench):
    """Two caches stand for two devices; each has parts of its own at the same time."""
    bench.run()
    before = rows(bench)
    bench.extract(run_id="again")
    bench.encoder.seconds = 0.05
    caches = [bench.cache(), bench.cache()]
    caches[1].device = "cuda:1"
    settings = EmbedSettings(20, force=True)
    report = pipeline.embed(bench.spec(), bench.delivery, settings, *caches, run_id="again")
    bench.publish(run_id="again")
    assert rows(bench) == before
    assert report.device == "cpu,cuda:1"
    assert report.counts == Counts(read=240, embedded=240)
    assert [part.part_id for part in report.parts] == [part.id for part in bench.records_manifest().parts]
    assert all(cache.rows()[0]["uses"] == 1 for cache in caches)
    for cache in caches:
        cache.close()


def test_a_part_that_fails_on_one_device_fails_the_run(bench):
    bench.extract()
    bench.encoder.fail_call = lambda texts: any("work 70" in text for text in texts)
    caches = [bench.cache(), bench.cache()]
    with pytest.raises(Exception, match="the fake was told to fail"):
        embed(bench, *caches)
    for cache in caches:
        cache.close()
