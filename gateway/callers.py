"""Who calls the routes under ``/v1`` that FastAPI serves, and the ids that they may name."""

from typing import Annotated

from fastapi import Depends, Path, Query, Request

from core.access import Scope
from core.errors import PermissionDenied
from gateway.asgi import header_map
from gateway.auth import Caller, require_scope
from gateway.consent import may_train
from gateway.dependencies import gateway_of

LONGEST_ID = 256
_PRINTABLE = r"^[\x21-\x7e]+$"


async def caller_of(request: Request) -> Caller:
    """The key that came with the request and its Tenant. Raises AuthenticationFailed."""
    return await gateway_of(request).authenticator.authenticate(header_map(request.scope))


async def inference_caller(request: Request) -> Caller:
    """A caller with the scope ``inference``."""
    caller = await caller_of(request)
    require_scope(caller.key, Scope.INFERENCE)
    return caller


async def feedback_caller(request: Request) -> Caller:
    """A caller with the scope ``feedback`` or ``inference``."""
    caller = await caller_of(request)
    if not caller.key.scopes & {Scope.FEEDBACK, Scope.INFERENCE}:
        raise PermissionDenied(f"the API key '{caller.key.name}' lacks the scopes 'feedback' and 'inference'")
    return caller


def consent_of(request: Request, caller: Caller) -> bool:
    """Whether what this request brings may train: granted by tenant or key, and not withdrawn by the request."""
    return caller.training_granted and may_train(header_map(request.scope))


InferenceCaller = Annotated[Caller, Depends(inference_caller)]
FeedbackCaller = Annotated[Caller, Depends(feedback_caller)]
PathId = Annotated[str, Path(max_length=LONGEST_ID, pattern=_PRINTABLE)]
"""An id in a path: other characters cannot be part of one, and a database may refuse them."""
QueryId = Annotated[str | None, Query(max_length=LONGEST_ID, pattern=_PRINTABLE)]
"""A name or id to look for in a list."""
ID_PATTERN = _PRINTABLE
