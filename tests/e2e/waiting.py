"""Waiting for what happens in other processes: by looking again and again, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

POLL_SECONDS = 0.2


def eventually(look: Callable[[], Found], seconds: float, what: str, poll: float = POLL_SECONDS) -> Found:
    """Return the first true value that `look` returns.

    Raises:
        AssertionError: there was none in time; it says what was waited for and what was seen last.
    """
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s for {what}; seen last: {found!r}")
        time.sleep(poll)
    return found
