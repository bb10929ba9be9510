"""The port of tools: what a policy may call during an Episode, run in the Episode's Box."""

from typing import Any, Protocol

from core.noun import Noun
from sandbox.runtimes.base import Box

MALFORMED_CALL = "malformed_call"
"""``ToolOutput.outcome`` of a call whose arguments do not fit the tool's schema: the policy's fault."""


class ToolOutput(Noun):
    """What the policy gets to see of a tool call, and how the call ended."""

    output: str
    """Text for the tool message; never empty."""
    outcome: str
    """``malformed_call``, or an Outcome of the sandbox (``ok``, ``nonzero``, ``timeout``, …)."""
    seconds: float = 0.0

    @property
    def infrastructure(self) -> bool:
        """Whether the sandbox failed: the Episode must be retried, not judged."""
        return self.outcome in ("start_failed", "infra_error")


class Tool(Protocol):
    """One function that the policy may call."""

    @property
    def name(self) -> str:
        """The function's name, as in ``ToolSpec.name``."""

    @property
    def schema(self) -> dict[str, Any]:
        """The OpenAI tool: ``{"type": "function", "function": {"name", "description", "parameters"}}``."""

    async def run(self, arguments: dict[str, Any], box: Box) -> ToolOutput:
        """Run the call; malformed arguments give ``malformed_call`` with advice, never an exception.

        A sandbox that fails gives ``infra_error``.
        """
