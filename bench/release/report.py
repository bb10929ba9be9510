"""The release section of docs/benchmarks.md."""

from textwrap import fill
from typing import Any

from bench.report import checks_table, table

NAME = "bench-release"

_KINDS = {
    "kind": "candidates",
    "candidates": "number",
    "promoted": "promoted",
    "upper95": "95% upper bound",
    "median_prompts": "median prompts a Domain",
    "p95_prompts": "p95",
}
_REASONS = {"kind": "candidates", "usual_reason": "usual reason"}
_COVERAGE = {
    "method": "sequence",
    "observations": "observations",
    "coverage": "coverage",
    "sequences": "sequences",
    "looks": "looks",
}
_NULL = {"test": "test", "experiments": "experiments", "false": "false", "share": "share", "upper95": "95% upper"}
_POWER = {"test": "test", "pairs": "pairs", "power": "power"}
_LIVE = {
    "candidate": "candidate",
    "expected": "should be",
    "ended": "was",
    "reason": "because",
    "seconds": "s",
    "requests": "requests",
    "rollback_seconds": "rollback s",
}


def section(found: dict[str, Any]) -> str:
    """Markdown, from the results file alone."""
    tables, settings = found["tables"], found["settings"]
    parts = [
        "## Releases: what is promoted, and what is not\n",
        "`make bench-release` simulates candidates through the code that decides about real ones, runs three real "
        "candidates on a real engine, and writes this section and `bench/results/release.json`; "
        "`make bench-release-quick` tries every part shortly and writes neither.\n",
        checks_table(found["checks"]),
    ]
    if "kinds" in tables:
        parts += _simulation(tables, settings)
    if tables["live"]:
        parts += [
            f"### Live\n\nvLLM {found['versions'].get('vllm', '?')} with {settings.get('base', '?')} on "
            f"{found['machine'].get('cpu', '?')}, two gateway processes, {settings.get('clients', '?')} clients. "
            "Each judges its own answers and says so as feedback. *Rollback* is the time from the end of the "
            "Experiment to the last request that still got the candidate, whichever gateway process it met.\n",
            table(_LIVE, tables["live"], texts=4),
        ]
    else:
        parts.append("The live part was not run.\n")
    return "\n".join(_wrapped(part) for part in parts)


def _wrapped(part: str) -> str:
    """Paragraphs in lines of the document's length; tables and headings as they are."""
    paragraphs = [
        one if one.startswith(("|", "#")) else fill(one, 118, break_long_words=False, break_on_hyphens=False)
        for one in part.strip().split("\n\n")
    ]
    return "\n\n".join(paragraphs) + "\n"


def _simulation(tables: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    return [
        "### Candidates\n\n"
        "Four Domains with prompts of their own difficulty (base rate 0.5), "
        f"{settings['prompts']} paired prompts of each at most, alpha {settings['alpha']} for the whole decision, a "
        f"look after every {settings['look_every']} prompts. A better one gains {settings['gain']} in the target "
        f"Domain; one that is worse gains there and loses {settings['worse']} in another, where "
        f"{settings['hard_margin']} is the hard margin. The fixed-horizon design is a z-test that knows the gain and "
        f"looks once, with power 0.9: {settings['fixed_horizon']} prompts; `median_requests_vs_fixed_horizon` is the "
        "median of better candidates over it.\n",
        table(_KINDS, tables["kinds"]),
        table(_REASONS, tables["kinds"], texts=2),
        "### Coverage under continuous peeking\n\nShare of sequences whose bounds at 95% hold the true mean at every "
        "single look. Asymptotic sequences are looked at from 200 observations on.\n",
        table(_COVERAGE, tables["coverage"], texts=2),
        "### Nothing to find\n\nExperiments without any difference, looked at all the time.\n",
        table(_NULL, tables["null"]),
        f"### Something to find\n\nA gain of {settings['gain']} at alpha {settings['alpha']}.\n",
        table(_POWER, tables["power"]),
    ]
