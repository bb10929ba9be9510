"""How the CLI speaks: one console, one way to show an error."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from core.errors import HoneError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def console() -> Console:
    """Standard output for people."""
    return Console(highlight=False)


def complain(error: HoneError) -> None:
    """One line and a hint on standard error."""
    screen = Console(stderr=True, highlight=False)
    screen.print(f"[bold red]error:[/] {_escape(error.message)}")
    if error.hint:
        screen.print(f"[dim]hint:[/] {_escape(error.hint)}")


def clear_errors(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a command: Hone's own errors become one line, a hint and exit code 1, never a traceback."""

    @wraps(command)
    def guarded(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return command(*args, **kwargs)
        except HoneError as error:
            complain(error)
            raise typer.Exit(1) from error

    return guarded


def table(*columns: str) -> Table:
    """An empty table in the house style."""
    built = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        built.add_column(column)
    return built


def _escape(text: str) -> str:
    return text.replace("[", "\\[")


def arm_label(arm: dict[str, Any]) -> str:
    """``candidate 3``, or ``candidate 3-fast``: an Experiment's arm as the admin API shows it."""
    return f"{arm['name']} {arm['version']}{'' if arm['variant'] == 'standard' else '-fast'}"
