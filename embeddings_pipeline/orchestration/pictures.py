"""Small pictures of a run, as markdown that the UI shows in place.

What belongs here: drawing what `reports.EmbedStatistics` holds, and saying in a sentence what is to be seen, also where
there is nothing to draw. What does not: collecting it (`pipeline.statistics`).

The UI draws markdown of less than 1,000 characters where it stands and hides a longer one behind a link; and metadata
is a row of the event log for good. So a picture is an SVG of a few hundred characters, without font, script or file
from elsewhere, and coarser where there is more to draw. Its colours can be seen on white and on the dark theme alike.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from embeddings_pipeline.pipeline.statistics import BIN_EDGES
from embeddings_pipeline.pipeline.wording import in_words
from embeddings_pipeline.reports import EmbedReport

LARGEST = 999
"""Characters of a picture's markdown, at most."""

COLOURS = ("steelblue", "chocolate", "seagreen", "mediumorchid")
"""Of strategies, by name; of more than four, those after the third share the fourth."""

_WIDTH, _TOP, _BOTTOM = 410, 18, 116
_WARNING = "chocolate"

T = TypeVar("T")


def token_lengths(report: EmbedReport) -> str:
    """Return the histogram of the texts' token counts, before truncation, with the model's limit."""
    lengths, limit = report.statistics.token_lengths, report.statistics.max_length
    texts = sum(lengths.values())
    if not texts:
        return nothing(report)
    said = [f"{texts:,} texts; half have up to {_quantile(lengths, 0.5):,} tokens."]
    if limit and report.truncated:
        said.append(f"{report.truncated:,} are over the model's limit and cut.")
    if (unknown := report.counts.embedded + report.counts.skipped - texts) > 0:
        said.append(f"{unknown:,} more were published before.")
    return _fitting(
        "Token lengths", (1, 2, 3, 6, 12), lambda coarse: _histogram(lengths, limit, coarse), lambda _: said
    )


def throughput(report: EmbedReport) -> str:
    """Return texts and tokens per second over the time of this attempt."""
    statistics = report.statistics
    slots = len(statistics.texts_per_second)
    if not slots:
        return nothing(report)
    said = [f"{report.computed:,} texts in {in_words(report.seconds)}, with loading the model."]
    if resumed := sum(part.counts.embedded for part in report.parts if part.resumed):
        said.append(f"{resumed:,} of an earlier attempt are not in it.")
    end = in_words(min(slots * statistics.slot_seconds, report.seconds))

    def draw(most: int) -> str:
        at_once = math.ceil(slots / most)
        return "".join(
            [
                _steps(_means(statistics.texts_per_second, at_once), "texts/s", COLOURS[0], 14, 52),
                _steps(_means(statistics.tokens_per_second, at_once), "tokens/s", COLOURS[2], 72, _BOTTOM),
                _text(0, 130, "0 s"),
                _text(_WIDTH, 130, end, "end"),
            ]
        )

    return _fitting("Throughput", (30, 20, 15, 10, 5), draw, lambda _: said)


def projection(report: EmbedReport) -> str:
    """Return a sample of the vectors in two dimensions, coloured by strategy."""
    points, explained = report.statistics.points, report.statistics.explained
    if not points:
        return "Nothing to draw: too few different vectors." if report.computed else nothing(report)
    # They come in the order of their texts' hashes: the first ones are a fair sample.
    return _fitting(
        "Projection of vectors",
        range(min(len(points), 150), 0, -3),
        lambda most: _scatter(points[:most]),
        lambda most: [
            f"{most} vectors on the two axes along which",
            f"they differ most ({explained:.0%} of the variance).",
        ],
    )


def nothing(report: EmbedReport) -> str:
    """Say why there is nothing to draw."""
    counts = report.counts
    if not counts.read:
        return "Nothing to draw: the delivery has no text."
    return (
        "Nothing to draw: no text went through the model  \n"
        f"({counts.skipped:,} were published before, {counts.embedded:,} embedded  \n"
        f"by an earlier attempt, {counts.rejected:,} rejected)."
    )


def _fitting(title: str, details: Iterable[T], draw: Callable[[T], str], say: Callable[[T], list[str]]) -> str:
    """Return the picture with the most detail that fits, and its sentence in lines as narrow as the UI's column."""
    markdown = ""
    for detail in details:
        svg = (
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='134' style='font:11px sans-serif' "
            f"fill='gray'>{draw(detail)}</svg>"
        )
        for sign, code in (("%", "%25"), ("<", "%3C"), (">", "%3E"), ("#", "%23")):
            svg = svg.replace(sign, code)
        markdown = f"![{title}](<data:image/svg+xml,{svg}>)\n\n" + "  \n".join(say(detail))
        if len(markdown) <= LARGEST:
            break
    return markdown


