"""Releases in the store."""

from core.errors import Conflict, NotFound
from core.noun import now
from core.release import RELEASE_TRANSITIONS, Release
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.releases import RELEASES


class Releases(Repository[Release]):
    """Releases, one for each PolicyVersion; a change counts only on top of the newest revision."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Release, RELEASES)

    async def add(self, release: Release) -> None:
        """Add; raises Conflict when the PolicyVersion has a Release already."""
        await self._add(release)

    async def get(self, policy: str, version: int) -> Release:
        """The Release of a PolicyVersion; raises NotFound."""
        found = await self._first(self._where(self._select(), policy=policy, version=version))
        if found is None:
            raise NotFound(f"{policy}@{version} has no Release")
        return found

    async def list(self, policy: str | None = None) -> list[Release]:
        """Releases (of a Policy) in order of version."""
        query = self._where(self._select(), policy=policy)
        return await self._all(query.order_by(RELEASES.c.policy, RELEASES.c.version))

    async def update(self, release: Release) -> Release:
        """Replace and return what is stored now, with the next revision.

        Raises Conflict when somebody changed the Release since it was read, InvalidTransition when its status
        does not allow the new one, and NotFound.
        """
        stored = await self._get(release.id, lock=True)
        if stored.revision != release.revision:
            raise Conflict(
                f"the Release of {release.policy}@{release.version} was changed meanwhile "
                f"(revision {stored.revision}, not {release.revision})",
                hint="read it again and decide anew",
            )
        if release.status is not stored.status:
            RELEASE_TRANSITIONS.check(stored.status, release.status)
        changed = release.model_copy(update={"revision": stored.revision + 1, "updated_at": now()})
        await self._update(changed)
        return changed
