"""The lines that a person follows a run by, on the stderr of the moment."""

import logging
import re
import threading
import time
from contextlib import closing

import pytest

from embeddings_pipeline.pipeline.progress import EVERY_SECONDS, Progress, attach_log_handler


def test_lines_are_on_stderr_while_the_handler_is_attached_and_not_after(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("embeddings_pipeline")
    before = (logger.level, logger.propagate, list(logger.handlers))
    with attach_log_handler(), attach_log_handler(), closing(Progress(3)) as progress:
        progress.started(3, 4, 1, "cpu")
    assert (logger.level, logger.propagate, list(logger.handlers)) == before
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("application batch size: 3, model batch size: 4, workers: 1, device: cpu\n") == 1


def test_a_batch_line_has_number_records_seconds_and_rate(capsys: pytest.CaptureFixture[str]) -> None:
    with attach_log_handler():
        progress = Progress(5)
        progress.batch(3)
        progress.batch(2)
        progress.close()
    first, second = [line.partition("Embeddings ")[2] for line in capsys.readouterr().err.splitlines()]
    assert first.startswith("batch 1: 3 records, elapsed: 0.")
    assert second.startswith("batch 2: 2 records, elapsed: 0.")
    assert "s, records/sec: " in second


def test_no_bar_is_drawn_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Case 51: a bar in a captured log is megabytes of control characters."""
    progress = Progress(5)
    progress.passed(5)
    progress.close()
    assert capsys.readouterr().err == ""


def test_the_handler_goes_when_the_block_fails() -> None:
    logger = logging.getLogger("embeddings_pipeline")
    before = list(logger.handlers)
    with pytest.raises(KeyError), attach_log_handler():
        raise KeyError
    assert logger.handlers == before


def test_the_whole_has_a_line_every_fifteen_seconds_however_long_a_batch_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the clock and not by the batches: while a model loads, a person wants to know that something is alive."""
    assert EVERY_SECONDS == 15
    with attach_log_handler(), closing(Progress(1_000, every=0.1)):
        time.sleep(0.55)
    lines = [line for line in capsys.readouterr().err.splitlines() if "Progress:" in line]
    assert 3 <= len(lines) <= 5
    assert lines[0].partition("Progress: ")[2].startswith("0 of 1,000 texts (0%), none embedded for ")


def test_a_line_says_what_is_done_how_fast_and_how_long_the_rest_takes() -> None:
    with closing(Progress(30_000)) as progress:
        progress.started(1_000, 64, 2, "cpu")
        progress.passed(20_000)
        time.sleep(0.1)
        progress.batch(1_000)
        line = progress.line()
    found = re.fullmatch(r"Progress: 21,000 of 30,000 texts \(70%\), ([\d,.]+) texts/s, about (\d+) s left", line)
    assert found, line
    rate, left = float(found[1].replace(",", "")), int(found[2])
    assert 200 <= rate <= 10_000
    assert abs(left - 9_000 / rate) <= 1


def test_the_rate_is_that_of_the_last_lines_and_skipped_texts_are_not_in_it() -> None:
    """Ninety of a hundred texts skipped in a second say nothing about the ten that are to be computed."""
    with closing(Progress(1_000)) as progress:
        progress.started(10, 64, 1, "cpu")
        progress.batch(500)
        for _ in range(25):
            progress.line()
        progress.passed(100)
        assert "none embedded for 0 s" in progress.line()


def test_the_clock_ends_with_the_run() -> None:
    with closing(Progress(1, every=0.01)):
        assert "progress" in [thread.name for thread in threading.enumerate()]
    assert "progress" not in [thread.name for thread in threading.enumerate()]
