"""The agent loop: policy and tools take turns until the policy has answered or a limit is reached.

A Task with ``limits.max_turns == 1`` runs the tool call of its only Turn and ends. With more, the loop ends
at the first answer without a tool call. Time spent waiting for the policy does not count against
``limits.wall_seconds``: how fast an engine is, is not the policy's doing. The engine has a time limit of
its own, and passing it is a failure of infrastructure.
"""

import hashlib
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from core.compaction import compacted, is_tool_result, over_budget, text_of
from core.config.gateway import ContextBudget
from core.episode import StopReason, ToolResult
from core.errors import SandboxError, TaskError
from core.message import Message
from core.noun import Noun
from core.task import Task
from sandbox.boxes import box_spec
from sandbox.parsing import ParsedAnswer, ToolCall, parse_answer
from sandbox.policy_client import PolicyCall, PolicyClient, PolicyReply
from sandbox.runtimes.base import Box, Runtime
from sandbox.text import clean_text
from sandbox.tools.base import MALFORMED_CALL, Tool, ToolOutput

TOOL_OUTPUT_HEAD = "Tool output:\n"
NATIVE_TOOLS = "native_tools"
"""Task metadata key: true where the engine shall be told of the tools and parses calls itself."""
_FILE_BYTES = 1_000_000
_MAX_CALLS_PER_TURN = 8


class Sampling(Noun):
    """How the policy is called throughout one Episode."""

    model: str
    version: int
    temperature: float
    seed: int
    trainable: bool
    budget: ContextBudget | None = None
    """Older tool results leave the policy's prompt once it would be longer; None: never."""


@dataclass
class Conversation:
    """An Episode in the making; it grows while the loop runs, and is what is left when the loop fails."""

    episode_id: str
    messages: list[Message]
    """All that was said; verifiers judge by this."""
    responses: list[Message] = field(default_factory=list)
    tool_results: list[ToolResult] = field(default_factory=list)
    turn_ids: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    stop_reason: StopReason | None = None
    tool_seconds: float = 0.0
    context: list[Message] = field(default_factory=list)
    """What the policy is shown: all that was said, unless it was compacted."""
    counted: int = 0
    """Tokens of the first ``counted_messages`` of ``context``, as the engine counted them."""
    counted_messages: int = 0
    compacts: str | None = None
    """The Turn whose conversation was compacted for the next one."""

    def __post_init__(self) -> None:
        self.context = list(self.messages)

    def add(self, message: Message) -> None:
        """Something was said."""
        self.messages.append(message)
        self.context.append(message)

    def answered(self, reply: PolicyReply) -> None:
        """The policy said something; the engine has counted everything up to here."""
        self.add(reply.message)
        self.responses.append(reply.message)
        self.turn_ids.append(reply.turn_id)
        # An engine that counts nothing leaves everything to the estimate.
        self.counted, self.counted_messages = reply.tokens, len(self.context) if reply.tokens else 0
        self.compacts = None

    def compact(self, budget: ContextBudget) -> None:
        """Take older tool results out of what the policy is shown, where it would be longer than its budget."""
        if not over_budget(self.context, budget, counted=self.counted, since=self.counted_messages):
            return
        fewer = compacted(self.context, budget, is_result=_is_result, prefix=TOOL_OUTPUT_HEAD)
        if fewer is not None:
            self.context = fewer
            self.counted = self.counted_messages = 0
            self.compacts = self.turn_ids[-1] if self.turn_ids else None


