"""What the OpenAPI document says about bodies of ``/v1/responses``: open objects with their main fields."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


class ResponseRequestDocument(_Open):
    """A request for a response; fields that this API does not know pass to the engine."""

    model: str
    """As in chat completions."""
    input: str | list[dict[str, Any]] = ""
    """A text, or items: messages, function calls and their outputs, reasoning, item references."""
    instructions: str | None = None
    """A system message for this response alone."""
    tools: list[dict[str, Any]] = []
    """Functions, and the hosted tools `code_interpreter`, `shell` and `mcp`."""
    stream: bool = False
    """Answer with server-sent events."""
    store: bool = True
    """Keep the response, so that it can be read and continued."""
    previous_response_id: str | None = None
    """Continue this response."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    """Most tokens to sample, over all model calls of the response."""
    max_tool_calls: int | None = Field(default=None, ge=0)
    """Most calls of hosted tools."""


class ResponseDocument(_Open):
    """A response."""

    id: str
    object: Literal["response"] = "response"
    status: str
    """`completed`, `incomplete` or `failed`."""
    model: str
    """What answered, such as `coder@17`."""
    output: list[dict[str, Any]]
    """Messages, reasoning and tool calls, in order."""
    usage: dict[str, Any] | None = None


class DeletedResponse(BaseModel):
    """A response that is gone."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputItems(BaseModel):
    """A page of input items."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False

    @classmethod
    def page(cls, items: list[dict[str, Any]], limit: int) -> "InputItems":
        """The first ``limit`` items."""
        shown = items[:limit]
        return cls(
            data=shown,
            first_id=shown[0]["id"] if shown else None,
            last_id=shown[-1]["id"] if shown else None,
            has_more=len(items) > limit,
        )
