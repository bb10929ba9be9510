"""What a step's groups showed: by Domain, for the choice of later Tasks, and how stale the tokens are. Pure."""

from collections.abc import Sequence
from statistics import fmean

from core.run import DomainMetrics
from core.sample import TrainingSample
from learner.advantages import GroupAdvantages
from learner.data_state import GroupOutcome
from learner.intake import GroupIntake


def group_outcomes(intakes: Sequence[GroupIntake], advantages: Sequence[GroupAdvantages]) -> tuple[GroupOutcome, ...]:
    """Of every group with an attempt that counts and a Task."""
    outcomes = []
    for intake, values in zip(intakes, advantages, strict=True):
        if not intake.counted or intake.counted[0].episode.task_id is None:
            continue
        episode = intake.counted[0].episode
        outcomes.append(
            GroupOutcome(
                domain=episode.domain or "",
                task_id=episode.task_id or "",
                solved=sum(_solved(intake, index) for index in range(len(intake.counted))),
                attempts=len(intake.counted),
                useful=not values.zero_variance,
            )
        )
    return tuple(outcomes)


def domain_metrics(intakes: Sequence[GroupIntake], advantages: Sequence[GroupAdvantages]) -> dict[str, DomainMetrics]:
    """Groups, rewards, successes and lengths of each Domain, over the attempts that count."""
    by_domain: dict[str, list[tuple[GroupIntake, bool]]] = {}
    for intake, values in zip(intakes, advantages, strict=True):
        if intake.counted:
            name = intake.counted[0].episode.domain or "none"
            by_domain.setdefault(name, []).append((intake, values.zero_variance))
    return {name: _domain(groups) for name, groups in sorted(by_domain.items())}


def staleness(samples: Sequence[TrainingSample], line: Sequence[int]) -> dict[str, float]:
    """How many versions behind the end of ``line`` the loss tokens were sampled: mean and largest."""
    place = {version: len(line) - 1 - index for index, version in enumerate(line)}
    behind = [
        place[version]
        for sample in samples
        for version, inside in zip(sample.versions, sample.loss_mask, strict=True)
        if inside and version in place
    ]
    if not behind:
        return {}
    return {"staleness_mean": fmean(behind), "staleness_max": float(max(behind))}


def _domain(groups: Sequence[tuple[GroupIntake, bool]]) -> DomainMetrics:
    counted = [attempt for intake, _ in groups for attempt in intake.counted]
    lengths = [sum(len(turn.output_ids) for turn in attempt.turns) for attempt in counted]
    return DomainMetrics(
        groups=len(groups),
        attempts=len(counted),
        zero_variance_groups=sum(flat for _, flat in groups),
        reward_mean=fmean(reward for intake, _ in groups for reward in intake.rewards),
        success_rate=fmean(float(bool(attempt.episode.success)) for attempt in counted),
        response_tokens=fmean(lengths),
    )


def _solved(intake: GroupIntake, index: int) -> float:
    success = intake.counted[index].episode.success
    return float(success) if success is not None else min(1.0, max(0.0, intake.rewards[index]))
