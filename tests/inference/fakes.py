"""A model without weights: what the engine does with trouble can be seen without any."""

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from embeddings_pipeline.inference.engine import Engine
from embeddings_pipeline.inference.forward import Vectors
from embeddings_pipeline.inference.tokens import Ids, TokenizedTexts

WIDTH = 3


def vector_of(text: str) -> list[float]:
    """Return what `FakeForward` makes of a text: its length and its first and last character."""
    return [len(text), ord(text[0]), ord(text[-1])]


class CharacterTokens:
    """A token per character."""

    def encode(self, texts: Sequence[str]) -> TokenizedTexts:
        """Tokenise texts."""
        ids = [np.asarray([ord(character) for character in text], np.int64) for text in texts]
        count = np.asarray([len(row) for row in ids], np.int32)
        return TokenizedTexts(ids, count, np.ones(len(texts), np.bool_), {})


class FakeForward:
    """A forward pass that does what a test wants of it, and remembers its batches."""

    sparse = False

    def __init__(
        self,
        *,
        padded: bool = False,
        poison: str = "\0",
        most_tokens: int = 10**9,
        not_finite: Callable[[str, int], bool] = lambda text, neighbours: False,
        error: Callable[[], Exception] = lambda: ValueError("poison"),
        seconds: float = 0.0,
    ) -> None:
        self.padded = padded
        self.batches: list[list[str]] = []
        self.threads: set[str] = set()
        self.most_at_once = 0
        self._poison = poison
        self._most_tokens = most_tokens
        self._not_finite = not_finite
        self._error = error
        self._seconds = seconds
        self._lock = threading.Lock()
        self._now = 0

    def __call__(self, texts: Sequence[str], ids: Sequence[Ids]) -> Vectors:
        """Compute vectors, or fail."""
        with self._lock:
            self.batches.append(list(texts))
            self.threads.add(threading.current_thread().name)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            time.sleep(self._seconds)
            if sum(len(row) for row in ids) > self._most_tokens:
                raise MemoryError("too many tokens")
            if any(self._poison in text for text in texts):
                raise self._error()
            values = np.asarray([vector_of(text) for text in texts], np.float32)
            for row, text in enumerate(texts):
                if self._not_finite(text, len(texts) - 1):
                    values[row, 1] = np.nan
            return Vectors(values, np.isfinite(values).all(axis=1))
        finally:
            with self._lock:
                self._now -= 1


def engine_of(forward: FakeForward, automatic_tokens: int = 100) -> Engine:
    """Put an engine around a fake model."""
    return Engine(
        "fake", CharacterTokens(), forward, dimensions=WIDTH, max_length=50, automatic_tokens=automatic_tokens
    )
