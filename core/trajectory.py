"""Trajectory: the tree of an Episode's Turns; a Branch is a root-to-leaf path.

Turn k+1 continues Turn k only if its prompt ids start with Turn k's prompt + output ids. Otherwise it opens
a new Branch and the break is counted by cause. Nothing is ever re-tokenised to make two Turns fit.
"""

from collections.abc import Sequence
from enum import StrEnum

from core.noun import Noun
from core.turn import Turn


class BreakCause(StrEnum):
    """Why a Turn does not continue the one before it."""

    FIRST = "first"
    SIBLING = "sibling"
    """Another answer to the request of a Turn before: no break."""
    REWRITTEN_HISTORY = "rewritten_history"
    """The messages themselves differ from what was answered before."""
    COMPACTION = "compaction"
    """Older tool results were taken out, on purpose, to stay within the context budget."""
    TEMPLATE = "template"
    """The messages agree and the ids part before the earlier answer: the chat template changed its mind."""
    RETOKENISED = "retokenised"
    """The messages agree and the ids part inside the earlier answer."""


NO_BREAKS = frozenset({BreakCause.FIRST, BreakCause.SIBLING})
"""Reasons to begin a Branch that are no breaks."""


class Branch(Noun):
    """Turns of which each one's prompt ids extend all that came before."""

    turns: tuple[Turn, ...]
    cause: BreakCause
    """Why this Branch began."""


class Trajectory(Noun):
    """All Branches of one Episode, in order of their first Turn."""

    episode_id: str
    branches: tuple[Branch, ...]


def continues(earlier: Turn, later: Turn) -> bool:
    """Whether ``later``'s prompt is ``earlier``'s prompt + output, token for token, and something new."""
    if not (earlier.exact and later.exact):
        return False
    prefix = earlier.prompt_ids + earlier.output_ids
    return len(later.prompt_ids) >= len(prefix) and later.prompt_ids[: len(prefix)] == prefix


def _cause(known: Sequence[Turn], turn: Turn) -> BreakCause:
    """Why ``turn`` begins a Branch: by the Turn that its messages name, else by the one before."""
    if not known:
        return BreakCause.FIRST
    if any(earlier.index == turn.index for earlier in known):
        return BreakCause.SIBLING
    named = next((earlier for earlier in known if earlier.id == turn.parent_turn_id), None)
    return break_cause(max(known, key=_order) if named is None else named, turn)


def _order(turn: Turn) -> tuple[int, int]:
    return turn.index, turn.choice


def break_cause(earlier: Turn, later: Turn) -> BreakCause:
    """Why ``later`` does not continue ``earlier`` (which it must not)."""
    if later.compacted:
        return BreakCause.COMPACTION
    spoken = (*earlier.messages, earlier.response)
    head = later.messages[: len(spoken)]
    if [_gist(message) for message in head] != [_gist(message) for message in spoken]:
        return BreakCause.REWRITTEN_HISTORY
    kept = min(len(earlier.prompt_ids), len(later.prompt_ids))
    if later.prompt_ids[:kept] != earlier.prompt_ids[:kept]:
        return BreakCause.TEMPLATE
    return BreakCause.RETOKENISED


def _gist(message: dict[str, object]) -> tuple[object, object, list[tuple[object, object]]]:
    """What must agree for a message to be the same one: role, text, and which tools were called with what."""
    listed = message.get("tool_calls")
    calls = []
    for call in listed if isinstance(listed, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            calls.append((function.get("name"), function.get("arguments")))
    return message.get("role"), message.get("content") or "", calls


def build_trajectory(episode_id: str, turns: Sequence[Turn]) -> Trajectory:
    """Arrange an Episode's Turns into Branches by token prefix; each Turn lands in exactly one Branch.

    Turns of which no content was kept are in none: nothing is known of what they continue.
    """
    paths: list[list[Turn]] = []
    causes: list[BreakCause] = []
    kept = [turn for turn in turns if turn.content_kept]
    for turn in sorted(kept, key=_order):
        parent = max(
            (path for path in paths if continues(path[-1], turn)),
            key=lambda path: len(path[-1].prompt_ids) + len(path[-1].output_ids),
            default=None,
        )
        if parent is not None:
            parent.append(turn)
            continue
        causes.append(_cause([earlier for path in paths for earlier in path], turn))
        paths.append([turn])
    branches = tuple(Branch(turns=tuple(path), cause=cause) for path, cause in zip(paths, causes, strict=True))
    return Trajectory(episode_id=episode_id, branches=branches)
