"""What a benchmark says: its common options, its table, its JSON.

What belongs here: arguments that all benchmarks share, describing the machine, writing results. What
does not: the README's tables (`readme`).
"""

import argparse
import datetime as dt
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from embeddings_pipeline.inference.device import usable_cores

_LIBRARIES = ("torch", "transformers", "sentence-transformers", "tokenizers", "pyarrow")


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    made.add_argument("--quick", action="store_true", help="small and short, to see that it runs; figures mean nothing")
    return made


def say(message: str) -> None:
    """Show progress, apart from the results."""
    print(f"{dt.datetime.now():%H:%M:%S} {message}", file=sys.stderr, flush=True)


def finish(name: str, figures: Mapping[str, Any], arguments: argparse.Namespace) -> None:
    """Print the figures and write them as flat JSON, with what they were measured on."""
    for key, value in figures.items():
        print(f"{key:42} {_shown(value)}")
    if arguments.json is None:
        return
    document = {"benchmark": name, "quick": arguments.quick, **machine(), **figures}
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    say(f"wrote {arguments.json}")


def machine() -> dict[str, Any]:
    """Describe machine, versions and revision."""
    versions = {f"version.{name}": metadata.version(name) for name in _LIBRARIES}
    return {
        "date": f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC",
        "cpu": _cpu(),
        "cores": usable_cores(),
        "python": platform.python_version(),
        "commit": _commit(),
        **versions,
    }


def _cpu() -> str:
    """Return the processor's name and its widest vector instructions, on which the fastest kernels depend."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    widest = next((f", {shown}" for flag, shown in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), "")
    return f"{names[0] if names else platform.machine()}{widest}"


def _commit() -> str:
    """Return the revision, with a + where files differ from it; "unknown" outside a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--abbrev=10"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _shown(value: Any) -> str:
    return f"{value:.8g}" if isinstance(value, float) else str(value)
