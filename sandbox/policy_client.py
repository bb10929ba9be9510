"""Calls the policy through the gateway, as any client would: with the ordinary ``openai`` package.

Retries on 408, 409, 429 and 5xx are the package's own, with the same idempotency key each time, so that the
gateway records one Turn however often a call is repeated.
"""

from collections.abc import Sequence
from typing import Any

import openai
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

from core.errors import (
    EngineError,
    EngineUnavailable,
    HoneError,
    InvalidRequest,
    ModelNotFound,
    PermissionDenied,
)
from core.message import Message
from core.noun import Noun

EPISODE_HEADER = "x-hone-episode-id"
TRAIN_HEADER = "x-hone-train"
TURN_HEADER = "x-hone-turn-id"
VERSION_HEADER = "x-hone-policy-version"
COMPACTS_HEADER = "x-hone-compacts"
IDEMPOTENCY_HEADER = "idempotency-key"
MAX_RETRIES = 6
_CONTEXT_SIGNS = ("context_length_exceeded", "maximum context length")
"""OpenAI's error code, and the words of vLLM's message."""


class PolicyCall(Noun):
    """One model call."""

    model: str
    """``coder@17`` or ``coder-fast@17``."""
    version: int
    """The PolicyVersion that must answer."""
    messages: tuple[Message, ...]
    temperature: float
    seed: int
    max_tokens: int
    episode_id: str
    turn_index: int
    trainable: bool
    tools: tuple[dict[str, Any], ...] = ()
    """OpenAI tools; empty: the engine is told of none."""
    compacts: str | None = None
    """The Turn before, where older tool results were taken out of its messages since."""


class PolicyReply(Noun):
    """What came back."""

    message: Message
    turn_id: str
    finish_reason: str
    tokens: int = 0
    """Of prompt and answer, as the engine counted."""


class PolicyClient:
    """Speaks to one gateway with one key."""

    def __init__(
        self, *, gateway_url: str, api_key: str, timeout_seconds: float, max_retries: int = MAX_RETRIES
    ) -> None:
        self._client = AsyncOpenAI(
            base_url=gateway_url.rstrip("/") + "/v1",
            api_key=api_key,
            timeout=timeout_seconds,
            max_retries=max_retries,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def call(self, call: PolicyCall) -> PolicyReply | None:
        """One answer; None when the conversation no longer fits the engine's context.

        Raises EngineError and its kin for what a later attempt may mend, and RequestError for what will not
        change by repeating.
        """
        try:
            raw = await self._client.chat.completions.with_raw_response.create(**_request(call))
            completion = raw.parse()
        except openai.OpenAIError as error:
            if _is_context_full(error):
                return None
            raise _attributed(error) from error
        return _reply(call, completion, dict(raw.headers))

    async def judge(self, *, model: str, messages: tuple[Message, ...], max_tokens: int) -> str:
        """A judge model's answer at temperature 0; never trained on. Raises as ``call`` does."""
        try:
            completion = await self._client.chat.completions.create(
                model=model,
                messages=list(messages),  # type: ignore[arg-type]
                temperature=0.0,
                max_tokens=max_tokens,
                extra_headers={TRAIN_HEADER: "false"},
            )
        except openai.OpenAIError as error:
            raise _attributed(error) from error
        return (completion.choices[0].message.content or "") if completion.choices else ""


def _request(call: PolicyCall) -> dict[str, Any]:
    headers = {
        EPISODE_HEADER: call.episode_id,
        IDEMPOTENCY_HEADER: f"{call.episode_id}:{call.turn_index}",
    }
    if call.compacts is not None:
        headers[COMPACTS_HEADER] = call.compacts
    if not call.trainable:
        headers[TRAIN_HEADER] = "false"
    request: dict[str, Any] = {
        "model": call.model,
        "messages": list(call.messages),
        "temperature": call.temperature,
        "seed": call.seed,
        "max_tokens": call.max_tokens,
        "extra_headers": headers,
    }
    if call.tools:
        request["tools"] = list(call.tools)
    return request


def _reply(call: PolicyCall, completion: ChatCompletion, headers: dict[str, str]) -> PolicyReply:
    turn_id = headers.get(TURN_HEADER)
    if not turn_id:
        raise EngineError(f"the gateway named no Turn ({TURN_HEADER} is missing)")
    answered = headers.get(VERSION_HEADER)
    if answered is not None and answered != str(call.version):
        raise EngineError(f"version {answered} answered where {call.version} was pinned")
    if not completion.choices:
        raise EngineError("the answer has no choice")
    choice = completion.choices[0]
    return PolicyReply(
        message=assistant_message(choice.message.content, _tool_calls(choice.message.tool_calls)),
        turn_id=turn_id,
        finish_reason=str(choice.finish_reason),
        tokens=0 if completion.usage is None else completion.usage.total_tokens,
    )


def _tool_calls(calls: Sequence[Any] | None) -> list[dict[str, Any]]:
    return [call.model_dump(mode="json", exclude_none=True) for call in calls or ()]


def assistant_message(content: str | None, tool_calls: list[dict[str, Any]]) -> Message:
    """The assistant message as it goes back into the conversation: what the engine's template knows."""
    # A lone surrogate, which JSON can carry, could not be sent back.
    text = (content or "").encode("utf-8", errors="replace").decode()
    message: Message = {"role": "assistant", "content": text}
    if tool_calls:
        message["tool_calls"] = tool_calls
    return message


def _is_context_full(error: openai.OpenAIError) -> bool:
    if not isinstance(error, openai.BadRequestError):
        return False
    return any(sign in f"{error.body} {error.message}" for sign in _CONTEXT_SIGNS)


def _attributed(error: openai.OpenAIError) -> HoneError:
    if isinstance(error, openai.APIConnectionError):  # also a timeout
        return EngineUnavailable(f"the gateway did not answer: {error}")
    if not isinstance(error, openai.APIStatusError):
        return EngineError(f"the gateway's answer could not be read: {error}")
    text = f"the gateway answered {error.status_code}: {error.message}"
    kinds: dict[int, type[HoneError]] = {400: InvalidRequest, 404: ModelNotFound}
    if error.status_code in (401, 403):
        return PermissionDenied(text, hint="check worker.api_key")
    if error.status_code in (429, 503):
        return EngineUnavailable(text)
    return kinds.get(error.status_code, EngineError)(text)
