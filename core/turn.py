"""Turn: one model call, exactly as the engine saw and sampled it."""

from typing import Any, Literal

from pydantic import Field

from core.message import Message, Usage
from core.noun import Noun, now
from core.policy import PolicySpan
from core.variant import Variant


class Timing(Noun):
    """Durations in seconds, measured in the gateway."""

    started_at: float
    first_token_seconds: float | None = None
    total_seconds: float


class SpeculationCounts(Noun):
    """What the engine reported about draft tokens for this Turn, where it reports it."""

    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    """Steps of the target model that checked draft tokens."""
    accepted_at: tuple[int, ...] = ()
    """Per position of a draft: steps in which the token there was accepted."""


class Turn(Noun):
    """One model call of an Episode. Token ids and log-probs come from the engine, never from re-tokenising."""

    id: str
    episode_id: str
    index: int
    """Order in the Episode as recorded. Gateways that answer one Episode within the recorder's delay may give the
    same index twice; then the time of the answer decides."""
    choice: int = 0
    """Index of the choice when the request asked for several (``n``)."""
    tenant_id: str
    policy: str
    """Policy name, or the Base's own name."""
    policy_spans: tuple[PolicySpan, ...]
    variant: Variant
    deployment_id: str
    endpoint: Literal["chat.completions", "completions"] = "chat.completions"
    """What the engine was asked by."""
    surface: Literal["chat.completions", "completions", "responses", "messages"] = "chat.completions"
    """The API that the client used."""
    stored: bool = False
    """The API may return the answer later."""
    content_kept: bool = True
    """False: neither consent nor ``store`` allowed to keep what was said; only counters are here."""
    redacted: bool = False
    """Personal data was taken out: the text is not what the engine saw, so there are no token ids."""
    parent_turn_id: str | None = None
    """The Turn that this one's messages continue."""
    compacted: bool = False
    """Older tool results were taken out of the messages of the Turn that this one continues."""
    thread: str | None = None
    """Digest of the conversation up to and with this answer: what a later request's messages are recognised by."""
    fallback_from: str | None = None
    """The model that was asked for, where another one answered."""
    messages: tuple[Message, ...] = ()
    """What the client sent (chat), or one user message with the prompt text (completions)."""
    response: Message = Field(default_factory=dict)
    """The assistant message that the client received."""
    sampling: dict[str, Any] = Field(default_factory=dict)
    """temperature, top_p, seed, … as requested."""
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    output_logprobs: tuple[float, ...]
    """Log-prob of each sampled token, same length as ``output_ids`` when ``exact``."""
    exact: bool = True
    """False when the engine did not return ids or log-probs: such a Turn never trains."""
    finish_reason: str | None = None
    usage: Usage = Usage()
    speculation: SpeculationCounts = SpeculationCounts()
    timing: Timing
    request_id: str
    idempotency_key: str | None = None
    consented: bool = False
    """Consent to train was granted for this very call, whatever became of its tokens."""
    trainable: bool = False
    """Consent was granted for this Turn, and its tokens may be used."""
    created_at: float = Field(default_factory=now)

    def without_content(self) -> "Turn":
        """The Turn with nothing but counters: what is kept when neither consent nor ``store`` allows more."""
        empty: dict[str, Any] = {"messages": (), "response": {}, "sampling": {}, "prompt_ids": (), "output_ids": ()}
        closed = {"output_logprobs": (), "exact": False, "content_kept": False, "stored": False, "trainable": False}
        return self.model_copy(update=empty | closed | {"thread": None, "consented": False})

    @property
    def version(self) -> int:
        """The PolicyVersion that sampled the first token."""
        return self.policy_spans[0].version
