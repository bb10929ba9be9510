"""The tools of a request: which run here, which run at the client, and how a chat model is offered them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from core.errors import InvalidRequest
from gateway.hosted_tools.base import ServerListing, ToolDefinition
from gateway.responses_api.request import Item, ResponsesRequest

LOCAL_SHELL = "local_shell"
SHELL = "shell"

_SHELL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "commands": {"type": "array", "items": {"type": "string"}, "description": "Shell commands, run in order."},
        "timeout_ms": {"type": "integer", "description": "Longest time for each command, in milliseconds."},
        "max_output_length": {"type": "integer", "description": "Most characters of output for each command."},
    },
    "required": ["commands"],
}
_LOCAL_SHELL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}, "description": "Program and arguments."},
        "working_directory": {"type": "string"},
        "timeout_ms": {"type": "integer"},
        "env": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["command"],
}
_FUNCTION_KEYS = ("name", "description", "parameters", "strict")
_PLACE = re.compile(r"tools\[(\d+)\](.*)", re.DOTALL)
_SUPPORTED = "function, code_interpreter, shell, local_shell and mcp"


@dataclass(frozen=True, slots=True)
class Declared:
    """A request's tools, sorted by who runs them."""

    functions: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name → chat tool, for what the client runs."""
    local: dict[str, str] = field(default_factory=dict)
    """Name → kind, for shells that the client runs."""
    hosted: list[Item] = field(default_factory=list)
    """Declarations of what is run here."""
    places: list[int] = field(default_factory=list)
    """Where the hosted ones stand in the request's ``tools``."""
    container: str | None = None
    """The container that the request names."""

    def place_of(self, param: str | None) -> str | None:
        """``tools[n]…`` with the place among all tools, from one with the place among the hosted ones."""
        found = _PLACE.match(param or "")
        if found is None or int(found[1]) >= len(self.places):
            return param
        return f"tools[{self.places[int(found[1])]}]{found[2]}"


@dataclass(frozen=True, slots=True)
class Offer:
    """What the model may call in this response."""

    declared: Declared
    definitions: Mapping[str, ToolDefinition]
    listings: Sequence[ServerListing] = ()

    @property
    def chat_tools(self) -> list[dict[str, Any]]:
        """Every tool as chat completions take it."""
        hosted = [_chat_tool(one.name, one.description, dict(one.parameters)) for one in self.definitions.values()]
        return [*self.declared.functions.values(), *hosted]

    def name_of(self, kind: str, server_label: str | None, tool_name: str | None) -> str:
        """The function name of a hosted tool, by what it is; its own name where it is not on offer."""
        for one in self.definitions.values():
            if (one.kind, one.server_label, one.tool_name) == (kind, server_label, tool_name):
                return one.name
        return kind if tool_name is None else tool_name

    def needs_approval(self, definition: ToolDefinition) -> bool:
        """Whether the client wants to be asked before this MCP tool runs; without a word: always, as at OpenAI."""
        for declaration in self.declared.hosted:
            if declaration.get("type") == "mcp" and declaration.get("server_label") == definition.server_label:
                return _approval_wanted(declaration.get("require_approval"), definition)
        return False


def declared_tools(tools: Sequence[Item]) -> Declared:
    """Sort a request's tools; raises InvalidRequest, with ``param``, for a kind that nobody here can run."""
    declared = Declared()
    containers: set[str] = set()
    for number, tool in enumerate(tools):
        param = f"tools[{number}]"
        kind = tool.get("type")
        if kind == "function":
            name = _name(tool, param)
            declared.functions[name] = {"type": "function", "function": _function(tool)}
        elif kind == LOCAL_SHELL or (kind == SHELL and _environment(tool).get("type", "local") == "local"):
            schema = _LOCAL_SHELL_SCHEMA if kind == LOCAL_SHELL else _SHELL_SCHEMA
            declared.local[str(kind)] = str(kind)
            declared.functions[str(kind)] = _chat_tool(str(kind), "Runs shell commands.", schema)
        elif kind in ("code_interpreter", SHELL, "mcp"):
            declared.hosted.append(tool)
            declared.places.append(number)
            containers |= _containers(tool)
        else:
            raise InvalidRequest(
                f"tools of type '{kind}' are not supported", hint=f"use {_SUPPORTED}", param=f"{param}.type"
            )
    if len(containers) > 1:
        raise InvalidRequest("all tools of a request share one container", param="tools")
    return replace(declared, container=next(iter(containers), None))


