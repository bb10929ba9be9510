"""Alias: a name for one version of a Policy, usable in the OpenAI API as ``coder@candidate``."""

import re
from collections.abc import Iterable

from pydantic import Field, field_validator

from core.noun import Noun, now
from core.policy import Policy
from core.release import Release, ReleaseStatus

PROMOTED = "promoted"
PREVIOUS = "previous"
CANDIDATE = "candidate"
FOLLOWING = frozenset({PROMOTED, PREVIOUS})
"""Aliases that only a promotion or a rollback moves."""

_NAME = re.compile(r"^[a-z][a-z0-9._-]{0,31}$")
_ON_ITS_WAY = frozenset(
    {ReleaseStatus.CANDIDATE, ReleaseStatus.EVALUATED, ReleaseStatus.SHADOWING, ReleaseStatus.RAMPING}
)


class Alias(Noun):
    """A free alias, or ``candidate`` where an operator has chosen it."""

    policy: str
    name: str
    version: int = Field(ge=0)
    updated_at: float = Field(default_factory=now)

    @field_validator("name")
    @classmethod
    def _name_is_free(cls, name: str) -> str:
        if not _NAME.match(name):
            raise ValueError("an alias is a small letter, then at most 31 small letters, digits, '.', '_' and '-'")
        if name in FOLLOWING:
            raise ValueError(f"'{name}' follows promotions and rollbacks: it is not set by hand")
        return name


def alias_versions(policy: Policy, aliases: Iterable[Alias], releases: Iterable[Release] = ()) -> dict[str, int]:
    """Alias → version of one Policy. Pure.

    ``promoted`` and ``previous`` are the Policy's own; ``candidate`` is what was set, else the newest version whose
    Release is on its way.
    """
    found = {alias.name: alias.version for alias in aliases if alias.policy == policy.name}
    waiting = [one.version for one in releases if one.policy == policy.name and one.status in _ON_ITS_WAY]
    if CANDIDATE not in found and waiting:
        found[CANDIDATE] = max(waiting)
    found[PROMOTED] = policy.promoted_version
    if policy.previous_version is not None:
        found[PREVIOUS] = policy.previous_version
    return found