class Agent:
    """Runs one Episode's loop, with one Box that lives as long as the Episode and is made when needed."""

    def __init__(
        self,
        *,
        task: Task,
        policy: PolicyClient,
        sampling: Sampling,
        runtime: Runtime,
        tools: Mapping[str, Tool],
    ) -> None:
        self._task = task
        self._policy = policy
        self._sampling = sampling
        self._runtime = runtime
        self._tools = tools
        self._box: Box | None = None

    async def converse(self, conversation: Conversation, wanted_files: tuple[str, ...] = ()) -> None:
        """Run the loop to its end and set ``conversation.stop_reason``.

        Raises EngineError, SandboxError and their kin when infrastructure fails.
        """
        async with AsyncExitStack() as stack:
            for index in range(self._task.limits.max_turns):
                conversation.stop_reason = await self._turn(conversation, index, stack)
                if conversation.stop_reason is not None:
                    break
            else:
                conversation.stop_reason = StopReason.MAX_TURNS
            if wanted_files:
                box = await self._live_box(stack)
                for path in wanted_files:
                    await _collect(box, path, conversation.files)

    async def _turn(self, conversation: Conversation, index: int, stack: AsyncExitStack) -> StopReason | None:
        """One Turn with its tool calls; the reason to stop, or None to go on."""
        reply = await self._ask(conversation, index)
        if reply is None:
            if index == 0:
                raise TaskError(f"the opening messages of {self._task.id} do not fit the engine's context")
            return StopReason.TRUNCATED
        conversation.answered(reply)
        if reply.finish_reason == "length":
            return StopReason.TRUNCATED
        parsed = parse_answer(reply.message) if self._tools else ParsedAnswer()
        if not parsed.calls:
            return StopReason.ANSWERED
        for call in parsed.calls[:_MAX_CALLS_PER_TURN]:
            await self._run_tool(conversation, call, reply.turn_id, stack)
            if conversation.tool_seconds >= self._task.limits.wall_seconds:
                return StopReason.TIMED_OUT
        return StopReason.ANSWERED if self._task.limits.max_turns == 1 else None

    async def _ask(self, conversation: Conversation, index: int) -> PolicyReply | None:
        sampling = self._sampling
        if sampling.budget is not None:
            conversation.compact(sampling.budget)
        native = bool(self._task.metadata.get(NATIVE_TOOLS))
        return await self._policy.call(
            PolicyCall(
                model=sampling.model,
                version=sampling.version,
                messages=tuple(conversation.context),
                temperature=sampling.temperature,
                seed=turn_seed(sampling.seed, index),
                max_tokens=self._task.limits.max_tokens,
                episode_id=conversation.episode_id,
                turn_index=index,
                trainable=sampling.trainable,
                compacts=conversation.compacts,
                tools=tuple(tool.schema for tool in self._tools.values()) if native else (),
            )
        )

    async def _run_tool(
        self, conversation: Conversation, call: ToolCall, turn_id: str, stack: AsyncExitStack
    ) -> None:
        output = await self._output(call, stack)
        if output.infrastructure:
            raise SandboxError(f"tool '{call.name}' could not run: {output.output[:500]}")
        # The tool's own time: waiting for a box is not the policy's doing either.
        conversation.tool_seconds += output.seconds
        text = clean_text(output.output)
        conversation.tool_results.append(
            ToolResult(
                turn_id=turn_id,
                tool=clean_text(call.name, 100),
                arguments=call.arguments,
                output=text,
                outcome=output.outcome,
                seconds=output.seconds,
            )
        )
        conversation.add(tool_message(call, text))

    async def _output(self, call: ToolCall, stack: AsyncExitStack) -> ToolOutput:
        tool = self._tools.get(call.name)
        if call.error is not None:
            return ToolOutput(output=f"malformed call: {call.error}", outcome=MALFORMED_CALL)
        if tool is None:
            known = ", ".join(self._tools)
            return ToolOutput(output=f"malformed call: the tools are: {known}", outcome=MALFORMED_CALL)
        return await tool.run(call.arguments, await self._live_box(stack))

    async def _live_box(self, stack: AsyncExitStack) -> Box:
        if self._box is None:
            self._box = await stack.enter_async_context(self._runtime.box(box_spec(self._task)))
        return self._box


async def _collect(box: Box, path: str, files: dict[str, str]) -> None:
    """Read a work file for the judges; one that cannot be read is left out, as the policy left it."""
    try:
        data = await box.read(path, _FILE_BYTES)
    except OSError:
        return
    files[path] = clean_text(data.decode("utf-8", errors="replace"))


def tool_message(call: ToolCall, output: str) -> Message:
    """What the policy is told: a tool message for the engine's own calls, else a user message.

    Chat templates of small models have no tool role.
    """
    if call.id is not None:
        return {"role": "tool", "tool_call_id": call.id, "content": output}
    return {"role": "user", "content": TOOL_OUTPUT_HEAD + output}


def _is_result(message: Message) -> bool:
    """Whether a message is one of ``tool_message``."""
    return is_tool_result(message) or text_of(message).startswith(TOOL_OUTPUT_HEAD)


def episode_seed(seed: int, task_id: str, attempt: int) -> int:
    """The seed of one attempt: attempts of a group differ though their jobs carry one seed."""
    return _hashed(f"{seed}:{task_id}:{attempt}")


def turn_seed(seed: int, index: int) -> int:
    """The sampling seed of one Turn."""
    return _hashed(f"{seed}:{index}")


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
