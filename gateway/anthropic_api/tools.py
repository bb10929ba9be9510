"""Anthropic's tools and tool_choice as chat completions have them."""

from typing import Any

from core.errors import InvalidRequest
from gateway.anthropic_api.fields import Json, flag_of, list_of, name_of, object_of, one_of, required

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_tools(tools: Any) -> list[Json]:
    """The function tools of a request. Raises InvalidRequest for those that Anthropic's own servers run."""
    return [_tool(object_of(tool, f"tools.{index}"), f"tools.{index}") for index, tool in enumerate(_listed(tools))]


def chat_tool_choice(choice: Any) -> Json:
    """The ``tool_choice`` and ``parallel_tool_calls`` fields of a request; empty where it has none."""
    if choice is None:
        return {}
    found = object_of(choice, "tool_choice")
    kind = one_of(found.get("type"), (*_CHOICES, "tool"), "tool_choice.type")
    fields: Json = {}
    if kind == "tool":
        name = name_of(required(found, "name", "tool_choice"), "tool_choice.name")
        fields["tool_choice"] = {"type": "function", "function": {"name": name}}
    else:
        fields["tool_choice"] = _CHOICES[kind]
    if flag_of(found.get("disable_parallel_tool_use"), "tool_choice.disable_parallel_tool_use"):
        fields["parallel_tool_calls"] = False
    return fields


def _listed(tools: Any) -> list[Any]:
    return [] if tools is None else list_of(tools, "tools")


def _tool(tool: Json, place: str) -> Json:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise InvalidRequest(
            f"{place}: the tool type '{kind}' is not available here",
            hint="define the tool yourself with 'name' and 'input_schema', and run it in your client",
            param=f"{place}.type",
        )
    schema = object_of(required(tool, "input_schema", place), f"{place}.input_schema")
    function: Json = {
        "name": name_of(required(tool, "name", place), f"{place}.name"),
        "parameters": {"type": "object"} | schema,
    }
    for name in ("description", "strict"):
        if tool.get(name) is not None:
            function[name] = tool[name]
    return {"type": "function", "function": function}
