"""An S3 server (moto's) in a process of its own, as far from the runs as a real one would be."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.s3 import CREDENTIALS

# Ends with whoever started it, however that ends.
_SERVE = """
import ctypes
from moto.server import main
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
main(["-H", "127.0.0.1", "-p", "0"])
"""


@contextmanager
def store(folder: Path) -> Iterator[str]:
    """Run the server and give its endpoint; the standard variables hold credentials meanwhile."""
    before = {name: os.environ.get(name) for name in CREDENTIALS}
    os.environ.update(CREDENTIALS)
    log = folder / "store.log"
    with log.open("w") as opened:
        process = subprocess.Popen([sys.executable, "-c", _SERVE], stdout=opened, stderr=subprocess.STDOUT)
    try:
        yield _endpoint(process, log)
    finally:
        process.kill()
        process.wait()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _endpoint(process: subprocess.Popen[bytes], log: Path) -> str:
    for _ in range(600):
        if found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text(encoding="utf-8")):
            return found[0]
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError(f"the S3 server did not start: {log.read_text(encoding='utf-8')[-2000:]}")
