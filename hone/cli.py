"""``hone``: the one command line of the gateway, the fleet, the workers and the learner."""

import asyncio
from typing import Annotated

import typer
from rich.markup import escape

from hone import __version__
from hone.chat import stream_chat
from hone.commands import (
    config,
    drafters,
    episodes,
    evaluations,
    experiments,
    fleet,
    keys,
    policies,
    release,
    runs,
    shadow,
    tasks,
    tenants,
    versions,
)
from hone.commands.train import train
from hone.demo.main import run_demo
from hone.doctor import examine
from hone.output import clear_errors, console
from hone.process_entry import become
from hone.settings import load_settings
from hone.up import prepare as run_prepare
from hone.up import up as run_up

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="An OpenAI-compatible gateway that keeps improving the model behind it.",
)
app.add_typer(tasks.app, name="tasks")
app.add_typer(episodes.app, name="episodes")
app.add_typer(policies.app, name="policies")
app.add_typer(runs.app, name="runs")
app.add_typer(tenants.app, name="tenants")
app.add_typer(keys.app, name="keys")
app.add_typer(drafters.app, name="drafters")
app.add_typer(evaluations.app, name="eval")
app.add_typer(experiments.app, name="experiments")
app.add_typer(shadow.app, name="shadow")
app.add_typer(versions.app, name="versions")
app.add_typer(config.app, name="config")
app.add_typer(fleet.app, name="fleet")
app.add_typer(release.app, name="release")
app.command()(train)


@app.command()
@clear_errors
def up() -> None:
    """Run everything on this machine with embedded defaults."""
    asyncio.run(run_up(load_settings()))


@app.command()
@clear_errors
def prepare() -> None:
    """Migrate the database, mint local keys, unpack the Base: once, before the processes are started apart."""
    asyncio.run(run_prepare(load_settings(), lambda text: console().print(text, markup=False)))


@app.command()
@clear_errors
def demo(
    seed: Annotated[int, typer.Option(help="Another seed gives other Tasks and another curve.")] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running at the end.")] = False,
) -> None:
    """Run the whole loop on a small real model: serve, record, judge, train, swap, compare, promote."""
    raise typer.Exit(run_demo(load_settings(), seed=seed, keep=keep))


@app.command()
@clear_errors
def chat(
    message: Annotated[str | None, typer.Argument(help="One message; without it, a conversation.")] = None,
    model: Annotated[str | None, typer.Option(help="NAME[-fast|-auto][@VERSION]; default: the Base.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1)] = 256,
) -> None:
    """Talk to a model through the gateway."""
    settings = load_settings()
    chosen = model or settings.base.name
    history: list[dict[str, str]] = []
    while True:
        said = message or typer.prompt("you", prompt_suffix="> ")
        history.append({"role": "user", "content": said})
        answer = ""
        for piece in stream_chat(settings, chosen, history, max_tokens):
            typer.echo(piece, nl=False)
            answer += piece
        typer.echo()
        history.append({"role": "assistant", "content": answer})
        if message:
            return


@app.command()
@clear_errors
def doctor() -> None:
    """Check the machine and say what is missing and how to get it."""
    screen = console()
    findings = examine(load_settings())
    marks = {"ok": "[green]ok[/]     ", "warning": "[yellow]warning[/]", "missing": "[red]missing[/]"}
    for finding in findings:
        screen.print(f"{marks[finding.state]} {finding.name}: {escape(finding.detail)}")
        if finding.hint:
            screen.print(f"        [dim]{escape(finding.hint)}[/]")
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)


def _process_command(name: str, text: str) -> None:
    def command() -> None:
        become(name)

    command.__doc__ = text
    app.command(name)(command)


_process_command("gateway", "Run the public API and the admin API.")
_process_command("recorder", "Move Turns from the gateways' journals into the store.")
_process_command("worker", "Run rollouts, verifiers and evaluations.")
_process_command("learner", "Run training jobs.")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Entry point of the ``hone`` script."""
    app()
