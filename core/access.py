"""Tenant, ApiKey, Scope, Allowance and AuditRecord: who may do what, and who did."""

import hashlib
import math
import secrets
from enum import StrEnum

from pydantic import Field

from core.noun import Noun, now
from core.variant import unsuffixed

KEY_PREFIX = "hone-"


class Scope(StrEnum):
    """What an ApiKey may do."""

    INFERENCE = "inference"
    FEEDBACK = "feedback"
    ADMIN_READ = "admin:read"
    ADMIN_WRITE = "admin:write"


class Allowance(Noun):
    """What a Tenant or an ApiKey may use; None: no limit. A request must fit into its Tenant's and its key's."""

    requests_per_minute: int | None = Field(default=None, ge=0)
    tokens_per_minute: int | None = Field(default=None, ge=0)
    """Prompt and answer together."""
    concurrent_streams: int | None = Field(default=None, ge=0)
    tokens_per_month: int | None = Field(default=None, ge=0)
    """Budget of a calendar month in UTC."""
    dollars_per_month: float | None = Field(default=None, ge=0)
    """Budget of a calendar month in US dollars, by the prices in ``gateway.prices``; models without one are free."""


class Tenant(Noun):
    """An owner of keys and Episodes. Training is granted by Tenant or key; a new one grants none."""

    id: str
    name: str
    training_granted: bool = False
    redact: bool = False
    """Personal data is taken out of what is said before it is stored."""
    models: tuple[str, ...] | None = None
    """Names of Policies, Bases and outside models that may be used, ``*`` at the end for all that begin so;
    None: all."""
    allowance: Allowance = Allowance()
    created_at: float = Field(default_factory=now)


class ApiKey(Noun):
    """A key as stored: only its hash. Training is granted per key; a new key grants none."""

    id: str
    tenant_id: str
    name: str
    key_hash: str
    scopes: frozenset[Scope]
    training_granted: bool = False
    models: tuple[str, ...] | None = None
    """As in the Tenant; a name must be allowed by both."""
    allowance: Allowance = Allowance()
    revoked: bool = False
    expires_at: float | None = None
    """Unix seconds from which the key is not valid any more; None: never."""
    previous_hash: str | None = None
    """The hash before the last rotation: valid until ``previous_until``."""
    previous_until: float | None = None
    created_at: float = Field(default_factory=now)

    def accepts(self, key_hash: str, at: float) -> bool:
        """Whether the plaintext with this hash is valid at a time (Unix seconds)."""
        return at < self.accepted_until(key_hash)

    def accepted_until(self, key_hash: str) -> float:
        """Unix seconds from which the plaintext with this hash is not valid any more, infinite for never."""
        if self.revoked:
            return -math.inf
        expires_at = math.inf if self.expires_at is None else self.expires_at
        if key_hash == self.key_hash:
            return expires_at
        if key_hash == self.previous_hash and self.previous_until is not None:
            return min(expires_at, self.previous_until)
        return -math.inf


class AuditRecord(Noun):
    """One administrative action."""

    id: str
    tenant_id: str
    key_id: str
    action: str
    subject: str
    detail: dict[str, object] = Field(default_factory=dict)
    created_at: float = Field(default_factory=now)


def model_allowed(patterns: tuple[str, ...] | None, model: str) -> bool:
    """Whether a list of names (None: all) allows a ``model`` field.

    ``coder`` allows every variant and version of it: ``coder-fast``, ``coder-auto``, ``coder@17``; ``openai/*`` what
    begins so.
    """
    if patterns is None or model in patterns:
        return True
    name = model.partition("@")[0]
    names = (model, name, unsuffixed(name))
    return any(pattern in names or (pattern.endswith("*") and model.startswith(pattern[:-1])) for pattern in patterns)


def mint_key() -> str:
    """A fresh plaintext key, shown once: 256 random bits."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hash_key(plaintext: str) -> str:
    """sha256 of a key. Keys carry 256 random bits, so a slow password hash would add nothing but latency."""
    return hashlib.sha256(plaintext.encode()).hexdigest()
