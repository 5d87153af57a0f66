"""The same records through other products: `python -m benchmarks.peers`, or `make bench-peers`.

What belongs here: their environments, and the comparison with this engine in the same rounds. What
does not: how each is used (`peer_ways`). What cannot be installed or run is reported as not run, with the reason.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import compare, models, report
from benchmarks.processes import ROOT, WayFailedError, WayProcess
from benchmarks.rounds import figure, interleave, ratio
from benchmarks.texts import mixed_texts, token_lengths, write_source
from embeddings_pipeline.inference.device import usable_cores

_OURS = "ours"
_MAX_LENGTH = 512


@dataclass(frozen=True, slots=True)
class Peer:
    """Another product: what pip installs for it, and the way that uses it.

    `pinned` packages get the versions of constraints.txt; an empty list means all of them.
    """

    name: str
    requirements: Sequence[str]
    pinned: Sequence[str]
    way: str


PEERS = (
    Peer("infinity", ["infinity-emb[torch]==0.0.78"], ["torch"], "benchmarks.peer_ways:Infinity"),
    Peer("ray_data", ["ray[data]==2.60.0", "sentence-transformers"], [], "benchmarks.peer_ways:RayData"),
)
"""infinity-emb needs older transformers than ours, so only torch is pinned for it."""


def install(peer: Peer, folder: Path, timeout: float) -> Path:
    """Make the peer's environment unless it is there, and return its interpreter.

    Raises:
        WayFailedError: it cannot be installed here.
    """
    python, ready = folder / "bin" / "python", folder / ".ready"
    if ready.is_file() and ready.read_text(encoding="utf-8") == " ".join(peer.requirements):
        return python
    report.say(f"installing {' '.join(peer.requirements)} into {folder}")
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    chosen = [line for line in lines if not peer.pinned or line.partition("==")[0] in peer.pinned]
    folder.mkdir(parents=True, exist_ok=True)
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(chosen) + "\n", encoding="utf-8")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    try:
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [*pip, "-c", str(constraints), *peer.requirements],
        ):
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise WayFailedError(f"its installation took more than {timeout:.0f} s") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:] or [f"status {error.returncode}"]
        raise WayFailedError(f"it cannot be installed: {last[0][:300]}") from error
    ready.write_text(" ".join(peer.requirements), encoding="utf-8")
    return python


def _options(peer: Peer, model: Path) -> dict[str, Any]:
    if peer.name == "infinity":
        return {"model": str(model)}
    return {"model": str(model), "max_length": _MAX_LENGTH, "batch_size": 4, "cores": usable_cores()}


def main(argv: list[str] | None = None) -> None:
    """Measure what the command line asks for."""
    options = report.parser("This engine beside infinity-emb and Ray Data.")
    options.add_argument("--only", default=",".join(peer.name for peer in PEERS), help="which peers, with commas")
    options.add_argument("--data", type=Path, help="folder of real texts; without it they are generated")
    options.add_argument("--rounds", type=int, default=3, help="1 with --quick")
    options.add_argument("--texts", type=int, default=400, help="24 with --quick")
    options.add_argument("--environments", type=Path, default=ROOT / ".venv" / "peers", help="where they are installed")
    options.add_argument("--install-timeout", type=float, default=900, help="seconds for each")
    arguments = options.parse_args(argv)
    rounds_wanted, count = (1, 24) if arguments.quick else (arguments.rounds, arguments.texts)
    texts, origin = mixed_texts(count, arguments.data)
    lengths = token_lengths(texts, models.minilm_folder(), _MAX_LENGTH)
    figures: dict[str, Any] = {"texts": len(texts), "texts_from": origin, "tokens": sum(lengths)}
    with tempfile.TemporaryDirectory(prefix="embeddings-benchmark-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        model = models.with_max_length(models.minilm_folder(), folder / "model", _MAX_LENGTH)
        source = write_source(folder / "source", texts)
        (folder / "source" / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        ours = {"model": str(model), "kind": "dense", "max_length": _MAX_LENGTH}
        processes = {_OURS: stack.enter_context(WayProcess("benchmarks.ways:ThisEngine", ours))}
        for peer in PEERS:
            if peer.name not in arguments.only.split(","):
                continue
            try:
                python = install(peer, arguments.environments / peer.name, arguments.install_timeout)
                process = WayProcess(peer.way, _options(peer, model), python=python)
                stack.enter_context(process).wait_until_ready()
                process.prepare(source)
                process.run()
                processes[peer.name] = process
            except WayFailedError as error:
                report.say(f"{peer.name} did not run: {error}")
                figures[peer.name] = f"not run: {error}"
        processes[_OURS].wait_until_ready()
        processes[_OURS].prepare(source)
        rounds = interleave({way: process.run for way, process in processes.items()}, rounds_wanted, report.say)
        files = {way: folder / f"{way}.npz" for way in processes}
        for way, process in processes.items():
            process.save(files[way])
        figures |= figure(rounds, _OURS, "seconds").keys("seconds")
        for way in (way for way in processes if way != _OURS):
            figures[way] = "run"
            figures |= figure(rounds, way, "seconds").keys(f"{way}.seconds")
            figures |= ratio(rounds, way, _OURS).keys(f"ratio_to_{way}")
            figures[f"{way}.tokens_per_second"] = sum(lengths) / figures[f"{way}.seconds"]
            figures[f"{way}.min_cosine"] = float(compare.compare_dense(files[way], files[_OURS]).min())
    report.finish("peers", figures, arguments)


if __name__ == "__main__":
    main()
