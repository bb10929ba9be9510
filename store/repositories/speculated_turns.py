"""Turns as serving looks at them: what draft tokens did in them, and prompts to compare replicas on. Read only."""

from typing import Any

import msgspec
from sqlalchemy import select

from core.speculation import TurnFigures
from core.turn import Turn
from core.variant import Variant
from store.connection import Connection
from store.repositories.turns import Turns
from store.tables.episodes import EPISODES
from store.tables.turns import TURNS

_MOST_TURNS = 20_000


class _Span(msgspec.Struct):
    version: int


class _Speculation(msgspec.Struct, frozen=True):
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    accepted_at: tuple[int, ...] = ()


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Timing(msgspec.Struct):
    total_seconds: float
    first_token_seconds: float | None = None


class _Payload(msgspec.Struct):
    policy: str
    policy_spans: list[_Span]
    variant: Variant
    timing: _Timing
    usage: _Usage
    speculation: _Speculation = _Speculation()


_decode = msgspec.json.Decoder(_Payload).decode


class SpeculatedTurns:
    """Turns of Episodes that began lately."""

    def __init__(self, connection: Connection, turns: Turns) -> None:
        self._connection = connection
        self._turns = turns

    async def figures(
        self, *, since: float, policy: str | None = None, limit: int = _MOST_TURNS
    ) -> list[TurnFigures]:
        """Turns with sampled tokens, of Episodes that began after ``since`` (Unix seconds); the newest ``limit``."""
        query = (
            select(TURNS.c.payload, EPISODES.c.domain)
            .join(EPISODES, EPISODES.c.id == TURNS.c.episode_id)
            .where(EPISODES.c.created_at >= since)
            .order_by(EPISODES.c.created_at.desc())
            .limit(limit)
        )
        if policy is not None:
            query = query.where(EPISODES.c.policy == policy)
        rows = await self._connection.rows(query)
        return [found for row in rows if (found := _figures(row.payload, row.domain)) is not None]

    async def consented(self, *, policy: str, limit: int) -> list[Turn]:
        """The newest Turns of a Policy (or Base) whose tokens may be used, with their prompt ids."""
        query = (
            self._turns.selected()
            .join(EPISODES, EPISODES.c.id == TURNS.c.episode_id)
            .where(EPISODES.c.policy == policy)
            .order_by(EPISODES.c.created_at.desc(), TURNS.c.index)
            .limit(limit)
        )
        turns = [await self._turns.unpacked(row) for row in await self._connection.rows(query)]
        return [turn for turn in turns if turn.trainable and turn.exact and turn.prompt_ids]


def _figures(payload: str, domain: Any) -> TurnFigures | None:
    turn = _decode(payload)
    seconds = turn.timing.total_seconds - (turn.timing.first_token_seconds or 0.0)
    if turn.usage.completion_tokens <= 0 or seconds <= 0 or not turn.policy_spans:
        return None
    counts = turn.speculation
    return TurnFigures(
        policy=turn.policy,
        version=turn.policy_spans[0].version,
        domain=domain,
        variant=turn.variant,
        tokens=turn.usage.completion_tokens,
        seconds=seconds,
        drafted=counts.drafted,
        accepted=counts.accepted,
        steps=counts.steps,
        accepted_at=counts.accepted_at,
    )
