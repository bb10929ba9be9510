"""Container ids: where a sandbox session lives and whose it is, sealed so that nobody can make or pass on one.

An id holds the address of the worker, to which the gateway sends its key: only ids that carry this installation's
seal for this very tenant are ever followed.
"""

import base64
import hmac
import json
from dataclasses import dataclass

from core.errors import NotFound

_PREFIX = "cntr_"
_SEAL_CHARACTERS = 32


@dataclass(frozen=True, slots=True)
class Container:
    """A session of a tool service."""

    session_id: str
    url: str


def seal(container: Container, *, tenant: str, key: str) -> str:
    """The id that a tenant gets for its container."""
    plain = json.dumps([container.session_id, container.url], separators=(",", ":")).encode()
    payload = base64.urlsafe_b64encode(plain).decode().rstrip("=")
    return f"{_PREFIX}{payload}{_seal(payload, tenant, key)}"


def unseal(container_id: str, *, tenant: str, key: str) -> Container:
    """The container of an id; NotFound for any that this tenant was not given."""
    body = container_id.removeprefix(_PREFIX)
    payload, given = body[:-_SEAL_CHARACTERS], body[-_SEAL_CHARACTERS:]
    wanted = _seal(payload, tenant, key)
    if not container_id.startswith(_PREFIX) or not hmac.compare_digest(given.encode(), wanted.encode()):
        raise unknown_container()
    session_id, url = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return Container(session_id, url)


def unknown_container() -> NotFound:
    """The error for a container that is gone, and for another tenant's."""
    return NotFound(
        "the container does not exist or has expired",
        hint="leave its id out, or use {'type': 'auto'}, for a fresh one",
        param="container",
    )


def _seal(payload: str, tenant: str, key: str) -> str:
    message = json.dumps([tenant, payload]).encode()
    return hmac.new(key.encode(), b"container" + message, "sha256").hexdigest()[:_SEAL_CHARACTERS]
