"""Options that tenants and keys have in common: what may be used, and which models."""

import time
from typing import Annotated, Any

import typer

from core.errors import InvalidRequest

_LIMITS: dict[str, type] = {
    "requests_per_minute": int,
    "tokens_per_minute": int,
    "concurrent_streams": int,
    "tokens_per_month": int,
    "dollars_per_month": float,
}
_HELP = f"NAME=NUMBER, or NAME=none to take it away: {', '.join(_LIMITS)}. Repeat."

Limits = Annotated[list[str] | None, typer.Option("--limit", help=_HELP)]
Models = Annotated[list[str] | None, typer.Option("--model", help="May be used; NAME* for all that so begin.")]
AllModels = Annotated[bool, typer.Option("--all-models", help="Every model may be used.")]
Training = Annotated[bool | None, typer.Option("--train/--no-train", help="Whether what is asked may train.")]


def allowance(old: dict[str, Any] | None, limits: list[str] | None) -> dict[str, Any] | None:
    """An allowance with some limits changed; None when nothing is to change. Raises InvalidRequest."""
    if not limits:
        return None
    allowed = dict(old or {})
    for text in limits:
        name, _, number = text.partition("=")
        if name not in _LIMITS:
            raise InvalidRequest(f"there is no limit '{name}'", hint=f"use one of {', '.join(_LIMITS)}")
        try:
            allowed[name] = None if number == "none" else _LIMITS[name](number.replace("_", ""))
        except ValueError as error:
            raise InvalidRequest(f"'{number}' is no number for {name}", hint="such as --limit NAME=3") from error
    return allowed


def changes(**fields: Any) -> dict[str, Any]:
    """A request body of the fields that are given."""
    return {name: value for name, value in fields.items() if value is not None}


def models_body(names: list[str] | None, *, every: bool = False) -> dict[str, Any]:
    """The ``models`` part of a body."""
    if every:
        return {"models": None}
    return {"models": names} if names else {}


def limits_text(allowed: dict[str, Any]) -> str:
    """An allowance in one cell."""
    parts = [f"{name.replace('_', ' ')} {allowed[name]:,}" for name in _LIMITS if allowed.get(name) is not None]
    return ", ".join(parts) or "no limits"


def models_text(names: list[str] | None) -> str:
    """A list of models in one cell."""
    return "all" if names is None else ", ".join(names) or "none"


def day(seconds: float | None) -> str:
    """A time in one cell."""
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
