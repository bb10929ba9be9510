"""A folder of Tasks on disk: one TOML or JSON file for each Task, and text files that go into its box.

Any ``*.toml`` or ``*.json`` file under the folder is one Task, ``name.files/`` beside ``name.toml`` holds its
files, and folders may be nested. The keys of a Task file:

    domain = "my_domain"            # required
    split = "train"                 # train | heldout | warmup; default train
    system = "Answer briefly."      # a system message
    prompt = "What is 2 + 2?"       # the user message; or messages = [{role, content}], in place of both
    demonstration = "4"             # a right first answer, for SFT warm-up
    tools = ["python"]              # names, or tables {name, options}
    metadata = {source = "mine"}
    files = {"data/a.txt" = "…"}    # short files; longer ones lie in name.files/

    [[verifiers]]                   # at least one
    name = "exact"
    weight = 1.0
    options = {expected = "4"}

    [limits]                        # as core.task.Limits
    max_turns = 1

Loading reads everything and reports every fault of every file in one TaskError. A Task's id is the hash of
its content, so loading a folder twice makes the same Tasks.
"""

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from core.errors import TaskError
from core.message import Message
from core.task import Limits, Split, Task, ToolSpec, VerifierSpec, make_task
from sandbox.tools.registry import make_tools
from sandbox.verifiers.registry import check_spec

SUFFIXES = (".toml", ".json")
FILES_SUFFIX = ".files"
MAX_BYTES = 1_000_000
"""Largest Task file, and largest file for a box."""


class TaskFile(BaseModel):
    """What one Task file may hold."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    domain: str = Field(min_length=1)
    split: Split = "train"
    system: str | None = None
    prompt: str | None = None
    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    verifiers: tuple[VerifierSpec, ...] = Field(min_length=1)
    limits: Limits = Limits()
    files: dict[str, str] = Field(default_factory=dict)
    demonstration: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    @field_validator("tools", mode="before")
    @classmethod
    def _names_are_tools(cls, tools: Any) -> Any:
        if isinstance(tools, list | tuple):
            return tuple({"name": tool} if isinstance(tool, str) else tool for tool in tools)
        return tools

    @field_validator("messages")
    @classmethod
    def _messages_have_roles(cls, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        for message in messages:
            if not isinstance(message.get("role"), str) or "content" not in message:
                raise ValueError("each message has a role and content")
        return messages

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if bool(self.messages) == (self.prompt is not None):
            raise ValueError("give either 'prompt' or 'messages'")
        if self.messages and self.system is not None:
            raise ValueError("'system' goes with 'prompt'; write it into 'messages'")
        return self

    def opening(self) -> tuple[Message, ...]:
        """The opening messages."""
        if self.messages:
            return self.messages
        user: Message = {"role": "user", "content": self.prompt}
        return (user,) if self.system is None else ({"role": "system", "content": self.system}, user)


def load_task_folder(path: Path) -> list[Task]:
    """All Tasks under ``path``, in order of their file names.

    Raises one TaskError with a line ``file: problem`` for every fault; then no Task is given.
    """
    if not path.is_dir():
        raise TaskError(f"{path} is not a folder")
    problems: list[str] = []
    tasks: dict[str, tuple[str, Task]] = {}
    for file in _task_files(path):
        name = file.relative_to(path).as_posix()
        task = _load_task(file, name, problems)
        if task is None:
            continue
        if task.id in tasks:
            problems.append(f"{name}: the same Task as {tasks[task.id][0]}")
        tasks.setdefault(task.id, (name, task))
    if not problems and not tasks:
        problems.append(f"{path.name}: no {' or '.join(SUFFIXES)} file is in it")
    if problems:
        raise TaskError(f"the Task folder {path.name} has {len(problems)} faults:\n" + "\n".join(problems))
    return [task for _, task in tasks.values()]


def dump_task_folder(tasks: Iterable[Task], path: Path) -> list[Path]:
    """Write each Task as ``<id>.json``, its files beside it; returns the Task files.

    What ``load_task_folder`` reads back has the same ids.
    """
    path.mkdir(parents=True, exist_ok=True)
    written = []
    for task in tasks:
        content = task.model_dump(mode="json", exclude={"id", "files"}, exclude_none=True)
        file = path / f"{task.id}.json"
        file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        for relative, text in task.files.items():
            target = file.with_suffix(FILES_SUFFIX) / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text.encode())
        written.append(file)
    return written


def _task_files(path: Path) -> list[Path]:
    found = []
    for file in path.rglob("*"):
        inside = file.relative_to(path).parts[:-1]
        if file.suffix in SUFFIXES and file.is_file() and not any(part.endswith(FILES_SUFFIX) for part in inside):
            found.append(file)
    return sorted(found)


def _load_task(file: Path, name: str, problems: list[str]) -> Task | None:
    """The Task of one file, or None with the faults added to ``problems``."""
    faults: list[str] = []
    files = _read_files(file.with_suffix(FILES_SUFFIX), faults)
    content = _parsed(file, faults)
    draft = None if content is None else _validated(content, faults)
    if draft is not None:
        _check_names(draft, faults)
        for relative in draft.files:
            if not _is_inside(relative):
                faults.append(f"files: '{relative}' leads out of the work folder")
            if relative in files:
                faults.append(f"files: '{relative}' is also in {file.stem}{FILES_SUFFIX}")
    problems.extend(f"{name}: {fault}" for fault in faults)
    if draft is None or faults:
        return None
    fields = draft.model_dump(exclude={"system", "prompt", "messages", "files"})
    return make_task(**fields, messages=draft.opening(), files=files | draft.files)


def _parsed(file: Path, faults: list[str]) -> dict[str, Any] | None:
    text = _read_text(file, faults, "")
    if text is None:
        return None
    try:
        content = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        faults.append(f"not valid {file.suffix[1:].upper()}: {error}")
        return None
    if not isinstance(content, dict):
        faults.append("not a table of keys")
        return None
    return content


def _validated(content: dict[str, Any], faults: list[str]) -> TaskFile | None:
    try:
        return TaskFile.model_validate(content)
    except ValidationError as error:
        for item in error.errors():
            key = ".".join(str(part) for part in item["loc"])
            message = "unknown key" if item["type"] == "extra_forbidden" else item["msg"]
            faults.append(f"{key}: {message}" if key else message)
        return None


def _check_names(draft: TaskFile, faults: list[str]) -> None:
    for spec in draft.verifiers:
        try:
            check_spec(spec)
        except TaskError as error:
            faults.append(_with_hint(error))
    for tool in draft.tools:
        try:
            make_tools((tool,))
        except TaskError as error:
            faults.append(_with_hint(error))


def _with_hint(error: TaskError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


def _read_files(folder: Path, faults: list[str]) -> dict[str, str]:
    if not folder.is_dir():
        return {}
    files: dict[str, str] = {}
    for file in sorted(folder.rglob("*")):
        relative = file.relative_to(folder).as_posix()
        if file.is_symlink():
            faults.append(f"{folder.name}/{relative}: is a symbolic link")
        elif file.is_file():
            text = _read_text(file, faults, f"{folder.name}/{relative}: ")
            if text is not None:
                files[relative] = text
    return files


def _read_text(file: Path, faults: list[str], where: str) -> str | None:
    try:
        if file.stat().st_size > MAX_BYTES:
            faults.append(f"{where}larger than {MAX_BYTES} bytes")
            return None
        return file.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        faults.append(f"{where}not UTF-8 text")
    except OSError as error:
        faults.append(f"{where}cannot be read: {error.strerror}")
    return None


def _is_inside(relative: str) -> bool:
    path = PurePosixPath(relative)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts
