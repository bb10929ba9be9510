"""The page of a decision: what was compared, numbers, intervals, pictures and the verdict, as HTML and as JSON."""

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from core.errors import NotFound
from core.noun import Noun
from core.release_run import ReleaseDecision, ReleaseRun
from gateway.release_run.drawings import Forest, Lines, Steps, domain_forest, guard_forest, proof_lines, ramp_steps

_PAGES = Environment(
    loader=PackageLoader("gateway.release_run"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


class DecisionView(Noun):
    """One decision of a ReleaseRun, with what the whole run is about."""

    release: str
    policy: str
    version: int
    baseline: int
    status: str
    step: str | None
    waits: tuple[str, ...]
    decision: ReleaseDecision
    rule: Mapping[str, Any]
    """Margins, levels and budgets that it was made by."""
    others: tuple[str, ...] = ()
    """All decisions of the run, one line each."""


def decision_view(run: ReleaseRun, number: int | None = None) -> DecisionView:
    """A decision by its number, or the newest; raises NotFound."""
    decision = decision_of(run, number)
    return DecisionView(
        release=run.id,
        policy=run.policy,
        version=run.version,
        baseline=run.baseline,
        status=run.status,
        step=run.step,
        waits=run.waits,
        decision=decision,
        rule=run.plan.rule.model_dump(mode="json"),
        others=tuple(_line(one) for one in run.decisions),
    )


def decision_of(run: ReleaseRun, number: int | None) -> ReleaseDecision:
    """A decision by its number, or the newest; raises NotFound."""
    if number is None:
        return run.decisions[-1]
    for decision in run.decisions:
        if decision.number == number:
            return decision
    raise NotFound(f"the release of {run.label} has {len(run.decisions)} decisions, none is {number}")


def decision_page(run: ReleaseRun, number: int | None = None) -> str:
    """The decision as one self-contained HTML document. All that comes from outside is escaped by the template."""
    decision = decision_of(run, number)
    evidence = decision.evidence
    return _PAGES.get_template("decision.html.jinja").render(
        run=run,
        decision=decision,
        lines=[_line(one) for one in run.decisions],
        intervals=evidence.get("intervals", []),
        claims=evidence.get("claims", []),
        live_claims=evidence.get("live_claims", []),
        ramp=evidence.get("ramp"),
        compared=evidence.get("compared"),
        facts=_facts(evidence),
        pictures=_pictures(run, evidence),
    )


def _pictures(run: ReleaseRun, evidence: Mapping[str, Any]) -> list[Forest | Lines | Steps]:
    found: list[Forest | Lines | Steps | None] = [
        domain_forest(evidence.get("intervals", [])),
        proof_lines(run),
        ramp_steps(run),
        guard_forest(evidence.get("ramp")),
    ]
    return [one for one in found if one is not None]


def _facts(evidence: Mapping[str, Any]) -> dict[str, str]:
    """What fits into one line each."""
    shown = {}
    for name, value in evidence.items():
        if isinstance(value, str | int | float | bool):
            shown[name.replace("_", " ")] = str(value)
        elif name in ("counts", "results") and isinstance(value, Mapping):
            shown[name] = ", ".join(f"{key}: {one}" for key, one in value.items())
        elif name == "suites" and isinstance(value, list):
            shown[name] = ", ".join(str(one) for one in value)
    shown.pop("compared", None)
    return shown


def _line(decision: ReleaseDecision) -> str:
    step = "" if decision.step is None else f" {decision.step}"
    why = f": {'; '.join(decision.reasons)}" if decision.reasons else ""
    return f"{decision.number}. {decision.verdict}{step} by {decision.by}{why}"
