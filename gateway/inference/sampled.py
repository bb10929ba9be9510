"""Reads what was sampled, for the Turns that continue it: from the engine's JSON, or from a stored Turn."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from core.turn import Turn
from gateway.inference.splice import Answered, Stop, Tokens
from gateway.inference.target import Target

_THINKING_ENDS = "</think>"


class _Said(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    message: _Said | None = None
    delta: _Said | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []
    prompt_token_ids: list[int] | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode


@dataclass(slots=True)
class _Sampled:
    """One choice, put together from a body or from all events of a stream."""

    ids: Tokens = field(default_factory=lambda: array("I"))
    text: str = ""
    reasons: bool = False
    finish: str | None = None
    stop: int | str | None = None

    def take(self, choice: _Choice) -> None:
        self.ids.extend(choice.token_ids or ())
        said = choice.message or choice.delta
        if said is not None:
            # The mark may come in pieces.
            self.text = self.text[-len(_THINKING_ENDS) :] + (said.content or "")
            reasoned = bool(said.reasoning or said.reasoning_content)
            self.reasons = self.reasons or reasoned or _THINKING_ENDS in self.text
        self.finish = choice.finish_reason or self.finish
        self.stop = choice.stop_reason if choice.stop_reason is not None else self.stop


def answers_of(payloads: Sequence[bytes], target: Target, rendered: "Tokens | None") -> dict[int, Answered]:
    """Choice → its answer, from one body or the data of all events of a stream; only those whose ids came.

    ``rendered`` is the prompt's rendering where the engine was given other ids. Raises msgspec.DecodeError when the
    JSON has another shape than OpenAI's.
    """
    prompt: list[int] | None = None
    choices: dict[int, _Sampled] = {}
    for payload in payloads:
        answer = _decode_answer(payload)
        prompt = prompt or answer.prompt_token_ids
        for choice in answer.choices:
            choices.setdefault(choice.index, _Sampled()).take(choice)
    if prompt is None:
        return {}
    return {
        index: Answered(
            ids=array("I", prompt) + sampled.ids,
            prompt_length=len(prompt),
            rendered=rendered,
            stop=_stop(sampled.finish, sampled.stop),
            reasons=sampled.reasons,
            policy=target.policy,
            version=target.version,
        )
        for index, sampled in choices.items()
        if sampled.ids
    }


def answer_of(turn: Turn) -> Answered | None:
    """The answer of a stored Turn; None where its ids are not whole."""
    if not (turn.exact and turn.content_kept and turn.prompt_ids and turn.output_ids):
        return None
    content = turn.response.get("content")
    reasoned = turn.response.get("reasoning") or turn.response.get("reasoning_content")
    return Answered(
        ids=array("I", turn.prompt_ids + turn.output_ids),
        prompt_length=len(turn.prompt_ids),
        rendered=None,
        stop=_stop(turn.finish_reason, None),
        reasons=bool(reasoned) or (isinstance(content, str) and _THINKING_ENDS in content),
        policy=turn.policy,
        version=turn.version,
    )


def _stop(finish: str | None, reason: int | str | None) -> Stop:
    if finish == "length":
        return "length"
    return "end" if reason is None else "text"
