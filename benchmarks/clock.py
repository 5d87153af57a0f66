"""What a stretch of work cost: wall time, this process's CPU time and memory, and what others took.

What belongs here: reading the kernel's counters. What does not: what is measured (`ways`) and how
often (`inference`). Standard library only, since the peers' environments import it as well.
"""

import os
import resource
import time
from pathlib import Path
from types import TracebackType
from typing import Self

_STEAL = 7
_IDLE = (3, 4)
_GUEST = 8


def machine_seconds() -> tuple[float, float]:
    """Return the seconds stolen by the hypervisor, and those that all cores spent on anything; 0 where unknown."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    except OSError:
        return 0.0, 0.0
    # Guest time is part of user time already, so the fields end before it.
    ticks = [int(field) for field in first.split()[1 : 1 + _GUEST]]
    busy = sum(value for number, value in enumerate(ticks) if number not in (*_IDLE, _STEAL))
    hertz = os.sysconf("SC_CLK_TCK")
    return ticks[_STEAL] / hertz, busy / hertz


def process_seconds() -> float:
    """Return the CPU seconds of this process, all threads, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_memory() -> int:
    """Return the most bytes that were resident at once since this process started.

    Not `ru_maxrss`, which a process inherits from the one that started it.
    """
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


class Clock:
    """Measures a `with` block; `figures` has the result afterwards.

    `stolen_seconds` are core seconds that the hypervisor gave to somebody else, `other_seconds` those
    that other processes of this machine used: where either is large, the block's wall time is noise.
    """

    figures: dict[str, float]

    def __enter__(self) -> Self:
        self._machine = machine_seconds()
        self._process = process_seconds()
        self._wall = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wall = time.perf_counter() - self._wall
        process = process_seconds() - self._process
        stolen, busy = (after - before for after, before in zip(machine_seconds(), self._machine, strict=True))
        self.figures = {
            "seconds": wall,
            "cpu_seconds": process,
            "stolen_seconds": stolen,
            "other_seconds": max(0.0, busy - process),
        }
