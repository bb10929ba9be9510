"""What FastAPI routes share: the gateway's parts, who may call, and the errors that the OpenAPI document names."""

from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from core.access import ApiKey, Scope
from gateway.asgi import header_map
from gateway.auth import require_scope
from gateway.openai_api.documents import ErrorBody
from gateway.state import Gateway

BEARER = HTTPBearer(auto_error=False, description="An API key of this installation.")


def gateway_of(request: Request) -> Gateway:
    """The gateway's parts, put into the application by ``create_app``."""
    gateway: Gateway = request.app.state.gateway
    return gateway


async def reader(request: Request) -> ApiKey:
    """A caller with ``admin:read``."""
    caller = await gateway_of(request).authenticator.authenticate(header_map(request.scope))
    return require_scope(caller.key, Scope.ADMIN_READ)


async def writer(request: Request) -> ApiKey:
    """A caller with ``admin:write``."""
    caller = await gateway_of(request).authenticator.authenticate(header_map(request.scope))
    return require_scope(caller.key, Scope.ADMIN_WRITE)


GatewayParts = Annotated[Gateway, Depends(gateway_of)]
Reader = Annotated[ApiKey, Depends(reader)]
Writer = Annotated[ApiKey, Depends(writer)]

_MEANINGS = {
    400: "The request is malformed or impossible.",
    401: "No valid API key was sent.",
    403: "The API key lacks the scope.",
    404: "The named thing does not exist.",
    408: "The request did not arrive in time.",
    409: "The request contradicts the present state.",
    413: "The body is too long.",
    429: "A limit is reached.",
    431: "The headers are too many or too long.",
    502: "The engine answered wrongly or not at all.",
    503: "The store or every replica is away; try again after `Retry-After`.",
    504: "The engine sent nothing for too long.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, for the OpenAPI document."""
    return {status: {"model": ErrorBody, "description": _MEANINGS[status]} for status in statuses}


READ_ERRORS = errors(400, 401, 403, 503)
FIND_ERRORS = errors(400, 401, 403, 404, 503)
WRITE_ERRORS = errors(400, 401, 403, 404, 409, 503)
