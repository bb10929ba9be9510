"""Hosted tools through the Responses API: the official client before a scripted model and scripted tools."""

import json
from collections.abc import AsyncIterator

import openai
import pytest

from core.config.gateway import ContextBudget, ContextSection
from gateway.hosted_tools.base import ProducedFile, ToolOutcome
from gateway.responses_api.run import Bounds
from tests.gateway_harness import served
from tests.responses_fakes import SHELL_OUTCOME, FakeHostedTools, FakeInference, Said, responses_app
from tests.responses_harness import CODE_CALL, CODE_TOOL, MCP_TOOL, SHELL_TOOL, WEATHER, Api, kinds


@pytest.fixture
async def api(fresh_sqlite_url, open_store) -> AsyncIterator[Api]:
    """The Responses API on SQLite."""
    inference, hosted = FakeInference(), FakeHostedTools()
    app = responses_app(inference, await open_store(fresh_sqlite_url), hosted)
    async with served(app) as url:
        api = Api(url, inference, hosted)
        async with api.client:
            yield api


async def test_code_runs_and_the_model_goes_on(api: Api):
    """A hosted code call is run, shown with its outputs where they are asked for, and answered by the model."""
    picture = ProducedFile("plot.png", "image/png", b"png")
    api.hosted.outcomes["code_interpreter"] = ToolOutcome(text="é\n", files=(picture,))
    api.say(Said(text="Let me run it.", calls=[CODE_CALL]), Said(text="It prints é."))
    events = await api.events(input="Run it.", tools=[CODE_TOOL], include=["code_interpreter_call.outputs"])
    code = [f"code_interpreter_call{part}" for part in (".in_progress", "_code.delta", "_code.done")]
    text = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    assert kinds(events) == [
        "created", "in_progress",
        *text, "output_item.done",
        "output_item.added", *code, "code_interpreter_call.interpreting", "code_interpreter_call.completed",
        "output_item.done",
        *text, "output_item.done",
        "completed",
    ]  # fmt: skip
    deltas = [event["delta"] for event in events if event["type"] == "response.code_interpreter_call_code.delta"]
    assert "".join(deltas) == 'print("é\\n")'
    assert len(deltas) > 1
    item = events[-1]["response"]["output"][1]
    assert (item["status"], item["container_id"]) == ("completed", "cntr_1")
    assert [output["type"] for output in item["outputs"]] == ["logs", "image"]
    assert api.hosted.ran == [("code_interpreter", {"code": 'print("é\\n")'})]
    assert api.hosted.open_sessions == 0
    assert [message["role"] for message in api.inference.bodies[1]["messages"]] == ["user", "assistant", "tool"]
    assert api.inference.bodies[1]["messages"][2]["content"] == "é\n"
    assert [call.episode_id for call in api.inference.calls] == [None, "ep_1"]
    assert events[-1]["response"]["usage"]["total_tokens"] == 24


async def test_the_container_goes_on_with_the_conversation(api: Api):
    """The next response runs in the same container, and in a fresh one when that is gone."""
    api.say(Said(calls=[CODE_CALL]), Said(text="1"), Said(text="2"), Said(text="3"))
    first = await api.client.responses.create(model="coder", input="x", tools=[CODE_TOOL])
    second = await api.client.responses.create(
        model="coder", input="y", tools=[CODE_TOOL], previous_response_id=first.id
    )
    api.hosted.gone.add("cntr_1")
    await api.client.responses.create(model="coder", input="z", tools=[CODE_TOOL], previous_response_id=second.id)
    assert api.hosted.containers == [None, "cntr_1", "cntr_1", None]
    assert first.output[0].outputs is None
    with pytest.raises(openai.NotFoundError):
        await api.client.responses.create(
            model="coder", input="z", tools=[{"type": "code_interpreter", "container": "cntr_1"}]
        )


async def test_a_hosted_shell_has_calls_and_outputs(api: Api):
    """Commands and their outcomes are items of their own, with their events."""
    api.hosted.outcomes["shell"] = SHELL_OUTCOME
    arguments = json.dumps({"commands": ["echo hello", "sleep 9"], "timeout_ms": 5})
    api.say(Said(calls=[("shell", arguments)]), Said(text="ok"))
    events = await api.events(input="x", tools=[SHELL_TOOL])
    call, output, message = events[-1]["response"]["output"]
    assert call["action"] == {"commands": ["echo hello", "sleep 9"], "timeout_ms": 5, "max_output_length": None}
    assert call["environment"] == {"type": "container_reference", "container_id": "cntr_1"}
    assert output["call_id"] == call["call_id"]
    assert [one["outcome"] for one in output["output"]] == [{"type": "exit", "exit_code": 0}, {"type": "timeout"}]
    assert message["content"][0]["text"] == "ok"


