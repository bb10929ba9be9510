"""What a run amounts to: rows with and without swaps, and the checks."""

import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bench.checks import Check, check, percentile, ratio
from bench.engine_records import Comparison
from bench.hotswap.rescore import Piece, Scored
from bench.hotswap.swaps import Kind, Swap
from bench.streams import Answer
from core.turn import Turn

T = TypeVar("T")


@dataclass(frozen=True)
class Block:
    """A stretch of time with swaps or without."""

    swaps: bool
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


@dataclass
class Phase:
    """All about the swaps of one kind."""

    kind: Kind
    answers: list[Answer] = field(default_factory=list)
    swaps: list[Swap] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    comparison: Comparison = field(default_factory=Comparison)
    scored: list[Scored] = field(default_factory=list)
    straddling: int = 0
    """Turns whose tokens several versions sampled."""
    versions_seen: int = 0

    @property
    def failed(self) -> list[Answer]:
        """Requests without a whole answer."""
        return [answer for answer in self.answers if answer.error is not None]

    @property
    def swapped(self) -> list[Swap]:
        """Swaps that ended with a first token."""
        return [swap for swap in self.swaps if swap.error is None and swap.first_token is not None]

    def streams_during_swaps(self) -> int | None:
        """The fewest clients that had a stream open during a swap, over all swaps."""
        counts = [
            len(
                {
                    answer.client
                    for answer in self.answers
                    if answer.client >= 0 and answer.overlaps(swap.published, swap.ended)
                }
            )
            for swap in self.swapped
        ]
        return min(counts, default=None)

    def moved_episodes(self) -> int:
        """Conversations of which a later answer came from another version than the first."""
        versions: defaultdict[str, set[int]] = defaultdict(set)
        for answer in self.answers:
            if answer.error is None:
                versions[answer.episode_id].add(answer.version)
        return sum(len(one) > 1 for one in versions.values())

    def within(self, *, swaps: bool) -> list[Answer]:
        """Whole answers to requests that were sent in blocks of this sort."""
        blocks = [block for block in self.blocks if block.swaps is swaps]
        return [
            answer
            for answer in self.answers
            if answer.error is None
            and answer.client >= 0
            and any(block.begin <= answer.started < block.end for block in blocks)
        ]

    def wrong_turns(self) -> int:
        """Turns that another version answered than they say."""
        return self.comparison.wrong_version + len({one.turn_id for one in self.scored if one.wrong})


@dataclass
class Findings:
    """Everything that one run measured."""

    phases: list[Phase] = field(default_factory=list)

    def of(self, kind: Kind) -> Phase | None:
        """The phase, if it ran."""
        return next((phase for phase in self.phases if phase.kind == kind), None)


def row(phase: Phase, *, swaps: bool) -> dict[str, Any]:
    """Latencies in seconds of the blocks with swaps or without."""
    answers = phase.within(swaps=swaps)
    seconds = sum(block.seconds for block in phase.blocks if block.swaps is swaps)
    whole = [answer.seconds for answer in answers]
    first = [answer.arrivals[0] - answer.started for answer in answers if answer.arrivals]
    gaps = [gap for answer in answers for gap in answer.gaps]
    return {
        "phase": phase.kind,
        "blocks": "with swaps" if swaps else "without",
        "seconds": round(seconds, 1),
        "requests": len(answers),
        "tokens_per_second": round(sum(len(answer.ids) for answer in answers) / seconds, 2) if seconds else None,
        "request_p50": percentile(whole, 0.5),
        "request_p99": percentile(whole, 0.99),
        "first_token_p50": percentile(first, 0.5),
        "first_token_p99": percentile(first, 0.99),
        "gap_p50": percentile(gaps, 0.5),
        "gap_p99": percentile(gaps, 0.99),
        "gap_max": max(gaps, default=None),
    }


def rows(findings: Findings) -> list[dict[str, Any]]:
    """All rows."""
    return [row(phase, swaps=swaps) for phase in findings.phases for swaps in (False, True)]


def swap_row(phase: Phase) -> dict[str, Any]:
    """How long the swaps of a phase took, in seconds."""
    to_first = [swap.to_first_token for swap in phase.swapped if swap.to_first_token is not None]
    to_live = [swap.live - swap.published for swap in phase.swapped]
    engine = [swap.engine_seconds for swap in phase.swapped if swap.engine_seconds is not None]
    return {
        "phase": phase.kind,
        "swaps": len(phase.swapped),
        "failed_swaps": len(phase.swaps) - len(phase.swapped),
        "engine_p50": percentile(engine, 0.5),
        "engine_p95": percentile(engine, 0.95),
        "live_p50": percentile(to_live, 0.5),
        "live_p95": percentile(to_live, 0.95),
        "first_token_p50": percentile(to_first, 0.5),
        "first_token_p95": percentile(to_first, 0.95),
        "first_token_max": max(to_first, default=None),
    }


