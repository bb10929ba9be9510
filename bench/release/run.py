"""Runs the release benchmark: ``python -m bench.release.run [--simulation-only | --live-only]``.

See docs/benchmarks.md.
"""

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.machine import describe, hone_version
from bench.release import live, plan, report, results
from bench.release.results import Findings
from bench.release.simulation import GAIN, HARD_MARGIN, LOOK_EVERY, RULE, WORSE
from bench.report import RESULTS
from bench.runs import finish, parser, say


def collect(found: Findings, chosen: plan.Plan, engine: str) -> dict[str, Any]:
    """The results file."""
    return {
        "checks": results.checks(found),
        "tables": results.tables(found),
        "settings": {
            "alpha": RULE.alpha,
            "prompts": RULE.prompts,
            "look_every": LOOK_EVERY,
            "gain": GAIN,
            "worse": WORSE,
            "hard_margin": HARD_MARGIN,
            "fixed_horizon": None if found.simulated is None else found.simulated.fixed,
            "sequences": chosen.sequences,
            "length": chosen.length,
            "clients": live.CLIENTS,
            "base": "SmolLM2-135M-Instruct",
            "quick": chosen.quick,
        },
        "machine": describe(),
        "versions": {"hone": hone_version(), "vllm": engine},
    }


def completed(found: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Results of one part beside what an earlier run found for the other one."""
    known = {one["name"]: one for one in earlier["checks"]}
    names = [one["name"] for one in found["checks"]]
    checks = [known.get(one["name"], one) if one["value"] is None else one for one in found["checks"]]
    tables = {**earlier["tables"], **{name: rows for name, rows in found["tables"].items() if rows}}
    settings = {**earlier["settings"], **{name: one for name, one in found["settings"].items() if one is not None}}
    versions = {**earlier["versions"], **{name: one for name, one in found["versions"].items() if one}}
    checks = [*(one for name, one in known.items() if name not in names), *checks]
    return {**found, "checks": checks, "tables": tables, "settings": settings, "versions": versions}


def main() -> None:
    """Simulate, run, print, write."""
    options = parser(__doc__)
    only = options.add_mutually_exclusive_group()
    only.add_argument("--simulation-only", action="store_true", help="no engine")
    only.add_argument("--live-only", action="store_true", help="no simulation")
    arguments = options.parse_args()
    chosen = plan.QUICK if arguments.quick else plan.FULL
    found, engine = Findings(), ""
    if not arguments.live_only:
        began = time.monotonic()
        found.simulated = results.simulated(chosen)
        say(f"simulated {len(found.simulated.runs)} candidates in {time.monotonic() - began:.0f} s")
    if not arguments.simulation_only:
        with tempfile.TemporaryDirectory(prefix="hone-bench-") as temporary:
            folder = arguments.folder or Path(temporary)
            found.live, engine = asyncio.run(live.run(folder))
    whole = collect(found, chosen, engine)
    results_file = arguments.output or RESULTS / "release.json"
    partly = arguments.live_only or arguments.simulation_only
    if partly and not arguments.quick and results_file.exists():
        whole = completed(whole, json.loads(results_file.read_text()))
    finish(whole, arguments, name=report.NAME, section=report.section)


if __name__ == "__main__":
    main()
