"""API keys: minted, listed, revoked."""

from fastapi import APIRouter

from core import ids
from core.access import ApiKey, hash_key, mint_key
from gateway.admin.schemas import KeyView, MintedKey, NewKey
from gateway.audit import audit_record
from gateway.dependencies import READ_ERRORS, WRITE_ERRORS, GatewayParts, Reader, Writer

router = APIRouter(prefix="/keys", tags=["Keys"])


@router.get("", summary="List API keys", responses=READ_ERRORS)
async def list_keys(gateway: GatewayParts, _key: Reader, tenant_id: str | None = None) -> list[KeyView]:
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
    )
    async with gateway.store.transaction() as work:
        await work.tenants.get(minted.tenant_id)
        await work.api_keys.add(minted)
        await work.audit.add(audit_record(key, "key.create", minted.id, body.model_dump(mode="json")))
    gateway.authenticator.forget(minted.key_hash)
    return MintedKey(key=KeyView.of(minted), plaintext=plaintext)


@router.delete("/{key_id}", summary="Revoke an API key", responses=WRITE_ERRORS)
async def revoke_key(key_id: str, gateway: GatewayParts, key: Writer) -> KeyView:
    """The key stops working here at once, and within seconds on other gateway processes."""
    async with gateway.store.transaction() as work:
        revoked = (await work.api_keys.get(key_id)).model_copy(update={"revoked": True})
        await work.api_keys.update(revoked)
        await work.audit.add(audit_record(key, "key.revoke", key_id, {"name": revoked.name}))
    gateway.authenticator.forget(revoked.key_hash)
    return KeyView.of(revoked)
