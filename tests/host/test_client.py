"""A run's side: the interface of a cache and an encoder of its own process, whatever happens to the host."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import numpy as np
import pytest

from embeddings_pipeline.errors import (
    EmbeddingCancelledError,
    HostUnavailableError,
    ModelEjectedError,
    ModelError,
    ModelInUseError,
    ModelNotInCacheError,
    RequestTooLargeError,
)
from embeddings_pipeline.host.client import RemoteCache, open_cache
from embeddings_pipeline.host.lifecycle import Hosts
from embeddings_pipeline.inference.cache import ModelCache
from embeddings_pipeline.records import EmbedOptions
from embeddings_pipeline.settings import CacheSettings, Environment
from tests.fakes import DIMENSIONS, vector_of
from tests.host.test_lifecycle import ROOT, wait_for

TEXTS = [f"text {number}" for number in range(40)]


def right(batch, texts=TEXTS):
    assert batch.dense.tolist() == [vector_of(text).tolist() for text in texts]


def test_vectors_facts_and_rows_are_those_of_the_hosts_encoder(cache, model):
    chosen = model()
    assert (cache.rows(), cache.hosts.devices()) == ([], [])
    with cache.lease(chosen) as encoder:
        batch = encoder.embed(TEXTS)
        right(batch)
        assert (encoder.kind, encoder.dimensions, encoder.path, encoder.bytes) == ("dense", DIMENSIONS, "packed", 100)
        assert (encoder.device, encoder.workers(EmbedOptions()), encoder.workers(EmbedOptions(workers=3))) == (
            "cpu",
            1,
            3,
        )
        assert encoder.model_batch_tokens(EmbedOptions()) == 512
        assert encoder.model_batch_tokens(EmbedOptions(model_batch_tokens=9)) == 9
    (row,) = cache.rows()
    assert (row["model_name"], row["device"], row["uses"], row["in_use"]) == ("tests/fake", "cpu", 1, 0)
    assert row["last_used_at"] >= row["loaded_at"]
    local = ModelCache("cpu", lambda model, device: encoder)
    local.load(chosen)
    assert list(row) == list(local.rows()[0])


def test_sparse_vectors_and_their_token_strings(cache, model):
    with cache.lease(model(kind="sparse")) as encoder:
        batch = encoder.embed(TEXTS)
        assert batch.sparse.values.reshape(-1, DIMENSIONS).tolist() == [vector_of(text).tolist() for text in TEXTS]
        assert encoder.token_strings(np.array([3, 0, 3], np.int32)).to_pylist() == ["token3", "token0", "token3"]


def test_the_vocabulary_comes_after_an_eject_too(cache, model):
    with cache.lease(model(kind="sparse")) as encoder:
        cache.eject("tests/fake")
        assert encoder.token_strings(np.array([1], np.int32)).to_pylist() == ["token1"]


def test_two_batches_are_in_flight_and_reading_answers_meanwhile(cache, model):
    with cache.lease(model(seconds=0.2)) as encoder, ThreadPoolExecutor(2) as threads:
        started = time.monotonic()
        both = [threads.submit(encoder.embed, TEXTS) for _ in range(2)]
        wait_for(lambda: cache.rows()[0]["in_use"] == 2)
        asked = time.monotonic()
        assert cache.device_info()["models"] == 1
        assert time.monotonic() - asked < 0.6
        for future in both:
            right(future.result())
        assert time.monotonic() - started < 2 * 5 * 0.2 + 0.5


def test_a_client_that_gives_up_stops_its_work_within_a_model_batch(cache, model, tmp_path):
    done = tmp_path / "batches"
    cancel = threading.Event()
    with cache.lease(model(seconds=0.1, batches=str(done))) as encoder:
        threading.Timer(0.35, cancel.set).start()
        started = time.monotonic()
        with pytest.raises(EmbeddingCancelledError):
            encoder.embed([f"t{number}" for number in range(8 * 40)], cancel=cancel)
        assert time.monotonic() - started < 1.5
        wait_for(lambda: cache.rows()[0]["in_use"] == 0)
        assert len(done.read_text().splitlines()) <= 10
        with pytest.raises(EmbeddingCancelledError):
            encoder.embed(TEXTS, cancel=cancel)
        right(encoder.embed(TEXTS))


def test_a_client_that_is_killed_stops_its_work(home, cache, model, tmp_path):
    done = tmp_path / "batches"
    chosen = model(seconds=0.1, batches=str(done))
    code = f"""
