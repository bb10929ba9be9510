"""The speculation report: how draft tokens fared in recorded Turns, by Policy version and Domain. Pure.

Speeds are what the gateway saw: sampled tokens over the time from the first token (of a whole answer: from the
request) to the last.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from core.noun import Noun
from core.variant import Variant


@dataclass(frozen=True)
class TurnFigures:
    """What the report needs of one Turn."""

    policy: str
    version: int
    domain: str | None
    variant: Variant
    tokens: int
    """Sampled."""
    seconds: float
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    accepted_at: tuple[int, ...] = ()


class SpeculationRow(Noun):
    """One Policy version on one Domain."""

    policy: str
    """The Policy, or the Base's own name."""
    version: int
    domain: str | None
    """None: conversations of clients that belong to no Domain."""
    fast_turns: int
    standard_turns: int
    drafted: int
    """Draft tokens."""
    accepted: int
    acceptance: float | None
    """Accepted share of the draft tokens."""
    tokens_per_step: float | None
    """Tokens gained per step of the target model that checked a draft: the accepted ones and its own."""
    by_position: tuple[float, ...]
    """Share of those steps in which the token at this position was accepted."""
    fast_tokens_per_second: float | None
    standard_tokens_per_second: float | None
    speedup: float | None
    """Fast over standard; None where one of them answered nothing here."""


@dataclass
class _Sums:
    turns: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, turn: TurnFigures) -> None:
        self.turns += 1
        self.tokens += turn.tokens
        self.seconds += turn.seconds

    @property
    def speed(self) -> float | None:
        return self.tokens / self.seconds if self.seconds > 0 else None


@dataclass
class _Group:
    speeds: dict[Variant, _Sums] = field(default_factory=lambda: {variant: _Sums() for variant in Variant})
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    accepted_at: list[int] = field(default_factory=list)

    def add(self, turn: TurnFigures) -> None:
        self.speeds[turn.variant].add(turn)
        self.drafted += turn.drafted
        self.accepted += turn.accepted
        self.steps += turn.steps
        self.accepted_at += [0] * (len(turn.accepted_at) - len(self.accepted_at))
        for position, count in enumerate(turn.accepted_at):
            self.accepted_at[position] += count


def speculation_rows(turns: Iterable[TurnFigures]) -> list[SpeculationRow]:
    """One row per Policy version and Domain, in order of these."""
    groups: defaultdict[tuple[str, int, str | None], _Group] = defaultdict(_Group)
    for turn in turns:
        groups[turn.policy, turn.version, turn.domain].add(turn)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], item[0][1], item[0][2] or ""))
    return [_row(policy, version, domain, group) for (policy, version, domain), group in ordered]


def _row(policy: str, version: int, domain: str | None, group: _Group) -> SpeculationRow:
    fast, standard = group.speeds[Variant.FAST], group.speeds[Variant.STANDARD]
    return SpeculationRow(
        policy=policy,
        version=version,
        domain=domain,
        fast_turns=fast.turns,
        standard_turns=standard.turns,
        drafted=group.drafted,
        accepted=group.accepted,
        acceptance=group.accepted / group.drafted if group.drafted else None,
        tokens_per_step=1.0 + group.accepted / group.steps if group.steps else None,
        by_position=tuple(count / group.steps for count in group.accepted_at) if group.steps else (),
        fast_tokens_per_second=fast.speed,
        standard_tokens_per_second=standard.speed,
        speedup=fast.speed / standard.speed if fast.speed and standard.speed else None,
    )
