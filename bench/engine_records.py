"""What engines wrote down about their answers, and how received streams and recorded Turns compare with it."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.streams import Answer
from core.turn import Turn

_LORA_NAME = re.compile(r"\.v(?P<version>\d+)-[0-9a-f]{8}$")


@dataclass(frozen=True)
class EngineAnswer:
    """One answer as the engine's server handed it to its socket."""

    id: str
    model: str
    """As the engine was asked for it."""
    ids: tuple[int, ...]
    finished: bool

    @property
    def lora_version(self) -> int | None:
        """The version that the engine's name for an adapter carries; None for another name."""
        match = _LORA_NAME.search(self.model)
        return None if match is None else int(match["version"])


def read_records(folder: Path) -> dict[str, EngineAnswer]:
    """All answers by their id."""
    found = {}
    for file in sorted(folder.glob("engine-*.jsonl")):
        for line in file.read_text().splitlines():
            record: dict[str, Any] = json.loads(line)
            if record["id"]:
                one = EngineAnswer(record["id"], record["model"], tuple(record["ids"]), record["finished"])
                found[one.id] = one
    return found


@dataclass
class Comparison:
    """What was compared, and what differed."""

    checked: int = 0
    """Turns of whole answers, compared with the engine's record and with what the client received."""
    tokens: int = 0
    lost_to_client: int = 0
    """Tokens of the engine's record that the client did not receive in their place."""
    lost_to_turn: int = 0
    """The same for the stored Turn."""
    turns_missing: int = 0
    unrecorded: int = 0
    """Whole answers of which the engine wrote nothing down: the instrument failed, not the product."""
    usage_differs: int = 0
    """Answers whose token count by the engine's usage is not that of its record."""
    wrong_version: int = 0
    """Turns whose LoRA version is not the one that the answer's header or the engine's model name say."""
    header_differs: int = 0
    """Turns of full weights that began under another version than the header had said when they were routed: where
    a swap comes in between, the Turn says what the engine used. Which is right shows when it is scored anew."""
    examples: list[str] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Tokens that did not arrive."""
        return self.lost_to_client + self.lost_to_turn


def lost_tokens(sent: Sequence[int], received: Sequence[int]) -> int:
    """Tokens that were sent and are not in their place, and tokens that nobody sent."""
    wrong = sum(one != other for one, other in zip(sent, received, strict=False))
    return wrong + abs(len(sent) - len(received))


def compare(
    answers: Iterable[Answer], records: Mapping[str, EngineAnswer], turns: Mapping[str, Turn], *, lora: bool = True
) -> Comparison:
    """Compare every whole answer. ``lora``: the engine's model names carry versions."""
    found = Comparison()
    for answer in answers:
        if answer.error is not None:
            continue
        record = records.get(answer.engine_id)
        if record is None:
            found.unrecorded += 1
            continue
        turn = turns.get(answer.turn_id)
        _compare_ids(answer, record, turn, found)
        if turn is not None:
            _compare_versions(answer, record, turn, found, lora=lora)
    return found


def _compare_ids(answer: Answer, record: EngineAnswer, turn: Turn | None, found: Comparison) -> None:
    to_client = lost_tokens(record.ids, answer.ids)
    to_turn = len(record.ids) if turn is None else lost_tokens(record.ids, turn.output_ids)
    found.tokens += len(record.ids)
    found.lost_to_client += to_client
    found.lost_to_turn += to_turn
    found.turns_missing += turn is None
    found.checked += turn is not None
    found.usage_differs += answer.counted is not None and answer.counted != len(record.ids)
    if to_client or to_turn:
        found.examples.append(
            f"{answer.engine_id} ({answer.turn_id}): engine {len(record.ids)} ids, client {len(answer.ids)}, "
            f"Turn {'missing' if turn is None else len(turn.output_ids)}, finish {answer.finish_reason}"
        )


def _compare_versions(answer: Answer, record: EngineAnswer, turn: Turn, found: Comparison, *, lora: bool) -> None:
    if not lora:
        found.header_differs += answer.version != turn.version
    elif len({answer.version, turn.version, record.lora_version or 0}) > 1:
        found.wrong_version += 1
        found.examples.append(
            f"{answer.turn_id}: header @{answer.version}, Turn @{turn.version}, engine {record.model}"
        )
