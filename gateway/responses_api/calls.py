"""Tool calls of the model as output items, from the first piece of their arguments to their result."""

import base64
from typing import Any

import msgspec
from pydantic import TypeAdapter

from gateway.hosted_tools.base import CommandOutcome, ToolDefinition, ToolOutcome
from gateway.responses_api.tools import LOCAL_SHELL
from gateway.responses_api.writer import ResponseWriter

_ARGUMENTS = TypeAdapter(dict[str, Any])
_decode_arguments = msgspec.json.Decoder(dict[str, Any]).decode
_LONGEST_PARTIAL = 32_768
"""Beyond this many characters of arguments, code is shown whole at its end and not piece by piece."""


class OpenCall:
    """A tool call that is being written: ``append`` its arguments, ``close`` them, ``settle`` a hosted one."""

    hosted = False
    """The tool is run here."""

    def __init__(self, writer: ResponseWriter, call_id: str, name: str) -> None:
        self._writer = writer
        self._index = 0
        self._item: dict[str, Any] = {}
        self.call_id = call_id
        self.name = name
        self.arguments = ""

    def append(self, delta: str) -> None:
        """Take a piece of the arguments."""
        self.arguments += delta
        self._grown(delta)

    def close(self, *, whole: bool) -> None:
        """The arguments are all there, or (not ``whole``) were cut off."""
        raise NotImplementedError

    def running(self) -> None:
        """The tool starts."""

    def settle(self, outcome: ToolOutcome) -> None:
        """The tool has ended."""

    def abandon(self) -> None:
        """The tool will not run."""
        if self._item.get("status") == "in_progress":
            self._done("incomplete")

    @property
    def parsed(self) -> dict[str, Any] | None:
        """The arguments; None: not a JSON object, or one with what JSON cannot say again (half a surrogate pair)."""
        try:
            return _decode_arguments(self.arguments or "{}")
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None

    def _grown(self, delta: str) -> None:
        """React to a piece of the arguments."""

    def _open(self, item: dict[str, Any]) -> None:
        self._item = item
        self._index = self._writer.add(item)

    def _emit(self, kind: str, **fields: Any) -> None:
        self._writer.emit(kind, output_index=self._index, item_id=self._item["id"], **fields)

    def _done(self, status: str) -> None:
        self._item["status"] = status
        self._writer.done(self._index)


class FunctionCall(OpenCall):
    """A function that the client runs."""

    def __init__(self, writer: ResponseWriter, call_id: str, name: str) -> None:
        super().__init__(writer, call_id, name)
        self._open(
            {"type": "function_call", "status": "in_progress", "call_id": call_id, "name": name, "arguments": ""}
        )

    def close(self, *, whole: bool) -> None:
        """End the arguments and the item."""
        self._item["arguments"] = self.arguments
        self._emit("response.function_call_arguments.done", arguments=self.arguments, name=self.name)
        self._done("completed" if whole else "incomplete")

    def _grown(self, delta: str) -> None:
        self._emit("response.function_call_arguments.delta", delta=delta)


class ShellCall(OpenCall):
    """A shell that the client runs: ``shell`` with a local environment, or ``local_shell``."""

    def __init__(self, writer: ResponseWriter, call_id: str, name: str) -> None:
        super().__init__(writer, call_id, name)
        self._open(self._new_item())

    def close(self, *, whole: bool) -> None:
        """Show the commands, and end the item."""
        arguments = self.parsed or {}
        if self.name == LOCAL_SHELL:
            self._item["action"] = _exec_action(arguments)
        else:
            self._item["action"] = _shell_action(arguments)
            _write_commands(self._writer, self._index, self._item["action"]["commands"])
        self._finish_arguments(whole=whole)

    def _finish_arguments(self, *, whole: bool) -> None:
        self._done("completed" if whole and self.parsed is not None else "incomplete")

    def _new_item(self) -> dict[str, Any]:
        if self.name == LOCAL_SHELL:
            return {
                "type": "local_shell_call",
                "status": "in_progress",
                "call_id": self.call_id,
                "action": _exec_action({}),
            }
        return _shell_item(self.call_id, {"type": "local"})


