"""Tenant, ApiKey, Scope and AuditRecord: who may do what, and who did."""

import hashlib
import secrets
from enum import StrEnum

from pydantic import Field

from core.noun import Noun, now

KEY_PREFIX = "hone-"


class Scope(StrEnum):
    """What an ApiKey may do."""

    INFERENCE = "inference"
    FEEDBACK = "feedback"
    ADMIN_READ = "admin:read"
    ADMIN_WRITE = "admin:write"


class Tenant(Noun):
    """An owner of keys and Episodes."""

    id: str
    name: str
    created_at: float = Field(default_factory=now)


class ApiKey(Noun):
    """A key as stored: only its hash. Training is granted per key; a new key grants none."""

    id: str
    tenant_id: str
    name: str
    key_hash: str
    scopes: frozenset[Scope]
    training_granted: bool = False
    revoked: bool = False
    created_at: float = Field(default_factory=now)


class AuditRecord(Noun):
    """One administrative action."""

    id: str
    tenant_id: str
    key_id: str
    action: str
    subject: str
    detail: dict[str, object] = Field(default_factory=dict)
    created_at: float = Field(default_factory=now)


def mint_key() -> str:
    """A fresh plaintext key, shown once: 256 random bits."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hash_key(plaintext: str) -> str:
    """sha256 of a key. Keys carry 256 random bits, so a slow password hash would add nothing but latency."""
    return hashlib.sha256(plaintext.encode()).hexdigest()
