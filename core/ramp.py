"""The ramp: what an Experiment's outcomes so far say about its next step. Pure; may be asked at any time.

Order of the gates: a split that is not as planned means that no number counts; then hard limits and guardrails; then
the primary metric; then time and count of the stage. Only the first two can be answered before there is a reward.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from pydantic import Field

from core.arm_comparison import OVERALL, ArmComparison, compare_arms
from core.arm_outcome import ArmOutcome
from core.arm_units import ArmUnit, first_exposures, units_of
from core.experiment import Arm, Experiment
from core.guardrails import GuardrailVerdict, hard_events, judge_guardrails
from core.noun import Noun
from core.release_plan import RampStage, ReleasePlan
from core.release_rule import ReleaseRule
from core.statistics.multiplicity import holm
from core.statistics.sample_ratio import sample_ratio_evidence

PROMOTED = "promoted"
CANDIDATE = "candidate"
"""Names of a ramp's arms, in this order: keys that have the candidate keep it while its share grows."""
SAMPLE_RATIO_ALPHA = 0.001
"""Chance that a healthy split is called broken."""


class RampAction(StrEnum):
    """What to do now."""

    HOLD = "hold"
    NEXT = "next"
    PROMOTE = "promote"
    ROLL_BACK = "roll_back"


class SampleRatio(Noun):
    """Whether keys were split as planned, over all stages."""

    counts: Mapping[int, Mapping[str, int]]
    """Stage → arm → keys first exposed there."""
    evidence: float
    """Log Bayes factor against the planned split."""
    needed: float
    broken: bool


class RampEvidence(Noun):
    """What a decision rests on; stored with it."""

    stage: int
    share: float
    """The candidate's."""
    stage_seconds: float
    stage_episodes: int
    """Of the candidate in this stage, with an outcome, those that saw two arms left out."""
    episodes: Mapping[str, int]
    """Arm → Episodes of one arm."""
    mixed: Mapping[str, int]
    """Assigned arm → Episodes that saw two."""
    rewarded: Mapping[str, int]
    """Arm → Episodes with a reward: feedback that is missing on one side is a finding of its own."""
    sample_ratio: SampleRatio
    hard: tuple[str, ...] = ()
    guardrails: tuple[GuardrailVerdict, ...] = ()
    primary: tuple[ArmComparison, ...] = ()


class RampDecision(Noun):
    """A step, why, and on what evidence."""

    action: RampAction
    reasons: tuple[str, ...] = ()
    """Of a hold: what is missing. Of a rollback: what speaks against the candidate."""
    next_stage: int | None = Field(default=None)
    evidence: RampEvidence


def decide_ramp(
    plan: ReleasePlan,
    experiment: Experiment,
    outcomes: Sequence[ArmOutcome],
    *,
    now: float,
    hard: Sequence[str] = (),
) -> RampDecision:
    """The next step. ``hard``: what was seen outside the outcomes, such as a replica's crash or a failed probe."""
    evidence = gather_evidence(experiment, outcomes, now=now, hard=hard, rule=plan.rule)
    against = speaks_against(evidence) + _harm(plan.rule, evidence)
    if against:
        return RampDecision(action=RampAction.ROLL_BACK, reasons=against, evidence=evidence)
    stage = plan.ramp[min(experiment.stage, len(plan.ramp) - 1)]
    waits = _waits(stage, evidence)
    last = experiment.stage >= len(plan.ramp) - 1
    whole = last or plan.ramp[experiment.stage + 1].share >= 1.0
    if whole:
        # The last moment at which there is another arm to compare with.
        waits += _unproven(plan, evidence)
    if waits:
        return RampDecision(action=RampAction.HOLD, reasons=waits, evidence=evidence)
    if last:
        return RampDecision(action=RampAction.PROMOTE, evidence=evidence)
    return RampDecision(action=RampAction.NEXT, next_stage=experiment.stage + 1, evidence=evidence)