class HostedShellCall(ShellCall):
    """A shell in a container of ours; its result is an item of its own."""

    hosted = True

    def __init__(self, writer: ResponseWriter, call_id: str, name: str, container_id: str) -> None:
        self._container_id = container_id
        super().__init__(writer, call_id, name)

    def settle(self, outcome: ToolOutcome) -> None:
        """Write the ``shell_call_output`` item."""
        outcomes = outcome.commands or (CommandOutcome("", outcome.text, 1),)
        output = [_command_output(one) for one in outcomes]
        item: dict[str, Any] = {
            "type": "shell_call_output",
            "status": "in_progress",
            "call_id": self.call_id,
            "max_output_length": self._item["action"]["max_output_length"],
            "output": [],
        }
        index = self._writer.add(item)
        for number, one in enumerate(output):
            place = {"output_index": index, "item_id": item["id"], "command_index": number}
            delta = {"stdout": one["stdout"], "stderr": one["stderr"]}
            self._writer.emit("response.shell_call_output_content.delta", delta=delta, **place)
            self._writer.emit("response.shell_call_output_content.done", output=[one], **place)
        item |= {"output": output, "status": "completed"}
        self._writer.done(index)

    def _new_item(self) -> dict[str, Any]:
        return _shell_item(self.call_id, {"type": "container_reference", "container_id": self._container_id})


class CodeCall(OpenCall):
    """Code that runs in a container of ours."""

    hosted = True

    def __init__(
        self, writer: ResponseWriter, call_id: str, name: str, container_id: str, *, with_outputs: bool
    ) -> None:
        super().__init__(writer, call_id, name)
        self._with_outputs = with_outputs
        self._code = ""
        self._open(
            {
                "type": "code_interpreter_call",
                "status": "in_progress",
                "code": "",
                "container_id": container_id,
                "outputs": None,
            }
        )
        self._emit("response.code_interpreter_call.in_progress")

    def close(self, *, whole: bool) -> None:
        """Show the rest of the code; the item ends with its result."""
        code = (self.parsed or {}).get("code")
        self._show(code if isinstance(code, str) else self._code)
        self._item["code"] = self._code
        self._emit("response.code_interpreter_call_code.done", code=self._code)
        if not whole:
            self._done("incomplete")

    def running(self) -> None:
        """Say that the code runs."""
        self._item["status"] = "interpreting"
        self._emit("response.code_interpreter_call.interpreting")

    def settle(self, outcome: ToolOutcome) -> None:
        """Write the outputs, where the request includes them, and end the item."""
        if self._with_outputs:
            logs = [{"type": "logs", "logs": outcome.text}] if outcome.text else []
            self._item["outputs"] = logs + [
                {"type": "image", "url": f"data:{one.media_type};base64,{base64.b64encode(one.data).decode()}"}
                for one in outcome.files
                if one.media_type.startswith("image/")
            ]
        if outcome.error is None:
            self._emit("response.code_interpreter_call.completed")
        self._done("completed" if outcome.error is None else "failed")

    def _grown(self, delta: str) -> None:
        if len(self.arguments) > _LONGEST_PARTIAL:
            return
        try:
            value = _ARGUMENTS.validate_json(self.arguments, experimental_allow_partial="trailing-strings")
        except ValueError:
            return
        code = value.get("code")
        # A surrogate pair that is cut in two reads otherwise once its second half is there.
        if isinstance(code, str) and code.startswith(self._code):
            self._show(code)

    def _show(self, code: str) -> None:
        new, self._code = code[len(self._code) :], code
        if new:
            self._emit("response.code_interpreter_call_code.delta", delta=new)


