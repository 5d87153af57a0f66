"""Puts the results that lie in benchmarks/results/ into the tables of README.md: `python -m benchmarks.readme`.

What belongs here: which figures the tables show. What does not: measuring them.
"""

import argparse
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import scale

FOLDER = Path(__file__).parent
Figures = Mapping[str, Any]

_INFERENCE = (
    ("share of the machine's matrix products", "share_of_limit"),
    ("times the nearest peer's way", "ratio_to_peer"),
    (
        "times sentence-transformers (dense: whole list at batch 32; sparse: best batch size, decode, JSON)",
        "ratio_to_st",
    ),
    ("times sentence-transformers at batch 32, sparse", "ratio_to_st_default"),
    ("the same, extracting and publishing included", "ratio_to_peer_whole"),
    ("CPU seconds of the other over ours", "ratio_cpu_seconds"),
    ("tokens per second", "tokens_per_second"),
    ("share of the step in which the model computes", "compute_share"),
    ("peak memory, MB", "peak_rss_mb"),
    ("peak memory, of the other's", "peak_memory_ratio"),
    ("least cosine to sentence-transformers", "min_cosine"),
    ("largest difference to sentence-transformers", "max_abs_diff"),
    ("same support", "same_support"),
    ("stolen core seconds per second", "stolen_seconds_per_second"),
)


def inference_table(figures: Figures) -> str:
    """Return the table of `benchmarks.inference`, a column for each model that was measured."""
    titles = {"dense": "all-MiniLM-L6-v2", "sparse": "splade-tiny", "sparse_minilm": "MiniLM with a head of 30,522"}
    sections = [section for section in titles if f"{section}.seconds" in figures]
    lines = [f"| | {' | '.join(titles[section] for section in sections)} |", "| --- |" + " --- |" * len(sections)]
    for words, name in _INFERENCE:
        cells = [_cell(figures, f"{section}.{name}") for section in sections]
        if any(cell != "–" for cell in cells):
            lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def quality_table(figures: Figures) -> str:
    """Return the table of `benchmarks.quality`."""
    lines = ["| | documents | nDCG@10 | recall@100 | expected nDCG@10 |", "| --- | --- | --- | --- | --- |"]
    for section, expected in (("dense", "published"), ("sparse", "expected")):
        names = ("documents", "ndcg@10", "recall@100", f"{expected}_ndcg@10")
        lines.append(f"| {section} | {' | '.join(_cell(figures, f'{section}.{name}') for name in names)} |")
    return "\n".join(lines)


def peers_table(figures: Figures) -> str:
    """Return the table of `benchmarks.peers`."""
    lines = ["| | this engine is … times as fast | least cosine to ours |", "| --- | --- | --- |"]
    for name, title in (("infinity", "infinity-emb, torch"), ("ray_data", "Ray Data, one actor")):
        if str(figures.get(name, "not run")).startswith("not run"):
            lines.append(f"| {title} | {figures.get(name, 'not run')} | – |")
        else:
            lines.append(f"| {title} | {_cell(figures, f'ratio_to_{name}')} | {_cell(figures, f'{name}.min_cosine')} |")
    return "\n".join(lines)


def scale_table(figures: Figures) -> str:
    """Return the table of `benchmarks.scale` and its two growths."""
    growths = ", ".join(
        f"{words} {figures[name]:+.1%} ({figures[f'{name}_min']:+.1%} to {figures[f'{name}_max']:+.1%})"
        for words, name in (("memory", "rss_growth"), ("time per text", "time_growth"))
    )
    counts = figures["counts"]
    return f"{scale.table(dict(figures))}\n\nFrom {counts[1]:,} to {counts[-1]:,} texts: {growths}."


TABLES: dict[str, Callable[[Figures], str]] = {
    "inference": inference_table,
    "quality": quality_table,
    "peers": peers_table,
    "scale": scale_table,
}


def fill(text: str, results: Mapping[str, Figures]) -> str:
    """Replace what stands between the markers of each result that is there.

    Args:
        text: of a file with `<!-- results:NAME -->` and `<!-- end -->`.
        results: by name of the benchmark.
    """
    for name, figures in results.items():
        run = f"Run on {figures['date']}, {figures['cores']} cores ({figures['cpu']}), revision {figures['commit']}"
        warning = " **with --quick: these figures mean nothing**" if figures["quick"] else ""
        filled = f"{run}{warning}.\n\n{TABLES[name](figures)}"
        marked = re.compile(rf"(<!-- results:{name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
        text = marked.sub(lambda found, filled=filled: found[1] + filled + found[2], text)
    return text


def _cell(figures: Figures, name: str) -> str:
    value = figures.get(name)
    if value is None:
        return "–"
    if isinstance(value, bool | str):
        return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else value
    if "cosine" in name:
        return f"{value:.7f}"
    shown = _number(value)
    if f"{name}_min" in figures:
        shown += f" ({_number(figures[f'{name}_min'])} to {_number(figures[f'{name}_max'])})"
    return shown


def _number(value: float) -> str:
    if isinstance(value, int) or value >= 100:
        return f"{value:,.0f}"
    if value and abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.4g}"


def main(argv: list[str] | None = None) -> None:
    """Fill the README from the results that are there."""
    options = argparse.ArgumentParser(description="Put benchmarks/results/*.json into benchmarks/README.md.")
    options.add_argument("--results", type=Path, default=FOLDER / "results")
    options.add_argument("--readme", type=Path, default=FOLDER / "README.md")
    arguments = options.parse_args(argv)
    files = {name: arguments.results / f"{name}.json" for name in TABLES}
    results = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.is_file()}
    before = arguments.readme.read_text(encoding="utf-8")
    arguments.readme.write_text(fill(before, results), encoding="utf-8")
    print(f"filled {', '.join(results) or 'nothing'} into {arguments.readme}")


if __name__ == "__main__":
    main()
