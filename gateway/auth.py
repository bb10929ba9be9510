"""Who is calling: Bearer keys, looked up by hash and remembered for a few seconds."""

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from core.access import ApiKey, Scope, Tenant, hash_key
from core.errors import AuthenticationFailed, PermissionDenied
from store.store import Store

log = structlog.get_logger(__name__)

FRESH_SECONDS = 5.0
"""How long a key is used without asking the store again: a revoked key works at most this long elsewhere."""
UNKNOWN_FRESH_SECONDS = 1.0
OUTAGE_SECONDS = 600.0
"""How long a known key still works while the store is away."""
_MOST_REMEMBERED = 10_000
_BEARER = b"bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request: a key and the Tenant that owns it."""

    key: ApiKey
    tenant: Tenant

    @property
    def training_granted(self) -> bool:
        """Whether what is said may train; a request can still narrow it."""
        return self.key.training_granted or self.tenant.training_granted


@dataclass(slots=True)
class _Remembered:
    key: ApiKey | None
    at: float


class Authenticator:
    """Turns an ``authorization`` header into an ApiKey."""

    def __init__(self, *, store: Store) -> None:
        self._store = store
        self._remembered: OrderedDict[str, _Remembered] = OrderedDict()

    async def authenticate(self, headers: Mapping[bytes, bytes]) -> ApiKey:
        """The caller's key. Raises AuthenticationFailed; StoreError for an unknown key while the store is away."""
        value = headers.get(b"authorization", b"")
        if value[: len(_BEARER)].lower() != _BEARER:
            raise AuthenticationFailed("no API key was sent", hint="send 'Authorization: Bearer KEY'")
        key = await self._find(hash_key(value[len(_BEARER) :].strip().decode("latin-1")))
        if key is None or key.revoked:
            raise AuthenticationFailed("the API key is not valid")
        return key

    def forget(self, key_hash: str) -> None:
        """Ask the store again at the next use of this key."""
        self._remembered.pop(key_hash, None)

    async def _find(self, key_hash: str) -> ApiKey | None:
        now = time.monotonic()
        remembered = self._remembered.get(key_hash)
        if remembered is not None:
            fresh = UNKNOWN_FRESH_SECONDS if remembered.key is None else FRESH_SECONDS
            if now - remembered.at < fresh:
                return remembered.key
        try:
            async with self._store.reading() as work:
                key = await work.api_keys.by_hash(key_hash)
        except Exception as error:
            if remembered is None or remembered.key is None or now - remembered.at > OUTAGE_SECONDS:
                raise
            log.warning("key_lookup_failed", key_id=remembered.key.id, error=str(error))
            return remembered.key
        self._remembered[key_hash] = _Remembered(key, now)
        self._remembered.move_to_end(key_hash)
        while len(self._remembered) > _MOST_REMEMBERED:
            self._remembered.popitem(last=False)
        return key


def require_scope(key: ApiKey, scope: Scope) -> ApiKey:
    """Return ``key`` if it has ``scope`` (``admin:write`` includes ``admin:read``); else raise PermissionDenied."""
    if scope in key.scopes or (scope is Scope.ADMIN_READ and Scope.ADMIN_WRITE in key.scopes):
        return key
    raise PermissionDenied(f"the API key '{key.name}' lacks the scope '{scope}'")
