"""ShadowReport: what the pairs of a shadow say so far, by Domain; valid at every look. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from core.experiment import Experiment
from core.noun import Noun
from core.shadow import ShadowPair, ShadowStatus
from core.statistics.intervals import Interval, clustered_bootstrap, mcnemar_exact
from core.statistics.sequences import bernstein_sequence, betting_bounds, unit_interval

NO_DOMAIN = "(none)"
"""Of requests that named no Domain."""
ALL = "(all)"
_RESAMPLES = 2_000


class ShadowDomain(Noun):
    """Candidate minus primary on one Domain's judged pairs, one of each Episode."""

    domain: str
    pairs: int
    primary: float
    """Mean score."""
    candidate: float
    difference: float
    low: float
    """Of a betting confidence sequence: holds at every look with probability 1 - alpha over all looks."""
    high: float
    bernstein_low: float
    """The same by the empirical-Bernstein sequence: wider, in closed form."""
    bernstein_high: float
    alpha: float
    better: int
    """Pairs in which the candidate's score is higher."""
    worse: int
    mcnemar_p: float
    """Of ``better`` against ``worse``; for one look only."""
    judged_by: Mapping[str, int]
    """Rule, verifier or judge → pairs."""


class ShadowSide(Noun):
    """Speed, length and bad events of one side, over all pairs that were answered by both."""

    answers: int
    mean_seconds: float | None
    median_seconds: float | None
    mean_tokens: float | None
    events: Mapping[str, int]
    """Name of a bad event → answers; a candidate's failures count as ``error``."""


class ShadowReport(Noun):
    """Everything that a shadow's pairs say."""

    experiment_id: str
    mirrored: int
    scored: int
    unscored: int
    failed: int
    skipped: Mapping[str, int]
    """Reason → requests that were not mirrored."""
    dependent: int
    """Judged pairs left out of ``domains``: their Episode had one before."""
    domains: tuple[ShadowDomain, ...]
    """First all of them together, where there are several."""
    clustered: Interval | None
    """Mean difference over all judged pairs with Episodes as clusters, by bootstrap; for one look only."""
    primary: ShadowSide
    candidate: ShadowSide


def shadow_report(
    experiment: Experiment, pairs: Iterable[ShadowPair], counts: Mapping[str, int], *, alpha: float = 0.05
) -> ShadowReport:
    """What ``pairs``, in their order, say of a shadow; ``counts`` as the store has them.

    ``alpha`` holds for each Domain by itself.
    """
    mirrored = list({pair.id: pair for pair in pairs if pair.status is not ShadowStatus.SKIPPED}.values())
    judged = [pair for pair in mirrored if pair.difference is not None]
    first: dict[str, ShadowPair] = {}
    for pair in judged:
        first.setdefault(pair.episode_id, pair)
    independent = list(first.values())
    prefix = f"{ShadowStatus.SKIPPED.value}:"
    return ShadowReport(
        experiment_id=experiment.id,
        mirrored=len(mirrored),
        scored=sum(1 for pair in mirrored if pair.status is ShadowStatus.SCORED),
        unscored=sum(1 for pair in mirrored if pair.status is ShadowStatus.UNSCORED),
        failed=sum(1 for pair in mirrored if pair.status is ShadowStatus.FAILED),
        skipped={name.removeprefix(prefix): count for name, count in counts.items() if name.startswith(prefix)},
        dependent=len(judged) - len(independent),
        domains=tuple(_domains(independent, alpha)),
        clustered=_clustered(judged, 1.0 - alpha),
        primary=_primary(mirrored),
        candidate=_candidate(mirrored),
    )


def _domains(pairs: Sequence[ShadowPair], alpha: float) -> Iterable[ShadowDomain]:
    by_domain: dict[str, list[ShadowPair]] = {}
    for pair in pairs:
        by_domain.setdefault(pair.domain or NO_DOMAIN, []).append(pair)
    if len(by_domain) > 1:
        yield _domain(ALL, pairs, alpha)
    for name in sorted(by_domain):
        yield _domain(name, by_domain[name], alpha)


def _domain(name: str, pairs: Sequence[ShadowPair], alpha: float) -> ShadowDomain:
    differences = [pair.difference or 0.0 for pair in pairs]
    primary = [pair.primary_score or 0.0 for pair in pairs]
    scaled = unit_interval(differences)
    low, high = betting_bounds(scaled, alpha=alpha)
    lows, highs = bernstein_sequence(scaled, alpha=alpha)
    better, worse = sum(1 for one in differences if one > 0), sum(1 for one in differences if one < 0)
    judges: dict[str, int] = {}
    for pair in pairs:
        judge = pair.judged_by or "unknown"
        judges[judge] = judges.get(judge, 0) + 1
    mean = sum(differences) / len(pairs)
    return ShadowDomain(
        domain=name,
        pairs=len(pairs),
        primary=sum(primary) / len(pairs),
        candidate=sum(primary) / len(pairs) + mean,
        difference=mean,
        low=2.0 * low - 1.0,
        high=2.0 * high - 1.0,
        bernstein_low=2.0 * float(lows[-1]) - 1.0,
        bernstein_high=2.0 * float(highs[-1]) - 1.0,
        alpha=alpha,
        better=better,
        worse=worse,
        mcnemar_p=mcnemar_exact(better, worse),
        judged_by=judges,
    )


def _clustered(pairs: Sequence[ShadowPair], level: float) -> Interval | None:
    if not pairs:
        return None
    differences = [pair.difference or 0.0 for pair in pairs]
    episodes = [pair.episode_id for pair in pairs]
    return clustered_bootstrap(differences, episodes, level=level, resamples=_RESAMPLES)


def _primary(pairs: Sequence[ShadowPair]) -> ShadowSide:
    both = _answered(pairs)
    events = [event for pair in pairs for event in pair.primary_events]
    return _side([pair.primary_seconds for pair in both], [pair.primary_tokens for pair in both], events)


def _candidate(pairs: Sequence[ShadowPair]) -> ShadowSide:
    both = _answered(pairs)
    events = [event for pair in pairs for event in _candidate_events(pair)]
    return _side([pair.candidate_seconds for pair in both], [pair.candidate_tokens for pair in both], events)


def _answered(pairs: Sequence[ShadowPair]) -> list[ShadowPair]:
    """Pairs with two answers: else a candidate that fails on long requests would look fast."""
    return [pair for pair in pairs if pair.status is not ShadowStatus.FAILED]


def _candidate_events(pair: ShadowPair) -> set[str]:
    return set(pair.candidate_events) | ({"error"} if pair.status is ShadowStatus.FAILED else set())


def _side(seconds: Sequence[float | None], tokens: Sequence[int], events: Iterable[str]) -> ShadowSide:
    times = sorted(one for one in seconds if one is not None)
    counted: dict[str, int] = {}
    for event in events:
        counted[event] = counted.get(event, 0) + 1
    return ShadowSide(
        answers=len(tokens),
        mean_seconds=sum(times) / len(times) if times else None,
        median_seconds=times[len(times) // 2] if times else None,
        mean_tokens=sum(tokens) / len(tokens) if tokens else None,
        events=dict(sorted(counted.items())),
    )
