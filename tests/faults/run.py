"""`make faults`: a run is killed, refused or answered wrongly at every point, started again, and compared.

Usage: python -m tests.faults.run [--seed N] [--random N] [--only disk|s3] [--quick] [--json FILE]

After each fault the dataset equals an uninterrupted run's on (key, strategy, vector), `embeddings verify` exits 0, and
nothing is left behind; a reader that follows the manifest meanwhile never finds a set mixed or with a file missing.
The S3 server is moto's, in a process of its own. Exit code 1 where any row of the table failed.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.faults import scenarios
from tests.faults.backend import Backend
from tests.faults.nursery import Nursery
from tests.faults.scenarios import Table
from tests.faults.store import store


def run(root: Path, table: Table, *, seed: int, times: int, only: str | None, quick: bool) -> None:
    """Fill the table; `quick` takes some rows of every kind."""
    with ExitStack() as stack:
        endpoint = "" if only == "disk" else stack.enter_context(store(root))
        nursery = stack.enter_context(Nursery(root))
        for name in ("disk", "s3"):
            if only in (None, name):
                backend = Backend(name, root, endpoint if name == "s3" else "")
                common(backend, nursery, table, seed, times, quick)
                if name == "s3":
                    remote(backend, nursery, table, seed, quick)


def common(backend: Backend, nursery: Nursery, table: Table, seed: int, times: int, quick: bool) -> None:
    """What disk and S3 share."""
    scenarios.at_points(backend, nursery, table, every=5 if quick else 1)
    scenarios.at_random(backend, nursery, table, 6 if quick else times, seed)
    # On a store the race has no lock and many ends: the whole run looks at it, the quick one in CI does not.
    if not (quick and backend.endpoint):
        scenarios.at_once(backend, nursery, table, seed, rounds=1 if quick else 3)
    scenarios.files_too_large(backend, nursery, table)
    scenarios.disk_full(backend, nursery, table)


def remote(backend: Backend, nursery: Nursery, table: Table, seed: int, quick: bool) -> None:
    """What only a store can do."""
    scenarios.broken_answers(backend, nursery, table, seed, every=6 if quick else 1)
    scenarios.store_down(backend, nursery, table, seed)
    scenarios.in_pieces(backend, nursery, table)


def main() -> int:
    """Run everything, print the table as it grows, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--random", type=int, default=50, help="random kills on disk, and as many in S3")
    parser.add_argument("--only", choices=["disk", "s3"])
    parser.add_argument("--quick", action="store_true", help="some rows of every kind")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    started = time.monotonic()
    table = Table()
    root = Path(tempfile.mkdtemp(prefix="embeddings-faults-"))
    before = tempfile.tempdir
    try:
        run(root, table, seed=arguments.seed, times=arguments.random, only=arguments.only, quick=arguments.quick)
    finally:
        tempfile.tempdir = before
        shutil.rmtree(root, ignore_errors=True)
    seconds = time.monotonic() - started
    print(f"{len(table.rows)} rows, {len(table.failed)} failed, {seconds:.0f} s, seed {arguments.seed}")
    if arguments.json:
        facts = {"seed": arguments.seed, "rows": len(table.rows), "failed": len(table.failed)}
        facts |= {"seconds": round(seconds, 1), "cpus": len(os.sched_getaffinity(0)), "table": table.rows}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
