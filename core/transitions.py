"""Lifecycles as tables of allowed transitions, checked in one place."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from core.errors import InvalidTransition

StatusT = TypeVar("StatusT", bound=StrEnum)


class TransitionTable(Generic[StatusT]):
    """Which status may follow which; a status without successors is terminal."""

    def __init__(self, noun: str, allowed: Mapping[StatusT, frozenset[StatusT]]) -> None:
        self._noun = noun
        self._allowed = dict(allowed)

    def check(self, current: StatusT, following: StatusT) -> StatusT:
        """Return ``following`` if it may follow ``current``; raise InvalidTransition otherwise."""
        if following not in self._allowed[current]:
            raise InvalidTransition(f"{self._noun} cannot go from {current} to {following}")
        return following

    def successors(self, current: StatusT) -> frozenset[StatusT]:
        """The statuses that may follow ``current``."""
        return self._allowed[current]

    def is_terminal(self, status: StatusT) -> bool:
        """Whether nothing may follow ``status``."""
        return not self._allowed[status]
