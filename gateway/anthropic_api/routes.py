"""``/v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's Messages API on chat completions.

Headers beside Anthropic's are those of the OpenAI routes: ``x-hone-episode-id``, ``x-hone-train``,
``idempotency-key``. ``anthropic-version`` and ``anthropic-beta`` change nothing.
"""

import time
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from core import ids
from core.errors import PermissionDenied
from core.variant import ModelName
from gateway.anthropic_api.answer import message_of
from gateway.anthropic_api.count import count_tokens
from gateway.anthropic_api.documents import (
    CreateMessage,
    MessageAnswer,
    MessageErrorBody,
    MessagesPrompt,
    TokenCount,
)
from gateway.anthropic_api.request import MessagesRequest, read_count_request, read_messages_request
from gateway.anthropic_api.respond import Outgoing, WorkedOut
from gateway.anthropic_api.stream import MessageStream
from gateway.asgi import header_map
from gateway.auth import Caller
from gateway.callers import inference_caller
from gateway.consent import may_train, token_exact
from gateway.dependencies import BEARER, gateway_of
from gateway.inference.base import Call, Exchange
from gateway.inference.request import InferenceRequest, parse_request
from gateway.metrics import GatewayMetrics
from gateway.middleware import MODEL_LABEL
from gateway.request_headers import EVENT_STREAM, compacts_of, header_text, latency_of

router = APIRouter(prefix="/v1/messages", tags=["Anthropic API"], dependencies=[Depends(BEARER)])

_STATUSES = {
    400: "The request is malformed or impossible.",
    401: "No valid API key was sent.",
    403: "The API key lacks the scope or the model.",
    404: "The model does not exist.",
    409: "The version or the Episode contradicts the present state.",
    413: "The body is too long.",
    429: "A limit is reached.",
    502: "The engine answered wrongly or not at all.",
    503: "The store is away; try again after `Retry-After`.",
    504: "The engine sent nothing for too long.",
    529: "Nothing can answer now; try again after `Retry-After`.",
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": MessageErrorBody, "description": text} for status, text in _STATUSES.items()
}
_HEADERS_IN = (
    ("x-api-key", "An API key of this installation; `Authorization: Bearer` does as well."),
    ("x-hone-episode-id", "Continue this Episode."),
    ("x-hone-train", "Anything but `true` or `1`: this request does not train, whatever the key grants."),
    ("idempotency-key", "A repeated request with the same key adds no second Turn."),
)


def _document(model: type[BaseModel]) -> dict[str, Any]:
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": model.model_json_schema()}},
        },
        "parameters": [
            {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
            for name, text in _HEADERS_IN
        ],
    }


@router.post(
    "",
    response_model=MessageAnswer,
    response_class=JSONResponse,
    responses=_ERRORS | {200: {"content": {"text/event-stream": {}}}},
    openapi_extra=_document(CreateMessage),
)
async def create_message(request: Request) -> Response:
    """Ask a model for a message."""
    return WorkedOut(_answer)


@router.post(
    "/count_tokens",
    response_model=TokenCount,
    response_class=JSONResponse,
    responses=_ERRORS,
    openapi_extra=_document(MessagesPrompt),
)
async def count_message_tokens(request: Request) -> Response:
    """Count the tokens of a prompt."""
    return WorkedOut(_count)


async def _answer(request: Request, body: bytes, out: Outgoing) -> None:
    gateway = gateway_of(request)
    caller = await inference_caller(request)
    asked = read_messages_request(body)
    chat = parse_request("chat.completions", asked.chat_body, latency_of(header_map(request.scope)))
    call = _call(request, caller, asked, out.request_id)
    async with gateway.inference.exchange(call, chat) as exchange:
        request.scope[MODEL_LABEL] = _label(chat)
        if asked.stream:
            await _stream(exchange, out, gateway.metrics, _label(chat))
        else:
            message = message_of(await exchange.whole(), _message_id(exchange))
            await out.whole(200, exchange.headers, message)


async def _stream(exchange: Exchange, out: Outgoing, metrics: GatewayMetrics, label: str) -> None:
    started = time.perf_counter()
    stream = MessageStream(_message_id(exchange))
    first = True
    await out.start(200, [*EVENT_STREAM, *exchange.headers])
    with metrics.streams.track_inprogress():
        async for data in exchange.events():
            if first:
                metrics.first_token(label, time.perf_counter() - started)
                first = False
            events = b"".join(stream.feed(data))
            if events:
                await out.write(events)
        await out.write(b"".join(stream.end()))
    await out.end()


async def _count(request: Request, body: bytes, out: Outgoing) -> None:
    gateway = gateway_of(request)
    caller = await inference_caller(request)
    chat_body = read_count_request(body)
    chat = parse_request("chat.completions", chat_body)
    if not caller.may_use(chat.model_text):
        raise PermissionDenied(f"this key may not use the model '{chat.model_text}'", param="model")
    tokens = await count_tokens(
        chat_body, routing=gateway.routing, upstream=gateway.upstream, outside=gateway.outside
    )
    await out.whole(200, [], {"input_tokens": tokens})


def _call(request: Request, caller: Caller, asked: MessagesRequest, request_id: str) -> Call:
    headers = header_map(request.scope)
    return Call(
        caller=caller,
        request_id=request_id,
        surface="messages",
        episode_id=header_text(headers, b"x-hone-episode-id") or asked.episode_id,
        idempotency_key=header_text(headers, b"idempotency-key"),
        may_train=may_train(headers),
        token_exact=token_exact(headers),
        compacts=compacts_of(headers),
        user=header_text(headers, b"x-hone-user"),
    )


def _message_id(exchange: Exchange) -> str:
    """The Turn's id as a message's id, so that one leads to the other."""
    turn_id = exchange.turn_ids[0] if exchange.turn_ids else ids.new_id(ids.TURN)
    return f"msg_{turn_id.partition('_')[2]}"


def _label(chat: InferenceRequest) -> str:
    return str(ModelName(name=chat.model.name, variant=chat.model.variant))
