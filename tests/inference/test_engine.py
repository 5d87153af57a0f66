"""What the engine does with bad texts, little memory, several callers and those who give up."""

import random
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddings_pipeline.errors import EmbeddingCancelledError, ModelError
from embeddings_pipeline.inference.engine import Engine, is_device_error, is_out_of_memory
from embeddings_pipeline.records import EmbeddedBatch, EmbedOptions, Reason
from tests.inference.fakes import WIDTH, FakeForward, engine_of, vector_of

OPTIONS = EmbedOptions()


def embed(forward: FakeForward, texts: list[str], options: EmbedOptions = OPTIONS, workers: int = 2) -> EmbeddedBatch:
    engine = engine_of(forward)
    try:
        return engine.embed(texts, options, workers, None)
    finally:
        engine.close()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.text("abc", min_size=1, max_size=30), max_size=60), st.integers(1, 9), st.integers(1, 90), st.booleans()
)
def test_rows_are_in_input_order_whatever_the_batches(texts: list[str], size: int, tokens: int, padded: bool) -> None:
    batch = embed(FakeForward(padded=padded), texts, EmbedOptions(size, tokens))
    assert batch.dense is not None
    assert batch.dense.tolist() == [vector_of(text) for text in texts]
    assert batch.dense.shape == (len(texts), WIDTH)
    assert batch.token_count.tolist() == [len(text) for text in texts]
    assert not batch.failures


def test_the_batches_do_not_depend_on_the_order_of_texts_or_workers() -> None:
    """A resumed part is the same part."""
    texts = [f"{number:03}" + "x" * (number % 7) for number in range(90)]
    runs = []
    for workers in (1, 3):
        forward = FakeForward()
        random.Random(workers).shuffle(texts)
        embed(forward, texts, workers=workers)
        runs.append(sorted(forward.batches))
    assert runs[0] == runs[1]


def test_equal_texts_are_computed_once() -> None:
    forward = FakeForward()
    batch = embed(forward, ["same", "other", "same"] * 5)
    assert sorted(text for texts in forward.batches for text in texts) == ["other", "same"]
    assert batch.dense is not None
    assert batch.dense[0].tolist() == batch.dense[-1].tolist() == vector_of("same")


def test_a_text_that_makes_the_model_raise_is_found_and_the_rest_embedded() -> None:
    """Case 9: one record must not end a job of many hours, at any batch size."""
    texts = [f"good {number}" for number in range(63)]
    texts.insert(17, "bad!")
    batch = embed(FakeForward(poison="!"), [*texts, "bad!"], EmbedOptions(64, 10_000))
    assert [(failure.row, failure.reason) for failure in batch.failures] == [
        (17, Reason.MODEL_ERROR),
        (64, Reason.MODEL_ERROR),
    ]
    assert "ValueError: poison" in batch.failures[0].detail
    assert batch.dense is not None
    assert batch.dense[17].tolist() == [0, 0, 0]
    assert batch.dense[18].tolist() == vector_of("good 17")


def test_a_model_that_raises_on_everything_fails_the_call() -> None:
    """Ten million rejects would not be what anybody wants of a missing kernel."""
    with pytest.raises(ModelError, match="each of 20 texts"):
        embed(FakeForward(poison="good"), [f"good {number:02}" for number in range(20)], EmbedOptions(64, 10_000))


def test_a_lost_device_fails_the_call_at_once() -> None:
    """After a device-side assert every further text fails as well, each after a time-out."""
    forward = FakeForward(poison="!", error=lambda: RuntimeError("CUDA error: device-side assert triggered"))
    with pytest.raises(ModelError, match="device-side assert"):
        embed(forward, ["one!", *(f"good {number}" for number in range(9))], EmbedOptions(64, 10_000), workers=1)
    assert len(forward.batches) == 1


def test_a_vector_that_is_not_finite_is_computed_again_alone() -> None:
    """Case 6: some texts give NaN among many others only; those that stay so are rejected."""
    forward = FakeForward(
        not_finite=lambda text, neighbours: text == "always" or (text == "crowded" and neighbours > 0)
    )
    batch = embed(forward, ["fine", "crowded", "always", "also fine"])
    assert [(failure.row, failure.reason) for failure in batch.failures] == [(2, Reason.NON_FINITE)]
    assert batch.dense is not None
    assert batch.dense[1].tolist() == vector_of("crowded")
    assert np.isfinite(batch.dense).all()


@pytest.mark.parametrize("padded", [False, True])
def test_out_of_memory_halves_the_budget_and_is_remembered(padded: bool) -> None:
    """Case 30: a long text among short ones, a budget that is learned, and a sentence in the log."""
    forward = FakeForward(padded=padded, most_tokens=40)
    engine = engine_of(forward)
    texts = [f"{number:02}" + "y" * 8 for number in range(30)]
    batch = engine.embed([*texts, "z" * 39, "q" * 41], OPTIONS, 1, None)
    assert [(failure.row, failure.reason) for failure in batch.failures] == [(31, Reason.TOO_LARGE)]
    assert batch.dense is not None
    assert batch.dense[:31].tolist() == [vector_of(text) for text in [*texts, "z" * 39]]
    assert any("out of memory" in event and "model_batch_tokens is" in event for event in batch.events)
    assert engine.budget(OPTIONS) <= 50
    forward.batches.clear()
    assert not engine.embed(texts, OPTIONS, 1, None).events
    assert max(sum(map(len, texts)) for texts in forward.batches) <= 40
    engine.close()


