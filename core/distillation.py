"""DistilRequest: what the payload of a ``distil`` job says."""

from core.noun import Noun

DISTIL = "distil"
"""The kind of job that the learner distils a Drafter by."""


class DistilRequest(Noun):
    """A Drafter to distil for one target version."""

    base: str
    policy: str | None = None
    """None: for the Base itself."""
    target_version: int = 0
    """0: the Base."""
    after: str | None = None
    """Id of the Drafter that it shall follow: its layers are begun with. None: a fresh cut."""
    seed: int = 0
    reason: str
    """Why it was asked for, in plain words."""

    @property
    def idempotency_key(self) -> str:
        """The same for everybody who wants a successor of the same Drafter for the same target version."""
        return f"{DISTIL}:{self.base}:{self.policy or ''}:{self.target_version}:{self.after or ''}"
