"""Deployment: a Variant live on one engine replica, with what is loaded there."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from core.noun import Noun, now
from core.policy import ProbeResult
from core.transitions import TransitionTable
from core.variant import Speculation, Variant

MOST_SWAPS = 20
"""Changes that a Deployment remembers."""


class DeploymentStatus(StrEnum):
    """The life of an engine replica as the fleet sees it."""

    STARTING = "starting"
    READY = "ready"
    SWAPPING = "swapping"
    """Closed to requests while its weights are replaced."""
    DRAINING = "draining"
    """Closed to new requests before it is restarted or stopped."""
    UNHEALTHY = "unhealthy"
    STOPPED = "stopped"


DEPLOYMENT_TRANSITIONS = TransitionTable(
    "deployment",
    {
        DeploymentStatus.STARTING: frozenset(
            {DeploymentStatus.READY, DeploymentStatus.UNHEALTHY, DeploymentStatus.STOPPED}
        ),
        DeploymentStatus.READY: frozenset(
            {
                DeploymentStatus.SWAPPING,
                DeploymentStatus.DRAINING,
                DeploymentStatus.UNHEALTHY,
                DeploymentStatus.STOPPED,
            }
        ),
        DeploymentStatus.SWAPPING: frozenset(
            {DeploymentStatus.READY, DeploymentStatus.UNHEALTHY, DeploymentStatus.STOPPED}
        ),
        DeploymentStatus.DRAINING: frozenset(
            {
                DeploymentStatus.READY,
                DeploymentStatus.STARTING,
                DeploymentStatus.UNHEALTHY,
                DeploymentStatus.STOPPED,
            }
        ),
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
    candidate: bool = False
    """Full weights that are only tried here: they answer who asks for this version, never the Policy's name alone."""
    swap_seconds: float
    """From the decision to load until the probe had passed."""
    probe: ProbeResult
    loaded_at: float = Field(default_factory=now)


class EngineLoad(Noun):
    """How busy an engine is, as it says itself."""

    running: int
    """Requests being decoded."""
    waiting: int
    """Requests that have not begun."""
    kv_use: float
    """Share of the KV cache in use, 0 to 1."""
    prefix_hits: float | None = None
    """Share of prompt tokens that the prefix cache held since the reading before; None: no prompt since."""
    read_at: float = Field(default_factory=now)


class SwapRecord(Noun):
    """One change of what a replica holds, as it ended."""

    kind: Literal["lora", "full", "drafter"]
    policy: str
    version: int
    """Of a Drafter: its number."""
    outcome: Literal["live", "refused", "failed", "rolled_back"]
    reason: str | None = None
    seconds: float
    """From the decision until it ended."""
    at: float = Field(default_factory=now)


class SpeculationSeen(Noun):
    """How draft tokens fared on a replica lately."""

    acceptance: float
    """Accepted share of draft tokens."""
    accepted_per_draft: float
    """Accepted draft tokens per draft, the bonus token not counted."""
    by_position: tuple[float, ...] = ()
    """Share of the drafts in which the token at this position was accepted."""
    read_at: float = Field(default_factory=now)


class Restart(Noun):
    """A wish that an engine be restarted; it stays until the engine serves again."""

    reason: str
    asked_at: float = Field(default_factory=now)


class SamenessSeen(Noun):
    """How the last comparison of a fast replica with a standard one ended."""

    same: bool
    reason: str | None = None
    """What speaks against sameness."""
    compared: int
    """Greedy answers."""
    near_ties: int
    mismatches: int
    evidence: float
    """Against sameness of sampled answers, over all comparisons since the engine started."""
    check_id: str
    """The SamenessCheck."""
    read_at: float = Field(default_factory=now)


class Deployment(Noun):
    """A Variant live on one engine replica, with the PolicyVersions loaded there."""

    id: str
    base: str
    variant: Variant
    engine: Literal["vllm", "sglang", "fake"]
    engine_version: str | None = None
    """As the engine says, such as ``0.32.0``."""
    url: str
    replica: int = 0
    """Which of the Variant's replicas."""
    status: DeploymentStatus = DeploymentStatus.STARTING
    status_reason: str | None = None
    policy: str | None = None
    """The Policy whose full weights this replica carries in place of the Base's: it serves nothing else then."""
    weights: LoadedVersion | None = None
    """The full-weights version that it carries; None: the Base's own weights (version 0)."""
    loaded: tuple[LoadedVersion, ...] = ()
    """LoRA versions, each under a name of its own."""
    answers_to: tuple[str, ...] = ()
    """The names that the engine itself listed when it was last asked."""
    speculation: Speculation | None = None
    speculating: bool = True
    """False: speculation is switched off for now, and it decodes like the standard Variant."""
    speculating_reason: str | None = None
    """Why it is switched off."""
    speculation_seen: SpeculationSeen | None = None
    sameness_seen: SamenessSeen | None = None
    """How the last comparison with a standard replica ended."""
    load: EngineLoad | None = None
    swaps: tuple[SwapRecord, ...] = ()
    """The last changes of what it holds, newest last; at most ``MOST_SWAPS``."""
    max_model_len: int | None = None
    machine: str | None = None
    """Where the fleet launched it, as that machine calls itself; None: somebody else runs it."""
    pid: int | None = None
    """Its process there."""
    restart: Restart | None = None
    """A restart that was asked for and has not ended."""
    heartbeat_at: float = Field(default_factory=now)
    created_at: float = Field(default_factory=now)

    def holding(self, policy: str, version: int) -> LoadedVersion | None:
        """The live load of ``policy@version`` here, if there is one."""
        for loaded in self.loaded:
            if (loaded.policy, loaded.version, loaded.state) == (policy, version, "live"):
                return loaded
        return None
