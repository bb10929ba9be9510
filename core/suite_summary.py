"""Summaries of SuiteResults per Domain, with intervals, and paired comparisons. Pure."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from core.noun import Noun
from core.statistics.intervals import Interval, clustered_bootstrap, mcnemar_exact, paired_bootstrap
from core.suite import Attempt, SuiteResult, paired_differences

ALL = "all"
"""The name under which all Domains together are summarised."""
_RESAMPLES = 2_000


class DomainSummary(Noun):
    """What a version did in one Domain; every interval resamples whole Tasks."""

    domain: str
    tasks: int
    attempts: int
    """Valid ones."""
    invalid: int
    success: Interval | None
    reward: Interval | None
    tool_success: Interval | None
    """Share of tool calls that worked; None: no call was made."""
    stability: Interval | None
    """Share of pairs of attempts at one Task, perturbed or repeated, that ended alike; None: no Task has two."""
    recovery: Interval | None
    """Share of attempts with a tool error that succeeded all the same; None: no error."""
    output_tokens: Interval | None
    """Of one attempt."""
    prompt_tokens: Interval | None
    turns: Interval | None
    seconds: Interval | None


class DomainComparison(Noun):
    """A version against another in one Domain, Task by Task."""

    domain: str
    tasks: int
    success: float
    baseline_success: float
    difference: Interval
    """Success of the first minus that of the second."""
    only_first: int
    """Tasks of which the first succeeded in more attempts."""
    only_second: int
    p_value: float
    """Exact McNemar test of the Tasks that differ."""


def summarise(result: SuiteResult) -> list[DomainSummary]:
    """One summary for each Domain by name, and one of all together where there are several."""
    domains: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in result.attempts:
        domains[attempt.domain].append(attempt)
    found = [_summary(domain, attempts) for domain, attempts in sorted(domains.items())]
    if len(found) > 1:
        found.append(_summary(ALL, result.attempts))
    return found


def compare_results(candidate: SuiteResult, baseline: SuiteResult) -> list[DomainComparison]:
    """Paired differences per Domain. Raises ValueError for results of different Suites or versions of one."""
    ours, theirs = (candidate.suite, candidate.suite_version), (baseline.suite, baseline.suite_version)
    if ours != theirs:
        raise ValueError(f"results of Suite {ours} and Suite {theirs} cannot be compared")
    shared = {one.place for one in candidate.attempts if not one.invalid}
    shared &= {one.place for one in baseline.attempts if not one.invalid}
    found = []
    for domain, pairs in paired_differences(candidate.attempts, baseline.attempts).items():
        values = [value for _, value in pairs]
        wins, losses = sum(value > 0 for value in values), sum(value < 0 for value in values)
        found.append(
            DomainComparison(
                domain=domain,
                tasks=len(values),
                success=_share(candidate.attempts, domain, shared),
                baseline_success=_share(baseline.attempts, domain, shared),
                difference=paired_bootstrap(values, resamples=_RESAMPLES),
                only_first=wins,
                only_second=losses,
                p_value=mcnemar_exact(wins, losses),
            )
        )
    return found


def stability_of(attempts: Sequence[Attempt]) -> list[tuple[str, float]]:
    """Task → share of its pairs of valid attempts that ended alike, for Tasks with two or more."""
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for attempt in attempts:
        if not attempt.invalid:
            outcomes[attempt.task_id].append(attempt.success)
    found = []
    for task, seen in sorted(outcomes.items()):
        count, won = len(seen), sum(seen)
        if count > 1:
            alike = won * (won - 1) + (count - won) * (count - won - 1)
            found.append((task, alike / (count * (count - 1))))
    return found


def _summary(domain: str, attempts: Sequence[Attempt]) -> DomainSummary:
    valid = [one for one in attempts if not one.invalid]
    calls = [(one.task_id, 1.0) for one in valid for _ in range(max(0, one.tool_calls - one.tool_errors))]
    calls += [(one.task_id, 0.0) for one in valid for _ in range(min(one.tool_calls, one.tool_errors))]

    def of(measure: Callable[[Attempt], float]) -> Interval | None:
        return _clustered([(one.task_id, measure(one)) for one in valid])

    return DomainSummary(
        domain=domain,
        tasks=len({one.task_id for one in valid}),
        attempts=len(valid),
        invalid=len(attempts) - len(valid),
        success=of(lambda one: float(one.success)),
        reward=of(lambda one: one.reward),
        tool_success=_clustered(calls),
        stability=_clustered(stability_of(valid)),
        recovery=_clustered([(one.task_id, float(one.recovered)) for one in valid if one.recovered is not None]),
        output_tokens=of(lambda one: float(one.output_tokens)),
        prompt_tokens=of(lambda one: float(one.prompt_tokens)),
        turns=of(lambda one: float(one.turns)),
        seconds=of(lambda one: one.seconds),
    )


def _clustered(values: Sequence[tuple[str, float]]) -> Interval | None:
    if not values:
        return None
    return clustered_bootstrap([value for _, value in values], [task for task, _ in values], resamples=_RESAMPLES)


def _share(attempts: Sequence[Attempt], domain: str, shared: set[tuple[str, int, str | None]]) -> float:
    """Mean success in the places that both sides have, each Task with the same weight."""
    tasks: dict[str, list[float]] = defaultdict(list)
    for one in attempts:
        if one.domain == domain and one.place in shared:
            tasks[one.task_id].append(float(one.success))
    means = [sum(values) / len(values) for values in tasks.values()]
    return sum(means) / len(means)
