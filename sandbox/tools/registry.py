"""Makes the tools that a Task names."""

from collections.abc import Callable, Sequence
from typing import Any

from core.errors import TaskError
from core.task import ToolSpec
from sandbox.tools.base import Tool
from sandbox.tools.files import FilesTool
from sandbox.tools.python import PythonTool
from sandbox.tools.shell import ShellTool

_TOOLS: dict[str, Callable[..., Tool]] = {
    PythonTool.name: PythonTool,
    ShellTool.name: ShellTool,
    FilesTool.name: FilesTool,
}


def tool_names() -> tuple[str, ...]:
    """The names that a ToolSpec may have, sorted."""
    return tuple(sorted(_TOOLS))


def make_tools(specs: Sequence[ToolSpec]) -> dict[str, Tool]:
    """Name → tool, with each spec's options; raises TaskError for unknown names, options and repetitions."""
    tools: dict[str, Tool] = {}
    for spec in specs:
        if spec.name not in _TOOLS:
            raise TaskError(f"unknown tool '{spec.name}'", hint=f"known tools: {', '.join(sorted(_TOOLS))}")
        if spec.name in tools:
            raise TaskError(f"the tool '{spec.name}' is named twice")
        tools[spec.name] = _make(spec.name, spec.options)
    return tools


def _make(name: str, options: dict[str, Any]) -> Tool:
    try:
        return _TOOLS[name](**options)
    except TypeError as error:
        raise TaskError(f"options of tool '{name}': {error}") from error
