"""The ``shell`` tool: runs a command line in the Episode's Box."""

from typing import Any

from sandbox.runtimes.base import Box
from sandbox.tools.base import ToolOutput
from sandbox.tools.calls import function_schema, run_in_box, text_argument


class ShellTool:
    """Runs a command line with ``/bin/sh``."""

    name = "shell"

    def __init__(self, *, seconds: float | None = None) -> None:
        """``seconds``: wall time of one call; None: the box's own limit."""
        self._seconds = seconds

    @property
    def schema(self) -> dict[str, Any]:
        """The OpenAI tool."""
        return function_schema(
            self.name,
            "Run a shell command and return its output. Files in the current folder persist between calls; "
            "background processes do not. There is no network.",
            {"command": {"type": "string", "description": "The command line for /bin/sh."}},
        )

    async def run(self, arguments: dict[str, Any], box: Box) -> ToolOutput:
        """Run ``arguments["command"]``."""
        command = text_argument(arguments, "command", only=("command",))
        if isinstance(command, ToolOutput):
            return command
        return await run_in_box(box.shell(command.text, wall_seconds=self._seconds))
