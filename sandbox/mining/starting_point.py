"""Where a real user stood: the conversation up to a request, the files it was about, how it was answered. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from core.episode import Episode
from core.message import Message
from core.turn import Turn
from sandbox.parsing import message_text

_OK = "ok"
_READERS = frozenset({"files", "read_file", "view", "cat", "open_file"})
_PATHS = ("path", "file_path", "filename", "file")
_DEEPEST = 8


@dataclass(frozen=True)
class ToolUse:
    """One recorded call of a tool and what came back."""

    tool: str
    arguments: dict[str, Any]
    output: str
    ran: bool
    """It is known to have run without error."""


@dataclass(frozen=True)
class StartingPoint:
    """One request of a user within an Episode, and its recorded answer."""

    messages: tuple[Message, ...]
    """Up to and with the user's request."""
    files: dict[str, str]
    """What the recorded tools had read."""
    tools: tuple[str, ...]
    """Names of the functions that were offered."""
    uses: tuple[ToolUse, ...]
    """Calls that led to the answer."""
    answer: Message
    turns: tuple[Turn, ...]
    """Model calls that led to the answer, in order; the last one gave it."""

    @property
    def text(self) -> str:
        """The recorded answer's text."""
        return message_text(self.answer).strip()


def starting_points(episode: Episode, turns: Sequence[Turn]) -> list[StartingPoint]:
    """One per request of the user, from Turns whose content was kept, in their order.

    What the recorder redacted stays redacted: nothing but the recorded messages is used.
    """
    grouped: dict[str, list[Turn]] = {}
    openings: dict[str, tuple[Message, ...]] = {}
    for turn in sorted(turns, key=lambda one: (one.index, one.choice)):
        opening = _opening(turn.messages)
        if not opening or not turn.content_kept or not turn.response or turn.choice:
            continue
        key = json.dumps(opening, sort_keys=True, default=str)
        grouped.setdefault(key, []).append(turn)
        openings[key] = opening
    return [_point(episode, openings[key], chosen) for key, chosen in grouped.items()]


def _point(episode: Episode, opening: tuple[Message, ...], turns: list[Turn]) -> StartingPoint:
    last = turns[-1]
    recorded = _uses_in(last.messages[len(opening) :])
    own = [
        ToolUse(tool=one.tool, arguments=one.arguments, output=one.output, ran=one.outcome == _OK)
        for one in episode.tool_results
        if one.turn_id in {turn.id for turn in turns}
    ]
    uses = own or recorded
    return StartingPoint(
        messages=opening,
        files=_files([*_uses_in(opening), *uses]),
        tools=_offered(last.sampling.get("tools")),
        uses=tuple(uses),
        answer=last.response,
        turns=tuple(turns),
    )


def _opening(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages up to and with the last one of the user; empty: there is none."""
    last = max((place for place, message in enumerate(messages) if message.get("role") == "user"), default=-1)
    return tuple(messages[: last + 1])


def _uses_in(messages: Sequence[Message]) -> list[ToolUse]:
    """Calls in assistant messages joined with the tool messages that answer them."""
    outputs = {
        str(message.get("tool_call_id")): message_text(message)
        for message in messages
        if message.get("role") == "tool"
    }
    found = []
    for message in messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            identity = str(call.get("id")) if isinstance(call, dict) else ""
            if isinstance(function, dict) and identity in outputs:
                arguments = _arguments(function.get("arguments"))
                # The client's word for whether it ran is not recorded.
                found.append(ToolUse(str(function.get("name")), arguments, outputs[identity], ran=False))
    return found


def _arguments(text: object) -> dict[str, Any]:
    if isinstance(text, dict):
        return text
    try:
        read = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _files(uses: Sequence[ToolUse]) -> dict[str, str]:
    """Files that were read before the policy wrote them, by relative path."""
    files: dict[str, str] = {}
    written: set[str] = set()
    for use in uses:
        named = next((use.arguments[name] for name in _PATHS if isinstance(use.arguments.get(name), str)), None)
        path = None if named is None else _relative(named)
        if path is None or use.tool not in _READERS:
            continue
        if use.arguments.get("action", "read") != "read":
            written.add(path)
        elif path not in written:
            files.setdefault(path, use.output)
    return files


def _relative(path: str) -> str | None:
    """The path below the work folder; None for one that leads out of it, or is odd."""
    pure = PurePosixPath(path)
    parts = [part for part in pure.parts if part not in ("/", ".")]
    if not parts or ".." in parts or len(parts) > _DEEPEST or "\0" in path:
        return None
    return str(PurePosixPath(*parts))


def _offered(tools: object) -> tuple[str, ...]:
    names = []
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            names.append(function["name"])
    return tuple(names)
