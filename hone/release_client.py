"""ReleaseClient: releases from Python, typed; the CLI uses it as well."""

from collections.abc import Callable
from pathlib import Path
from tomllib import TOMLDecodeError, loads
from typing import Any, Protocol

import yaml
from pydantic import ValidationError

from core.errors import InvalidRequest
from core.release import ReleaseStep
from core.release_plan import ReleasePlan
from core.release_run import ReleaseRun


class AdminCalls(Protocol):
    """What is needed of the admin API."""

    def get(self, path: str, **parameters: Any) -> Any:
        """GET a path below ``/admin/v1``."""
        ...

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """POST a JSON body to a path below ``/admin/v1``."""
        ...

    def text(self, path: str, **parameters: Any) -> str:
        """GET a page below ``/admin/v1``."""
        ...


class ReleaseClient:
    """``name`` is the id of a release, or ``coder`` or ``coder@3`` for its newest one. Raises RequestError."""

    def __init__(self, admin: AdminCalls) -> None:
        self._admin = admin

    def start(self, plan: ReleasePlan, version: int, reason: str | None = None) -> ReleaseRun:
        """Take a version by a plan; one that was rolled back needs a reason."""
        body: dict[str, Any] = {"version": version, "plan": plan.model_dump(mode="json")}
        return _run(self._admin.post("/releases", body if reason is None else body | {"reason": reason}))

    def get(self, name: str) -> ReleaseRun:
        """All of a release."""
        return _run(self._admin.get(f"/releases/{name}"))

    def list(self, policy: str | None = None) -> Any:
        """Summaries, the newest first."""
        return self._admin.get("/releases", policy=policy)

    def approve(self, name: str, reason: str | None = None) -> ReleaseRun:
        """Let a release that waits for it go on."""
        return _run(self._admin.post(f"/releases/{name}/approve", {"reason": reason}))

    def skip(self, name: str, step: ReleaseStep, reason: str) -> ReleaseRun:
        """Pass a step without its evidence, on record."""
        return _run(self._admin.post(f"/releases/{name}/skip", {"step": step.value, "reason": reason}))

    def stop(self, name: str, reason: str) -> ReleaseRun:
        """End a release."""
        return _run(self._admin.post(f"/releases/{name}/stop", {"reason": reason}))

    def page(self, name: str, decision: int | None = None) -> str:
        """The page of a decision, HTML."""
        return self._admin.text(f"/releases/{name}/page", decision=decision)

    def decision(self, name: str, decision: int | None = None) -> Any:
        """A decision as JSON."""
        return self._admin.get(f"/releases/{name}/decision", decision=decision)


def read_plan(path: Path, policy: str) -> ReleasePlan:
    """A policy file in TOML or YAML for a Policy; raises InvalidRequest that says what is wrong with it."""
    readers: dict[str, Callable[[str], Any]] = {".toml": loads, ".yaml": yaml.safe_load, ".yml": yaml.safe_load}
    reader = readers.get(path.suffix)
    if reader is None:
        raise InvalidRequest(f"'{path}' is neither TOML nor YAML", hint="name it .toml, .yaml or .yml")
    try:
        content = reader(path.read_text())
    except OSError as error:
        raise InvalidRequest(f"'{path}' cannot be read: {error}") from error
    except (TOMLDecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"'{path}' is not well formed: {error}") from error
    if not isinstance(content, dict):
        raise InvalidRequest(f"'{path}' holds no table of settings")
    if content.setdefault("policy", policy) != policy:
        raise InvalidRequest(f"'{path}' is for Policy '{content['policy']}', not '{policy}'")
    try:
        return ReleasePlan.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"'{path}': {place}: {first['msg']}") from error


def _run(answer: Any) -> ReleaseRun:
    return ReleaseRun.model_validate(answer)
