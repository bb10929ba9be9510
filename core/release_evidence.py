"""How evidence of Suites and shadows enters a ReleaseRun's Trials, and what the Trials say. Pure.

All pairs go into one Trial. Its proofs are about the prompts that were shown, those of the Suites and those of live
traffic together: when both sources lack a gain, one is found with probability at most ``alpha``. Harm is looked for
in live traffic by itself as well, so that a loss which only users meet is not outweighed by Suites.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from core.guardrails import event_of
from core.noun import Noun
from core.release import ReleaseStep
from core.release_plan import ReleasePlan
from core.release_rule import Outcome, ReleaseRule, Requirement, Trial, open_trial
from core.release_run import ReleaseRun, TrialPoint
from core.shadow import ShadowPair, ShadowStatus
from core.statistics.betting import BettingTest
from core.statistics.sequences import betting_bounds, unit_interval

_ERROR = "error"


class ClaimState(Noun):
    """One requirement and how far it is proven or disproven."""

    kind: str
    """``gain``, ``family``, ``domain`` or ``guardrail``."""
    name: str
    count: int
    seen: float | None
    """Mean difference, or share of bad events; None without an observation."""
    bound: float
    """The claim is that the mean is above it (a guardrail's: not above)."""
    proof: float | None
    """Log of the largest wealth so far of who bets on the claim; None: it holds until harm is shown."""
    proof_needed: float
    harm: float | None
    """The same of who bets against it; None for a gain: its absence alone is no harm."""
    harm_needed: float

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.kind} {self.name}"

    @property
    def proven(self) -> bool:
        """Whether the claim is proven."""
        return self.proof is None or self.proof >= self.proof_needed

    @property
    def harmed(self) -> bool:
        """Whether its opposite is proven."""
        return self.harm is not None and self.harm >= self.harm_needed


class DomainInterval(Noun):
    """Candidate minus another version in one Domain, with an interval that is valid at every look."""

    domain: str
    source: str
    """``suite``, ``base`` or ``shadow``."""
    count: int
    mean: float
    low: float
    high: float
    alpha: float
    """Of the interval, both sides together."""
    margin: float | None = None
    """The Domain's hard margin; None: in no family of the rule."""


class IndependentPairs(Noun):
    """Mirrored requests of which no two belong to one Episode."""

    judged: tuple[ShadowPair, ...] = ()
    """The first of each Episode with a difference."""
    answered: tuple[ShadowPair, ...] = ()
    """The first of each Episode that was mirrored."""


def rule_of(plan: ReleasePlan) -> ReleaseRule:
    """The plan's rule with its shadow's error limit among the guardrails, and harm looked for in two Trials."""
    guardrails = {event_of(name): limit for name, limit in plan.rule.guardrails.items()}
    guardrails.setdefault(_ERROR, plan.shadow.max_error_share)
    return plan.rule.model_copy(update={"guardrails": guardrails, "harm_alpha": plan.rule.harm_alpha / 2})


def with_differences(trial: Trial, differences: Mapping[str, Sequence[float]]) -> Trial:
    """The Trial with paired differences added, those of Domains in no family left out."""
    for domain, values in differences.items():
        if domain in trial.domains and len(values):
            trial = trial.compared(domain, values)
    return trial


def with_pairs(trial: Trial, pairs: IndependentPairs) -> Trial:
    """The Trial with mirrored requests added: their differences, and the bad events of the candidate's answers."""
    trial = with_differences(trial, shadow_differences(pairs.judged))
    if pairs.answered:
        for name in trial.guards:
            trial = trial.guarded(name, [float(name in _events(pair)) for pair in pairs.answered])
    return trial


def shadow_differences(pairs: Iterable[ShadowPair]) -> dict[str, list[float]]:
    """Domain → differences of the pairs that were judged, in their order."""
    found: dict[str, list[float]] = {}
    for pair in pairs:
        difference = pair.difference
        if difference is not None and pair.domain is not None and pair.status is not ShadowStatus.SKIPPED:
            found.setdefault(pair.domain, []).append(difference)
    return found


def harm_in(trial: Trial) -> tuple[str, ...]:
    """What is proven to be worse than allowed, for people."""
    return tuple(
        f"{claim.title} is {'broken' if claim.kind == 'guardrail' else 'worse than allowed'}"
        f" (mean {claim.seen or 0.0:+.4f} over {claim.count}, bound {claim.bound:+.4f})"
        for claim in claims(trial)
        if claim.harmed
    )


