"""``hone config``: what is configured, and what can be."""

import tomllib

import typer
from rich.syntax import Syntax

from core.config.load import masked
from hone.config_reference import configuration_reference
from hone.output import clear_errors, console
from hone.settings import load_settings
from hone.toml import to_toml

app = typer.Typer(no_args_is_help=True, help="Show the configuration.")


@app.command()
@clear_errors
def show() -> None:
    """Print the resolved configuration as TOML, with secrets masked."""
    text = to_toml(masked(load_settings()))
    tomllib.loads(text)
    screen = console()
    if screen.is_terminal:
        screen.print(Syntax(text, "toml", background_color="default"))
    else:
        typer.echo(text)


@app.command()
def reference() -> None:
    """Print the reference of all keys as Markdown (docs/configuration.md)."""
    typer.echo(configuration_reference(), nl=False)