async def test_a_local_shell_is_the_clients(api: Api):
    """A shell with a local environment comes back to the client, which sends its output."""
    api.say(Said(calls=[("shell", '{"commands": ["ls"]}')]), Said(text="empty"))
    api.say(Said(calls=[("local_shell", '{"command": ["ls", "-l"]}')]), Said(text="empty"))
    first = await api.client.responses.create(model="coder", input="x", tools=[{"type": "shell"}])
    assert first.output[0].environment.type == "local"
    output = [{"stdout": "", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
    await api.client.responses.create(
        model="coder",
        previous_response_id=first.id,
        tools=[{"type": "shell"}],
        input=[{"type": "shell_call_output", "call_id": first.output[0].call_id, "output": output}],
    )
    assert api.inference.bodies[1]["messages"][-1]["content"] == "[exit code 0]"
    local = await api.client.responses.create(model="coder", input="x", tools=[{"type": "local_shell"}])
    assert local.output[0].action.command == ["ls", "-l"]
    await api.client.responses.create(
        model="coder",
        previous_response_id=local.id,
        input=[{"type": "local_shell_call_output", "id": local.output[0].call_id, "output": "none"}],
    )
    assert api.inference.bodies[3]["messages"][-1]["content"] == "none"
    assert not api.hosted.ran


async def test_mcp_tools_are_listed_and_called(api: Api):
    """A server's tools are listed once in a conversation; calls carry their result or error."""
    api.say(Said(calls=[("docs_search", '{"q": "x"}')]), Said(text="found"))
    secret = MCP_TOOL | {"authorization": "secret", "headers": {"x-key": "secret"}}
    events = await api.events(input="x", tools=[secret])
    assert "secret" not in json.dumps(events)
    response = events[-1]["response"]
    assert [item["type"] for item in response["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    listing, call, _ = response["output"]
    assert listing["tools"][0]["name"] == call["name"] == "search"
    assert (call["server_label"], call["output"], call["status"]) == ("docs", "docs_search ran", "completed")
    seen = kinds(events)
    assert [name for name in seen if name.startswith("mcp")] == [
        "mcp_list_tools.in_progress", "mcp_list_tools.completed", "mcp_call.in_progress", "mcp_call_arguments.delta",
        "mcp_call_arguments.done", "mcp_call.completed",
    ]  # fmt: skip
    api.hosted.outcomes["docs_search"] = ToolOutcome(text="error: away", error="away")
    api.say(Said(calls=[("docs_search", "{}")]), Said(text="sorry"))
    events = await api.events(input="y", tools=[MCP_TOOL], previous_response_id=response["id"])
    call = events[-1]["response"]["output"][0]
    assert (call["type"], call["status"], call["output"]) == ("mcp_call", "failed", None)
    assert "response.mcp_call.failed" in {event["type"] for event in events}


async def test_a_server_that_does_not_answer_is_shown(api: Api):
    """A listing that failed is an item with its error, and the model answers without those tools."""
    api.hosted.listing_error = "connection refused"
    api.say(Said(text="I cannot search."))
    events = await api.events(input="x", tools=[MCP_TOOL])
    assert "response.mcp_list_tools.failed" in {event["type"] for event in events}
    assert events[-1]["response"]["output"][0]["error"] == "connection refused"
    assert "tools" not in api.inference.bodies[0]


@pytest.mark.parametrize("approve", [True, False])
async def test_mcp_calls_wait_for_approval(api: Api, approve: bool):
    """By default the client is asked; its answer runs the tool or tells the model that it did not run."""
    tool = {name: value for name, value in MCP_TOOL.items() if name != "require_approval"}
    api.say(Said(calls=[("docs_search", '{"q": "x"}')]), Said(text="done"))
    first = await api.client.responses.create(model="coder", input="x", tools=[tool])
    request = first.output[-1]
    assert (request.type, request.name, request.arguments) == ("mcp_approval_request", "search", '{"q": "x"}')
    assert not api.hosted.ran
    answer = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}
    events = await api.events(input=[answer], tools=[tool], previous_response_id=first.id)
    items = [item["type"] for item in events[-1]["response"]["output"]]
    assert items == (["mcp_call", "message"] if approve else ["message"])
    assert len(api.hosted.ran) == int(approve)
    told = api.inference.bodies[1]["messages"][-1]
    assert told["tool_call_id"] == request.id
    assert ("not allow" in told["content"]) is not approve


async def test_a_clients_function_stops_the_loop(api: Api):
    """Hosted and client calls in one answer: the hosted one runs, and both come back."""
    api.say(Said(calls=[CODE_CALL, ("weather", "{}")]), Said(text="done"))
    first = await api.client.responses.create(model="coder", input="x", tools=[CODE_TOOL, WEATHER])
    assert [item.type for item in first.output] == ["code_interpreter_call", "function_call"]
    assert len(api.hosted.ran) == 1
    output = {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "rain"}
    await api.client.responses.create(
        model="coder", input=[output], tools=[CODE_TOOL, WEATHER], previous_response_id=first.id
    )
    roles = [message["role"] for message in api.inference.bodies[1]["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]


async def test_tool_calls_are_bounded(api: Api):
    """After ``max_tool_calls`` the model is asked for an answer without tools; further calls do not run."""
    api.say(*[Said(calls=[CODE_CALL]) for _ in range(3)])
    response = await api.client.responses.create(
        model="coder", input="x", tools=[CODE_TOOL], max_tool_calls=2, tool_choice="required"
    )
    assert [body["tool_choice"] for body in api.inference.bodies] == ["required", "auto", "none"]
    assert len(api.hosted.ran) == 2
    assert [item.status for item in response.output] == ["completed", "completed", "incomplete"]


async def test_a_tool_that_takes_too_long_is_stopped(fresh_sqlite_url, open_store):
    """When the response's time is over the tool is cancelled, told so, and no further one runs."""
    inference, hosted = FakeInference([Said(calls=[CODE_CALL]), Said(text="sorry")]), FakeHostedTools(hang=True)
    app = responses_app(inference, await open_store(fresh_sqlite_url), hosted, Bounds(tool_calls=16, seconds=0.05))
    async with served(app) as url:
        api = Api(url, inference, hosted)
        response = await api.client.responses.create(model="coder", input="x", tools=[CODE_TOOL])
    assert response.output[0].status == "failed"
    assert inference.bodies[1]["tool_choice"] == "none"
    assert response.output_text == "sorry"


async def test_malformed_arguments_are_told_to_the_model(api: Api):
    """Arguments that are no JSON object run nothing; the model learns why."""
    api.say(Said(calls=[("code_interpreter", "{oops")]), Said(text="sorry"))
    response = await api.client.responses.create(model="coder", input="x", tools=[CODE_TOOL])
    assert not api.hosted.ran
    assert "JSON" in api.inference.bodies[1]["messages"][-1]["content"]
    assert response.output[0].status == "failed"


@pytest.mark.parametrize("arguments", ['{"code": "\\ud800"}', '{"code": 1e999}', '{"code": Infinity}', "[1]"])
async def test_arguments_that_json_cannot_say_again_are_a_failed_call(api: Api, arguments: str):
    """The model is told, nothing runs, and the response ends well, streamed or whole."""
    for _ in range(2):
        api.say(Said(calls=[("code_interpreter", arguments)]), Said(text="Sorry."))
    events = await api.events(input="x", tools=[CODE_TOOL])
    whole = await api.client.responses.create(model="coder", input="x", tools=[CODE_TOOL])
    assert not api.hosted.ran
    assert [item["status"] for item in events[-1]["response"]["output"]] == ["failed", "completed"]
    assert whole.output_text == "Sorry."
    assert api.inference.bodies[1]["messages"][-1]["content"] == "error: the arguments are not a JSON object"


async def test_older_results_of_hosted_tools_leave_a_prompt_over_its_budget(fresh_sqlite_url, open_store):
    """The model is shown a line in their place and the Turn says what it compacts; the response keeps them, and the
    next one begins with all of them."""
    inference, hosted = FakeInference(), FakeHostedTools()
    hosted.outcomes["code_interpreter"] = ToolOutcome(text="y" * 600)
    budget = ContextBudget(tokens=100, keep_results=1, least_characters=20)
    context = ContextSection(budgets={"coder": budget})
    app = responses_app(inference, await open_store(fresh_sqlite_url), hosted, context=context)
    async with served(app) as url:
        api = Api(url, inference, hosted)
        async with api.client:
            api.say(Said(calls=[CODE_CALL]), Said(calls=[CODE_CALL]), Said(text="done"), Said(text="more"))
            first = await api.client.responses.create(
                model="coder@3", input="x", tools=[CODE_TOOL], include=["code_interpreter_call.outputs"]
            )
            await api.client.responses.create(
                model="coder@3", input="y", tools=[CODE_TOOL], previous_response_id=first.id
            )
    stub = "[tool result left out to save context: 600 characters]"
    results = [
        [message["content"] for message in body["messages"] if message["role"] == "tool"] for body in inference.bodies
    ]
    assert results == [[], ["y" * 600], [stub, "y" * 600], [stub, "y" * 600]]
    assert [call.compacts for call in inference.calls] == [None, None, "turn_2", "turn_3"]
    assert [item.outputs[0].logs for item in first.output if item.type == "code_interpreter_call"] == ["y" * 600] * 2


async def test_without_a_budget_nothing_is_taken_out(api: Api):
    """However long a loop grows, its results stay."""
    api.hosted.outcomes["code_interpreter"] = ToolOutcome(text="y" * 9000)
    api.say(Said(calls=[CODE_CALL]), Said(calls=[CODE_CALL]), Said(text="done"))
    await api.client.responses.create(model="coder", input="x", tools=[CODE_TOOL])
    assert [call.compacts for call in api.inference.calls] == [None] * 3
    assert sum(message["content"] == "y" * 9000 for message in api.inference.bodies[-1]["messages"]) == 2
