"""API keys: minted, listed, changed, rotated, revoked."""

from fastapi import APIRouter

from core import ids
from core.access import ApiKey, hash_key, mint_key
from core.errors import Conflict
from core.noun import now
from gateway.admin.schemas import KeyChange, KeyRotation, KeyView, MintedKey, NewKey
from gateway.audit import audit_record
from gateway.callers import PathId, QueryId
from gateway.dependencies import FIND_ERRORS, READ_ERRORS, WRITE_ERRORS, GatewayParts, Reader, Writer
from gateway.state import Gateway

router = APIRouter(prefix="/keys", tags=["Keys"])


@router.get("", summary="List API keys", responses=READ_ERRORS)
async def list_keys(gateway: GatewayParts, _key: Reader, tenant_id: QueryId = None) -> list[KeyView]:
    """All keys, or those of one Tenant, oldest first, never with their plaintext or hash."""
    async with gateway.store.reading() as work:
        return [KeyView.of(found) for found in await work.api_keys.list(tenant_id)]


@router.post("", summary="Create an API key", status_code=201, responses=WRITE_ERRORS)
async def create_key(body: NewKey, gateway: GatewayParts, key: Writer) -> MintedKey:
    """A new key. The answer is the only time when its plaintext is shown."""
    plaintext = mint_key()
    minted = ApiKey(
        id=ids.new_id(ids.KEY),
        tenant_id=body.tenant_id or key.tenant_id,
        name=body.name,
        key_hash=hash_key(plaintext),
        scopes=frozenset(body.scopes),
        training_granted=body.training_granted,
        models=None if body.models is None else tuple(body.models),
        allowance=body.allowance,
        expires_at=body.expires_at,
    )
    async with gateway.store.transaction() as work:
        await work.tenants.get(minted.tenant_id)
        await work.api_keys.add(minted)
        await work.audit.add(audit_record(key, "key.create", minted.id, body.model_dump(mode="json")))
    gateway.authenticator.forget(minted.key_hash)
    return MintedKey(key=KeyView.of(minted), plaintext=plaintext)


@router.get("/{key_id}", summary="Show an API key", responses=FIND_ERRORS)
async def get_key(key_id: PathId, gateway: GatewayParts, _key: Reader) -> KeyView:
    """One key, never with its plaintext or hash."""
    async with gateway.store.reading() as work:
        return KeyView.of(await work.api_keys.get(key_id))


@router.patch("/{key_id}", summary="Change an API key", responses=WRITE_ERRORS)
async def change_key(key_id: PathId, body: KeyChange, gateway: GatewayParts, key: Writer) -> KeyView:
    """Only the fields that are sent change; an allowance is replaced as a whole.

    It holds here at once, and within seconds on other gateway processes.
    """
    async with gateway.store.transaction() as work:
        changed = await work.api_keys.get(key_id, lock=True)
        changed = ApiKey.model_validate(changed.model_dump() | body.model_dump(exclude_unset=True))
        await work.api_keys.update(changed)
        detail = body.model_dump(mode="json", exclude_unset=True)
        await work.audit.add(audit_record(key, "key.change", key_id, detail))
    _forget(gateway, changed)
    return KeyView.of(changed)


@router.post("/{key_id}/rotate", summary="Rotate an API key", responses=WRITE_ERRORS)
async def rotate_key(
    key_id: PathId, gateway: GatewayParts, key: Writer, body: KeyRotation | None = None
) -> MintedKey:
    """A new plaintext for the same key, shown this one time; the old one stays valid for the grace period.

    A second rotation ends the grace period of the first. 409 for a revoked key.
    """
    plaintext, grace_seconds = mint_key(), (body or KeyRotation()).grace_seconds
    async with gateway.store.transaction() as work:
        old = await work.api_keys.get(key_id, lock=True)
        if old.revoked:
            raise Conflict(f"the API key '{key_id}' is revoked", hint="create a new one")
        rotated = old.model_copy(
            update={
                "key_hash": hash_key(plaintext),
                "previous_hash": old.key_hash,
                "previous_until": now() + grace_seconds,
            }
        )
        await work.api_keys.update(rotated)
        await work.audit.add(audit_record(key, "key.rotate", key_id, {"grace_seconds": grace_seconds}))
    _forget(gateway, old)
    _forget(gateway, rotated)
    return MintedKey(key=KeyView.of(rotated), plaintext=plaintext)


@router.delete("/{key_id}", summary="Revoke an API key", responses=WRITE_ERRORS)
async def revoke_key(key_id: PathId, gateway: GatewayParts, key: Writer) -> KeyView:
    """The key stops working here at once, and within seconds on other gateway processes."""
    async with gateway.store.transaction() as work:
        revoked = (await work.api_keys.get(key_id, lock=True)).model_copy(update={"revoked": True})
        await work.api_keys.update(revoked)
        await work.audit.add(audit_record(key, "key.revoke", key_id, {"name": revoked.name}))
    _forget(gateway, revoked)
    return KeyView.of(revoked)


def _forget(gateway: Gateway, key: ApiKey) -> None:
    gateway.authenticator.forget(key.key_hash)
    if key.previous_hash is not None:
        gateway.authenticator.forget(key.previous_hash)