def turn_row(phase: Phase) -> dict[str, Any]:
    """What was compared."""
    clear = [one for one in phase.scored if one.clear]
    return {
        "phase": phase.kind,
        "answers": len(phase.answers),
        "failed": len(phase.failed),
        "checked": phase.comparison.checked,
        "tokens": phase.comparison.tokens,
        "lost_to_client": phase.comparison.lost_to_client,
        "lost_to_turn": phase.comparison.lost_to_turn,
        "turns_missing": phase.comparison.turns_missing,
        "unrecorded": phase.comparison.unrecorded,
        "usage_differs": phase.comparison.usage_differs,
        "versions_seen": phase.versions_seen,
        "straddling": phase.straddling,
        "header_differs": phase.comparison.header_differs,
        "moved_episodes": phase.moved_episodes(),
        "scored": len(phase.scored),
        "scored_clear": len(clear),
        "scored_wrong": sum(one.wrong for one in phase.scored),
        "worst_error": max((one.error for one in phase.scored), default=None),
        "least_neighbour": min((one.neighbour_error for one in clear), default=None),
    }


def added_p99(phase: Phase | None) -> float | None:
    """p99 of whole requests sent in blocks with swaps, over that in blocks without."""
    if phase is None:
        return None
    return ratio(row(phase, swaps=True)["request_p99"], row(phase, swaps=False)["request_p99"])


def checks(findings: Findings, *, lora_swaps: int = 50, full_swaps: int = 10) -> list[Check]:
    """The targets, each with what was measured."""
    lora, full = findings.of("lora"), findings.of("full")
    phases = findings.phases
    streams = [count for phase in phases if (count := phase.streams_during_swaps()) is not None]
    ratios = [value for phase in (lora, full) if (value := added_p99(phase)) is not None]
    whole = len(phases) == 2
    lost = sum(phase.comparison.lost + phase.comparison.unrecorded for phase in phases)
    return [
        check("streams_during_swap", min(streams, default=None), "streams", ">= 16"),
        check("turns_checked", sum(phase.comparison.checked for phase in phases), "Turns", ">= 1000"),
        check("lora_swaps", len(lora.swapped) if lora else None, "swaps", f">= {lora_swaps}"),
        check("lora_failed_requests", len(lora.failed) if lora else None, "requests", "== 0"),
        check("lora_to_first_token_seconds_p95", swap_row(lora)["first_token_p95"] if lora else None, "s", "<= 5"),
        check("full_swaps", len(full.swapped) if full else None, "swaps", f">= {full_swaps}"),
        check("full_failed_requests", len(full.failed) if full else None, "requests", "== 0"),
        check("tokens_lost", lost if whole else None, "tokens", "== 0"),
        check(
            "wrong_version_turns", sum(phase.wrong_turns() for phase in phases) if whole else None, "Turns", "== 0"
        ),
        check("added_p99_ratio", max(ratios) if len(ratios) == 2 else None, "x", "<= 1.5"),
    ]


def shares(made: Sequence[T], blocks: int) -> list[Sequence[T]]:
    """Equal runs, in order: a version's number is its place among those that were made."""
    ends = [len(made) * number // blocks for number in range(blocks + 1)]
    return [made[begin:end] for begin, end in itertools.pairwise(ends)]


def pieces(turns: Iterable[Turn], *, per_version: int, straddling: int, seed: int = 0) -> list[Piece]:
    """A sample of the Turns, cut where their version changes; each piece beside a version next to its own."""
    generator = random.Random(seed)
    usable = [turn for turn in turns if turn.exact and turn.output_ids]
    generator.shuffle(usable)
    versions = sorted({span.version for turn in usable for span in turn.policy_spans})
    taken: defaultdict[int, int] = defaultdict(int)
    chosen = [turn for turn in usable if len(turn.policy_spans) > 1][:straddling]
    for turn in usable:
        if len(turn.policy_spans) == 1 and taken[turn.version] < per_version:
            taken[turn.version] += 1
            chosen.append(turn)
    return [piece for turn in chosen for piece in _cut(turn, versions)]


def _cut(turn: Turn, versions: Sequence[int]) -> list[Piece]:
    found = []
    starts = [span.first_token for span in turn.policy_spans] + [len(turn.output_ids)]
    for span, begin, end in zip(turn.policy_spans, starts, starts[1:], strict=False):
        if begin == end:
            continue
        found.append(
            Piece(
                turn_id=turn.id,
                version=span.version,
                neighbour=neighbour(span.version, versions),
                tokens=[*turn.prompt_ids, *turn.output_ids[:end]],
                first=len(turn.prompt_ids) + begin,
                logprobs=list(turn.output_logprobs[begin:end]),
            )
        )
    return found


def neighbour(version: int, versions: Sequence[int]) -> int:
    """The version before this one among those that answered, or after it; with one alone, the Base."""
    before = [one for one in versions if one < version]
    after = [one for one in versions if one > version]
    return before[-1] if before else after[0] if after else 0


def tables(findings: Findings) -> dict[str, list[Mapping[str, Any]]]:
    """Everything beside the checks."""
    return {
        "latency": list(rows(findings)),
        "swaps": [swap_row(phase) for phase in findings.phases],
        "turns": [turn_row(phase) for phase in findings.phases],
    }
