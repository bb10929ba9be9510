"""Joins what was sampled before with what is new: the token ids of a conversation that goes on, without I/O.

A conversation that is rendered and tokenised anew need not have the ids that were sampled in it: the same text has
many tokenisations, tool calls are written with other spaces, leading blanks melt into the template. Here an earlier
Turn's ids stay as they were sampled, and only the ids of what came after its answer are taken from the rendering.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

Tokens: TypeAlias = "array[int]"
"""Token ids, four bytes each."""
Stop = Literal["end", "length", "text"]
"""What an answer ended by: its end-of-turn token, the token limit, or a text or token that the request named."""

_MELTED = 1
"""Most ids at the end of a rendered prompt that may melt into the answer: a line break and the break after it."""
_LEAST_SHARE = 0.5
"""Of an answer's ids that must be in its rendering: with fewer, something was left out and not just tokenised."""
_SLACK = 4


class FallbackCause(StrEnum):
    """Why a conversation is rendered anew."""

    UNKNOWN_ANSWER = "unknown_answer"
    """The last assistant message is no answer of which the ids are known."""
    OTHER_MODEL = "other_model"
    """Another Policy or version answered."""
    UNSUPPORTED_FIELD = "unsupported_field"
    """A field that has no meaning beside token ids."""
    MULTIMODAL = "multimodal"
    TEMPLATE = "template"
    """What came before the answer is rendered otherwise than it was: tools, settings, or the template's choice."""
    REASONING = "reasoning"
    """The answer's reasoning is not, or not as it was, in the rendering."""
    REWRITTEN_ANSWER = "rewritten_answer"
    """The rendering lacks a large part of the answer."""
    STOP_TEXT = "stop_text"
    """The answer ended by a stop text, which the client did not see."""
    ENDING = "ending"
    """It is not known how the template ends an answer like this one."""
    BOUNDARY = "boundary"
    """The messages after the answer change how it is rendered."""
    ENGINE_REFUSED = "engine_refused"
    """The engine does not render, or did not take the ids."""
    FAILED = "failed"
    """Something that is to be mended here; the log says what."""


class Misfit(Exception):
    """The ids cannot be joined; the conversation is rendered anew. Never leaves ``gateway.inference``."""

    def __init__(self, cause: FallbackCause) -> None:
        super().__init__(cause.value)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Answered:
    """An earlier Turn, as far as a later one needs it."""

    ids: Tokens
    """Of its prompt and its answer."""
    prompt_length: int
    rendered: "array[int] | None"
    """Its prompt as the engine rendered it, where that was not what the engine was given."""
    stop: Stop
    reasons: bool
    """The answer has reasoning."""
    policy: str
    version: int

    @property
    def output(self) -> Tokens:
        """The sampled ids."""
        return self.ids[self.prompt_length :]

    @property
    def prompt(self) -> Tokens:
        """What the engine was given."""
        return self.ids[: self.prompt_length]

    @property
    def size(self) -> int:
        """How many ids it holds."""
        return len(self.ids) + (0 if self.rendered is None else len(self.rendered))


def continued(answered: Answered, rendered: Tokens, full: Tokens) -> "array[int] | None":
    """The ids of a conversation whose rendering agrees with what was sampled in ``answered``; None: it does not.

    ``rendered`` is the earlier prompt, ``full`` the whole conversation with the opening of the next answer.
    """
    start, output = len(rendered), answered.output
    end = start + len(output)
    if full[:start] == rendered and full[start:end] == output:
        return answered.ids + full[end:]
    return None


def spliced(
    answered: Answered, rendered: Tokens, full: Tokens, closed: Tokens, ending: Tokens, *, keep_stop_text: bool
) -> Tokens:
    """The ids of a conversation whose rendering differs from what was sampled in ``answered``; raises Misfit.

    ``closed`` is the rendering up to and with the answer, without an opening of the next one, and ``ending`` what the
    template writes after an answer. With ``keep_stop_text`` the text that an answer stopped by stays in it.
    """
    output = answered.output
    if full[: len(closed)] != closed:
        raise Misfit(FallbackCause.BOUNDARY)
    said_end = len(closed) - len(ending)
    if not ending or closed[said_end:] != ending:
        raise Misfit(FallbackCause.ENDING)
    agreed = min(common_prefix(rendered + output, closed), said_end)
    if agreed < len(rendered) - _MELTED:
        raise Misfit(FallbackCause.TEMPLATE)
    if answered.reasons:
        raise Misfit(FallbackCause.REASONING)
    ended = bool(output) and output[-1] == ending[0]
    if not ended:
        if answered.stop == "end":
            raise Misfit(FallbackCause.ENDING)
        if answered.stop == "text" and not keep_stop_text:
            raise Misfit(FallbackCause.STOP_TEXT)
    sampled = len(rendered) + len(output) - agreed - ended
    if said_end - agreed < _LEAST_SHARE * sampled - _SLACK:
        raise Misfit(FallbackCause.REWRITTEN_ANSWER)
    return answered.ids + ending[1 if ended else 0 :] + full[len(closed) :]


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two sequences have in common at their beginning."""
    shorter = min(len(one), len(other))
    return next((index for index in range(shorter) if one[index] != other[index]), shorter)


def common_suffix(one: Tokens, other: Tokens) -> Tokens:
    """What two sequences have in common at their end."""
    shorter = min(len(one), len(other))
    count = common_prefix(one[::-1][:shorter], other[::-1][:shorter])
    return one[len(one) - count :]
