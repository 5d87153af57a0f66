"""Memory stays flat however many texts there are; nothing here asserts a time."""

import os
import subprocess
import sys
from pathlib import Path

MEASURE = """
import json, resource, sys
from pathlib import Path
from tests.fakes import Bench, FakeEncoder, works

class Forgetful(FakeEncoder):
    def embed(self, texts, *rest):
        result = super().embed(texts, *rest)
        self.calls.clear()
        return result

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

bench = Bench(Path(sys.argv[1]))
bench.encoder = Forgetful()
peaks = []
for start, count in ((0, 3_000), (10_000, 30_000)):
    bench.put("a.jsonl", works(count, start))
    run = bench.run(batch=500, part_texts=1_500)
    assert run.publish.published_rows == run.embed.computed == count
    peaks.append(peak())
run = bench.run(batch=500, part_texts=1_500)
assert run.embed.counts.skipped == 30_000
peaks.append(peak())
print(json.dumps(peaks))
"""


def test_thirty_thousand_texts_take_hardly_more_memory_than_three_thousand(tmp_path: Path) -> None:
    """Case 16 and 18, in small: what grows is 16 bytes per key and per published row, not the texts."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    found = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    small, large, again = (int(number) for number in found.stdout.strip().strip("[]").split(","))
    assert large - small < 60, f"peak MiB: {small} for 3,000 texts, {large} for 30,000"
    assert again - large < 20, f"peak MiB: {again} after skipping 30,000"