def offered(declared: Declared, definitions: Sequence[ToolDefinition], listings: Sequence[ServerListing]) -> Offer:
    """The client's and the hosted tools together; raises InvalidRequest when two have one name."""
    hosted = {one.name: one for one in definitions}
    both = sorted(hosted.keys() & declared.functions.keys())
    if both:
        raise InvalidRequest(f"the function '{both[0]}' has the name of a hosted tool", param="tools")
    return Offer(declared, hosted, listings)


def chat_choice(request: ResponsesRequest, offer: Offer) -> tuple[list[dict[str, Any]], Any]:
    """``tools`` and ``tool_choice`` for the chat completion; raises InvalidRequest for a tool that is not there."""
    tools, choice = offer.chat_tools, request.tool_choice
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise InvalidRequest("'tool_choice' must be 'auto', 'none', 'required' or a tool", param="tool_choice")
        if choice == "required" and not tools:
            raise InvalidRequest("'tool_choice' is 'required' but there are no tools", param="tool_choice")
        return tools, choice
    if choice.get("type") == "allowed_tools":
        allowed = {name for one in choice.get("tools") or () for name in _names(one, offer)}
        mode = choice.get("mode", "auto")
        return [tool for tool in tools if tool["function"]["name"] in allowed], mode if allowed else "none"
    names = _names(choice, offer)
    if not names:
        raise InvalidRequest("'tool_choice' names a tool that is not in 'tools'", param="tool_choice")
    if len(names) > 1:
        return [tool for tool in tools if tool["function"]["name"] in names], "required"
    return tools, {"type": "function", "function": {"name": names[0]}}


def public_tools(tools: Sequence[Item]) -> list[Item]:
    """The tools as the response shows them: defaults filled in, and no secret of an MCP server."""
    shown = []
    for declared in tools:
        tool: dict[str, Any] = dict(declared)
        if tool.get("type") == "function":
            tool = {"description": None, "parameters": None, "strict": None} | tool
        if tool.get("type") == "mcp":
            tool.pop("authorization", None)
            headers = tool.get("headers")
            if isinstance(headers, dict):
                tool["headers"] = {name: "<redacted>" for name in headers}
        shown.append(tool)
    return shown


def _names(choice: Any, offer: Offer) -> list[str]:
    """Function names that one entry of a tool choice means."""
    choice = choice if isinstance(choice, dict) else {}
    kind, name = choice.get("type"), choice.get("name")
    if kind == "function":
        return [name] if name in offer.declared.functions else []
    if kind in offer.declared.local:
        return [kind]
    found = []
    for one in offer.definitions.values():
        label = choice.get("server_label")
        if one.kind == kind and (label is None or label == one.server_label) and name in (None, one.tool_name):
            found.append(one.name)
    return found


def _approval_wanted(wanted: Any, definition: ToolDefinition) -> bool:
    if wanted == "never":
        return False
    if not isinstance(wanted, dict):
        return True
    if _matches(wanted.get("always"), definition):
        return True
    return not _matches(wanted.get("never"), definition)


def _matches(rule: Any, definition: ToolDefinition) -> bool:
    if not isinstance(rule, dict):
        return False
    names, read_only = rule.get("tool_names"), rule.get("read_only")
    if names is None and read_only is None:
        return False
    hint = bool((definition.annotations or {}).get("readOnlyHint"))
    return (names is None or definition.tool_name in names) and (read_only is None or hint is read_only)


def _environment(tool: Item) -> Mapping[str, Any]:
    environment = tool.get("environment")
    return environment if isinstance(environment, dict) else {}


def _containers(tool: Item) -> set[str]:
    container = tool.get("container")
    if isinstance(container, str):
        return {container}
    named = _environment(tool).get("container_id")
    return {named} if isinstance(named, str) else set()


def _name(tool: Item, param: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"'{param}.name' must be a string", param=f"{param}.name")
    return name


def _function(tool: Item) -> dict[str, Any]:
    return {name: tool[name] for name in _FUNCTION_KEYS if tool.get(name) is not None}


def _chat_tool(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
