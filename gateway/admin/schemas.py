"""Bodies of the admin API that are more than one noun."""

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from core.access import Allowance, ApiKey, Scope
from core.deployment import Deployment
from core.episode import Episode
from core.evaluation import Evaluation
from core.job import Job, JobStatus
from core.policy import Policy, PolicyVersion, Provenance
from core.prefix_use import PrefixUse
from core.release import Release, ReleaseStep
from core.trajectory import BreakCause
from core.turn import Turn
from core.variant import Variant
from core.verdict import Reward, Verdict

_UNSTORABLE = re.compile("[\\0\ud800-\udfff]")
LARGEST_VERSION = 999_999_999
"""As in model names, where a version has at most nine digits."""
VersionNumber = Annotated[int, Field(ge=0, le=LARGEST_VERSION)]


class Body(BaseModel):
    """A request or answer body; an unknown field is refused by name."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _only_storable_text(cls, data: Any) -> Any:
        """JSON may hold NUL and half a surrogate pair: what is stored with them cannot be read again."""
        _check_text(data)
        return data


class NewPolicy(Body):
    """A Policy to create; its version 0 is the Base."""

    name: str
    """Letters, digits, `.`, `_`, `-`; ending neither in `-fast` nor in `-auto`."""
    base: str | None = None
    """The Base to train on; left out: the configured one."""
    release_policy: str = "default"
    """Which steps a promotion requires."""


class PolicyView(Body):
    """A Policy with what it serves."""

    policy: Policy
    versions: list[PolicyVersion]
    """All versions in ascending order, from 0 on."""
    releases: list[Release]


class CheckpointView(Body):
    """A Checkpoint without its Probe's numbers."""

    id: str
    kind: str
    path: str
    checksum: str
    base_fingerprint: str
    lora_rank: int | None
    probe_prompts: int
    """Prompts in the Probe."""
    provenance: Provenance
    created_at: float


class VersionView(Body):
    """A PolicyVersion with everything that speaks for or against it."""

    version: PolicyVersion
    checkpoint: CheckpointView | None
    release: Release | None
    evaluations: list[Evaluation]
    deployments: list[str]
    """Ids of the Deployments that hold it now."""


class Promotion(Body):
    """Which version gets the traffic."""

    version: VersionNumber
    reason: str | None = None
    """Needed when steps are skipped."""
    skip: list[ReleaseStep] = []
    """Required steps to pass without evidence; they are recorded as missing."""
    expected_promoted: VersionNumber | None = None
    """The promoted version that the decision was made against; 409 where it is another by now."""


class Rollback(Body):
    """Why traffic goes back."""

    reason: str | None = None


class TrafficView(Body):
    """What a promotion or a rollback changed."""

    policy: Policy
    promoted: Release
    displaced: Release | None


class NewDrafter(Body):
    """A draft model to distil."""

    policy: str | None = None
    """The Policy to draft for; left out: the Base."""
    base: str | None = None
    """Left out: the Policy's, or the configured one."""
    version: VersionNumber | None = None
    """The target version; left out: the promoted one."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    warm_start: bool = True
    """Begin with the Drafter that is live."""


class BranchView(Body):
    """A Branch of a Trajectory by its Turns."""

    turn_ids: list[str]
    cause: BreakCause
    """Why it began."""


class EpisodeView(Body):
    """An Episode with all that belongs to it; tool results are part of the Episode."""

    episode: Episode
    turns: list[Turn]
    verdicts: list[Verdict]
    reward: Reward | None
    branches: list[BranchView]
    breaks: dict[BreakCause, int]
    """How often the Trajectory broke, by cause."""
    prefix: PrefixUse
    """What the engine's prefix cache had of its prompts."""
    checkpoints: list[str]
    """Checkpoints that saw this Episode."""


class JobsView(Body):
    """The queue at a glance."""

    depth: dict[JobStatus, int]
    dead: list[Job]
    """Jobs out of attempts, newest first."""


ModelNames = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=200)]] | None,
    Field(max_length=1000, description="Names that may be used, `*` at the end for all that begin so; null: all."),
]


class NewTenant(Body):
    """A Tenant to create."""

    name: str = Field(min_length=1, max_length=200)
    training_granted: bool = False
    """Whether what any of its keys asks may train; a request can narrow that and never widen it."""
    redact: bool = False
    """Take personal data out of what is said before it is stored."""
    models: ModelNames = None
    allowance: Allowance = Allowance()


