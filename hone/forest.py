"""Forest plots: per Domain, the paired difference with its interval, as SVG and as a page that needs nothing else."""

from collections.abc import Sequence
from html import escape

from core.suite_summary import DomainComparison
from hone.pictures import COLOURS

_WIDTH, _ROW, _LEFT, _RIGHT, _TOP = 760, 26, 220, 150, 30


def forest(rows: Sequence[DomainComparison], *, title: str) -> str:
    """One line per Domain on an axis of differences; an interval that leaves zero out is coloured."""
    reach = max([0.1, *(abs(end) for row in rows for end in (row.difference.low, row.difference.high))])
    height = _TOP + _ROW * len(rows) + 34
    plot = _WIDTH - _LEFT - _RIGHT

    def place(value: float) -> float:
        return _LEFT + plot * (value + reach) / (2 * reach)

    bottom = _TOP + _ROW * len(rows)
    parts = [f'<path d="M{place(0.0):.1f} {_TOP - 8}V{bottom}" stroke="#999" stroke-dasharray="4 3"/>']
    for tick in (-reach, 0.0, reach):
        parts.append(_text(place(tick), bottom + 18, f"{tick:+.2f}", "middle"))
    for number, row in enumerate(rows):
        y = _TOP + _ROW * (number + 0.5)
        low, high, mean = (place(value) for value in (row.difference.low, row.difference.high, row.difference.mean))
        colour = _colour(row)
        parts.append(_text(_LEFT - 12, y + 4, row.domain, "end"))
        parts.append(f'<path d="M{low:.1f} {y:.1f}H{high:.1f}" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(f'<circle cx="{mean:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>')
        shown = f"{row.difference.mean:+.3f} [{row.difference.low:+.3f}, {row.difference.high:+.3f}]"
        parts.append(_text(_WIDTH - _RIGHT + 10, y + 4, shown, "start"))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg" font-family="system-ui, sans-serif" font-size="12" fill="#222">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def forest_page(sections: Sequence[tuple[str, Sequence[DomainComparison]]], *, title: str) -> str:
    """A self-contained HTML page with a forest plot and a table for each comparison."""
    body = []
    for name, rows in sections:
        lines = "".join(
            f"<tr><td>{escape(row.domain)}</td><td>{row.tasks}</td><td>{row.success:.3f}</td>"
            f"<td>{row.baseline_success:.3f}</td><td>{row.difference.mean:+.3f}</td>"
            f"<td>{row.difference.low:+.3f} to {row.difference.high:+.3f}</td>"
            f"<td>{row.only_first} / {row.only_second}</td><td>{row.p_value:.4f}</td></tr>"
            for row in rows
        )
        body.append(
            f"<h2>{escape(name)}</h2>{forest(rows, title=name)}<table><tr><th>Domain</th><th>Tasks</th>"
            "<th>success</th><th>baseline</th><th>difference</th><th>95% interval</th>"
            "<th>better / worse</th><th>McNemar p</th></tr>"
            f"{lines}</table>"
        )
    style = (
        "body{font-family:system-ui,sans-serif;max-width:820px;margin:2rem auto}"
        "table{border-collapse:collapse}td,th{padding:.2rem .6rem;border-bottom:1px solid #ddd;text-align:left}"
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{style}</style></head><body><h1>{escape(title)}</h1>{''.join(body)}</body></html>"
    )


def _colour(row: DomainComparison) -> str:
    if row.difference.low > 0:
        return COLOURS[1]
    return COLOURS[4] if row.difference.high < 0 else COLOURS[6]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
