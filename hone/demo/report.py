"""The demo's last page: a table in the terminal and an HTML file with the same figures as pictures."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hone.demo.summary import Figures, Summary
from hone.pictures import bars, curve

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#222}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2rem}table{border-collapse:collapse;width:100%}
td,th{border-bottom:1px solid #ddd;padding:.3rem .5rem;text-align:left}td.n{text-align:right}
.verdict{padding:.8rem 1rem;border-radius:.4rem;background:#eef6ee}.verdict.not{background:#fbf1e6}
svg{width:100%;height:auto}pre{background:#f6f6f6;padding:.8rem;overflow:auto}
"""
_GREY, _BLUE, _GREEN = "#9aa5b1", "#4c78a8", "#3a9c5f"


def verdict_sentence(summary: Summary, figures: Figures) -> str:
    """What the run showed, in one sentence."""
    gain = figures.trained.gain
    figures_text = (
        f"held-out success went from {100 * figures.trained.baseline_success:.1f}% (start of GRPO) to "
        f"{100 * figures.trained.success:.1f}% on {figures.trained.tasks} Tasks; the paired difference is "
        f"{100 * gain.mean:+.1f} points, 95% interval [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"
    )
    if summary.outcome == "failed":
        return f"The run failed, so its figures prove nothing ({summary.error}): {figures_text}."
    if summary.outcome == "proven":
        return f"Better, and proven so: {figures_text}."
    return f"Not proven better, so nothing was promoted: {figures_text}."


def print_report(screen: Console, summary: Summary, figures: Figures, html_path: Path) -> None:
    """The one-page summary for the terminal."""
    screen.print()
    screen.rule("[bold]what happened[/]")
    screen.print(verdict_sentence(summary, figures))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("check", "value", "unit", "target"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for check in summary.checks:
        table.add_row(check.name, f"{check.value:g}", check.unit, check.target)
    screen.print(table)
    times = ", ".join(f"{stage.name} {stage.seconds:.0f} s" for stage in summary.stages)
    screen.print(f"[dim]stages: {times}[/]")
    screen.print(f"report: {html_path}")


def write_html(summary: Summary, figures: Figures, folder: Path, next_steps: Sequence[str]) -> Path:
    """Write ``report.html``: one self-contained page without scripts or outside resources."""
    path = folder / "report.html"
    path.write_text(_page(summary, figures, next_steps))
    return path


def _page(summary: Summary, figures: Figures, next_steps: Sequence[str]) -> str:
    steps = figures.run.steps
    rewards = [step.reward_mean or 0.0 for step in steps]
    successes = [step.success_rate or 0.0 for step in steps]
    reward_picture = curve(
        [("mean reward", rewards, _BLUE), ("success rate", successes, _GREEN)],
        x_label="GRPO step",
        title="Reward of the training attempts by step",
    )
    comparison = bars(
        [
            ("Base", figures.base_interval, _GREY),
            ("start of GRPO", figures.start_interval, _BLUE),
            ("trained", figures.trained_interval, _GREEN),
        ],
        title="Held-out success with 95% intervals",
    )
    css_class = "verdict" if summary.outcome == "proven" else "verdict not"
    rows = "".join(
        f"<tr><td>{escape(check.name)}</td><td class=n>{check.value:g}</td><td>{escape(check.unit)}</td>"
        f"<td>{escape(check.target)}</td></tr>"
        for check in summary.checks
    )
    stages = "".join(
        f"<tr><td>{escape(stage.name)}</td><td class=n>{stage.seconds:.1f} s</td></tr>" for stage in summary.stages
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Hone demo</title><style>{_STYLE}</style>"
        f"<h1>Hone demo: Policy {escape(summary.policy)}, Domain {escape(summary.domain)}, seed {summary.seed}</h1>"
        f"<p class='{css_class}'>{escape(verdict_sentence(summary, figures))}</p>"
        f"<h2>Held-out success</h2>{comparison}"
        f"<p>Every version attempted the same {figures.trained.tasks} held-out Tasks once, at temperature "
        f"{figures.trained.temperature:g}. Whiskers are 95% Wilson intervals of each share; the verdict rests on "
        f"the paired bootstrap over Tasks. The warm-up's demonstrations are of mixed quality on purpose: half of "
        f"them forget to print, and only running the code tells which (docs/demo.md).</p>"
        f"<h2>Training reward</h2>{reward_picture}"
        f"<h2>Checks</h2><table><tr><th>check<th>value<th>unit<th>target</tr>{rows}</table>"
        f"<h2>Where the time went</h2><table>{stages}</table>"
        f"<h2>What to try next</h2><pre>{escape(chr(10).join(next_steps))}</pre></html>"
    )
