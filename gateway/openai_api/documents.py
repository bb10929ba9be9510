"""What the OpenAPI document says about bodies under ``/v1``: open objects with their main fields.

These models only document. The hot path reads bodies as raw fields, so that unknown ones pass unchanged.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


class ErrorDetail(BaseModel):
    """What went wrong, as the OpenAI API says it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    message: str
    """What happened, and what can be done."""
    type: str
    """Kind of error, such as `invalid_request_error`."""
    param: str | None = None
    """The field at fault."""
    code: str | None = None
    """A stable name, such as `model_not_found`."""


class ErrorBody(BaseModel):
    """OpenAI's error body."""

    error: ErrorDetail


class _InferenceBody(_Open):
    model: str
    """`coder` (promoted version), `coder-fast`, `coder-auto`, each with or without `@17`, or the Base's own name."""
    stream: bool = False
    """Answer with server-sent events."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most tokens to sample."""
    n: int = Field(default=1, ge=1, le=128)
    """How many answers."""
    temperature: float | None = None
    """Sampling temperature."""
    top_p: float | None = None
    """Nucleus sampling."""
    seed: int | None = None
    """Seed of the sampling."""
    stop: str | list[str] | None = None
    """Texts that end the answer."""
    return_token_ids: bool | None = None
    """Also return token ids (vLLM)."""


class ChatRequest(_InferenceBody):
    """A chat completion request; every other field passes to the engine unchanged."""

    messages: list[dict[str, Any]]
    """The conversation so far."""
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """Most tokens to sample."""
    logprobs: bool | None = None
    """Also return log-probs."""
    tools: list[dict[str, Any]] | None = None
    """Tools that the model may call."""


class CompletionRequest(_InferenceBody):
    """A text completion request; every other field passes to the engine unchanged."""

    prompt: str | list[str] | list[int] | list[list[int]]
    """Text, texts, token ids, or several lists of token ids."""
    logprobs: int | None = None
    """Also return log-probs, with this many alternatives."""
    echo: bool = False
    """Begin the answer with the prompt; such a Turn never trains."""


class ChatAnswer(_Open):
    """A chat completion; with `stream`, each event carries a `chat.completion.chunk` instead."""

    id: str
    object: str
    created: int
    model: str
    """What answered, such as `coder@17`."""
    choices: list[dict[str, Any]]
    usage: dict[str, Any] | None = None


class CompletionAnswer(ChatAnswer):
    """A text completion; with `stream`, each event carries a part of it."""


class ModelCard(BaseModel):
    """One name for the `model` field."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str
    """The name to send."""
    object: str = "model"
    created: int
    """Unix seconds."""
    owned_by: str = "hone"
    root: str | None = None
    """The Base underneath."""
    policy: str | None = None
    """The Policy, unless this is the Base itself."""
    version: int | None = None
    """The PolicyVersion that the name means now."""
    variant: str = "standard"
    """How it is decoded: `standard`, `fast`, or `auto` where each request is given one of them."""


class ModelList(BaseModel):
    """All names that the key may use."""

    object: str = "list"
    data: list[ModelCard]


class Health(BaseModel):
    """Whether the process is alive or ready."""

    status: str
    reason: str | None = None
