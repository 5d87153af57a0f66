"""The cache: one construction per model, users are counted, an eject gives the memory back."""

import gc
import threading
import time
import weakref
from pathlib import Path

import psutil
import pytest

from embeddings_pipeline.errors import (
    ModelAmbiguousError,
    ModelDoesNotFitError,
    ModelEjectedError,
    ModelError,
    ModelInUseError,
    ModelLoadError,
    ModelNotInCacheError,
)
from embeddings_pipeline.inference.cache import ModelCache
from embeddings_pipeline.inference.encoder import Encoder, ModelEncoder, load_encoder
from embeddings_pipeline.inference.memory import expected_bytes
from embeddings_pipeline.inference.tokens import TextTokenizer
from embeddings_pipeline.models.store import ResolvedModel, resolve
from embeddings_pipeline.records import EmbedOptions
from embeddings_pipeline.settings import CacheSettings, ModelSpec
from tests.inference.fakes import FakeForward
from tests.inference.tiny import dense_folder, resolved, sparse_folder, tokenizer


def model(name: str) -> ResolvedModel:
    return ResolvedModel(ModelSpec(name=name, kind="dense"), Path("/nowhere"), "digest", f"fingerprint-of-{name}")


class Loads:
    """A way to load fake encoders that counts, takes a while, and fails when told to."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.names: list[str] = []
        self.failures = 0
        self._seconds = seconds

    def __call__(self, chosen: ResolvedModel, device: str) -> Encoder:
        self.names.append(chosen.name)
        time.sleep(0.05)
        if self.failures:
            self.failures -= 1
            raise ModelLoadError(chosen.name, "no weights", "bring some")
        return ModelEncoder(
            chosen,
            device,
            TextTokenizer(tokenizer().backend_tokenizer, 9),
            FakeForward(seconds=self._seconds),
            dimensions=3,
            max_length=9,
            path_reason="",
            named_dimensions=False,
            size=100,
            threads=1,
        )


def together(count: int, work: object) -> list[BaseException]:
    barrier = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001 (looked at by the test)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_eight_threads_construct_a_model_once() -> None:
    """Case 29: waiters share the one that is being built."""
    loads = Loads()
    cache = ModelCache("CPU", loads)
    seen: set[int] = set()

    def use(number: int) -> None:
        with cache.lease(model("ab"[number % 2])) as encoder:
            seen.add(id(encoder))
            time.sleep(0.05)

    assert not together(8, use)
    assert sorted(loads.names) == ["a", "b"]
    assert len(seen) == 2
    assert [(row["model_name"], row["uses"], row["in_use"]) for row in cache.rows()] == [("a", 4, 0), ("b", 4, 0)]
    cache.close()


def test_a_failed_load_reaches_all_waiters_and_may_be_tried_again() -> None:
    loads = Loads()
    loads.failures = 1
    cache = ModelCache("cpu", loads)
    errors = together(4, lambda _: cache.load(model("a")))
    assert errors
    assert {type(error) for error in errors} == {ModelLoadError}
    cache.load(model("a"))
    assert [row["model_name"] for row in cache.rows()] == ["a"]
    cache.close()
    assert cache.rows() == []


def small(budget: int = 0, on_full: str = "error", **other: object) -> ModelCache:
    """Return a cache whose models have 100 bytes each."""
    settings = CacheSettings(budget, on_full, idle_timeout_s=float(other.pop("idle", 0)))
    return ModelCache("cpu", Loads(), settings, expected=lambda _: 100, patience_s=0.3, **other)  # type: ignore[arg-type]


def names(cache: ModelCache) -> list[str]:
    return [row["model_name"] for row in cache.rows()]


def test_what_is_in_use_is_not_ejected() -> None:
    """Case 32: no eject comes between the look-up and the use."""
    cache = ModelCache("cpu", Loads(), patience_s=0.1)
    with cache.lease(model("a")):
        with pytest.raises(ModelInUseError, match="still in use by 1 after 0.1 s and was not ejected; try again later"):
            cache.eject("a")
        assert cache.rows()[0]["in_use"] == 1
    done = cache.eject("a")
    assert (done.freed_bytes, done.forced) == (100, False)
    assert cache.rows() == []


def test_an_eject_waits_for_users_and_new_ones_wait_for_the_eject() -> None:
    """However busy a model is, its turn to go comes; who came meanwhile loads it again."""
    loads = Loads()
    cache = ModelCache("cpu", loads)
    stop = threading.Event()

    def use() -> None:
        while not stop.is_set():
            with cache.lease(model("a")):
                time.sleep(0.02)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    while not cache.rows():
        time.sleep(0.01)
    assert cache.eject("a").freed_bytes == 100
    stop.set()
    for thread in threads:
        thread.join()
    assert loads.names in (["a"], ["a", "a"])
    cache.close()


def test_an_eject_by_force_cancels_the_calls_with_an_error_that_names_it() -> None:
    loads = Loads(seconds=0.2)
    cache = ModelCache("cpu", loads)
    caught: list[BaseException] = []

    def use() -> None:
        try:
            with cache.lease(model("a")) as encoder:
                encoder.embed([f"w{number}" for number in range(60)], EmbedOptions(model_batch_size=1))
        except ModelError as error:
            caught.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    while not cache.rows():
        time.sleep(0.01)
    time.sleep(0.1)
    assert cache.eject("a", force=True).forced
    thread.join()
    (error,) = caught
    assert isinstance(error, ModelEjectedError)
    assert str(error).startswith("model 'a' was ejected by force from device 'cpu' while texts were being embedded")
    assert cache.rows() == []


def test_over_the_budget_a_load_is_refused_with_the_sizes_and_what_could_go() -> None:
    cache = small(150)
    cache.load(model("a"))
    with pytest.raises(ModelDoesNotFitError) as caught:
        cache.load(model("b"))
    assert str(caught.value) == (
        "model 'b' needs 100 bytes on device 'cpu', which has 50 of a budget of 150 left; "
        "eject one of a (100 bytes), or set on_full: evict"
    )
    assert names(cache) == ["a"]
    cache.eject("a")
    cache.load(model("b"))
    assert names(cache) == ["b"]
    cache.close()


def test_by_policy_the_least_recently_used_idle_models_go() -> None:
    cache = small(250, "evict")
    for name in "ab":
        cache.load(model(name))
    with cache.lease(model("a")):
        pass
    cache.load(model("c"))
    assert names(cache) == ["a", "c"]
    with cache.lease(model("a")):
        cache.load(model("d"))
        assert names(cache) == ["a", "d"]
        with (
            cache.lease(model("d")),
            pytest.raises(ModelDoesNotFitError, match=r"eject one of a \(100 bytes, in use\), d"),
        ):
            cache.load(model("e"))
    assert names(cache) == ["a", "d"]
    cache.close()


def test_a_model_larger_than_the_budget_evicts_nothing() -> None:
    cache = small(90, "evict")
    with pytest.raises(
        ModelDoesNotFitError, match="which has 90 of a budget of 90 left; use a smaller model or a larger"
    ):
        cache.load(model("a"))
    cache.close()


def test_what_turns_out_larger_than_its_files_said_is_not_kept() -> None:
    cache = ModelCache("cpu", Loads(), CacheSettings(50), expected=lambda _: 0)
    with pytest.raises(ModelDoesNotFitError, match="needs 100 bytes"):
        cache.load(model("a"))
    assert cache.rows() == []


def test_a_device_without_memory_is_an_error_with_its_numbers() -> None:
    def full(chosen: ResolvedModel, device: str) -> Encoder:
        raise MemoryError("out of memory")

    with pytest.raises(ModelDoesNotFitError, match=r"which has [\d.]+ GiB of [\d.]+ GiB in use"):
        ModelCache("cpu", full).load(model("a"))


def test_unused_models_go_after_the_idle_time_and_used_ones_stay() -> None:
    """Case 34."""
    cache = small(idle=0.2)
    with cache.lease(model("a")):
        cache.load(model("b"))
        time.sleep(0.25)
        assert cache.sweep() == ["b"]
        assert names(cache) == ["a"]
    cache.close()


def test_a_name_that_two_models_share_has_to_be_told_apart() -> None:
    cache = small()
    one = model("a")
    other = ResolvedModel(ModelSpec(name="a", kind="dense", max_length=9), one.path, "digest", "other")
    cache.load(one)
    cache.load(other)
    with pytest.raises(ModelAmbiguousError) as caught:
        cache.eject("a")
    assert caught.value.candidates == ["fingerprint-of-a: max_length None", "other: max_length 9"]
    assert cache.eject("a", fingerprint="other").fingerprint == "other"
    assert cache.rows()[0]["fingerprint"] == "fingerprint-of-a"
    cache.close()


def test_names_are_whole_names() -> None:
    """Not prefixes: `a` is not `ab`."""
    cache = small()
    cache.load(model("ab"))
    for name in ("a", "b", "AB", ""):
        with pytest.raises(ModelNotInCacheError):
            cache.eject(name)
    cache.close()


def test_a_budget_for_one_model_serves_many_threads_that_want_three() -> None:
    live: set[int] = set()
    most = 0
    loads = Loads(seconds=0.001)

    def load(chosen: ResolvedModel, device: str) -> Encoder:
        nonlocal most
        encoder = loads(chosen, device)
        live.add(id(encoder))
        most = max(most, len(live))
        close = encoder.close

        def closed() -> None:
            live.discard(id(encoder))
            close()

        encoder.close = closed  # type: ignore[method-assign]
        return encoder

    cache = ModelCache("cpu", load, CacheSettings(150, "evict", 0), expected=lambda _: 100)

    def use(number: int) -> None:
        for turn in range(4):
            with cache.lease(model("abc"[(number + turn) % 3])) as encoder:
                assert encoder.embed([f"w{number}"]).dense is not None

    assert not together(12, use)
    assert most == 1
    cache.close()


def test_the_size_of_a_model_is_read_from_its_files(tmp_path: Path) -> None:
    dense = resolved(dense_folder(tmp_path))
    cache = ModelCache("cpu")
    with cache.lease(dense) as encoder:
        assert 0.9 * encoder.bytes <= expected_bytes(dense) <= 1.1 * encoder.bytes
    cache.close()
    assert expected_bytes(model("a")) == 0


def test_a_device_is_described_in_words_and_bytes() -> None:
    cache = small(1000)
    cache.load(model("a"))
    info = cache.device_info()
    assert (info["device"], info["models"], info["models_bytes"], info["memory_budget"]) == ("cpu", 1, 100, 1000)
    assert info["memory_usage"] == f"{info['memory_usage_bytes'] / 2**30:.1f} GiB"
    assert 0 < info["memory_usage_bytes"] < info["total_device_memory_bytes"]
    cache.close()


def test_ejecting_what_is_not_there_names_what_is() -> None:
    cache = ModelCache("cpu", Loads())
    cache.load(model("here"))
    with pytest.raises(ModelNotInCacheError, match=r"loaded there: here") as caught:
        cache.eject("gone")
    assert caught.value.loaded == ["here"]
    cache.close()


def test_a_row_has_the_columns_of_the_design() -> None:
    cache = ModelCache("cpu", Loads())
    cache.load(model("a"))
    assert list(cache.rows()[0]) == [
        *("model_name", "device", "kind", "dimensions", "revision", "fingerprint", "dtype", "path", "bytes"),
        *("loaded_at", "last_used_at", "uses", "in_use"),
    ]
    cache.close()


def test_real_models_load_one_after_the_other(tmp_path: Path) -> None:
    """Case 29: even different models corrupt each other when they are built at once (two caches here)."""
    dense, sparse = resolved(dense_folder(tmp_path)), resolved(sparse_folder(tmp_path, "Bert"))
    caches = [ModelCache("cpu"), ModelCache("cpu")]

    def use(number: int) -> None:
        with caches[number % 2].lease(dense if number % 4 < 2 else sparse) as encoder:
            assert not encoder.embed(["w1 w2", "w3"]).failures

    assert not together(8, use)
    for cache in caches:
        cache.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("embed")]


def test_an_eject_gives_the_memory_back() -> None:
    """Case 31: with a stray reference to the encoder kept on purpose."""
    minilm = resolve(ModelSpec(name="sentence-transformers/all-MiniLM-L6-v2"))
    cache = ModelCache("cpu", load_encoder)
    process = psutil.Process()
    cache.load(minilm)
    cache.eject(minilm.name)
    before = process.memory_info().rss
    with cache.lease(minilm) as encoder:
        encoder.embed(["a text", "another"])
    gone = weakref.ref(encoder._engine._forward)  # type: ignore[attr-defined]
    loaded = process.memory_info().rss
    done = cache.eject(minilm.name)
    gc.collect()
    assert gone() is None
    assert done.freed_bytes == encoder.bytes > 90_000_000
    assert loaded - process.memory_info().rss > 0.8 * (loaded - before)
