"""The ``files`` tool: reads, writes and lists files in the Episode's Box."""

import time
from typing import Any

from core.errors import SandboxError
from sandbox.runtimes.base import Box, Outcome
from sandbox.tools.base import ToolOutput
from sandbox.tools.calls import function_schema, infrastructure_failure, malformed, text_argument

_ACTIONS = ("read", "write", "list")
_ARGUMENTS = ("action", "path", "content")
_MOST_READ_BYTES = 32_768


class FilesTool:
    """Reads, writes and lists the files of the work folder."""

    name = "files"

    def __init__(self, *, max_bytes: int = _MOST_READ_BYTES) -> None:
        """``max_bytes``: the largest file that can be read."""
        self._max_bytes = max_bytes

    @property
    def schema(self) -> dict[str, Any]:
        """The OpenAI tool."""
        properties = {
            "action": {"type": "string", "enum": list(_ACTIONS)},
            "path": {"type": "string", "description": "Path relative to the current folder."},
            "content": {"type": "string", "description": "The whole new content, for write."},
        }
        return function_schema(
            self.name, "Read, write or list files of the current folder.", properties, required=("action",)
        )

    async def run(self, arguments: dict[str, Any], box: Box) -> ToolOutput:
        """Do ``arguments["action"]``."""
        action = text_argument(arguments, "action", only=_ARGUMENTS)
        if isinstance(action, ToolOutput):
            return action
        if action.text not in _ACTIONS:
            return malformed(f"the action '{action.text}' is not one of {', '.join(_ACTIONS)}.")
        needed = {"read": ("path",), "write": ("path", "content"), "list": ()}[action.text]
        texts = {"path": ".", "content": ""}
        for name in _ARGUMENTS[1:]:
            if name in needed or name in arguments:
                value = text_argument(arguments, name, only=_ARGUMENTS)
                if isinstance(value, ToolOutput):
                    return value
                texts[name] = value.text
        return await self._act(action.text, texts["path"], texts["content"], box)

    async def _act(self, action: str, path: str, content: str, box: Box) -> ToolOutput:
        started = time.monotonic()
        try:
            output = await self._output(action, path, content, box)
        except SandboxError as error:
            return infrastructure_failure(error, time.monotonic() - started)
        except OSError as error:
            message = f"{action} {path}: {error.strerror or error}"
            return ToolOutput(output=message, outcome=Outcome.NONZERO.value, seconds=time.monotonic() - started)
        return ToolOutput(output=output, outcome=Outcome.OK.value, seconds=time.monotonic() - started)

    async def _output(self, action: str, path: str, content: str, box: Box) -> str:
        if action == "read":
            data = await box.read(path, self._max_bytes)
            return data.decode(errors="replace") or "(the file is empty)"
        if action == "write":
            await box.write(path, content)
            return f"Wrote {len(content)} characters to {path}."
        return "\n".join(await box.list(path)) or "(no files)"
