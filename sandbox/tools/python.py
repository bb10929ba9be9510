"""The ``python`` tool: runs a snippet in the Episode's Box."""

from typing import Any

from sandbox.runtimes.base import Box
from sandbox.tools.base import ToolOutput
from sandbox.tools.calls import function_schema, run_in_box, text_argument


class PythonTool:
    """Runs Python code; what it prints is the output."""

    name = "python"

    def __init__(self, *, seconds: float | None = None) -> None:
        """``seconds``: wall time of one call; None: the box's own limit."""
        self._seconds = seconds

    @property
    def schema(self) -> dict[str, Any]:
        """The OpenAI tool."""
        return function_schema(
            self.name,
            "Run Python 3 code and return what it prints. Files in the current folder persist between calls; "
            "variables do not.",
            {"code": {"type": "string", "description": "The Python code to run."}},
        )

    async def run(self, arguments: dict[str, Any], box: Box) -> ToolOutput:
        """Run ``arguments["code"]``."""
        code = text_argument(arguments, "code", only=("code",))
        if isinstance(code, ToolOutput):
            return code
        return await run_in_box(box.python(code.text, wall_seconds=self._seconds))
