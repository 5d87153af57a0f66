"""Many threads and processes at one host whose budget fits one model of three."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from embeddings_pipeline.host.lifecycle import Hosts
from embeddings_pipeline.settings import Environment
from tests.host.fake_host import MODULE
from tests.host.stress_worker import work
from tests.host.test_lifecycle import ROOT

SECONDS = float(os.environ.get("EMBEDDINGS_STRESS_SECONDS", "10"))


@pytest.mark.slow
def test_sixteen_threads_and_four_processes_get_right_vectors_within_the_budget(home, model, capsys):
    """`make stress` runs it for a minute. The fake encoders fail a load when more than one of them is alive."""
    folders = [model(name, bytes=100, seconds=0.001, budget=100).path for name in ("one", "two", "three")]
    command = [sys.executable, "-m", "tests.host.stress_worker", str(home), str(SECONDS), *map(str, folders)]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(4)]
    try:
        done = work(home, SECONDS, folders, 16)
    finally:
        outputs = [other.communicate(timeout=SECONDS + 120)[0] for other in others]
    assert [other.returncode for other in others] == [0] * 4
    for output in outputs:
        done += Counter(json.loads(output))
    assert done["embed"] > 20
    # With a budget for one model, the one to eject is often gone already.
    assert {"list", "load"} <= done.keys()
    assert any(name.startswith("eject") for name in done)
    with capsys.disabled():
        sys.stdout.write(f"\n{SECONDS:g} s: {dict(sorted(done.items()))}\n")
    hosts = Hosts(home, Environment.read(), module=MODULE)
    log = "\n".join(hosts.log_lines("cpu", 100_000))
    assert "Traceback" not in log
