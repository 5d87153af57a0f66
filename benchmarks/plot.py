"""A line chart as SVG, written by hand: the project draws nothing else and needs no library for it.

What belongs here: axes, ticks, lines. What does not: what is drawn (`scale`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 420, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 36, 48
_INK, _FAINT, _LINE = "#444", "#ddd", "#2563a8"


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: values over counts, counts on a logarithmic axis, values from zero; bars span all values."""

    title: str
    counts: Sequence[int]
    medians: Sequence[float]
    least: Sequence[float]
    most: Sequence[float]


def draw(panels: Sequence[Panel], horizontal: str) -> str:
    """Return an SVG with the panels side by side.

    Args:
        panels: each with at least one count.
        horizontal: the title of the axis of counts.
    """
    body = "".join(_panel(panel, number * _WIDTH, horizontal) for number, panel in enumerate(panels))
    width = _WIDTH * len(panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" width="{width}" height="{_HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="{_INK}">\n<rect width="100%" height="100%" fill="white"/>\n'
        f"{body}</svg>\n"
    )


def _panel(panel: Panel, shift: int, horizontal: str) -> str:
    top = _nice(max(panel.most))
    low, high = math.log10(min(panel.counts)), math.log10(max(panel.counts))

    def x(count: float) -> float:
        share = (math.log10(count) - low) / (high - low) if high > low else 0.5
        return shift + _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _TOP + (1 - value / top) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [f'<text x="{shift + _LEFT}" y="20" font-weight="bold">{escape(panel.title)}</text>']
    for step in range(5):
        value = top * step / 4
        parts.append(_line(x(10**low), y(value), x(10**high), y(value), _FAINT))
        parts.append(f'<text x="{shift + _LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for count in panel.counts:
        label = f"{count // 1000}k" if count >= 1000 else str(count)
        parts.append(f'<text x="{x(count):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{label}</text>')
    middle = shift + (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 10}" text-anchor="middle">{escape(horizontal)}</text>')
    points = " ".join(
        f"{x(count):.1f},{y(value):.1f}" for count, value in zip(panel.counts, panel.medians, strict=True)
    )
    parts.append(f'<polyline points="{points}" fill="none" stroke="{_LINE}" stroke-width="2"/>')
    for count, value, least, most in zip(panel.counts, panel.medians, panel.least, panel.most, strict=True):
        parts.append(_line(x(count), y(least), x(count), y(most), _LINE))
        parts.append(f'<circle cx="{x(count):.1f}" cy="{y(value):.1f}" r="4" fill="{_LINE}"/>')
    return "\n".join(parts) + "\n"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _nice(value: float) -> float:
    """Return the next of 1, 2, 4, 6, 8 times a power of ten, as the top of an axis with four steps."""
    if value <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= value)
