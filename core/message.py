"""Chat messages as they travel: OpenAI's shape, kept whole.

Messages are plain JSON objects, because a gateway must hand on fields that it does not know. The types here
name the shapes; they do not restrict them. Source: OpenAI chat completions API.
"""

from typing import Any

from core.noun import Noun

Message = dict[str, Any]
"""One chat message: at least ``role``, usually ``content``, perhaps ``tool_calls`` or ``tool_call_id``."""


class Usage(Noun):
    """Token counts of one Turn, as the engine reported them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    """Tokens of the prompt that the engine's prefix cache had; None: the engine does not say."""
