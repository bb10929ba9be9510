"""PolicyVersions in the store."""

from collections.abc import Collection
from typing import Literal

from sqlalchemy import update

from core.errors import NotFound
from core.policy import SERVING_TRANSITIONS, Policy, PolicyVersion, ServingStatus
from store.connection import Connection
from store.repositories.base import Repository
from store.repositories.policies import Policies
from store.tables.policies import POLICIES
from store.tables.policy_versions import POLICY_VERSIONS


class PolicyVersions(Repository[PolicyVersion]):
    """PolicyVersions by Policy and number. Version 0 is the Base itself and has no row."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, PolicyVersion, POLICY_VERSIONS)

    async def mint(
        self,
        policy: str,
        *,
        kind: Literal["base", "lora", "full"],
        origin: Literal["base", "sft", "grpo", "live", "imported"],
        parent_version: int | None = None,
        checkpoint_id: str | None = None,
        pins: tuple[str, ...] = (),
    ) -> PolicyVersion:
        """The next version of a Policy, counted from 1; no number is given out twice. Raises NotFound."""
        counter = (
            update(POLICIES)
            .where(POLICIES.c.name == policy)
            .values(last_version=POLICIES.c.last_version + 1)
            .returning(POLICIES.c.last_version)
        )
        counted = await self._connection.change_returning(counter)
        if not counted:
            raise NotFound(f"there is no Policy {policy}")
        minted = PolicyVersion(
            policy=policy,
            version=counted[0].last_version,
            kind=kind,
            checkpoint_id=checkpoint_id,
            parent_version=parent_version,
            origin=origin,
            pins=pins,
        )
        await self._add(minted)
        return minted

    async def get(self, policy: str, version: int, *, lock: bool = False) -> PolicyVersion:
        """One version; 0 is the Base, always live. Raises NotFound.

        Lock what is to be updated: pins and serving status have different writers.
        """
        if version == 0:
            return _base_version(await Policies(self._connection).get(policy))
        return await self._get(policy, version, lock=lock)

    async def list_serving(self, statuses: Collection[ServingStatus]) -> list[PolicyVersion]:
        """The minted versions of all Policies that have one of these statuses."""
        query = self._select().where(POLICY_VERSIONS.c.serving.in_(list(statuses)))
        return await self._all(query.order_by(POLICY_VERSIONS.c.policy, POLICY_VERSIONS.c.version))

    async def list(self, policy: str) -> list[PolicyVersion]:
        """All minted versions of a Policy in ascending order."""
        query = self._where(self._select(), policy=policy)
        return await self._all(query.order_by(POLICY_VERSIONS.c.version))

    async def update(self, version: PolicyVersion) -> None:
        """Replace; raises NotFound, and InvalidTransition when the stored status forbids the new one."""
        stored = await self._get(version.policy, version.version, lock=True)
        if version.serving is not stored.serving:
            SERVING_TRANSITIONS.check(stored.serving, version.serving)
        await self._update(version)


def _base_version(policy: Policy) -> PolicyVersion:
    return PolicyVersion(
        policy=policy.name,
        version=0,
        kind="base",
        origin="base",
        serving=ServingStatus.LIVE,
        created_at=policy.created_at,
    )
