"""What goes over the wire of the tool service, and the limits of one message."""

from typing import Literal

from pydantic import Field

from core.noun import Noun

MOST_CODE_CHARACTERS = 262_144
MOST_FILE_BYTES = 1 << 20
MOST_BODY_BYTES = 4 << 20
"""Of a request: code, or a file."""
MOST_ANSWER_BYTES = 4 << 20
"""Of one answer of the driver in a box."""

ToolName = Literal["code_interpreter", "shell"]


class CreateSession(Noun):
    """``POST /sessions``."""

    tenant: str = Field(min_length=1, max_length=200)
    session_id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{16,64}$")
    """An id that the gateway has drawn and perhaps told already; one that exists stays as it is. None: a new one."""


class SessionCreated(Noun):
    """A session; its box is started by the first call that needs one."""

    session_id: str
    url: str
    """Address of the worker that holds the session: every later call goes there."""
    idle_seconds: float
    """It is removed after so long without a call."""


class RunCall(Noun):
    """``POST /sessions/{id}/run``."""

    tool: ToolName
    code: str = Field(default="", max_length=MOST_CODE_CHARACTERS)
    """Of ``code_interpreter``."""
    command: str = Field(default="", max_length=MOST_CODE_CHARACTERS)
    """Of ``shell``: a command line for ``/bin/sh``."""
    timeout_seconds: float | None = Field(default=None, gt=0)
    """At most the sandbox's own limit, which also holds where none is given."""


class ChangedFile(Noun):
    """A file that a call made or changed."""

    path: str
    bytes: int


class RunDone(Noun):
    """What a call came to. Whatever the code did is a result; a failing sandbox is an error of the service."""

    outcome: str
    """``ok``, ``nonzero``, ``timeout``, ``oom``, ``killed`` or ``output_limit``."""
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    seconds: float = 0.0
    files: tuple[ChangedFile, ...] = ()
    variables_lost: bool = False
    """The interpreter was ended: the next call starts with no variables."""
    files_lost: bool = False
    """The box before this call was lost: it ran in an empty one."""


class Load(Noun):
    """``GET /load``."""

    sessions: int
    boxes: int
    free: int
    """Boxes that may still be started."""
    url: str = ""
    """Address of the very worker that says this."""
