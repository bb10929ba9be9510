"""``/v1/responses``: OpenAI's Responses API."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Send

from core.errors import InvalidRequest
from gateway.asgi import header_map, until_disconnected
from gateway.callers import InferenceCaller, PathId
from gateway.consent import may_train, token_exact
from gateway.dependencies import BEARER, FIND_ERRORS, errors, gateway_of
from gateway.errors import request_id_of
from gateway.http.base import RawHeader
from gateway.metrics import CLIENT_LEFT_STATUS, STREAM_BROKEN_STATUS
from gateway.middleware import MODEL_LABEL, SHOWN_STATUS
from gateway.request_headers import header_text, latency_of
from gateway.responses_api.documents import DeletedResponse, InputItems, ResponseDocument, ResponseRequestDocument
from gateway.responses_api.outbox import Outbox
from gateway.responses_api.service import Answering, Asked, ResponsesService

_CREATE_ERRORS = errors(400, 401, 403, 404, 409, 413, 429, 502, 503)
_encode = msgspec.json.Encoder().encode


def responses_router(service: ResponsesService) -> APIRouter:
    """The routes, answered by ``service``."""
    router = APIRouter(prefix="/v1/responses", tags=["OpenAI API"], dependencies=[Depends(BEARER)])

    @router.post(
        "",
        summary="Create a response",
        response_model=ResponseDocument,
        responses=_CREATE_ERRORS | {200: {"content": {"text/event-stream": {}}}},
        openapi_extra=_request_document(),
    )
    async def create(request: Request, caller: InferenceCaller) -> Response:
        """Answer with the model, running hosted tools on the way; with `stream`, as server-sent events."""
        headers = header_map(request.scope)
        try:
            body = await request.body()
        except ClientDisconnect:
            return _nobody()
        asked = Asked(
            caller=caller,
            body=body,
            request_id=request_id_of(request.scope),
            episode_id=header_text(headers, b"x-hone-episode-id"),
            idempotency_key=header_text(headers, b"idempotency-key"),
            may_train=may_train(headers),
            token_exact=token_exact(headers),
            latency=latency_of(headers),
            user=header_text(headers, b"x-hone-user"),
        )
        return await _answer(request, await service.begin(asked))

    @router.get("/{response_id}", summary="Get a response", response_model=ResponseDocument, responses=FIND_ERRORS)
    async def get(response_id: PathId, caller: InferenceCaller, stream: bool = False) -> Response:
        """A stored response."""
        if stream:
            raise InvalidRequest("a stored response is not streamed", hint="leave 'stream' out", param="stream")
        return _json((await service.archive.get(caller.tenant.id, response_id)).response)

    @router.delete("/{response_id}", summary="Delete a response", responses=FIND_ERRORS)
    async def delete(response_id: PathId, caller: InferenceCaller) -> DeletedResponse:
        """Forget a stored response; what it said is erased, unless consent to train was granted for it."""
        await service.archive.delete(caller.tenant.id, response_id)
        return DeletedResponse(id=response_id)

    @router.post(
        "/{response_id}/cancel", summary="Cancel a response", response_model=ResponseDocument, responses=FIND_ERRORS
    )
    async def cancel(response_id: PathId, caller: InferenceCaller) -> Response:
        """Refused: only responses in the background can be cancelled, and none run there."""
        await service.archive.get(caller.tenant.id, response_id)
        raise InvalidRequest(
            "only a response in the background can be cancelled", hint="close the connection of a running one"
        )

    @router.get("/{response_id}/input_items", summary="List input items", responses=FIND_ERRORS)
    async def input_items(
        response_id: PathId,
        caller: InferenceCaller,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: Annotated[str | None, Query(max_length=256)] = None,
    ) -> InputItems:
        """What a request brought, page by page."""
        stored = await service.archive.get(caller.tenant.id, response_id)
        items = list(stored.input_items)
        if order == "desc":
            items.reverse()
        if after is not None:
            place = next((number for number, item in enumerate(items) if item["id"] == after), None)
            if place is None:
                raise InvalidRequest(f"there is no item '{after}'", param="after")
            items = items[place + 1 :]
        return InputItems.page(items, limit)

    return router


async def _answer(request: Request, answering: Answering) -> Response:
    """Wait for the answer, or for a stream's beginning, or for the client's leaving."""
    run, task = answering.run, answering.task
    left = asyncio.ensure_future(until_disconnected(request.receive))
    started = asyncio.ensure_future(run.started.wait())
    wanted = {task, left} if answering.outbox is None else {task, left, started}
    try:
        await asyncio.wait(wanted, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        started.cancel()
        if not left.done():
            left.cancel()
    if left.done() and not left.cancelled() and not task.done():
        task.cancel()
        return _nobody()
    if task.done() and (answering.outbox is None or not run.started.is_set()):
        # Raises what went wrong.
        task.result()
    request.scope[MODEL_LABEL] = _label(answering)
    if answering.outbox is None:
        headers = [one for one in run.headers if one[0] != b"x-hone-turn-id"]
        headers.append((b"x-hone-turn-id", ",".join(run.turn_ids).encode()))
        return _json(dict(run.response), headers)
    return _EventStream(request, answering, answering.outbox)


class _EventStream(StreamingResponse):
    """Sends what an Answering puts into its Outbox; ends the Answering when the client leaves."""

    def __init__(self, request: Request, answering: Answering, outbox: Outbox) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(_parts(outbox), headers=headers, media_type="text/event-stream")
        self.raw_headers += answering.run.headers
        self._request = request
        self._answering = answering
        self._outbox = outbox

    async def stream_response(self, send: Send) -> None:
        """Send until the end; whatever ends it earlier ends the model's call too."""
        complete = False
        streams = gateway_of(self._request).metrics.streams
        streams.inc()
        try:
            await super().stream_response(send)
            complete = True
        finally:
            streams.dec()
            if not self._answering.task.done():
                self._answering.task.cancel()
            if not complete:
                self._request.scope[SHOWN_STATUS] = CLIENT_LEFT_STATUS
            elif self._answering.run.broken:
                self._request.scope[SHOWN_STATUS] = STREAM_BROKEN_STATUS


async def _parts(outbox: Outbox) -> AsyncIterator[bytes]:
    while part := await outbox.take():
        yield part


def _nobody() -> Response:
    return Response(status_code=CLIENT_LEFT_STATUS)


def _label(answering: Answering) -> str:
    """The name for metrics: resolved, and without a version, so that there are few."""
    model = str(answering.run.response["model"])
    return model.partition("@")[0]


def _json(body: Any, headers: list[RawHeader] | None = None) -> Response:
    response = Response(_encode(body), media_type="application/json")
    response.raw_headers += headers or []
    return response


def _request_document() -> dict[str, Any]:
    schema = ResponseRequestDocument.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
