"""Routes that pass to an engine as they are: embeddings, tokens, scores. Nothing of them is recorded.

Bodies and paths: vLLM 0.32, ``entrypoints/{pooling,serve/tokenize}``. An engine has only the routes that its model
can answer.
"""

from typing import Any

import msgspec
import structlog
from fastapi import APIRouter, Depends, Request, Response
from msgspec import Raw

from core.errors import (
    EngineError,
    EngineUnavailable,
    HoneError,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    VersionNotServed,
)
from core.variant import ModelName, parse_model_name
from gateway.callers import InferenceCaller
from gateway.dependencies import BEARER, GatewayParts, errors
from gateway.state import Gateway
from gateway.upstream.base import Unreachable
from gateway.upstream.errors import engine_error
from serving.pool import Route

log = structlog.get_logger(__name__)

router = APIRouter(tags=["Passed through"], dependencies=[Depends(BEARER)])

_BYTES_PER_TOKEN = 4
_NO_ROUTE = frozenset({405, 501})
"""Answers by which an engine says, beside 404, that it has no such route."""
_JSON = ((b"content-type", b"application/json"),)
_Fields = dict[str, Raw]
_decode_fields = msgspec.json.Decoder(_Fields).decode
_encode = msgspec.json.Encoder().encode


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


_NAMES = {
    "/v1/embeddings": "embeddings",
    "/tokenize": "tokenize",
    "/detokenize": "detokenize",
    "/v1/score": "score",
    "/v1/rerank": "rerank",
}
_COUNTED = frozenset({"/v1/embeddings", "/v1/score", "/v1/rerank"})
"""Routes on which the model computes; taking text apart into tokens costs none."""
_DOCUMENT: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["model"],
                    "properties": {"model": {"type": "string"}},
                    "additionalProperties": True,
                }
            }
        },
    }
}
_RESPONSES: dict[int | str, dict[str, Any]] = errors(400, 401, 403, 404, 409, 413, 429, 502, 503) | {
    200: {
        "description": "The engine's own answer, with the public model name.",
        "content": {"application/json": {"schema": {"type": "object", "additionalProperties": True}}},
    }
}


async def pass_through(request: Request, gateway: GatewayParts, caller: InferenceCaller) -> Response:
    """The engine's own answer, with the public name of the model."""
    path = request.url.path
    fields = _read_fields(await request.body())
    model_text = msgspec.json.decode(fields["model"])
    if not isinstance(model_text, str):
        raise InvalidRequest("'model' must name a model", param="model")
    if not caller.may_use(model_text):
        raise PermissionDenied(f"this key may not use the model '{model_text}'", param="model")
    call = _Passage(gateway=gateway, path=path, fields=fields, model=parse_model_name(model_text))
    tokens = call.tokens if path in _COUNTED else 0
    admission = await gateway.limits.admit(caller, model_text, stream=False, tokens=tokens)
    try:
        body = await call.send()
        used = call.usage(body)
        admission.settle(prompt_tokens=used.prompt_tokens, completion_tokens=used.completion_tokens)
    finally:
        admission.release()
    headers = {name.decode(): value.decode() for name, value in admission.headers}
    return Response(body, media_type="application/json", headers=headers)


for _path, _name in _NAMES.items():
    router.add_api_route(
        _path,
        pass_through,
        methods=["POST"],
        name=f"post {_path}",
        operation_id=f"pass_{_name}",
        summary=f"Pass to an engine: {_name}",
        response_class=Response,
        responses=_RESPONSES,
        openapi_extra=_DOCUMENT,
    )


class _Passage:
    """One request on its way to an engine; another replica is asked where one is away."""

    def __init__(self, *, gateway: Gateway, path: str, fields: _Fields, model: ModelName) -> None:
        self._routing = gateway.routing
        self._upstream = gateway.upstream
        self._path = path
        self._fields = fields
        self._model = model

    @property
    def tokens(self) -> int:
        """An upper estimate of what the model will read."""
        return sum(len(bytes(value)) for value in self._fields.values()) // _BYTES_PER_TOKEN

    async def send(self) -> bytes:
        """The engine's body. Raises NotFound where no engine has the route, and what went wrong."""
        failed: set[str] = set()
        alive = False
        while True:
            try:
                route = self._routing.resolve(self._model, exclude=failed)
            except (EngineUnavailable, VersionNotServed):
                if alive:
                    raise self._no_route() from None
                raise
            with self._routing.in_flight.track(route.deployment.id):
                try:
                    return await self._ask(route)
                except Unreachable as error:
                    log.warning("passage_unreachable", deployment_id=route.deployment.id, error=str(error))
                    failed.add(route.deployment.id)
                    alive = alive or await self._answers(route)

    def usage(self, body: bytes) -> _Usage:
        """What an answer says that it used; nothing where it does not say."""
        try:
            return msgspec.json.decode(_decode_fields(body)["usage"], type=_Usage)
        except (msgspec.DecodeError, KeyError, RecursionError):
            return _Usage()

    async def _ask(self, route: Route) -> bytes:
        body = _encode(self._fields | {"model": Raw(_encode(route.engine_model))})
        url = route.deployment.url + self._path
        async with await self._upstream.send(b"POST", url, body, _JSON) as response:
            answer = await response.read()
            if response.status in _NO_ROUTE:
                raise self._no_route()
            if response.status != 200:
                raise engine_error(response.status, answer, response.headers)
        return self._with_public_name(answer, route)

    def _with_public_name(self, answer: bytes, route: Route) -> bytes:
        try:
            fields = _decode_fields(answer)
        except (msgspec.DecodeError, RecursionError) as error:
            raise EngineError(f"the engine's answer cannot be read: {error}") from error
        if "model" not in fields:
            return answer
        return _encode(fields | {"model": Raw(_encode(route.public_model))})

    async def _answers(self, route: Route) -> bool:
        """Whether the replica lives: then the route is what it lacks."""
        try:
            async with await self._upstream.send(b"GET", route.deployment.url + "/health") as response:
                await response.read()
                return response.status == 200
        except (Unreachable, HoneError) as error:
            log.debug("replica_away", deployment_id=route.deployment.id, error=str(error))
            return False

    def _no_route(self) -> NotFound:
        return NotFound(
            f"the engine that serves '{self._model}' has no {_NAMES[self._path]} route",
            hint="name a model whose engine has it",
            param="model",
        )


def _read_fields(body: bytes) -> _Fields:
    try:
        body.decode()
        fields = _decode_fields(body)
    except UnicodeDecodeError as error:
        raise InvalidRequest("the body is not UTF-8") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not a JSON object: {error}") from error
    if "model" not in fields:
        raise InvalidRequest("'model' must name a model", param="model")
    return fields
