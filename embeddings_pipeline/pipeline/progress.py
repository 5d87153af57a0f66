"""What a person sees while texts are embedded: log lines, and a bar on a terminal.

What belongs here: the ordinary logger's handler and the wording of progress. What does not:
Dagster's own event log, where a line costs 26 ms (FACTS 3.4).
"""

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager

from tqdm import tqdm

from embeddings_pipeline.pipeline.wording import in_words

_LOGGER = "embeddings_pipeline"

_log = logging.getLogger(__name__)

EVERY_SECONDS = 15.0
"""Between two lines about the whole run."""

_MARKS = 20
"""The lines over which the rate is taken: five minutes."""


class _StderrHandler(logging.Handler):
    """Writes to what is stderr now, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


@contextmanager
def attach_log_handler() -> Generator[None]:
    """Show the package's INFO lines on stderr while the block runs; nested use attaches nothing twice."""
    logger = logging.getLogger(_LOGGER)
    if any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        yield
        return
    handler = _StderrHandler(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    before = (logger.level, logger.propagate)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
        logger.setLevel(before[0])


class Progress:
    """Counts application batches over all parts of a run and says how they go; any thread may call.

    Beside a line for each batch there is one every 15 seconds, however long a batch or loading a model
    takes, which says how much of the whole is done, how fast, and about how long the rest will take.
    """

    def __init__(self, texts: int, every: float = EVERY_SECONDS) -> None:
        """Begin.

        Args:
            texts: how many there are in the whole run.
            every: seconds between two lines about the whole.
        """
        self._bar = tqdm(total=texts, unit=" texts", disable=not sys.stderr.isatty(), leave=False)
        self._texts = texts
        self._batch = self._done = self._computed = 0
        self._since = time.monotonic()
        self._started = False
        self._lock = threading.Lock()
        # When how many texts were computed: the rate is that of the last minutes, since texts and devices differ.
        self._marks: deque[tuple[float, int]] = deque([(self._since, 0)], maxlen=_MARKS)
        self._over = threading.Event()
        self._clock = threading.Thread(target=self._tick, args=(every,), name="progress", daemon=True)
        self._clock.start()

    def started(self, application_batch: int, model_batch: int, workers: int, device: str) -> None:
        """Say once how the run embeds; the clock of the first batch starts."""
        with self._lock:
            if self._started:
                return
            self._started = True
            self._since = time.monotonic()
            self._marks.clear()
            self._marks.append((self._since, 0))
        _log.info(
            "application batch size: %d, model batch size: %d, workers: %d, device: %s",
            application_batch,
            model_batch,
            workers,
            device,
        )

    def batch(self, texts: int) -> None:
        """Say that an application batch is embedded and written."""
        with self._lock:
            now = time.monotonic()
            elapsed, self._since = now - self._since, now
            self._batch += 1
            self._done += texts
            self._computed += texts
            number = self._batch
        rate = texts / elapsed if elapsed else 0.0
        _log.info("Embeddings batch %d: %d records, elapsed: %.2fs, records/sec: %.2f", number, texts, elapsed, rate)
        self._bar.update(texts)

    def passed(self, texts: int) -> None:
        """Count texts that needed no computing."""
        with self._lock:
            self._done += texts
        self._bar.update(texts)

    def line(self) -> str:
        """Return a line about the whole run at this moment."""
        with self._lock:
            now, done, computed = time.monotonic(), self._done, self._computed
            since, before = self._marks[0]
            self._marks.append((now, computed))
        share = f"{done / self._texts:.0%}" if self._texts else "100%"
        said = f"Progress: {done:,} of {self._texts:,} texts ({share})"
        if computed == before:
            return f"{said}, none embedded for {in_words(now - since)}"
        rate = (computed - before) / max(now - since, 1e-9)
        return f"{said}, {rate:,.1f} texts/s, about {in_words((self._texts - done) / rate)} left"

    def close(self) -> None:
        """Take the bar off the terminal and stop the clock."""
        self._over.set()
        self._clock.join()
        self._bar.close()

    def _tick(self, every: float) -> None:
        while not self._over.wait(every):
            _log.info("%s", self.line())
