"""The hot routes as FastAPI knows them: documented there, answered by handlers of their own."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.routing import APIRoute
from pydantic import BaseModel

from gateway.asgi import AsgiApp
from gateway.dependencies import errors
from gateway.http.asgi_handler import asgi_app
from gateway.http.base import HotHandler
from gateway.openai_api.documents import ChatAnswer, ChatRequest, CompletionAnswer, CompletionRequest

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
_ERRORS = errors(400, 401, 403, 404, 408, 409, 413, 429, 431, 502, 503, 504)
_HEADERS_IN = (
    ("x-hone-episode-id", "Continue this Episode; left out: a new one."),
    ("x-hone-train", "Anything but `true` or `1`: this request does not train, whatever the key grants."),
    (
        "x-hone-token-exact",
        "`true`: earlier answers go back to the model as their sampled ids; `false`: they do not; left out: as"
        " configured. Counts only where tenant or key grant training.",
    ),
    ("x-hone-latency", "`interactive` or `batch`: what NAME-auto goes by; left out: as configured."),
    (
        "x-hone-compacts",
        "The Turn that this request continues with older tool results taken out of its messages: recorded as a new"
        " Branch of the Episode.",
    ),
    ("idempotency-key", "A repeated request with the same key adds no second Turn."),
    ("x-request-id", "Comes back in the answer and stands in the logs."),
)
_HEADERS_OUT = {
    "x-hone-policy-version": "The PolicyVersion that answered; 0 is the Base.",
    "x-hone-variant": "`standard` or `fast`.",
    "x-hone-variant-reason": "Why this Variant answers, where the name that was asked for does not say so.",
    "x-hone-episode-id": "The Episode that this answer belongs to.",
    "x-hone-turn-id": "The Turns of this answer, one per choice, with commas between.",
    "x-hone-fallback-from": "The model that was asked for, where another one answered.",
    "x-ratelimit-limit-requests": "Of the tightest limit of requests a minute; left out where there is none.",
    "x-ratelimit-remaining-requests": "Requests that are left of it.",
    "x-ratelimit-reset-requests": "When it is whole again, such as `1m2s`.",
    "x-ratelimit-limit-tokens": "Of the tightest limit of tokens a minute; left out where there is none.",
    "x-ratelimit-remaining-tokens": "Tokens that are left of it.",
    "x-ratelimit-reset-tokens": "When it is whole again.",
    "x-request-id": "The id of this request.",
}


class RawRoute(APIRoute):
    """A documented route whose requests go to a raw ASGI application, past FastAPI's own handling."""

    def __init__(self, path: str, *, handler: AsgiApp, request: type[BaseModel], answer: type[BaseModel]) -> None:
        async def described() -> None:
            """Never called: the handler takes the request."""

        super().__init__(
            path,
            described,
            methods=["POST"],
            name=f"post {path}",
            summary=(request.__doc__ or path).split(";")[0].rstrip("."),
            description=answer.__doc__ or "",
            tags=["OpenAI API"],
            response_model=answer,
            response_description="The engine's answer, with the public model name.",
            responses={**_ERRORS, 200: _ok()},
            openapi_extra=_extra(request),
        )
        self.app = handler


def inference_routes(handlers: Mapping[str, HotHandler]) -> Sequence[RawRoute]:
    """The hot routes as FastAPI shows them, each with its handler as a plain ASGI application."""
    documented: dict[str, tuple[type[BaseModel], type[BaseModel]]] = {
        CHAT_PATH: (ChatRequest, ChatAnswer),
        COMPLETIONS_PATH: (CompletionRequest, CompletionAnswer),
    }
    return [
        RawRoute(path, handler=asgi_app(handler), request=documented[path][0], answer=documented[path][1])
        for path, handler in handlers.items()
    ]


def _ok() -> dict[str, Any]:
    headers = {name: {"description": text, "schema": {"type": "string"}} for name, text in _HEADERS_OUT.items()}
    # No schema: some readers of OpenAPI 3.1 hold it against the whole text of a stream, others against each event.
    return {"headers": headers, "content": {"text/event-stream": {}}}


def _extra(request: type[BaseModel]) -> dict[str, Any]:
    schema = request.model_json_schema()
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "parameters": [
            {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
            for name, text in _HEADERS_IN
        ],
        "security": [{"HTTPBearer": []}],
    }
