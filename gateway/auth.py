"""Who is calling: API keys, looked up by hash and remembered for a few seconds."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from core.access import KEY_PREFIX, ApiKey, Scope, Tenant, model_allowed
from core.errors import AuthenticationFailed, PermissionDenied
from gateway.http.base import HeaderMap
from store.store import Store

log = structlog.get_logger(__name__)

FRESH_SECONDS = 5.0
"""How long a key is used without asking the store again: a revoked key works at most this long elsewhere."""
UNKNOWN_FRESH_SECONDS = 1.0
OUTAGE_SECONDS = 600.0
"""How long a known key still works while the store is away."""
_MOST_REMEMBERED = 10_000
_BEARER = b"bearer "
_USUAL = b"Bearer " + KEY_PREFIX.encode()
_PLAINTEXT = slice(len(_BEARER), None)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request: a key and the Tenant that owns it."""

    key: ApiKey
    tenant: Tenant
    training_granted: bool = field(init=False)
    """Whether what is said may train; a request can still narrow it."""
    may_infer: bool = field(init=False)
    """Whether the key has the scope ``inference``."""

    def __post_init__(self) -> None:
        """Work out what every request asks."""
        object.__setattr__(self, "training_granted", self.key.training_granted or self.tenant.training_granted)
        object.__setattr__(self, "may_infer", Scope.INFERENCE in self.key.scopes)

    def may_use(self, model: str) -> bool:
        """Whether Tenant and key both allow a ``model`` field."""
        return model_allowed(self.tenant.models, model) and model_allowed(self.key.models, model)


@dataclass(slots=True)
class _Remembered:
    caller: Caller
    at: float
    good_until: float
    """Monotonic seconds up to which nothing has to be looked at again: neither the store nor an expiry."""
    asking: bool = False
    """Somebody is asking the store again."""


class Authenticator:
    """Turns the headers of a request into its Caller."""

    def __init__(self, *, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[str, _Remembered] = OrderedDict()
        self._unknown: OrderedDict[str, float] = OrderedDict()

    async def authenticate(self, headers: Mapping[bytes, bytes]) -> Caller:
        """The caller by ``authorization: Bearer``, ``x-api-key`` (as Anthropic's clients send) or ``api-key``.

        Raises AuthenticationFailed; StoreError for an unknown key while the store is away.
        """
        return self.known(headers) or await self._authenticate(headers)

    def known(self, headers: Mapping[bytes, bytes]) -> Caller | None:
        """The caller, where nothing has to be looked up; None: ``authenticate`` has to say."""
        key_hash = headers.key_hash if isinstance(headers, HeaderMap) else None
        if key_hash is None:
            value = headers.get(b"authorization", b"")
            if not value.startswith(_USUAL):
                return None
            key_hash = hashlib.sha256(value[_PLAINTEXT]).hexdigest()
            if isinstance(headers, HeaderMap):
                headers.key_hash = key_hash
        known = self._known.get(key_hash)
        return known.caller if known is not None and time.monotonic() < known.good_until else None

    async def _authenticate(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Whatever the header, and whatever is known of the key."""
        value = headers.get(b"authorization", b"")
        if value[: len(_BEARER)].lower() == _BEARER:
            value = value[_PLAINTEXT]
        else:
            value = headers.get(b"x-api-key") or headers.get(b"api-key") or b""
        value = value.strip()
        if not value:
            raise AuthenticationFailed("no API key was sent", hint="send 'Authorization: Bearer KEY'")
        key_hash = hashlib.sha256(value).hexdigest()
        remembered = self._known.get(key_hash)
        if remembered is not None and time.monotonic() - remembered.at < FRESH_SECONDS:
            caller: Caller | None = remembered.caller
        else:
            caller = await self._find(key_hash, remembered)
        if caller is None or not caller.key.accepts(key_hash, time.time()):
            raise AuthenticationFailed("the API key is not valid")
        return caller

    def forget(self, key_hash: str) -> None:
        """Ask the store again at the next use of this key."""
        self._known.pop(key_hash, None)
        self._unknown.pop(key_hash, None)

    def forget_tenant(self, tenant_id: str) -> None:
        """Ask the store again at the next use of any of this Tenant's keys."""
        for key_hash, remembered in list(self._known.items()):
            if remembered.caller.tenant.id == tenant_id:
                del self._known[key_hash]

    async def _find(self, key_hash: str, remembered: _Remembered | None) -> Caller | None:
        now = time.monotonic()
        if remembered is None:
            at = self._unknown.get(key_hash)
            if at is not None and now - at < UNKNOWN_FRESH_SECONDS:
                return None
        elif remembered.asking and now - remembered.at < 2 * FRESH_SECONDS:
            return remembered.caller
        else:
            remembered.asking = True
        try:
            caller = await self._ask(key_hash)
        except Exception as error:
            if remembered is None or now - remembered.at > OUTAGE_SECONDS:
                raise
            log.warning("key_lookup_failed", key_id=remembered.caller.key.id, error=str(error))
            return remembered.caller
        finally:
            if remembered is not None:
                remembered.asking = False
        return self._remember(key_hash, caller, now)

    async def _ask(self, key_hash: str) -> Caller | None:
        async with self._store.reading() as work:
            key = await work.api_keys.by_hash(key_hash)
            return None if key is None else Caller(key=key, tenant=await work.tenants.get(key.tenant_id))

    def _remember(self, key_hash: str, caller: Caller | None, now: float) -> Caller | None:
        # Apart from each other: a flood of unknown keys must not push out those that work during an outage.
        if caller is None:
            self._known.pop(key_hash, None)
            self._unknown[key_hash] = now
            self._unknown.move_to_end(key_hash)
        else:
            self._unknown.pop(key_hash, None)
            old = self._known.get(key_hash)
            if old is not None and old.caller == caller:
                # The same object stays, and with it what hangs on it.
                caller = old.caller
            good_for = min(FRESH_SECONDS, caller.key.accepted_until(key_hash) - time.time())
            self._known[key_hash] = _Remembered(caller, now, now + good_for)
            self._known.move_to_end(key_hash)
        for remembered in (self._known, self._unknown):
            while len(remembered) > _MOST_REMEMBERED:
                remembered.popitem(last=False)
        return caller


def require_scope(key: ApiKey, scope: Scope) -> ApiKey:
    """Return ``key`` if it has ``scope`` (``admin:write`` includes ``admin:read``); else raise PermissionDenied."""
    if scope in key.scopes or (scope is Scope.ADMIN_READ and Scope.ADMIN_WRITE in key.scopes):
        return key
    raise PermissionDenied(f"the API key '{key.name}' lacks the scope '{scope}'")
