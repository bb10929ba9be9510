"""How many tokens a prompt has, asked of the engine that would answer it."""

from typing import Any, Protocol

import msgspec
import structlog

from core.errors import EngineError, HoneError, NotFound
from core.variant import ModelName, parse_model_name
from gateway.upstream.base import Unreachable, Upstream
from gateway.upstream.errors import engine_error
from serving.pool import Route

log = structlog.get_logger(__name__)

_JSON = ((b"content-type", b"application/json"),)
_NO_ROUTE = frozenset({405, 501})
_PROMPT_FIELDS = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")


class Resolver(Protocol):
    """What is needed of the routing."""

    def resolve(self, model: ModelName, *, exclude: set[str]) -> Route:
        """A replica that can answer ``model``."""


class _Counted(msgspec.Struct):
    count: int


class OutsideCounter(Protocol):
    """What is needed of the outside models."""

    def knows(self, model: str) -> bool:
        """Whether it is one of them."""

    async def count_tokens(self, model: str, body: bytes) -> int:
        """Tokens of a chat request's prompt."""


async def count_tokens(
    chat_body: bytes, *, routing: Resolver, upstream: Upstream, outside: OutsideCounter | None = None
) -> int:
    """Tokens of a chat request's prompt, through the engine's ``/tokenize`` (vLLM 0.32, ``serve/tokenize``).

    Raises NotFound where the engine has no such route, ModelNotFound, EngineUnavailable, EngineError.
    """
    chat = msgspec.json.decode(chat_body)
    if outside is not None and outside.knows(chat["model"]):
        return await outside.count_tokens(chat["model"], chat_body)
    model, failed = parse_model_name(chat["model"]), set[str]()
    while True:
        route = routing.resolve(model, exclude=failed)
        try:
            return await _ask(route, chat, upstream)
        except Unreachable as error:
            log.warning("count_unreachable", deployment_id=route.deployment.id, error=str(error))
            if await _lives(route, upstream):
                raise _no_route(chat["model"]) from error
            failed.add(route.deployment.id)


async def _ask(route: Route, chat: dict[str, Any], upstream: Upstream) -> int:
    prompt = {name: chat[name] for name in _PROMPT_FIELDS if name in chat} | {"model": route.engine_model}
    if "reasoning_effort" in chat:
        # This route has no such field; the chat route hands it to the template in this way.
        effort = chat["reasoning_effort"]
        thinking = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        prompt["chat_template_kwargs"] = thinking | prompt.get("chat_template_kwargs", {})
    url = f"{route.deployment.url}/tokenize"
    async with await upstream.send(b"POST", url, msgspec.json.encode(prompt), _JSON) as response:
        body = await response.read()
        if response.status in _NO_ROUTE:
            raise _no_route(chat["model"])
        if response.status != 200:
            raise engine_error(response.status, body)
    try:
        return msgspec.json.decode(body, type=_Counted).count
    except msgspec.DecodeError as error:
        raise EngineError(f"the engine's answer cannot be read: {error}") from error


async def _lives(route: Route, upstream: Upstream) -> bool:
    """Whether the replica answers at all: a missing route and a replica that is away look the same otherwise."""
    try:
        async with await upstream.send(b"GET", f"{route.deployment.url}/health") as response:
            await response.read()
            return response.status == 200
    except (Unreachable, HoneError) as error:
        log.debug("replica_away", deployment_id=route.deployment.id, error=str(error))
        return False


def _no_route(model: str) -> NotFound:
    return NotFound(f"the engine that serves '{model}' cannot count tokens", hint="send the message itself")