def test_out_of_memory_is_known_by_its_many_names() -> None:
    class OutOfMemoryError(RuntimeError):
        """As torch has one."""

    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(OutOfMemoryError("CUDA"))
    assert is_out_of_memory(
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")
    )
    assert is_out_of_memory(RuntimeError("not enough memory: you tried to allocate 1 bytes"))
    assert not is_out_of_memory(ValueError("out of memory of better days"))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert is_device_error(RuntimeError("CUDA error: an illegal memory access was encountered"))


def test_cancelling_ends_a_call_within_one_model_batch() -> None:
    forward = FakeForward(seconds=0.15)
    engine = engine_of(forward)
    cancel = threading.Event()
    threading.Timer(0.2, cancel.set).start()
    started = time.monotonic()
    with pytest.raises(EmbeddingCancelledError):
        engine.embed([f"{number:04}" for number in range(400)], EmbedOptions(1), 2, cancel)
    assert time.monotonic() - started < 1.0
    assert len(forward.batches) < 12
    count = len(forward.batches)
    with pytest.raises(EmbeddingCancelledError):
        engine.embed(["late"], OPTIONS, 1, cancel)
    assert len(forward.batches) == count
    assert engine.embed(["another call"], OPTIONS, 1, threading.Event()).dense is not None
    engine.close()


def test_a_failing_call_does_not_touch_its_neighbour() -> None:
    """Two application batches are in flight: the error belongs to one of them."""
    engine = engine_of(FakeForward(poison="!", error=lambda: RuntimeError("CUDA error: lost"), seconds=0.01))
    outcome: list[object] = []

    def good() -> None:
        outcome.append(engine.embed([f"good {number}" for number in range(40)], EmbedOptions(1), 2, None))

    thread = threading.Thread(target=good)
    thread.start()
    with pytest.raises(ModelError):
        engine.embed([f"bad! {number}" for number in range(40)], EmbedOptions(1), 2, None)
    thread.join()
    assert isinstance(outcome[0], EmbeddedBatch)
    engine.close()


def test_sixteen_threads_share_the_workers() -> None:
    """Case 37, and no more threads compute than were asked for."""
    forward = FakeForward(seconds=0.002)
    engine = engine_of(forward)
    results: dict[int, EmbeddedBatch] = {}

    def call(number: int) -> None:
        results[number] = engine.embed([f"{number}:{row}" for row in range(20)], EmbedOptions(4), 2, None)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, batch in results.items():
        assert batch.dense is not None
        assert batch.dense.tolist() == [vector_of(f"{number}:{row}") for row in range(20)]
    assert len(results) == 16
    assert forward.most_at_once == 2
    engine.close()


def test_one_worker_of_one_call_is_not_joined_by_those_of_another() -> None:
    """`workers: 1` means one busy core, whoever else calls."""
    forward = FakeForward(seconds=0.005)
    engine = engine_of(forward)
    threads = [
        threading.Thread(target=engine.embed, args=([f"{number}{row}" for row in range(9)], EmbedOptions(1), 1, None))
        for number in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert forward.most_at_once == 1
    engine.close()


def test_closing_ends_calls_and_leaves_no_thread() -> None:
    """A caller of an ejected encoder gets an error, never a hang."""
    engine = engine_of(FakeForward(seconds=0.05))
    errors: list[BaseException] = []

    def call() -> None:
        try:
            engine.embed([f"{number:03}" for number in range(200)], EmbedOptions(1), 2, None)
        except ModelError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(0.12)
    engine.close()
    engine.close()
    thread.join(5)
    assert "ejected while it was in use" in str(errors[0])
    assert not [alive.name for alive in threading.enumerate() if alive.name.startswith("fake")]
    with pytest.raises(ModelError):
        engine.embed(["late"], OPTIONS, 1, None)


def test_a_worker_that_cannot_start_reaches_the_caller() -> None:
    """Case 35: a worker that dies must not leave its caller waiting for ever."""

    def broken() -> None:
        raise OSError("no more threads for you")

    forward = FakeForward()
    healthy = engine_of(forward)
    engine = Engine(
        "fake", healthy._tokens, forward, dimensions=WIDTH, max_length=50, automatic_tokens=9, prepare_worker=broken
    )
    with pytest.raises(ModelError, match="no more threads for you"):
        engine.embed(["a", "b"], EmbedOptions(1), 2, None)
    engine.close()
    healthy.close()


def test_the_time_of_the_forward_passes_is_added_up() -> None:
    """The share of time in which the model computes is this over workers times wall time."""
    batch = embed(FakeForward(seconds=0.02), ["a", "b", "c", "d"], EmbedOptions(1), workers=2)
    assert 0.08 <= batch.compute_seconds < 0.5
