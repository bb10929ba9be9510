"""Task and Domain: what is asked, in which environment, and what a verifier needs to judge it."""

import hashlib
import json
from typing import Any, Literal

from pydantic import Field

from core.message import Message
from core.noun import Noun

Split = Literal["train", "heldout", "warmup"]


class ToolSpec(Noun):
    """A tool offered to the policy, named as in ``sandbox/tools`` (``python``, ``shell``, ``files``)."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)


class VerifierSpec(Noun):
    """One verifier of a Task: its name in ``sandbox/verifiers``, its options and its weight in the Reward."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)
    weight: float = 1.0


class Limits(Noun):
    """What one attempt may use."""

    max_turns: int = 1
    max_tokens: int = 64
    """Sampled tokens per Turn."""
    wall_seconds: float = 60.0
    """Of the whole Episode."""
    tool_seconds: float = 5.0
    """Of one tool call."""
    memory_mib: int = 256
    """Of one sandbox box."""


class Task(Noun):
    """What is asked of a policy, and what a verifier needs to judge the attempt."""

    id: str
    """``task_`` + content hash: the same Task imported twice is one Task."""
    domain: str
    split: Split
    messages: tuple[Message, ...]
    """The opening messages: usually one system and one user message."""
    tools: tuple[ToolSpec, ...] = ()
    verifiers: tuple[VerifierSpec, ...]
    limits: Limits = Limits()
    files: dict[str, str] = Field(default_factory=dict)
    """Relative path → text, laid into the work folder before the attempt."""
    demonstration: str | None = None
    """A first answer to imitate, for SFT warm-up; never shown to the policy."""
    metadata: dict[str, Any] = Field(default_factory=dict)


class Domain(Noun):
    """A family of Tasks with its environment, verifiers, limits and gate margin."""

    name: str
    kind: Literal["tool_call", "code", "text", "reasoning_gym"]
    description: str
    margin: float = 0.02
    """By how much a new version may fall behind in this Domain before a gate refuses it."""
    quota: float = 1.0
    """Relative share of rollouts."""


def task_id(content: dict[str, Any]) -> str:
    """The content-hash id of a Task given as a JSON-able dict (its ``id`` is ignored)."""
    body = {key: value for key, value in content.items() if key != "id"}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
    return f"task_{digest[:26]}"


def make_task(**fields: Any) -> Task:
    """Build a Task and give it its content-hash id."""
    draft = Task(id="task_", **fields)
    return draft.model_copy(update={"id": task_id(draft.model_dump(mode="json"))})