def verdict_of(run: ReleaseRun, *, over: bool) -> tuple[Outcome, tuple[str, ...]]:
    """What both Trials say; ``over``: no more pairs will come, so what is not proven now will not be."""
    live = tuple(f"live traffic: {reason}" for reason in harm_in(run.live))
    if live:
        return Outcome.REJECT, live
    decision = run.trial.decide()
    if decision.outcome is Outcome.REJECT:
        return Outcome.REJECT, harm_in(run.trial) or decision.reasons
    if decision.outcome is Outcome.CONTINUE and over:
        return Outcome.REJECT, tuple(f"not proven by the end: {claim}" for claim in decision.reasons)
    return decision.outcome, decision.reasons


def against_base(rule: ReleaseRule, differences: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    """Where the candidate is proven to be worse than the Base by more than its margins."""
    trial = with_differences(open_trial(rule), differences)
    return tuple(f"against the Base: {reason}" for reason in harm_in(trial))


def claims(trial: Trial) -> list[ClaimState]:
    """Every requirement of a Trial, in the order of the decision."""
    rule = trial.rule
    losses = len(trial.families) + len(trial.domains) + len(trial.guards)
    harm = math.log(max(1, losses) / rule.harm_alpha)
    proof = math.log(1.0 / rule.alpha)
    gain = math.log(len(rule.targets) / rule.alpha)
    return [
        *(_difference_claim("gain", name, one, gain, math.inf) for name, one in trial.gains.items()),
        *(_difference_claim("family", name, one, proof, harm) for name, one in trial.families.items()),
        *(_difference_claim("domain", name, one, proof, harm) for name, one in trial.domains.items()),
        *(_guard_claim(name, one.harm, harm) for name, one in trial.guards.items()),
    ]


def trial_point(run: ReleaseRun, step: ReleaseStep, at: float) -> TrialPoint:
    """How far the Trial is now."""
    found = claims(run.trial)
    return TrialPoint(
        at=at,
        step=step,
        pairs=max((one.harm.count for one in run.trial.domains.values()), default=0),
        proof={claim.title: claim.proof for claim in found if claim.proof is not None},
        harm={claim.title: claim.harm for claim in found if claim.harm is not None},
    )


def domain_intervals(
    rule: ReleaseRule, differences: Mapping[str, Sequence[float]], *, source: str, alpha: float
) -> list[DomainInterval]:
    """An interval for each Domain with at least one difference, by betting: exact at any number of observations."""
    margins = {name: family.hard_margin for family in rule.families.values() for name in family.domains}
    found = []
    for domain, values in sorted(differences.items()):
        if not len(values):
            continue
        low, high = betting_bounds(unit_interval(values), alpha=alpha)
        found.append(
            DomainInterval(
                domain=domain,
                source=source,
                count=len(values),
                mean=sum(values) / len(values),
                low=2.0 * low - 1.0,
                high=2.0 * high - 1.0,
                alpha=alpha,
                margin=margins.get(domain),
            )
        )
    return found


def independent_pairs(
    pairs: Iterable[ShadowPair], *, judged_before: set[str], answered_before: set[str]
) -> IndependentPairs:
    """One pair of each Episode: its requests are no independent observations.

    The sets hold the Episodes of earlier pairs, and these pairs' Episodes afterwards.
    """
    judged, answered = [], []
    for pair in pairs:
        if pair.status is ShadowStatus.SKIPPED:
            continue
        if pair.episode_id not in answered_before:
            answered_before.add(pair.episode_id)
            answered.append(pair)
        if pair.difference is not None and pair.episode_id not in judged_before:
            judged_before.add(pair.episode_id)
            judged.append(pair)
    return IndependentPairs(judged=tuple(judged), answered=tuple(answered))


def _events(pair: ShadowPair) -> set[str]:
    events = {event_of(name) for name in pair.candidate_events}
    return events | {_ERROR} if pair.status is ShadowStatus.FAILED else events


def _difference_claim(kind: str, name: str, one: Requirement, proof: float, harm: float) -> ClaimState:
    assert one.proof is not None, "only guardrails lack a proof"
    mean = one.proof.mean
    return ClaimState(
        kind=kind,
        name=name,
        count=one.proof.count,
        seen=None if mean is None else 2.0 * mean - 1.0,
        bound=2.0 * one.proof.null - 1.0,
        proof=one.proof.peak,
        proof_needed=proof,
        harm=None if math.isinf(harm) else one.harm.peak,
        harm_needed=0.0 if math.isinf(harm) else harm,
    )


def _guard_claim(name: str, test: BettingTest, harm: float) -> ClaimState:
    return ClaimState(
        kind="guardrail",
        name=name,
        count=test.count,
        seen=test.mean,
        bound=test.null,
        proof=None,
        proof_needed=0.0,
        harm=test.peak,
        harm_needed=harm,
    )
