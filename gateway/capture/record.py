"""CapturedCall: one answered model call as it is written to the journal, before anything is parsed."""

from collections.abc import Mapping
from typing import Literal

import msgspec

Surface = Literal["chat.completions", "completions", "responses", "messages"]
"""The API that the client used; ``Turn.endpoint`` is what the engine was asked by."""

CANCELLED = "cancelled"
ENGINE_FAILED = "engine_failed"
_NUMERIC = frozenset(b"-0123456789tf"[i : i + 1] for i in range(13))
"""First bytes of JSON's numbers, ``true`` and ``false``."""


class ArmExposure(msgspec.Struct, array_like=True, kw_only=True, frozen=True):
    """A call's part in an A/B Experiment. Fields are only ever appended, with defaults."""

    experiment_id: str
    arm: str
    """As assigned."""
    answered: str | None
    """The arm that answered; None: none did."""
    key: str
    """What was hashed, as a digest."""
    bucket: float
    stage: int
    reason: str
    domain: str | None = None


class CapturedCall(msgspec.Struct, array_like=True, kw_only=True):
    """What the Turns of one request are made of.

    Fields are only ever appended, with defaults, so that old journals stay readable.
    """

    endpoint: Literal["chat.completions", "completions"]
    surface: Surface
    request: bytes
    """The client's JSON body; where no content may be kept, an object of its numbers alone, or empty."""
    payloads: list[bytes]
    """The engine's JSON: one body, or the data of every event of a stream; empty where no content may be kept."""
    policy: str
    """Policy, Base, or outside model."""
    version: int
    variant: str
    deployment_id: str
    episode_id: str
    opens_episode: bool
    """The Episode row is written with this record."""
    index: int
    """The order in the Episode."""
    tenant_id: str
    key_id: str
    turn_ids: list[str]
    """One per choice."""
    request_id: str
    idempotency_key: str | None
    consent: bool
    """The Turn may train."""
    stored: bool
    """The API may return the answer later."""
    redact: bool
    """Personal data is to be taken out before anything is stored."""
    started_at: float
    """Unix seconds."""
    total_seconds: float
    first_token_seconds: float | None = None
    broken: str | None = None
    """Why a stream did not reach its end: ``cancelled`` or ``engine_failed``."""
    prompt_tokens: int = 0
    """As the engine counted, for records without content."""
    completion_tokens: int = 0
    threads: list[str] = []
    """Per choice: digest of the conversation with that answer; empty where it is not known."""
    parent_turn_id: str | None = None
    """The Turn that the request's messages continue, where they told."""
    public_model: str = ""
    """What the client was told."""
    fallback_from: str | None = None
    """The model that was asked for, where another one answered."""
    cached_tokens: int | None = None
    """Tokens of the prompt that the engine's prefix cache had, for records without content."""
    compacted: bool = False
    """Older tool results were taken out of the messages of the Turn that this one continues."""
    version_spans: dict[int, list[tuple[int, int]]] = {}
    """Choice → version and first token of each run of tokens; empty: ``version`` sampled all."""
    unproven: bool = False
    """Weights that were never proven to be a version's may have sampled some of it: it never trains."""
    exposure: ArmExposure | None = None
    """Its part in an A/B Experiment."""
    finish_reasons: dict[int, str] = {}
    """Choice → why it ended, for records without content that are part of an Experiment."""
    events: list[str] = []
    """Names of bad events of the answer, as ``finish_reasons``."""

    @property
    def keeps_content(self) -> bool:
        """Whether more than counters may be stored."""
        return self.consent or self.stored


def numbers_alone(fields: Mapping[str, msgspec.Raw]) -> bytes:
    """A request body of the numbers and booleans alone: what may be kept of a request without its content."""
    return msgspec.json.encode({name: raw for name, raw in fields.items() if bytes(raw)[:1] in _NUMERIC})
