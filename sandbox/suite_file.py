"""A tenant's own Suite from JSONL: Tasks with verifiers, or logged prompts without.

Each line is an object with a Task file's keys (``prompt`` or ``messages``, ``verifiers``, ``tools``, ``limits``,
``files``). Only ``prompt`` or ``messages`` must be there. The Domain and the split are set here. Prompts without
verifiers make a Suite that cannot be scored; it serves as shadow or judge prompts.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from core.errors import TaskError
from core.suite import Suite
from core.task import Domain, Limits, Task, ToolSpec, VerifierSpec, make_task
from sandbox.standard_suites import MadeSuite
from sandbox.task_folder import MAX_BYTES
from sandbox.tools.registry import make_tools
from sandbox.verifiers.registry import check_spec

_KEYS = frozenset({"prompt", "system", "messages", "verifiers", "tools", "limits", "files", "metadata"})
_MOST_FAULTS = 20


def suite_from_jsonl(path: Path, *, name: str, tenant_id: str, attempts: int = 1, seed: int = 0) -> MadeSuite:
    """The Suite of a file. Raises one TaskError that names every faulty line (the first twenty)."""
    domain = f"tenant/{tenant_id}/{name}"
    tasks: dict[str, Task] = {}
    faults: list[str] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path.name} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            task = _task(line, domain)
        except (TaskError, ValueError, TypeError) as error:
            faults.append(f"line {number}: {_short(error)}")
            continue
        tasks.setdefault(task.id, task)
    judged = sum(bool(task.verifiers) for task in tasks.values())
    if not faults and not tasks:
        faults.append("there is no line in it")
    if not faults and judged not in (0, len(tasks)):
        faults.append(f"{judged} of {len(tasks)} Tasks have verifiers: give all of them some, or none")
    if faults:
        raise TaskError(f"{path.name} has {len(faults)} faults:\n" + "\n".join(faults[:_MOST_FAULTS]))
    suite = Suite(
        name=domain,
        task_ids=tuple(tasks),
        attempts=attempts,
        seed=seed,
        tenant_id=tenant_id,
        scored=judged > 0,
    )
    return MadeSuite(
        suite=suite,
        tasks=tuple(tasks.values()),
        domain=Domain(name=domain, kind="text", description=f"Private Tasks of tenant {tenant_id}."),
    )


def _task(line: str, domain: str) -> Task:
    if len(line) > MAX_BYTES:
        raise TaskError(f"longer than {MAX_BYTES} characters")
    content = json.loads(line)
    if not isinstance(content, dict):
        raise TaskError("not an object")
    unknown = sorted(set(content) - _KEYS)
    if unknown:
        raise TaskError(f"unknown key '{unknown[0]}'")
    verifiers = tuple(VerifierSpec.model_validate(one) for one in content.get("verifiers", ()))
    for spec in verifiers:
        check_spec(spec)
    tools = tuple(
        ToolSpec.model_validate({"name": one} if isinstance(one, str) else one) for one in content.get("tools", ())
    )
    make_tools(tools)
    return make_task(
        domain=domain,
        split="heldout",
        messages=_messages(content),
        verifiers=verifiers,
        tools=tools,
        limits=Limits.model_validate(content.get("limits", {"max_tokens": 256})),
        files=content.get("files", {}),
        metadata=content.get("metadata", {}),
    )


def _messages(content: dict[str, Any]) -> Sequence[dict[str, Any]]:
    prompt, messages = content.get("prompt"), content.get("messages")
    if (prompt is None) == (messages is None):
        raise TaskError("give either 'prompt' or 'messages'")
    if messages is None:
        if not isinstance(prompt, str) or not prompt.strip():
            raise TaskError("'prompt' is not a text")
        system = content.get("system")
        opening = [{"role": "system", "content": system}] if system else []
        return (*opening, {"role": "user", "content": prompt})
    if not isinstance(messages, list) or not all(isinstance(one, dict) and "role" in one for one in messages):
        raise TaskError("'messages' is not a list of messages with roles")
    # A logged conversation ends with the answer that was given: what is asked comes before it.
    while messages and messages[-1].get("role") == "assistant":
        messages = messages[:-1]
    if not messages:
        raise TaskError("no message of a user is in it")
    return tuple(messages)


def _short(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)
