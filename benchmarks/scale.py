"""Whether time per text and memory stay flat as a corpus grows: `python -m benchmarks.scale`.

What belongs here: counts, rounds and the two growths. What does not: the run itself
(`ways.ThisEngine`) and drawing (`plot`). The model is tiny and random, so that what surrounds it, which is
what could grow, is most of the time.
"""

import argparse
import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import models, report
from benchmarks.plot import Panel, draw
from benchmarks.processes import WayProcess
from benchmarks.rounds import Rounds, figure, interleave
from benchmarks.spread import spread
from benchmarks.texts import TEXTS_FILE, generate

_MEDIAN_TOKENS, _P95_TOKENS = 20, 60
_ROWS_AT_ONCE = 10_000
_MAX_LENGTH = 64

_BASE, _TOP = 1, -1
"""Growth is from the second count on: a small corpus has not filled the three application batches' buffers."""


def _write_source(folder: Path, count: int) -> Path:
    """Write generated texts a block at a time."""
    folder.mkdir()
    schema = pa.schema([("id", pa.string()), ("text", pa.string())])
    texts = generate(count, median=_MEDIAN_TOKENS, p95=_P95_TOKENS, seed=count)
    with pq.ParquetWriter(folder / TEXTS_FILE, schema) as writer:
        for start in range(0, count, _ROWS_AT_ONCE):
            numbers = range(start, min(start + _ROWS_AT_ONCE, count))
            block = {"id": [f"{number:08d}" for number in numbers], "text": [next(texts) for _ in numbers]}
            writer.write_table(pa.table(block, schema=schema))
    return folder


def _run(source: Path, model: Path, count: int) -> dict[str, Any]:
    """Extract, embed and publish one corpus in a process of its own."""
    options = {"model": str(model), "kind": "dense", "max_length": _MAX_LENGTH}
    with WayProcess("benchmarks.ways:ThisEngine", options) as process:
        process.wait_until_ready()
        process.prepare(source)
        figures = process.run()
    per_text = {f"{name}_us": figures[f"{name}seconds"] / count * 1e6 for name in ("", "whole_", "cpu_")}
    return figures | per_text | {"rss_mb": figures["peak_rss_bytes"] / 2**20}


def figures_of(rounds: Rounds, counts: Sequence[int]) -> dict[str, Any]:
    """Return the figures of all counts, and how the last one's compare with the base's in the same round."""
    figures: dict[str, Any] = {"counts": list(counts)}
    for count in counts:
        figures |= figure(rounds, str(count), "_us").keys(f"us_per_text.{count}")
        figures |= figure(rounds, str(count), "rss_mb").keys(f"peak_rss_mb.{count}")
        figures[f"whole_us_per_text.{count}"] = figure(rounds, str(count), "whole__us").median
        figures[f"cpu_us_per_text.{count}"] = figure(rounds, str(count), "cpu__us").median
        figures[f"stolen_seconds.{count}"] = figure(rounds, str(count), "stolen_seconds").median
        figures[f"other_seconds.{count}"] = figure(rounds, str(count), "other_seconds").median
    base, top = rounds[str(counts[_BASE])], rounds[str(counts[_TOP])]
    for name, of in (("rss_growth", "rss_mb"), ("time_growth", "_us"), ("cpu_growth", "cpu__us")):
        pairs = zip(top, base, strict=True)
        figures |= spread([large[of] / small[of] - 1 for large, small in pairs]).keys(name)
    return figures


def table(figures: dict[str, Any]) -> str:
    """Return the figures as a table in Markdown."""
    lines = ["| texts | µs per text (min to max) | CPU µs per text | peak memory MB |", "| --- | --- | --- | --- |"]
    for count in figures["counts"]:
        time, memory = f"us_per_text.{count}", f"peak_rss_mb.{count}"
        lines.append(
            f"| {count:,} | {figures[time]:.1f} ({figures[f'{time}_min']:.1f} to {figures[f'{time}_max']:.1f}) "
            f"| {figures[f'cpu_us_per_text.{count}']:.1f} | {figures[memory]:.0f} |"
        )
    return "\n".join(lines)


def plot(figures: dict[str, Any]) -> str:
    """Return the figures as an SVG."""
    counts = figures["counts"]

    def panel(title: str, name: str) -> Panel:
        columns = [[figures[f"{name}.{count}{end}"] for count in counts] for end in ("", "_min", "_max")]
        return Panel(title, counts, *columns)

    panels = [panel("µs per text, embeddings step", "us_per_text"), panel("Peak resident memory, MB", "peak_rss_mb")]
    return draw(panels, "texts in the corpus")


def main(argv: list[str] | None = None) -> None:
    """Measure what the command line asks for."""
    options = report.parser("Time per text and resident memory as a corpus grows, with a tiny model.")
    options.add_argument("--rounds", type=int, help="3, or 1 with --quick")
    options.add_argument(
        "--counts", help="texts, rising, with commas: 10000,30000,100000,300000, or 300,1000 with --quick"
    )
    options.add_argument("--plot", type=Path, metavar="FILE.svg", help="also draw the figures here")
    options.formatter_class = argparse.HelpFormatter
    arguments = options.parse_args(argv)
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    default = "300,1000,3000" if arguments.quick else "10000,30000,100000,300000"
    counts = [int(count) for count in (arguments.counts or default).split(",")]
    if len(counts) < 2 or counts != sorted(set(counts)):
        raise SystemExit(f"--counts is {arguments.counts}; give two or more numbers, rising")
    with tempfile.TemporaryDirectory(prefix="embeddings-benchmark-") as folder:
        models.quiet()
        model = models.build_tiny(Path(folder) / "tiny")
        ways = {}
        for count in counts:
            report.say(f"writing {count} texts")
            source = _write_source(Path(folder) / str(count), count)
            ways[str(count)] = functools.partial(_run, source, model, count)
        figures = figures_of(interleave(ways, rounds, report.say), counts)
    print(table(figures))
    report.finish("scale", figures, arguments)
    if arguments.plot is not None:
        arguments.plot.parent.mkdir(parents=True, exist_ok=True)
        arguments.plot.write_text(plot(figures), encoding="utf-8")
        report.say(f"drew {arguments.plot}")


if __name__ == "__main__":
    main()
