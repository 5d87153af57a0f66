"""Runs the three use cases once, in a process of its own that a test may kill; needs no torch.

Usage: worker.py ROOT SOURCE_VERSION SECONDS_PER_BATCH
"""

import sys
from pathlib import Path

from tests.fakes import Bench, FakeEncoder
from tests.faults.plan import APPLICATION_BATCH, PART_TEXTS, STRATEGIES, prepare


def main() -> None:
    root, version, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    bench = Bench(root)
    prepare(bench, version)
    bench.encoder = FakeEncoder(seconds=seconds)
    print("ready", flush=True)  # noqa: T201 (the parent waits for this line)
    bench.run(run_id=f"run-{version}", batch=APPLICATION_BATCH, part_texts=PART_TEXTS, strategies=STRATEGIES)
    print("done", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
