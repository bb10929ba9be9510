"""Pictures as SVG text: curves, and bars with intervals. Everything written into them is escaped."""

import math
from collections.abc import Sequence
from html import escape

from core.statistics.intervals import Interval

_WIDTH, _HEIGHT = 640, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 20, 40
_PLOT_WIDTH = _WIDTH - _LEFT - _RIGHT
_PLOT_HEIGHT = _HEIGHT - _TOP - _BOTTOM
_MOST_DOTS = 60
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
COLOURS = ("#4c78a8", "#3a9c5f", "#e08a3c", "#b279a2", "#c44e52", "#72b7b2", "#9aa5b1", "#8a6d3b")
"""Of series, in order."""


def curve(series: Sequence[tuple[str, Sequence[float], str]], *, x_label: str, title: str) -> str:
    """Lines over steps 1..n with a fixed y axis from 0 to 1; each series is (name, values, colour)."""
    longest = max((len(values) for _, values, _ in series), default=1)
    parts = [_axes(x_label)]
    for position, (name, values, colour) in enumerate(series):
        points = [(_x(index, longest), _y(value)) for index, value in enumerate(values)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
        legend_x = _LEFT + 10 + position * 160
        parts.append(f'<rect x="{legend_x}" y="6" width="12" height="4" fill="{colour}"/>')
        parts.append(_text(legend_x + 18, 12, name, anchor="start"))
    step = max(1, longest // 12)
    for index in range(0, longest, step):
        parts.append(_text(_x(index, longest), _HEIGHT - _BOTTOM + 16, str(index + 1)))
    return _svg(parts, title)


def lines(series: Sequence[tuple[str, Sequence[float | None]]], *, x_label: str, title: str) -> str:
    """Lines over steps 1..n on an axis from 0 (or the least value below it) to the largest value.

    A value that is None or not finite is a gap.
    """
    known = [value for _, values in series for value in values if value is not None and math.isfinite(value)]
    low, high = min([0.0, *known]), _rounded_up(max([0.0, *known]))
    span = (high - low) or 1.0
    longest = max((len(values) for _, values in series), default=1)
    parts = [_scale(x_label, low, span)]
    for position, (name, values) in enumerate(series):
        colour = COLOURS[position % len(COLOURS)]
        for run in _runs(values):
            points = [(_x(index, longest), _y((value - low) / span)) for index, value in run]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
            if longest <= _MOST_DOTS:
                parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points]
        legend_x = _LEFT + 10 + (position % 4) * 145
        legend_y = 6 + (position // 4) * 14
        parts.append(f'<rect x="{legend_x}" y="{legend_y}" width="12" height="4" fill="{colour}"/>')
        parts.append(_text(legend_x + 18, legend_y + 6, name, anchor="start"))
    step = max(1, math.ceil(longest / 12))
    for index in range(0, longest, step):
        parts.append(_text(_x(index, longest), _HEIGHT - _BOTTOM + 16, str(index + 1)))
    return _svg(parts, title)


def bars(rows: Sequence[tuple[str, Interval, str]], *, title: str) -> str:
    """One bar per (label, interval, colour) with its interval as a whisker; the y axis goes from 0 to 1."""
    parts = [_axes("")]
    slot = _PLOT_WIDTH / max(1, len(rows))
    for index, (label, interval, colour) in enumerate(rows):
        centre = _LEFT + slot * (index + 0.5)
        top = _y(interval.mean)
        half = min(60.0, slot * 0.3)
        floor = _HEIGHT - _BOTTOM
        parts.append(
            f'<rect x="{centre - half:.1f}" y="{top:.1f}" width="{2 * half:.1f}" '
            f'height="{max(0.0, floor - top):.1f}" rx="3" fill="{colour}"/>'
        )
        low, high = _y(interval.low), _y(interval.high)
        parts.append(f'<path d="M{centre:.1f} {low:.1f}V{high:.1f}" stroke="#222" stroke-width="1.5"/>')
        for end in (low, high):
            parts.append(f'<path d="M{centre - 7:.1f} {end:.1f}h14" stroke="#222" stroke-width="1.5"/>')
        parts.append(_text(centre, floor + 16, label))
        parts.append(_text(centre + half + 6, top + 4, f"{100 * interval.mean:.1f}%", anchor="start"))
    return _svg(parts, title)


def _axes(x_label: str) -> str:
    parts = []
    for tick in _TICKS:
        y = _y(tick)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{tick:g}", anchor="end"))
    if x_label:
        parts.append(_text(_LEFT + _PLOT_WIDTH / 2, _HEIGHT - 6, x_label))
    return "".join(parts)


def _scale(x_label: str, low: float, span: float) -> str:
    parts = []
    for tick in _TICKS:
        y = _y(tick)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"{low + tick * span:.3g}", anchor="end"))
    parts.append(_text(_LEFT + _PLOT_WIDTH / 2, _HEIGHT - 6, x_label))
    return "".join(parts)


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """The stretches without a gap, with their places."""
    runs: list[list[tuple[int, float]]] = [[]]
    for index, value in enumerate(values):
        if value is not None and math.isfinite(value):
            runs[-1].append((index, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _rounded_up(value: float) -> float:
    """The next of 1, 2, 4, 5, 8, 10 times a power of ten, so that ticks read well."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1, 2, 4, 5, 8, 10) if value <= step * power), value)


def _x(index: int, count: int) -> float:
    return _LEFT + _PLOT_WIDTH * (index + 0.5) / max(1, count)


def _y(value: float) -> float:
    return _TOP + _PLOT_HEIGHT * (1.0 - min(1.0, max(0.0, value)))


def _text(x: float, y: float, text: str, *, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(parts: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg" font-family="system-ui, sans-serif" font-size="12" fill="#222">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
