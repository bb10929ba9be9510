"""LiteLLM's answers as an engine's: OpenAI's JSON, or server-sent events with ``[DONE]`` at the end."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Self

import msgspec

from core.errors import EngineError
from gateway.upstream.base import Unreachable

_encode = msgspec.json.Encoder().encode
_DONE = b"data: [DONE]\n\n"

Translate = Callable[[Exception], Exception]
InBackground = Callable[[Coroutine[Any, Any, None]], object]


class _Answer:
    """What both kinds share; implements ``UpstreamResponse`` with its subclasses."""

    status = 200
    headers: Mapping[bytes, bytes]

    async def read(self) -> bytes:
        """The whole body."""
        parts = []
        while data := await self.next():
            parts.append(data)
        return b"".join(parts)

    async def next(self) -> bytes:
        """The next part of the body; empty at the end."""
        raise NotImplementedError

    def close(self) -> None:
        """End the call."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class OutsideWhole(_Answer):
    """A whole chat completion."""

    def __init__(self, answer: Any) -> None:
        self.headers = {b"content-type": b"application/json"}
        self._body = _encode(answer.model_dump(mode="json"))

    async def next(self) -> bytes:
        """The body, once."""
        body, self._body = self._body, b""
        return body

    def close(self) -> None:
        """Nothing is left open."""
        self._body = b""


class OutsideStream(_Answer):
    """A stream of chunks, pulled from the provider only as fast as it is read here."""

    def __init__(self, stream: Any, *, translate: Translate, in_background: InBackground) -> None:
        self.headers = {b"content-type": b"text/event-stream; charset=utf-8"}
        self._stream = stream
        self._translate = translate
        self._in_background = in_background
        self._ended = False

    async def next(self) -> bytes:
        """One event; empty at the end. Raises EngineError when the provider breaks off."""
        if self._ended:
            return b""
        try:
            chunk = await anext(self._stream)
        except StopAsyncIteration:
            self._ended = True
            return _DONE
        except Exception as error:  # noqa: BLE001 - translated, and logged there
            self.close()
            raise self._broken(error) from None
        fields = chunk.model_dump(mode="json", exclude_none=True)
        for choice in fields.get("choices", ()):
            if choice.setdefault("finish_reason", None) is not None and self._is_made_up():
                self.close()
                raise EngineError("the provider ended its stream before its answer", hint="send the request again")
        return b"data: " + _encode(fields) + b"\n\n"

    def close(self) -> None:
        """End the provider's call; its connection is closed in the background."""
        self._ended = True
        stream, self._stream = self._stream, None
        if stream is not None:
            self._in_background(_close(stream))

    def _is_made_up(self) -> bool:
        """LiteLLM writes an end of its own where a provider's stream stops without one."""
        names = ("received_finish_reason", "intermittent_finish_reason")
        return all(hasattr(self._stream, name) and getattr(self._stream, name) is None for name in names)

    def _broken(self, error: Exception) -> Exception:
        found = self._translate(error)
        if isinstance(found, Unreachable):
            return EngineError(f"the stream broke off: {found}", hint="send the request again")
        return found


async def _close(stream: Any) -> None:
    await asyncio.shield(asyncio.ensure_future(stream.aclose()))
