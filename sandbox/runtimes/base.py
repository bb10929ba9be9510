"""The port behind which untrusted code runs: a Runtime makes a Box, a Box runs commands.

Two kinds of failure are never mixed: the code inside failed (a result that can be judged) and the sandbox
failed (``ExecResult.infrastructure``, or a SandboxError), which must be retried and never becomes a Reward.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Protocol

from pydantic import Field, field_validator

from core.noun import Noun


class Outcome(StrEnum):
    """How one command in a Box ended."""

    OK = "ok"
    """Exit code 0."""
    NONZERO = "nonzero"
    """Another exit code; also a command that does not exist (127) or may not be executed (126)."""
    TIMEOUT = "timeout"
    """Wall or CPU time ran out; everything in the box was killed."""
    OOM = "oom"
    """The memory of the whole box passed its limit."""
    KILLED = "killed"
    """A signal that the code caused (``signal`` says which), or the box was gone: closed, or past its TTL."""
    OUTPUT_LIMIT = "output_limit"
    """The code flooded stdout or stderr far beyond the capture cap and was killed."""
    START_FAILED = "start_failed"
    """The command could not be started by the sandbox; nothing of it ran."""
    INFRA_ERROR = "infra_error"
    """The sandbox broke while the command ran; the code is not to blame."""


class ExecResult(Noun):
    """What one command did, and under which limits it ran."""

    outcome: Outcome
    exit_code: int | None = None
    signal: int | None = None
    stdout: str = ""
    """Invalid UTF-8 is replaced."""
    stderr: str = ""
    """When the box died: the evidence instead of, or after, what the command wrote."""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    wall_seconds: float = 0.0
    cpu_seconds: float | None = None
    """Of the command and the children that it waited for; None where not measured."""
    max_rss_mib: float | None = None
    """Of the largest process among them."""
    limits_enforced: tuple[str, ...] = ()
    """What this backend really enforced here, for example ``memory:cgroup_v1`` or ``memory:watcher``."""
    backend: str = ""

    @property
    def ok(self) -> bool:
        """Whether the command ran and returned 0."""
        return self.outcome is Outcome.OK

    @property
    def infrastructure(self) -> bool:
        """Whether the sandbox failed, so that the attempt must be retried and not judged."""
        return self.outcome in (Outcome.START_FAILED, Outcome.INFRA_ERROR)


class BoxSpec(Noun):
    """What a Box holds and what it may use. Limits left as None come from the runtime's configuration."""

    files: dict[str, str] = Field(default_factory=dict)
    """Relative path → text, laid into the writable work folder (``Box.work_folder``)."""
    readonly_files: dict[str, str] = Field(default_factory=dict)
    """Relative path → text, laid where the code can read but not change them (``Box.readonly_folder``)."""
    wall_seconds: float | None = Field(default=None, gt=0)
    """Of one command, unless ``exec`` says less."""
    cpu_seconds: int | None = Field(default=None, ge=1)
    """Of one process."""
    memory_mib: int | None = Field(default=None, ge=32)
    """Of the whole box."""
    max_processes: int | None = Field(default=None, ge=1)
    disk_mib: int | None = Field(default=None, ge=1)
    """Of each writable folder."""
    output_bytes: int | None = Field(default=None, ge=1)
    """Captured bytes of stdout and of stderr."""
    ttl_seconds: float = Field(default=900.0, gt=0)
    """The box is killed after this time, whatever its owner does."""

    @field_validator("files", "readonly_files")
    @classmethod
    def _stay_below(cls, files: dict[str, str]) -> dict[str, str]:
        for path in files:
            parts = path.split("/")
            if not path or path.startswith("/") or ".." in parts or "" in parts or "\0" in path:
                raise ValueError(f"{path!r} is not a plain relative path")
        return files


class Conversation(Protocol):
    """A program that stays alive in a Box and is asked one line after another, one question at a time."""

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""

    async def ask(self, line: str, *, wall_seconds: float) -> str:
        """Send one line (without its end) to its stdin and wait for one line from its stdout.

        Raises ConversationEnded, with how it ended, when the program ends first, answers too much, fills the box's
        memory or takes longer than ``wall_seconds``: then it was killed. Cancelling kills it too.
        """

    async def settle(self) -> None:
        """Raise ConversationEnded if the box's memory was full during the last question."""


class Box(Protocol):
    """One live sandbox with a work folder of its own; commands run one at a time and share that folder.

    When a command ends, every process that it started is killed. The methods that take a path take one
    relative to the work folder; they raise OSError (FileNotFoundError, PermissionError, …) for what the
    content of the box is to blame for, and SandboxError when the sandbox fails or is closed.
    """

    @property
    def work_folder(self) -> str:
        """The writable current folder, as an absolute path seen from inside."""

    @property
    def readonly_folder(self) -> str:
        """Where ``BoxSpec.readonly_files`` lie, as an absolute path seen from inside."""

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: str | None = None,
        wall_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a program found on the box's PATH (``python3`` is there); never raises for what it does."""

    async def python(
        self,
        code: str,
        *,
        arguments: Sequence[str] = (),
        stdin: str | None = None,
        wall_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run ``code`` as ``python3 -I -c code arguments…`` would (the work folder is not on ``sys.path``)."""

    async def shell(
        self,
        command: str,
        *,
        stdin: str | None = None,
        wall_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run ``command`` with ``/bin/sh -c``."""

    def converse(
        self, argv: Sequence[str], *, most_bytes: int, env: Mapping[str, str] | None = None
    ) -> "AbstractAsyncContextManager[Conversation]":
        """A program to talk to; killed, with all that it started, on exit.

        An answer of more than ``most_bytes`` ends it. No limit of wall time but the box's TTL and that of each
        question. While it lives it is the box's running command: other commands and file operations wait. Raises
        SandboxError, on entry, when the box is gone.
        """

    async def read(self, path: str, max_bytes: int) -> bytes:
        """The content of a regular file; links, FIFOs and files above ``max_bytes`` are refused."""

    async def write(self, path: str, data: bytes | str) -> None:
        """Create or replace a file, with its parent folders."""

    async def list(self, path: str = ".") -> "list[str]":
        """Relative paths of the files under ``path``, sorted; at most 1,000; links are not followed."""

    async def close(self) -> None:
        """Kill everything in the box and wait until it is gone; closing twice is fine."""


class Runtime(Protocol):
    """Makes boxes. One per process; its parts live between ``start`` and ``stop``."""

    @property
    def name(self) -> str:
        """``bubblewrap`` or ``process``, as in the configuration."""

    async def start(self) -> None:
        """Prove the isolation, then fill the pool.

        Raises SandboxError that names the failed probe, MachineError when a program is missing.
        """

    async def stop(self) -> None:
        """Close every box and wait for it; nothing of it is left on the machine."""

    def box(self, spec: BoxSpec | None = None) -> AbstractAsyncContextManager[Box]:
        """A fresh box, closed on exit, never used before. Waits while ``max_boxes`` live.

        Raises SandboxError, on entry, when the box cannot be started.
        """
