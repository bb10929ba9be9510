"""Geometry of a decision's pictures: numbers that the page's template draws as SVG. No text is put together here."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.release_run import ReleaseRun

WIDTH = 720.0
_LEFT, _RIGHT = 230.0, 20.0
_ROW = 26.0
_PLOT_HEIGHT = 190.0
_MOST_EVIDENCE = 1.5
"""Of the threshold: what lies further up is drawn at the edge."""
_COLOURS = ("#2b6cb0", "#2f855a", "#c05621", "#6b46c1", "#b7791f", "#285e61", "#97266d", "#4a5568")


@dataclass(frozen=True)
class Whisker:
    """One row of a forest."""

    label: str
    note: str
    y: float
    low: float
    mean: float
    high: float
    bound: float | None
    colour: str


@dataclass(frozen=True)
class Forest:
    """Intervals below one another on one scale, with the bound that each must keep."""

    title: str
    rows: list[Whisker]
    zero: float
    ticks: list[tuple[float, str]]
    height: float
    kind: str = "forest"
    width: float = WIDTH


@dataclass(frozen=True)
class Line:
    """One claim's evidence over time."""

    label: str
    points: str
    colour: str
    y: float
    """Of its legend."""


@dataclass(frozen=True)
class Lines:
    """E-processes: logs of wealth in units of what is needed."""

    title: str
    lines: list[Line]
    threshold: float
    ticks: list[tuple[float, str]]
    height: float
    kind: str = "lines"
    width: float = WIDTH
    left: float = _LEFT


@dataclass(frozen=True)
class Steps:
    """The candidate's share over time."""

    title: str
    points: str
    marks: list[tuple[float, float, str]] = field(default_factory=list)
    height: float = _PLOT_HEIGHT
    kind: str = "steps"
    width: float = WIDTH


def domain_forest(intervals: Sequence[Mapping[str, Any]]) -> Forest | None:
    """Differences by Domain against the hard margins; None without one."""
    if not intervals:
        return None
    scale = _Scale([value for one in intervals for value in (one["low"], one["high"], -(one["margin"] or 0.0), 0.0)])
    colours = {"suite": _COLOURS[0], "base": _COLOURS[7], "shadow": _COLOURS[1]}
    rows = [
        Whisker(
            label=f"{one['domain']} ({one['source']})",
            note=f"n = {one['count']}",
            y=_ROW * (place + 1),
            low=scale(one["low"]),
            mean=scale(one["mean"]),
            high=scale(one["high"]),
            bound=None if one["margin"] is None else scale(-one["margin"]),
            colour=colours.get(one["source"], _COLOURS[0]),
        )
        for place, one in enumerate(intervals)
    ]
    return _forest("Difference by Domain, candidate minus the other; dashed: what it must stay above", rows, scale)


def guard_forest(ramp: Mapping[str, Any] | None) -> Forest | None:
    """Guardrails of a ramp: what was seen against the bound; None without one."""
    seen = [one for one in (ramp or {}).get("guardrails", []) if one["seen"] is not None]
    if not seen:
        return None
    scale = _Scale([value for one in seen for value in (one["seen"], one["bound"], 0.0)])
    rows = [
        Whisker(
            label=f"{one['name']} ({one['kind']})",
            note=f"n = {one['units']}",
            y=_ROW * (place + 1),
            low=scale(0.0),
            mean=scale(one["seen"]),
            high=scale(one["seen"]),
            bound=scale(one["bound"]),
            colour=_COLOURS[2] if one["broken"] else _COLOURS[1],
        )
        for place, one in enumerate(seen)
    ]
    return _forest("Guardrails of the ramp; dashed: the bound", rows, scale)


def proof_lines(run: ReleaseRun) -> Lines | None:
    """Evidence for each claim over the looks, as a share of what proves it; None without two looks."""
    points = run.history
    if len(points) < 2:
        return None
    rule = run.plan.rule
    wanted = {name: math.log(1.0 / rule.alpha) for name in points[-1].proof}
    wanted |= {f"gain {name}": math.log(len(rule.targets) / rule.alpha) for name in rule.targets}
    most = max(1, *(point.pairs for point in points))
    lines = []
    for place, name in enumerate(points[-1].proof):
        path = " ".join(
            f"{_across(point.pairs / most):.1f},{_up(point.proof.get(name, 0.0) / wanted[name]):.1f}"
            for point in points
        )
        lines.append(Line(label=name, points=path, colour=_COLOURS[place % len(_COLOURS)], y=16.0 + 15.0 * place))
    height = max(_PLOT_HEIGHT, 30.0 + 15.0 * len(lines)) + 24.0
    ticks = [(_across(part), f"{part * most:.0f}") for part in (0.0, 0.5, 1.0)]
    title = "Evidence for each claim over the pairs of a Domain; dashed: proven"
    return Lines(title=title, lines=lines, threshold=_up(1.0), ticks=ticks, height=height)


def ramp_steps(run: ReleaseRun) -> Steps | None:
    """The candidate's share of keys over time; None before the ramp."""
    if not run.stages:
        return None
    began = run.stages[0].at
    until = max(run.ended_at or run.updated_at, run.stages[-1].at)
    length = max(until - began, 1.0)
    points, before = [], 0.0
    marks = []
    for mark in run.stages:
        x = _across((mark.at - began) / length)
        points += [f"{x:.1f},{_up(before):.1f}", f"{x:.1f},{_up(mark.share):.1f}"]
        marks.append((x, _up(mark.share), f"{mark.share:.0%} after {mark.at - began:.0f} s"))
        before = mark.share
    points.append(f"{_across(1.0):.1f},{_up(before):.1f}")
    return Steps(title="The candidate's share of keys over time", points=" ".join(points), marks=marks)


class _Scale:
    """Values → places between the label column and the right edge."""

    def __init__(self, values: Sequence[float]) -> None:
        self._low, high = min(values), max(values)
        self._span = max(high - self._low, 1e-9)

    def __call__(self, value: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT - 60.0) * (value - self._low) / self._span, 1)

    def ticks(self) -> list[tuple[float, str]]:
        values = (self._low + self._span * part for part in (0.0, 0.5, 1.0))
        return [(self(value), f"{value:+.3f}") for value in values]


def _forest(title: str, rows: list[Whisker], scale: _Scale) -> Forest:
    height = _ROW * (len(rows) + 2)
    return Forest(title=title, rows=rows, zero=scale(0.0), ticks=scale.ticks(), height=height)


def _across(share: float) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * share


def _up(share: float) -> float:
    shown = min(_MOST_EVIDENCE, max(0.0, share)) / _MOST_EVIDENCE
    return round(_PLOT_HEIGHT - 10.0 - (_PLOT_HEIGHT - 30.0) * shown, 1)