from pathlib import Path
from embeddings_pipeline.host.client import RemoteCache
from embeddings_pipeline.host.lifecycle import Hosts
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.settings import Environment, ModelSpec
cache = RemoteCache("cpu", Hosts(Path({str(home)!r}), Environment.read(), module="tests.host.fake_host"))
with cache.lease(resolve(ModelSpec(name="tests/fake", source={str(chosen.path)!r}, kind="dense"))) as encoder:
    encoder.embed(["t"] * 4000)
"""
    cache.load(chosen)
    client = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    wait_for(lambda: cache.rows()[0]["in_use"] == 1)
    client.kill()
    client.wait()
    wait_for(lambda: cache.rows()[0]["in_use"] == 0, 3)


def test_a_host_that_is_killed_is_started_again_and_the_batch_sent_again(cache, model):
    """Both batches in flight; one host is started for them."""
    chosen = model(seconds=0.1)
    with cache.lease(chosen) as encoder, ThreadPoolExecutor(2) as threads:
        pid = cache.hosts.ask("cpu")["pid"]
        both = [threads.submit(encoder.embed, TEXTS) for _ in range(2)]
        wait_for(lambda: cache.rows()[0]["in_use"] == 2)
        os.kill(pid, signal.SIGKILL)
        results = [future.result() for future in both]
        for batch in results:
            right(batch)
            assert len(batch.events) == 1
            assert f"the model host of cpu (pid {pid}) ended with a request in flight" in batch.events[0]
            assert batch.events[0].endswith("was started and the request sent again")
        assert list(encoder.embed(TEXTS).events) == []


def test_a_host_that_dies_twice_of_a_batch_is_reported(cache, model):
    with cache.lease(model(seconds=0.5)) as encoder, ThreadPoolExecutor(1) as threads:
        future = threads.submit(encoder.embed, TEXTS)
        killed = set()
        while not future.done():
            info = cache.hosts.ask("cpu")
            if info is not None and info["in_flight"] and info["pid"] not in killed:
                killed.add(info["pid"])
                os.kill(info["pid"], signal.SIGKILL)
            time.sleep(0.02)
        with pytest.raises(HostUnavailableError, match="ended twice while it computed this"):
            future.result()


def test_a_model_that_was_ejected_between_two_batches_is_loaded_again_and_said(cache, model):
    with cache.lease(model()) as encoder:
        right(encoder.embed(TEXTS))
        done = cache.eject("tests/fake")
        assert (done.freed_bytes, done.forced, cache.rows()) == (100, False, [])
        batch = encoder.embed(TEXTS)
        right(batch)
        assert batch.events == ["model tests/fake had been ejected from cpu and was loaded again for this batch"]
        assert list(encoder.embed(TEXTS).events) == []


def test_an_eject_waits_for_the_batch_in_flight_or_cancels_it_by_force(cache, model):
    with cache.lease(model(seconds=0.2)) as encoder, ThreadPoolExecutor(1) as threads:
        future = threads.submit(encoder.embed, TEXTS)
        wait_for(lambda: cache.rows()[0]["in_use"] == 1)
        with pytest.raises(ModelInUseError, match="still in use by 1 after 0.1 s and was not ejected"):
            cache.eject("tests/fake", wait_s=0.1)
        assert not cache.eject("tests/fake").forced
        right(future.result())
        future = threads.submit(encoder.embed, TEXTS)
        wait_for(lambda: [row["in_use"] for row in cache.rows()] == [1])
        assert cache.eject("tests/fake", force=True).forced
        with pytest.raises(ModelEjectedError, match="model 'tests/fake' was ejected by force from device 'cpu'"):
            future.result()


def test_errors_of_the_host_are_the_same_errors_here(cache, model):
    with pytest.raises(ModelNotInCacheError, match=r"\(loaded there: nothing\)"):
        cache.eject("nothing")
    with cache.lease(model(fail="the model is broken; get another")) as encoder:
        with pytest.raises(ModelError, match="^the model is broken; get another$"):
            encoder.embed(TEXTS)
        with pytest.raises(RequestTooLargeError, match="use a smaller application_batch_size"):
            encoder.embed(["x" * (5 << 20)])
        with pytest.raises(ModelNotInCacheError, match=r"loaded there: tests/fake") as caught:
            cache.eject("nothing")
        assert caught.value.loaded == ["tests/fake"]


def test_listing_ejecting_and_asking_start_no_host(cache):
    assert cache.rows() == []
    assert cache.device_info()["device"] == "cpu"
    with pytest.raises(ModelNotInCacheError):
        cache.eject("x")
    assert not cache.hosts.folder.exists()


def test_an_explicit_budget_reaches_the_host(hosts, model):
    cache = RemoteCache("cpu", hosts, CacheSettings(memory_budget=150, on_full="evict"))
    cache.load(model("a", bytes=100))
    cache.load(model("b", bytes=100))
    assert [row["model_name"] for row in cache.rows()] == ["tests/b"]
    cache.close()


@pytest.mark.parametrize(
    ("variables", "kind"),
    [
        ({}, ModelCache),
        ({"DAGSTER_HOME": "/home"}, RemoteCache),
        ({"DAGSTER_HOME": "/home", "EMBEDDINGS_MODEL_CACHE": "in_process"}, ModelCache),
    ],
)
def test_models_live_in_a_host_where_there_is_a_home_for_one(variables, kind, monkeypatch):
    for name in ("DAGSTER_HOME", "EMBEDDINGS_MODEL_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert type(open_cache("cpu", Environment.read())) is kind


def test_the_client_imports_no_torch():
    code = (
        "import sys, embeddings_pipeline.host.client, embeddings_pipeline.cli; "
        "print([name for name in ('torch', 'transformers', 'fastapi', 'uvicorn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_threads_end_with_the_cache(cache, model):
    cache.load(model())
    assert [thread for thread in threading.enumerate() if thread.name == "model-host-client"]
    cache.close()
    cache.close()
    assert [thread for thread in threading.enumerate() if thread.name == "model-host-client"] == []


def test_requests_beyond_the_most_wait_their_turn(cache, model):
    """Four at once here; what waits is not refused."""
    with cache.lease(model(seconds=0.05)) as encoder, ThreadPoolExecutor(12) as threads:
        for batch in threads.map(lambda _: encoder.embed(TEXTS), range(12)):
            right(batch)


def test_a_browser_like_client_sees_the_literal_bodies(cache, model):
    """What `curl --unix-socket` shows."""
    cache.load(model("a"))
    transport = httpx2.HTTPTransport(uds=str(cache.hosts.files("cpu").socket))
    with httpx2.Client(transport=transport, base_url="http://host") as http:
        shown = http.get("/models").json()
        assert list(shown) == ["models"]
        done = http.delete("/models", params={"model_name": "tests/a", "model_device": "CPU"}).json()
        assert done["result"] == "successful"
        assert done["message"] == "successfully ejected model `tests/a` from device `cpu`"
        assert done["freed_bytes"] == 100
        missing = http.delete("/models", params={"model_name": "tests/a", "model_device": "cpu"})
        assert (missing.status_code, missing.json()["code"]) == (404, "model_not_in_cache")
        assert list(missing.json()) == ["message", "code", "type", "link"]
        device = http.get("/device/cpu").json()
        assert device["memory_usage"].endswith(" GiB")
        assert device["total_device_memory"].endswith(" GiB")
        other = http.get("/device/cuda")
        assert (other.status_code, other.json()["code"]) == (400, "unknown_device")
        assert http.get("/health").json()["status"] == "ok"
        assert http.get("/openapi.json").json()["paths"].keys() >= {"/models", "/embed", "/device/{device}", "/health"}
        assert http.get("/docs").status_code == 200


def test_home_of_a_host_may_be_given_with_a_tilde(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Hosts(Path("~/x"), Environment.read()).folder == tmp_path / "x" / "model_host"
