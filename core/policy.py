"""Base, Policy, PolicyVersion, Checkpoint, Probe: what is trained, and the artefacts it leaves."""

import re
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, field_validator

from core.live import LiveState
from core.noun import Noun, now
from core.transitions import TransitionTable
from core.version_note import VersionNote

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")


class Base(Noun):
    """An open-weight model that is never trained in place."""

    name: str
    """The name that clients use, and the engine's served model name."""
    path: str
    """A Hugging Face folder."""
    fingerprint: str
    """sha256 over the folder's weights and tokenizer files; adapters are bound to it."""
    token_bytes: int | None = None
    """No token stands for more bytes of text than this (``core.token_bound``); None: not promised."""


class Policy(Noun):
    """A named line of training on one Base. Version 0 of every Policy is the Base itself."""

    name: str
    base: str
    promoted_version: int = 0
    previous_version: int | None = None
    """What ``rollback`` returns to; kept loaded until the next promotion."""
    release_policy: str = "default"
    created_at: float = Field(default_factory=now)

    @field_validator("name")
    @classmethod
    def _name_is_servable(cls, name: str) -> str:
        if not _NAME.match(name) or name.endswith(("-fast", "-auto")):
            raise ValueError("a Policy name has letters, digits, '.', '_', '-' and does not end in -fast or -auto")
        return name


class ServingStatus(StrEnum):
    """Whether the fleet should hold a PolicyVersion on its replicas."""

    WANTED = "wanted"
    LIVE = "live"
    DRAINING = "draining"
    UNLOADED = "unloaded"
    REFUSED = "refused"


SERVING_TRANSITIONS = TransitionTable(
    "serving status",
    {
        ServingStatus.WANTED: frozenset({ServingStatus.LIVE, ServingStatus.REFUSED, ServingStatus.UNLOADED}),
        ServingStatus.LIVE: frozenset({ServingStatus.DRAINING, ServingStatus.WANTED}),
        ServingStatus.DRAINING: frozenset({ServingStatus.UNLOADED, ServingStatus.WANTED}),
        ServingStatus.UNLOADED: frozenset({ServingStatus.WANTED}),
        ServingStatus.REFUSED: frozenset(),
    },
)


class PolicyVersion(Noun):
    """An immutable, numbered state of a Policy: LoRA adapter or full weights. Numbers are never reused."""

    policy: str
    version: int
    kind: Literal["base", "lora", "full"]
    checkpoint_id: str | None = None
    parent_version: int | None = None
    origin: Literal["base", "sft", "grpo", "live", "imported"]
    serving: ServingStatus = ServingStatus.WANTED
    serving_reason: str | None = None
    """Why the version was refused, in plain words."""
    swap_seconds: float | None = None
    """From the decision to load until the probe had passed, on the slowest replica, when it went live."""
    pins: tuple[str, ...] = ()
    """Who needs it loaded whatever is promoted: ids of evaluation jobs, or an operator's name."""
    notes: tuple[VersionNote, ...] = ()
    saw_withdrawn: int = 0
    """How many withdrawn Episodes it or an ancestor was trained on."""
    files_removed_at: float | None = None
    """When its checkpoint folder was deleted; None: it was not."""
    created_at: float = Field(default_factory=now)

    @property
    def pinned(self) -> bool:
        """Whether anybody needs it loaded."""
        return bool(self.pins)

    @property
    def label(self) -> str:
        """``coder@17``."""
        return f"{self.policy}@{self.version}"


class PolicySpan(Noun):
    """A run of a Turn's sampled tokens that one PolicyVersion produced."""

    version: int
    first_token: int = 0


class ProbePrompt(Noun):
    """One prompt of a Probe, with three answers to 'how likely are these tokens?'."""

    token_ids: tuple[int, ...]
    """The whole teacher-forced sequence."""
    positions: tuple[int, ...]
    """Indices into ``token_ids`` that are compared: those where the version differs most from parent and Base."""
    version_logprobs: tuple[float, ...]
    parent_logprobs: tuple[float, ...]
    base_logprobs: tuple[float, ...]


class Probe(Noun):
    """What a swapped engine must reproduce, and what the wrong version would not (at least 8 prompts)."""

    prompts: tuple[ProbePrompt, ...] = Field(min_length=8)
    dtype: str = "float32"


class ProbeResult(Noun):
    """How an engine's log-probs compare with the learner's."""

    passed: bool
    error: float
    """mean |engine - learner| over the compared tokens, in nats."""
    parent_distance: float
    base_distance: float
    """mean |version - parent| and |version - base|: what the wrong version would have shown."""
    indistinguishable: bool = False
    """Parent and child too close to tell apart: identity rests on the checksum of the loaded folder."""
    reason: str


class Provenance(Noun):
    """How a Checkpoint came to be: enough to repeat it."""

    parent_version: int
    code_commit: str
    config: dict[str, Any]
    packages: dict[str, str]
    seed: int
    step: int
    episode_ids: tuple[str, ...] = ()
    """The Episodes that this step trained on; earlier ones are the parents'."""
    metrics: dict[str, float] = Field(default_factory=dict)
    live: LiveState | None = None
    """What learning from live traffic goes on from."""


class Checkpoint(Noun):
    """The artefact that a PolicyVersion points at."""

    id: str
    policy: str
    version: int
    kind: Literal["lora", "full"]
    path: str
    """An immutable folder in Hugging Face / PEFT layout; new for every version."""
    checksum: str
    """sha256 over the folder's files (names and bytes, in name order)."""
    base_fingerprint: str
    lora_rank: int | None = None
    probe: Probe
    provenance: Provenance
    resume_path: str | None = None
    """DeepSpeed's own state, for exact resume."""
    signature: str | None = None
    """Ed25519 over what identifies it, base64; None: it was made while signing was off."""
    signed_by: str | None = None
    """Fingerprint of the public key."""
    created_at: float = Field(default_factory=now)
