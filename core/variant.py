"""Variant, Drafter, Deployment, and the names that clients use for them."""

import re
from enum import StrEnum
from typing import Literal

from pydantic import Field

from core.errors import InvalidRequest
from core.noun import Noun, now
from core.policy import ProbeResult
from core.transitions import TransitionTable

FAST_SUFFIX = "-fast"
_MODEL_NAME = re.compile(r"^(?P<name>[^@\s]+?)(?P<fast>-fast)?(?:@(?P<version>\d{1,9}))?$")


class Variant(StrEnum):
    """How a Policy is decoded; both give the same distribution."""

    STANDARD = "standard"
    FAST = "fast"


class ModelName(Noun):
    """A parsed ``model`` field: ``coder``, ``coder-fast``, ``coder@17``, ``coder-fast@17``."""

    name: str
    variant: Variant
    version: int | None = None
    """None: the promoted version."""

    def __str__(self) -> str:
        suffix = FAST_SUFFIX if self.variant is Variant.FAST else ""
        pin = "" if self.version is None else f"@{self.version}"
        return f"{self.name}{suffix}{pin}"


def parse_model_name(text: str) -> ModelName:
    """Parse a ``model`` field; raises InvalidRequest for a name that no Policy or Base could have."""
    match = _MODEL_NAME.match(text)
    if match is None:
        raise InvalidRequest(
            f"'{text}' is not a model name",
            hint="use NAME, NAME-fast, NAME@VERSION or NAME-fast@VERSION",
            param="model",
        )
    return ModelName(
        name=match["name"],
        variant=Variant.FAST if match["fast"] else Variant.STANDARD,
        version=None if match["version"] is None else int(match["version"]),
    )


class Speculation(Noun):
    """How a ``fast`` engine speculates."""

    method: Literal["ngram", "draft_model"]
    tokens: int = 4
    """Draft tokens per step."""
    drafter_id: str | None = None


class Drafter(Noun):
    """A draft model, versioned as the partner of a range of target PolicyVersions."""

    id: str
    base: str
    path: str
    first_version: int = 0
    last_version: int | None = None
    created_at: float = Field(default_factory=now)


class DeploymentStatus(StrEnum):
    """The life of an engine replica as the fleet sees it."""

    STARTING = "starting"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    STOPPED = "stopped"


DEPLOYMENT_TRANSITIONS = TransitionTable(
    "deployment",
    {
        DeploymentStatus.STARTING: frozenset(
            {DeploymentStatus.READY, DeploymentStatus.UNHEALTHY, DeploymentStatus.STOPPED}
        ),
        DeploymentStatus.READY: frozenset({DeploymentStatus.UNHEALTHY, DeploymentStatus.STOPPED}),
        DeploymentStatus.UNHEALTHY: frozenset(
            {DeploymentStatus.READY, DeploymentStatus.STARTING, DeploymentStatus.STOPPED}
        ),
        DeploymentStatus.STOPPED: frozenset({DeploymentStatus.STARTING}),
    },
)


class LoadedVersion(Noun):
    """A PolicyVersion that a replica holds."""

    policy: str
    version: int
    engine_model: str
    """The immutable name under which the engine knows it."""
    checksum: str
    state: Literal["live", "draining"] = "live"
    swap_seconds: float
    """From the decision to load until the probe had passed."""
    probe: ProbeResult
    loaded_at: float = Field(default_factory=now)


class Deployment(Noun):
    """A Variant live on one engine replica, with the PolicyVersions loaded there."""

    id: str
    base: str
    variant: Variant
    engine: Literal["vllm", "sglang", "fake"]
    url: str
    status: DeploymentStatus = DeploymentStatus.STARTING
    status_reason: str | None = None
    loaded: tuple[LoadedVersion, ...] = ()
    speculation: Speculation | None = None
    max_model_len: int | None = None
    pid: int | None = None
    heartbeat_at: float = Field(default_factory=now)
    created_at: float = Field(default_factory=now)

    def holding(self, policy: str, version: int) -> LoadedVersion | None:
        """The live load of ``policy@version`` here, if there is one."""
        for loaded in self.loaded:
            if (loaded.policy, loaded.version, loaded.state) == (policy, version, "live"):
                return loaded
        return None
