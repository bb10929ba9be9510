"""Writes what benchmarks measured: a results file each, and their sections of one document."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.checks import Check, met

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "bench" / "results"
_HEADING = """# Benchmarks

Each section is written by the benchmark that it names, with a file of its own in `bench/results/`.
"""


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """The machine-readable file."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")


def write_section(path: Path, name: str, text: str) -> None:
    """Put ``text`` into the document as the section that ``make NAME`` writes; other sections stay as they are."""
    path.write_text(with_section(path.read_text() if path.exists() else _HEADING, name, text))


def with_section(document: str, name: str, text: str) -> str:
    """The document with its section ``name`` replaced, or added at the end."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    section = f"{begin}{text.strip()}\n{end}"
    if begin not in document or end not in document:
        return f"{document.rstrip()}\n\n{section}"
    before, _, rest = document.partition(begin)
    return before + section + rest.partition(end)[2]


def checks_table(checks: Sequence[Check]) -> str:
    """The checks with what was measured."""
    lines = ["| check | measured | target | met |", "|---|--:|--:|---|"]
    for check in checks:
        value = "not measured" if check["value"] is None else f"{check['value']:g} {check['unit']}".strip()
        lines.append(f"| `{check['name']}` | {value} | {check['target']} | {'yes' if met(check) else '**no**'} |")
    return "\n".join(lines) + "\n"


def table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], *, texts: int = 1) -> str:
    """A table with one line per row; the first ``texts`` columns hold words, the others numbers."""
    ruler = "|---" * texts + "|--:" * (len(columns) - texts) + "|"
    lines = ["| " + " | ".join(columns.values()) + " |", ruler]
    lines += ["| " + " | ".join(cell(row.get(name)) for name in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def cell(value: Any) -> str:
    """A number with three digits, or words as they are."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)
