"""What the OpenAPI document says about the bodies of the Messages API; these models only document."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


class MessagesPrompt(_Open):
    """A prompt whose tokens are to be counted."""

    model: str
    """As in the OpenAI API: `coder`, `coder-fast`, `coder-auto`, `coder@17`, a Base, or an outside model."""
    messages: list[dict[str, Any]]
    """Messages with text or content blocks."""
    system: str | list[dict[str, Any]] | None = None
    """The system prompt, as text or text blocks."""
    tools: list[dict[str, Any]] | None = None
    """Tools that the client runs: `name`, `description`, `input_schema`."""
    tool_choice: dict[str, Any] | None = None
    """`auto`, `any`, `tool` or `none`."""
    thinking: dict[str, Any] | None = None
    """`enabled`, `disabled` or `adaptive`."""


class CreateMessage(MessagesPrompt):
    """A request for a message; fields that the Messages API does not know pass to the engine."""

    max_tokens: int = Field(ge=1)
    """Most tokens to sample."""
    stream: bool = False
    """Answer with server-sent events."""
    stop_sequences: list[str] | None = None
    """Texts that end the answer."""
    temperature: float | None = None
    """Sampling temperature."""
    top_p: float | None = None
    """Nucleus sampling."""
    top_k: int | None = None
    """Sample among this many tokens."""
    metadata: dict[str, Any] | None = None
    """`user_id`; `hone_episode_id` names the Episode, as the header does."""


class MessageUsage(_Open):
    """What a message used."""

    input_tokens: int
    """Prompt tokens that no cache held."""
    cache_creation_input_tokens: int
    """Always 0: engines do not tell."""
    cache_read_input_tokens: int
    """Prompt tokens from the engine's prefix cache."""
    output_tokens: int
    """Sampled tokens."""


class MessageAnswer(_Open):
    """The model's message; with `stream` its events, as the Messages API has them."""

    id: str
    """`msg_` and the Turn's own id."""
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    """What answered."""
    content: list[dict[str, Any]]
    """Blocks of type `text`, `thinking` and `tool_use`."""
    stop_reason: str
    """`end_turn`, `max_tokens`, `tool_use`, `stop_sequence` or `refusal`."""
    stop_sequence: str | None
    """The text that ended the answer."""
    usage: MessageUsage


class TokenCount(_Open):
    """The number of tokens of a prompt."""

    input_tokens: int


class MessageErrorDetail(_Open):
    """What went wrong, as the Messages API says it."""

    type: str
    """Such as `invalid_request_error`, `rate_limit_error`, `overloaded_error`."""
    message: str
    """What happened, and what can be done."""


class MessageErrorBody(_Open):
    """Anthropic's error body."""

    type: Literal["error"]
    error: MessageErrorDetail
    request_id: str