def _histogram(lengths: Mapping[int, int], limit: int, coarse: int) -> str:
    """Draw bars over an axis on which each step doubles; `coarse` bins become one."""
    edges = [int(edge) for edge in BIN_EDGES]
    first = edges.index(min(lengths)) // coarse * coarse
    last = edges.index(max(lengths)) // coarse * coarse + coarse
    starts = range(first, last, coarse)
    bars = [sum(lengths.get(edge, 0) for edge in edges[start : start + coarse]) for start in starts]
    places = [max(edges[min(start, len(edges) - 1)], 1) for start in (*starts, last)]
    low, high = places[0], max(places[-1], limit + 1, 2 * places[0])
    scale = _WIDTH / math.log2(high / low)

    def place(tokens: float) -> int:
        return round(math.log2(max(tokens, low) / low) * scale)

    top = max(bars)
    cut = limit + 1 if limit else high
    within, beyond = f"M0 {_BOTTOM}", f"M{place(cut)} {_BOTTOM}"
    for texts, (start, end) in zip(bars, itertools.pairwise(places), strict=True):
        height = round(_BOTTOM - texts / top * (_BOTTOM - _TOP))
        if start < cut:
            within += f"V{height}H{place(min(end, cut))}"
        if end > cut:
            beyond += f"V{height}H{place(end)}"
    drawn = f"<path d='{within}V{_BOTTOM}z' fill='{COLOURS[0]}'/>"
    if places[-1] > cut:
        drawn += f"<path d='{beyond}V{_BOTTOM}z' fill='{_WARNING}'/>"
    if limit:
        at = place(cut)
        side, gap = ("end", -4) if at > _WIDTH / 2 else ("start", 4)
        drawn += f"<path d='M{at} 2V{_BOTTOM}' stroke='{_WARNING}'/>"
        drawn += _text(at + gap, 11, f"limit {limit:,}", side, _WARNING)
    side = "end" if limit and place(cut) < 100 else "start"
    drawn += _text(_WIDTH if side == "end" else 0, 11, f"up to {_short(top)} texts", side)
    powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    ticks = [power for power in powers[:: max(1, math.ceil(len(powers) / 4))] if 8 < place(2**power) < _WIDTH - 20]
    return drawn + "".join(_text(place(2**power), 130, _doubled(power), "middle") for power in ticks)


def _scatter(points: Sequence[tuple[str, float, float]]) -> str:
    """Draw points, with the names of their strategies."""
    names = sorted({name for name, _, _ in points})
    groups = [(name, [name]) for name in names[: len(COLOURS) - 1]]
    if others := names[len(COLOURS) - 1 :]:
        groups.append((others[0] if len(others) == 1 else f"{len(others)} others", others))
    placed = _placed(points)
    dots = legend = ""
    for number, (label, members) in enumerate(groups):
        # Sorted and relative to each other, since that takes the fewest characters. A line of no length is a dot.
        places = sorted({(x, y) for name, x, y in placed if name in members})
        steps = "".join(f"m{x - left} {y - up}z" for (left, up), (x, y) in itertools.pairwise([(0, 0), *places]))
        dots += f"<path stroke='{COLOURS[number]}' d='{steps.replace(' -', '-')}'/>"
        legend += _text(0, 12 + 16 * number, label if len(label) <= 16 else f"{label[:15]}…", colour=COLOURS[number])
    return f"<g stroke-width='5' stroke-linecap='round'>{dots}</g>{legend}"


def _placed(points: Sequence[tuple[str, float, float]]) -> list[tuple[str, int, int]]:
    """Return where points are drawn: beside the names and as large as fits, both axes with one scale."""
    across, up = np.array([(x, y) for _, x, y in points]).T
    scale = min(280 / max(np.ptp(across), 1e-9), 122 / max(np.ptp(up), 1e-9))
    middle_x, middle_y = (across.max() + across.min()) / 2, (up.max() + up.min()) / 2
    return [(name, round(264 + (x - middle_x) * scale), round(67 - (y - middle_y) * scale)) for name, x, y in points]


def _steps(rates: Sequence[float], unit: str, colour: str, top: int, bottom: int) -> str:
    """Draw rates as steps over the whole width, with the highest of them."""
    most = max(rates)
    path = "".join(
        f"V{round(bottom - rate / most * (bottom - top))}H{round((number + 1) * _WIDTH / len(rates))}"
        for number, rate in enumerate(rates)
    )
    return f"<path d='M0 {bottom}{path}V{bottom}z' fill='{colour}'/>" + _text(
        0, top - 3, f"up to {_short(most)} {unit}"
    )


def _means(rates: Sequence[float], at_once: int) -> list[float]:
    return [float(np.mean(rates[start : start + at_once])) for start in range(0, len(rates), at_once)]


def _text(x: float, y: float, words: str, anchor: str = "start", colour: str = "") -> str:
    where = "" if anchor == "start" else f" text-anchor='{anchor}'"
    fill = f" fill='{colour}'" if colour else ""
    safe = words.replace("&", "&amp;").replace("<", "&lt;")
    across = f" x='{x:g}'" if x else ""
    return f"<text{across} y='{y:g}'{where}{fill}>{safe}</text>"


def _quantile(lengths: Mapping[int, int], share: float) -> int:
    """Return the largest token count of the bin in which this share of the texts is reached."""
    bins = sorted(lengths.items())
    reached = np.cumsum([texts for _, texts in bins])
    edge = bins[int(np.searchsorted(reached, share * reached[-1]))][0]
    return int(BIN_EDGES[int(np.searchsorted(BIN_EDGES, edge)) + 1]) - 1


def _doubled(power: int) -> str:
    """Return a power of two, in units of 1,024."""
    return f"{2 ** (power % 10)}{('', 'k', 'M', 'G')[power // 10]}"


def _short(value: float) -> str:
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"
