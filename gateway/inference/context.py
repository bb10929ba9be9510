"""Context length: a request that cannot fit the model is refused before an engine reads it.

Exact where the prompt comes as token ids. A text has at least as many tokens as its bytes divided by the longest
token of the Base: with that, nothing is refused that would have fitted, and the engine still has the last word on
what lies in between.
"""

from typing import Any

import msgspec

from core.errors import ContextLengthExceeded
from core.token_bound import counted_bytes, least_tokens
from gateway.inference.request import InferenceRequest, value_of

LEAST_BYTES_PER_TOKEN = 2
"""A token id in JSON has a digit and a comma: shorter bodies need no further look."""
_UNKNOWN_LENGTH = ("truncate_prompt_tokens", "kv_transfer_params", "chat_template")
"""Fields with which the prompt is not what the messages say."""


class _Message(msgspec.Struct):
    role: str | None = None
    content: Any = None


_decode_messages = msgspec.json.Decoder(list[_Message]).decode


def check_context(request: InferenceRequest, room: int, token_bytes: int | None) -> None:
    """Raise ContextLengthExceeded where prompt and answer surely have more than ``room`` tokens.

    ``token_bytes``: no token of the Base stands for more bytes of text; None: not known.
    """
    answer = request.answer_tokens
    if answer > room:
        name = "max_tokens" if _absent(request, "max_completion_tokens") else "max_completion_tokens"
        raise ContextLengthExceeded(
            f"This model's maximum context length is {room} tokens, and '{name}' alone is {answer}",
            hint=f"ask for at most {room} tokens, prompt included",
            param=name,
        )
    if all(_absent(request, name) for name in _UNKNOWN_LENGTH):
        check_prompt(request, least_prompt_tokens(request, room - answer, token_bytes), room)


def check_prompt(request: InferenceRequest, prompt: int, room: int) -> None:
    """Raise ContextLengthExceeded where a prompt of at least ``prompt`` tokens and the answer do not fit."""
    answer = request.answer_tokens
    if prompt + answer <= room:
        return
    asked = f" and {answer} for the answer" if answer else ""
    raise ContextLengthExceeded(
        f"This model's maximum context length is {room} tokens. However, you asked for {prompt + answer} or more"
        f" ({prompt} or more in the prompt{asked})",
        hint="shorten the prompt or ask for fewer tokens",
        param="messages" if request.endpoint == "chat.completions" else "prompt",
    )


def least_prompt_tokens(request: InferenceRequest, enough: int, token_bytes: int | None) -> int:
    """Tokens that the longest prompt has at least; 0 where nothing is known, or it is surely not above ``enough``."""
    chat = request.endpoint == "chat.completions"
    raw = bytes(request.fields.get("messages" if chat else "prompt") or b"")
    if (chat or raw[:1] == b'"') and (token_bytes is None or len(raw) <= enough * token_bytes):
        # JSON is never shorter than the text that it stands for.
        return 0
    if not chat:
        prompts = _prompts(value_of(request.fields, "prompt"))
        return max((_least(prompt, token_bytes) for prompt in prompts), default=0)
    assert token_bytes is not None
    try:
        messages = _decode_messages(raw)
    except (msgspec.DecodeError, RecursionError):
        # The engine will say what is wrong with them.
        return 0
    # Templates leave out reasoning, and maybe more, of earlier answers; they may strip what users and tools say.
    texts = (text for message in messages if message.role != "assistant" for text in _texts(message.content))
    return least_tokens(sum(counted_bytes(text.strip()) for text in texts), token_bytes)


def _prompts(prompt: Any) -> list[Any]:
    several = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)
    return prompt if several else [prompt]


def _least(prompt: Any, token_bytes: int | None) -> int:
    if isinstance(prompt, list):
        return len(prompt)
    if isinstance(prompt, str) and token_bytes is not None:
        return least_tokens(counted_bytes(prompt), token_bytes)
    return 0


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return []
    return [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]


def _absent(request: InferenceRequest, name: str) -> bool:
    raw = request.fields.get(name)
    return raw is None or bytes(raw) == b"null"
