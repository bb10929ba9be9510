"""What must exist before any process starts: a migrated database, a tenant with keys, the Base, the Domains."""

import asyncio
from collections.abc import Callable

from core.access import ApiKey, Scope, Tenant, hash_key, mint_key
from core.config.schema import HoneConfig
from core.ids import KEY, TENANT, new_id
from core.policy import Base
from hone.local_keys import LocalKeys, keys_path, read_local_keys, write_local_keys
from sandbox.domains.registry import domain_sources
from serving.weights.base_model import prepare_base
from store.migrate import upgrade
from store.store import Store
from store.unit_of_work import UnitOfWork

LOCAL_TENANT = "local"
_ROLES: dict[str, frozenset[Scope]] = {
    "admin": frozenset(Scope),
    "worker": frozenset({Scope.INFERENCE}),
}


def migrate(config: HoneConfig) -> None:
    """Bring the database to the newest schema, making the data folder on the way."""
    config.data_dir.expanduser().mkdir(parents=True, exist_ok=True)
    upgrade(config.database_url)


async def seed(config: HoneConfig, store: Store) -> None:
    """Mint the local tenant's keys once and register the Domains that Hone ships."""
    async with store.transaction() as tx:
        for source in domain_sources():
            await tx.domains.put(source.domain())
        if not keys_path(config).exists():
            write_local_keys(config, await _mint_keys(tx))
        else:
            await _check_keys(tx, read_local_keys(config))


async def register_base(config: HoneConfig, store: Store, progress: Callable[[str], None]) -> Base:
    """Unpack or find the Base model and record it."""
    base = await asyncio.to_thread(prepare_base, config, progress)
    async with store.transaction() as tx:
        await tx.bases.put(base)
    return base


async def _mint_keys(tx: UnitOfWork) -> LocalKeys:
    tenants = [tenant for tenant in await tx.tenants.list() if tenant.name == LOCAL_TENANT]
    tenant = tenants[0] if tenants else Tenant(id=new_id(TENANT), name=LOCAL_TENANT)
    if not tenants:
        await tx.tenants.add(tenant)
    plaintexts = {role: mint_key() for role in _ROLES}
    for role, plaintext in plaintexts.items():
        await tx.api_keys.add(_key(tenant, role, plaintext))
    return LocalKeys(**plaintexts)


async def _check_keys(tx: UnitOfWork, keys: LocalKeys) -> None:
    """Keys on disk that the database does not know (a fresh database, say) are registered again."""
    tenants = {tenant.name: tenant for tenant in await tx.tenants.list()}
    tenant = tenants.get(LOCAL_TENANT)
    if tenant is None:
        tenant = Tenant(id=new_id(TENANT), name=LOCAL_TENANT)
        await tx.tenants.add(tenant)
    for role, plaintext in keys.model_dump().items():
        if await tx.api_keys.by_hash(hash_key(plaintext)) is None:
            await tx.api_keys.add(_key(tenant, role, plaintext))


def _key(tenant: Tenant, role: str, plaintext: str) -> ApiKey:
    return ApiKey(
        id=new_id(KEY),
        tenant_id=tenant.id,
        name=role,
        key_hash=hash_key(plaintext),
        scopes=_ROLES[role],
        training_granted=role == "worker",
    )