class McpCall(OpenCall):
    """A tool of an MCP server."""

    hosted = True

    def __init__(
        self, writer: ResponseWriter, call_id: str, definition: ToolDefinition, approval_request_id: str | None = None
    ) -> None:
        super().__init__(writer, call_id, definition.name)
        self._open(
            {
                "type": "mcp_call",
                "status": "in_progress",
                "server_label": definition.server_label,
                "name": definition.tool_name,
                "arguments": "",
                "output": None,
                "error": None,
                "approval_request_id": approval_request_id,
            }
        )
        self._emit("response.mcp_call.in_progress")

    def close(self, *, whole: bool) -> None:
        """End the arguments; the item ends with its result."""
        self._item["arguments"] = self.arguments
        self._emit("response.mcp_call_arguments.done", arguments=self.arguments)
        if not whole:
            self._done("incomplete")

    def running(self) -> None:
        """Say that the server was asked."""
        self._item["status"] = "calling"

    def settle(self, outcome: ToolOutcome) -> None:
        """Write the result, and end the item."""
        if outcome.error is None:
            self._item["output"] = outcome.text
            self._emit("response.mcp_call.completed")
        else:
            content = [{"type": "text", "text": outcome.error}]
            self._item["error"] = {"type": "mcp_tool_execution_error", "content": content}
            self._emit("response.mcp_call.failed")
        self._done("completed" if outcome.error is None else "failed")

    def _grown(self, delta: str) -> None:
        self._emit("response.mcp_call_arguments.delta", delta=delta)


class ApprovalCall(OpenCall):
    """A tool of an MCP server that the client wants to be asked about: the item appears whole."""

    def __init__(self, writer: ResponseWriter, call_id: str, definition: ToolDefinition) -> None:
        super().__init__(writer, call_id, definition.name)
        self._definition = definition

    def close(self, *, whole: bool) -> None:
        """Ask, unless the arguments were cut off. From here on the call goes by the request's id."""
        if not whole:
            return
        self._open(
            {
                "type": "mcp_approval_request",
                "server_label": self._definition.server_label,
                "name": self._definition.tool_name,
                "arguments": self.arguments,
            }
        )
        self.call_id = self._item["id"]
        self._writer.done(self._index)


def _shell_item(call_id: str, environment: dict[str, str]) -> dict[str, Any]:
    return {
        "type": "shell_call",
        "status": "in_progress",
        "call_id": call_id,
        "action": _shell_action({}),
        "environment": environment,
    }


def _write_commands(writer: ResponseWriter, index: int, commands: list[str]) -> None:
    for number, command in enumerate(commands):
        place = {"output_index": index, "command_index": number}
        writer.emit("response.shell_call_command.added", command="", **place)
        writer.emit("response.shell_call_command.delta", delta=command, **place)
        writer.emit("response.shell_call_command.done", command=command, **place)


def _shell_action(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "commands": _strings(arguments.get("commands")),
        "timeout_ms": _whole_number(arguments.get("timeout_ms")),
        "max_output_length": _whole_number(arguments.get("max_output_length")),
    }


def _exec_action(arguments: dict[str, Any]) -> dict[str, Any]:
    environment = arguments.get("env")
    folder = arguments.get("working_directory")
    return {
        "type": "exec",
        "command": _strings(arguments.get("command")),
        "env": {str(key): str(value) for key, value in environment.items()} if isinstance(environment, dict) else {},
        "timeout_ms": _whole_number(arguments.get("timeout_ms")),
        "working_directory": folder if isinstance(folder, str) else None,
        "user": None,
    }


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _whole_number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _command_output(one: CommandOutcome) -> dict[str, Any]:
    outcome = {"type": "timeout"} if one.exit_code is None else {"type": "exit", "exit_code": one.exit_code}
    return {"stdout": one.stdout, "stderr": one.stderr, "outcome": outcome}