def gather_evidence(
    experiment: Experiment,
    outcomes: Sequence[ArmOutcome],
    *,
    now: float,
    hard: Sequence[str] = (),
    rule: ReleaseRule | None = None,
) -> RampEvidence:
    """All verdicts on an Experiment's outcomes so far. Without ``rule`` the primary metric is the overall reward."""
    promoted, candidate = control_and_candidate(experiment)
    shares = stage_shares(experiment)
    units = units_of(outcomes)
    guardrails = experiment.guardrails
    whole = [one for one in outcomes if not one.mixed]
    return RampEvidence(
        stage=experiment.stage,
        share=candidate.share,
        stage_seconds=max(0.0, now - (experiment.stage_since or experiment.created_at)),
        stage_episodes=sum(one.arm == candidate.name and one.stage == experiment.stage for one in whole),
        episodes=_by_arm(whole),
        mixed=_by_arm(one for one in outcomes if one.mixed),
        rewarded=_by_arm(one for one in whole if one.reward is not None),
        sample_ratio=check_sample_ratio(experiment, outcomes),
        hard=(*hard, *hard_events(units, guardrails, candidate=candidate.name)),
        guardrails=judge_guardrails(
            units, guardrails, shares=shares, candidate=candidate.name, promoted=promoted.name
        ),
        primary=_primary(units, promoted.name, candidate.name, rule),
    )


def speaks_against(evidence: RampEvidence) -> tuple[str, ...]:
    """Why traffic must go back at once, whatever the rewards say; empty: nothing."""
    ratio = evidence.sample_ratio
    found = list(evidence.hard)
    if ratio.broken:
        found.append(f"keys are not split as planned (log evidence {ratio.evidence:.1f} of {ratio.needed:.1f})")
    found += [verdict.says for verdict in evidence.guardrails if verdict.broken]
    return tuple(found)


def check_sample_ratio(experiment: Experiment, outcomes: Iterable[ArmOutcome]) -> SampleRatio:
    """Whether keys were split as planned: the evidence of the stages, added up.

    Each stage's Bayes factor is a martingale that starts at 1 where the one before ends, so that their product is
    one, too.
    """
    counts = first_exposures(outcomes)
    names = [arm.name for arm in experiment.arms]
    evidence = 0.0
    for stage, share in enumerate(stage_shares(experiment)):
        planned = _planned(experiment, stage, share)
        if min(planned) <= 0.0 or stage not in counts:
            continue
        evidence += sample_ratio_evidence([counts[stage].get(name, 0) for name in names], planned)
    needed = math.log(1.0 / SAMPLE_RATIO_ALPHA)
    return SampleRatio(counts=counts, evidence=evidence, needed=needed, broken=evidence >= needed)


def control_and_candidate(experiment: Experiment) -> tuple[Arm, Arm]:
    """The arms that are compared: those of these names, else the first and the last."""
    by_name = {arm.name: arm for arm in experiment.arms}
    return by_name.get(PROMOTED, experiment.arms[0]), by_name.get(CANDIDATE, experiment.arms[-1])


def stage_shares(experiment: Experiment) -> tuple[float, ...]:
    """The candidate's share in each stage up to the present one."""
    _, candidate = control_and_candidate(experiment)
    return (*experiment.earlier_shares, candidate.share)


def at_share(experiment: Experiment, share: float, *, now: float) -> Experiment:
    """The Experiment one stage further, with this share of the keys on the candidate.

    The candidate's buckets are the last ones and only grow downwards, so no key loses it. Raises ValueError for a
    share that does not grow, or for other than two arms.
    """
    promoted, candidate = control_and_candidate(experiment)
    if len(experiment.arms) != 2 or experiment.arms != (promoted, candidate):
        raise ValueError("only an Experiment of two arms, the candidate's last, has a ramp")
    if not candidate.share < share <= 1.0:
        raise ValueError(f"the candidate has a share of {candidate.share:g}: it can only grow, up to 1")
    arms = (
        promoted.model_copy(update={"share": 1.0 - share}),
        candidate.model_copy(update={"share": share}),
    )
    return experiment.model_copy(
        update={
            "arms": arms,
            "stage": experiment.stage + 1,
            "stage_since": now,
            "earlier_shares": stage_shares(experiment),
        }
    )