class TenantChange(Body):
    """Fields of a Tenant to change; those left out stay as they are."""

    name: str = Field(default="", min_length=1, max_length=200)
    training_granted: bool = False
    redact: bool = False
    models: ModelNames = None
    allowance: Allowance = Allowance()


class NewKey(Body):
    """An API key to create."""

    name: str = Field(min_length=1, max_length=200)
    scopes: list[Scope] = [Scope.INFERENCE]
    training_granted: bool = False
    """Whether what this key asks may train; a request can narrow that and never widen it."""
    tenant_id: str | None = None
    """Left out: the caller's own Tenant."""
    models: ModelNames = None
    allowance: Allowance = Allowance()
    """Beside the Tenant's own: a request must fit into both."""
    expires_at: float | None = None
    """Unix seconds from which the key is not valid any more; left out: never."""


class KeyChange(Body):
    """Fields of an API key to change; those left out stay as they are."""

    name: str = Field(default="", min_length=1, max_length=200)
    scopes: list[Scope] = []
    training_granted: bool = False
    """Whether what this key asks may train; a request can narrow that and never widen it."""
    models: ModelNames = None
    allowance: Allowance = Allowance()
    expires_at: float | None = None


class KeyRotation(Body):
    """How an API key is rotated."""

    grace_seconds: float = Field(default=0.0, ge=0, le=2_592_000)
    """How long the old plaintext stays valid."""


class KeyView(Body):
    """A key without its hash."""

    id: str
    tenant_id: str
    name: str
    scopes: list[Scope]
    training_granted: bool
    models: tuple[str, ...] | None
    """None: all that the Tenant allows."""
    allowance: Allowance
    revoked: bool
    expires_at: float | None
    previous_until: float | None
    """Until when the plaintext from before the last rotation is valid."""
    created_at: float

    @classmethod
    def of(cls, key: ApiKey) -> "KeyView":
        """What may be shown of ``key``."""
        return cls(
            id=key.id,
            tenant_id=key.tenant_id,
            name=key.name,
            scopes=sorted(key.scopes),
            training_granted=key.training_granted,
            models=key.models,
            allowance=key.allowance,
            revoked=key.revoked,
            expires_at=key.expires_at,
            previous_until=key.previous_until,
            created_at=key.created_at,
        )


class MintedKey(Body):
    """A new key. Its plaintext is shown this one time."""

    key: KeyView
    plaintext: str


class PartHealth(Body):
    """How one part of the installation is."""

    ok: bool
    detail: str
    """In plain words."""


class RecorderHealth(Body):
    """How the capture of Turns is."""

    ok: bool
    buffered: int
    """Turns that are not in the store yet."""
    buffered_bytes: int
    """Their journal."""
    capacity: int
    """Bytes of journal that may wait for the store."""
    lost: int
    """Turns that could not be kept since the start."""
    last_error: str | None


class RestartRequest(Body):
    """Why an engine is restarted."""

    reason: str = Field(default="asked for", min_length=1, max_length=500)


class FleetPlanRequest(Body):
    """Replicas that are wanted from now on, all of them."""

    launch: dict[Variant, int] = Field(default_factory=dict)
    """Variant → engines that the fleet runs itself."""
    attach: dict[Variant, tuple[str, ...]] = Field(default_factory=dict)
    """Variant → URLs of engines that somebody else runs."""


class FleetView(Body):
    """Which fleet process acts for a Base."""

    base: str
    leader: str | None
    """Machine, process id and an id of the process that led last; null: none ever did."""
    leads: bool
    """Whether its lease is valid now; if not, engines serve on, and nobody loads, restarts or watches them."""
    until: float | None
    """Unix seconds at which its lease runs out unless it is renewed."""
    deployments: dict[str, int]
    """How many replicas there are, by status."""


class SystemHealth(Body):
    """The installation as this gateway sees it."""

    ok: bool
    database: PartHealth
    routing: PartHealth
    recorder: RecorderHealth
    deployments: list[Deployment]
    serving: dict[str, list[int]]
    """Policy → versions that are live."""


def _check_text(data: object) -> None:
    if isinstance(data, str):
        if _UNSTORABLE.search(data):
            raise ValueError("text must hold neither NUL nor half a surrogate pair")
    elif isinstance(data, dict):
        for name, value in data.items():
            _check_text(name)
            _check_text(value)
    elif isinstance(data, list):
        for value in data:
            _check_text(value)
