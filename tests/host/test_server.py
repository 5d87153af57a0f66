"""The routes, in this process: bodies, bounds, errors, and whatever a fuzzer sends."""

import asyncio
import json
import threading

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import status_code_conformance

from embeddings_pipeline.errors import ModelError
from embeddings_pipeline.host import wire
from embeddings_pipeline.host.server import Desk, create_app
from embeddings_pipeline.inference.cache import ModelCache
from embeddings_pipeline.records import EmbedOptions
from embeddings_pipeline.settings import CacheSettings, HostLimits
from tests.fakes import FakeEncoder

LIMITS = HostLimits(request_bytes=100_000, requests=2, eject_s=0.2)


def desk_of(load=None, **budget):
    cache = ModelCache(
        "cpu", load or (lambda model, device: FakeEncoder(model=model)), CacheSettings(**budget), patience_s=0.2
    )
    return Desk(cache, "cpu", LIMITS, {"version": "1", "device": "cpu"})


def ask(desk, method, url, **request):
    async def go():
        transport = httpx2.ASGITransport(create_app(desk), raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://host") as client:
            return await client.request(method, url, **request)

    return asyncio.run(go())


def test_a_model_is_loaded_listed_and_ejected(model):
    desk, chosen = desk_of(), model("a")
    done = ask(desk, "PUT", "/models", json=wire.model_message(chosen)).json()
    assert done["message"] == "successfully loaded model `tests/a` on device `cpu`"
    assert done["loaded_now"] is True
    assert ask(desk, "PUT", "/models", json=wire.model_message(chosen)).json()["loaded_now"] is False
    (row,) = ask(desk, "GET", "/models").json()["models"]
    assert (row["model_name"], row["bytes"], row["uses"]) == ("tests/a", 1024, 0)
    assert ask(desk, "GET", "/device/cpu").json()["models_bytes"] == 1024
    gone = ask(desk, "DELETE", "/models", params={"model_name": "tests/a", "model_device": "cpu"})
    assert gone.json()["message"] == "successfully ejected model `tests/a` from device `cpu`"
    assert ask(desk, "GET", "/models").json() == {"models": []}
    desk.close()


def test_a_model_is_named_in_one_of_two_ways(tmp_path, model):
    desk, chosen = desk_of(), model("a")
    body = {"model_name": "tests/a", "source": str(chosen.path)}
    assert ask(desk, "PUT", "/models", json=body).status_code == 200
    for wrong in ({}, body | {"spec": {"name": "x"}}, {"model_name": "x", "unknown": 1}, {"model_name": 5}, []):
        answer = ask(desk, "PUT", "/models", json=wrong)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    desk.close()


ERRORS = [
    ("GET", "/device/tpu", {}, 400, "unknown_device"),
    ("GET", "/device/cuda:1", {}, 400, "unknown_device"),
    ("DELETE", "/models", {"params": {"model_name": "x", "model_device": "cuda"}}, 400, "unknown_device"),
    ("DELETE", "/models", {"params": {"model_name": "x"}}, 404, "model_not_in_cache"),
    ("DELETE", "/models", {}, 400, "invalid_request"),
    ("DELETE", "/models", {"params": {"model_name": "x", "wait_s": "nan"}}, 400, "invalid_request"),
    ("PUT", "/models", {"json": {"model_name": "no/model"}}, 400, "unknown_model"),
    ("PUT", "/models", {"json": {"model_name": "x", "source": "/nowhere"}}, 400, "location_not_found"),
    ("PUT", "/models", {"params": {"model_device": "cuda"}, "json": {"model_name": "x"}}, 400, "unknown_device"),
    ("POST", "/embed", {"content": b"no arrow"}, 400, "invalid_request"),
    ("POST", "/embed", {"content": b"x" * 100_001}, 413, "request_too_large"),
    ("GET", "/models/abc/tokens", {}, 404, "model_not_in_cache"),
    ("GET", "/nowhere", {}, 404, "invalid_request"),
    ("PATCH", "/models", {}, 405, "invalid_request"),
]


@pytest.mark.parametrize(("method", "url", "request_", "status", "code"), ERRORS)
def test_an_error_has_four_keys_a_status_and_a_sentence(method, url, request_, status, code):
    desk = desk_of()
    answer = ask(desk, method, url, **request_)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert list(answer.json()) == ["message", "code", "type", "link"]
    desk.close()


def test_two_models_of_one_name_are_told_apart(model, tmp_path):
    desk, first = desk_of(), model("a")
    ask(desk, "PUT", "/models", json=wire.model_message(first))
    second = wire.model_message(first)
    second["spec"]["max_length"], second["fingerprint"] = 9, None
    ask(desk, "PUT", "/models", json=second)
    answer = ask(desk, "DELETE", "/models", params={"model_name": "tests/a"})
    assert (answer.status_code, answer.json()["code"]) == (409, "model_ambiguous")
    assert f"{first.fingerprint}: max_length None" in answer.json()["message"]
    chosen = {"model_name": "tests/a", "fingerprint": first.fingerprint}
    assert ask(desk, "DELETE", "/models", params=chosen).json()["fingerprint"] == first.fingerprint
    assert len(desk.cache.rows()) == 1
    desk.close()


def test_a_model_that_does_not_fit_says_what_could_go(model):
    desk = desk_of(memory_budget=1500)
    ask(desk, "PUT", "/models", json=wire.model_message(model("a")))
    answer = ask(desk, "PUT", "/models", json=wire.model_message(model("b")))
    assert (answer.status_code, answer.json()["code"]) == (507, "model_does_not_fit")
    assert answer.json()["message"].endswith("eject one of tests/a (1,024 bytes), or set on_full: evict")
    desk.close()


def test_a_device_that_fails_answers_503_and_the_host_leaves(model):
    """A CUDA fault lasts as long as its process; so does what `/health` says."""
    encoder = FakeEncoder()

    def broken(*_):
        raise ModelError("the model's forward pass failed: CUDA error: an illegal memory access; run again")

    encoder.embed = broken
    desk = desk_of(lambda *_: encoder)
    left = []
    desk.leave = lambda: left.append(1)
    body = wire.pack_texts(model("a"), ["x"], EmbedOptions())
    assert ask(desk, "GET", "/health").json()["status"] == "ok"
    answer = ask(desk, "POST", "/embed", content=body)
    assert (answer.status_code, answer.json()["code"], left) == (503, "device_failed", [1])
    assert ask(desk, "GET", "/health").status_code == 503
    desk.close()


def test_what_nobody_foresaw_is_an_error_body_too(model):
    def surprise(*_):
        raise RuntimeError("surprise")

    desk = desk_of(surprise)
    answer = ask(desk, "PUT", "/models", json=wire.model_message(model("a")))
    assert (answer.status_code, answer.json()["code"]) == (500, "embeddings_error")
    assert "RuntimeError: surprise" in answer.json()["message"]
    desk.close()


def test_an_application_batch_is_counted_as_use(model):
    desk, chosen = desk_of(), model("a")
    answer = ask(desk, "POST", "/embed", content=wire.pack_texts(chosen, ["a b"], EmbedOptions()))
    batch, facts = wire.read_vectors(answer.content)
    assert (answer.headers["content-type"], len(batch), facts["workers"]) == (wire.ARROW, 1, 1)
    assert (desk.cache.rows()[0]["uses"], desk.in_flight) == (1, 0)
    desk.close()


def test_listing_answers_while_a_model_loads(model):
    go = threading.Event()

    def slow(model, device):
        go.wait(10)
        return FakeEncoder(model=model)

    desk, chosen = desk_of(slow), model("a")

    async def both():
        transport = httpx2.ASGITransport(create_app(desk))
        async with httpx2.AsyncClient(transport=transport, base_url="http://host") as client:
            load = asyncio.create_task(client.put("/models", json=wire.model_message(chosen)))
            await asyncio.sleep(0.05)
            listed = await client.get("/models")
            go.set()
            return listed.json(), (await load).status_code

    assert asyncio.run(both()) == ({"models": []}, 200)
    desk.close()


FUZZING = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def test_a_fuzzer_finds_no_status_that_the_document_does_not_have(model):
    """Schemathesis without its pytest plugin, which does not know pytest 9. Bodies are bytes, right, cut and spoilt."""
    desk, chosen = desk_of(), model("a")
    desk.cache.load(chosen)
    right = wire.pack_texts(chosen, ["a", "b"], EmbedOptions())
    cut = st.integers(0, len(right)).map(lambda length: right[:length])
    places = st.integers(0, len(right) - 1)
    spoilt = st.builds(lambda at, byte: right[:at] + byte + right[at + 1 :], places, st.binary(min_size=1, max_size=1))
    schemathesis.openapi.media_type(wire.ARROW, st.one_of(st.binary(), st.just(right), cut, spoilt))
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(desk))
    tried = []
    for found in schema.get_all_operations():
        operation = found.ok()

        @FUZZING
        @given(case=operation.as_strategy())
        def fuzz(case):
            case.call_and_validate(checks=[not_a_server_error, status_code_conformance])

        fuzz()
        tried.append(operation.label)
    assert len(tried) == 9
    desk.close()


def test_the_document_names_every_route_and_its_errors():
    document = create_app(desk_of()).openapi()
    routes = {
        (method.upper(), path): set(item["responses"])
        for path, by in document["paths"].items()
        for method, item in by.items()
    }
    assert routes.keys() == {
        *(("GET", "/models"), ("PUT", "/models"), ("DELETE", "/models"), ("GET", "/models/{fingerprint}/tokens")),
        *(("GET", "/device/{device}"), ("POST", "/embed"), ("GET", "/health"), ("GET", "/host"), ("DELETE", "/host")),
    }
    assert {"200", "400", "413", "503", "507"} <= routes["POST", "/embed"]
    assert json.dumps(document)