def ramp_experiment(
    plan: ReleasePlan,
    *,
    identity: str,
    salt: str,
    promoted: Arm,
    candidate: Arm,
    now: float,
    release_id: str | None = None,
) -> Experiment:
    """The Experiment that a plan's ramp begins with; the arms' shares are set here."""
    share = plan.ramp[0].share
    return Experiment(
        id=identity,
        policy=plan.policy,
        kind="ab",
        arms=(
            promoted.model_copy(update={"name": PROMOTED, "share": 1.0 - share}),
            candidate.model_copy(update={"name": CANDIDATE, "share": share}),
        ),
        salt=salt,
        key=plan.key,
        stage_since=now,
        release_id=release_id,
        guardrails=plan.guardrails_with_limits(),
        notify_url=plan.notify_url,
        created_at=now,
    )


def _planned(experiment: Experiment, stage: int, share: float) -> list[float]:
    _, candidate = control_and_candidate(experiment)
    if stage == experiment.stage or len(experiment.arms) != 2:
        return [arm.share for arm in experiment.arms]
    return [share if arm.name == candidate.name else 1.0 - share for arm in experiment.arms]


def _primary(
    units: Sequence[ArmUnit], promoted: str, candidate: str, rule: ReleaseRule | None
) -> tuple[ArmComparison, ...]:
    """Overall, and in each Domain of the rule; targets with Holm's p-values."""
    alpha = 0.05 if rule is None else rule.alpha
    domains = [] if rule is None else [name for family in rule.families.values() for name in family.domains]
    found = {
        name: compare_arms(units, name, candidate=candidate, promoted=promoted, alpha=alpha)
        for name in (OVERALL, *domains)
    }
    targets = {} if rule is None else {name: found[name].p_value for name in rule.targets if name in found}
    p_values = {name: value for name, value in targets.items() if value is not None}
    for name, value in holm(p_values).items():
        found[name] = found[name].model_copy(update={"adjusted_p_value": value})
    return tuple(found.values())


def _margins(rule: ReleaseRule) -> dict[str, float]:
    margins = {name: family.hard_margin for family in rule.families.values() for name in family.domains}
    return margins | {OVERALL: min((family.margin for family in rule.families.values()), default=0.03)}


def _harm(rule: ReleaseRule, evidence: RampEvidence) -> tuple[str, ...]:
    """Domains in which the loss is proven to be beyond the margin."""
    margins = _margins(rule)
    return tuple(
        f"reward in {one.domain} is worse by more than {margins[one.domain]:g}: at most {one.high:+.4f}"
        for one in evidence.primary
        if one.high is not None and one.high < -margins[one.domain]
    )


def _unproven(plan: ReleasePlan, evidence: RampEvidence) -> tuple[str, ...]:
    """What the plan wants shown by live rewards and is not. All must hold: no correction (intersection-union)."""
    if plan.ramp_primary == "no_harm":
        return ()
    margins = _margins(plan.rule)
    waits = [
        f"live rewards in {one.domain} do not prove yet that it is no worse than by {margins[one.domain]:g}"
        for one in evidence.primary
        if one.domain == OVERALL or one.candidate_units
        if one.low is None or one.low <= -margins[one.domain]
    ]
    targets = [one for one in evidence.primary if one.domain in plan.rule.targets]
    gained = any(
        one.difference is not None and one.difference > 0 and (one.adjusted_p_value or 1.0) <= plan.rule.alpha
        for one in targets
    )
    if plan.ramp_primary == "better" and not gained:
        waits.append(f"live rewards do not prove a gain in {' or '.join(plan.rule.targets)} yet")
    return tuple(waits)


def _waits(stage: RampStage, evidence: RampEvidence) -> tuple[str, ...]:
    waits = []
    if evidence.stage_seconds < stage.min_seconds:
        waits.append(f"{evidence.stage_seconds:.0f} of {stage.min_seconds:.0f} s in this stage")
    if evidence.stage_episodes < stage.min_episodes:
        waits.append(f"{evidence.stage_episodes} of {stage.min_episodes} Episodes of the candidate in this stage")
    return tuple(waits)


def _by_arm(outcomes: Iterable[ArmOutcome]) -> dict[str, int]:
    found: dict[str, int] = {}
    for outcome in outcomes:
        found[outcome.arm] = found.get(outcome.arm, 0) + 1
    return found
