"""``hone release``: run the controller; start, watch, approve, skip and stop releases; pages of decisions."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from core.errors import InvalidRequest
from core.release import ReleaseStep
from core.release_run import ReleaseRun
from core.variant import parse_model_name
from hone.admin_client import local_admin
from hone.output import clear_errors, console, table
from hone.process_entry import become
from hone.release_client import ReleaseClient, read_plan
from hone.settings import load_settings

app = typer.Typer(help="Candidates on their way to traffic: without a command, run the controller that takes them.")

Name = Annotated[str, typer.Argument(help="NAME[@VERSION] for its newest release, or the id of one.")]
Reason = Annotated[str, typer.Option(help="Why; it stands in the evidence.")]
Json = Annotated[bool, typer.Option("--json", help="Print everything that is known, as JSON.")]


@app.callback(invoke_without_command=True)
def run(context: typer.Context) -> None:
    """Run the release controller."""
    if context.invoked_subcommand is None:
        become("release")


@app.command()
@clear_errors
def start(
    candidate: Annotated[str, typer.Argument(help="NAME@VERSION.")],
    plan: Annotated[Path, typer.Option(help="The policy file, TOML or YAML.")],
    reason: Annotated[str | None, typer.Option(help="Why a version that was rolled back is tried again.")] = None,
) -> None:
    """Release a version by a policy file."""
    name = parse_model_name(candidate)
    if name.version is None:
        raise InvalidRequest(f"'{candidate}' names no version", hint="for example coder@3")
    with local_admin(load_settings()) as admin:
        started = ReleaseClient(admin).start(read_plan(plan, name.name), name.version, reason)
    _say(started)


@app.command()
@clear_errors
def status(name: Name, as_json: Json = False) -> None:
    """Show where a release stands and what was decided."""
    with local_admin(load_settings()) as admin:
        found = ReleaseClient(admin).get(name)
    if as_json:
        typer.echo(json.dumps(found.model_dump(mode="json"), indent=2))
        return
    _say(found)
    rows = table("", "verdict", "step", "by", "reasons")
    for one in found.decisions:
        rows.add_row(
            str(one.number), one.verdict, one.step or "-", escape(one.by), escape("; ".join(one.reasons)) or "-"
        )
    console().print(rows)


@app.command("list")
@clear_errors
def list_(policy: Annotated[str | None, typer.Option(help="Only of this Policy.")] = None) -> None:
    """List releases, the newest first."""
    with local_admin(load_settings()) as admin:
        found = ReleaseClient(admin).list(policy)
    rows = table("id", "candidate", "against", "status", "step", "newest decision")
    for one in found:
        rows.add_row(
            one["id"],
            f"{one['policy']}@{one['version']}",
            f"@{one['baseline']}",
            one["status"],
            one["step"] or "-",
            one["newest"]["verdict"],
        )
    console().print(rows)


@app.command()
@clear_errors
def approve(name: Name, reason: Annotated[str | None, typer.Option(help="Why.")] = None) -> None:
    """Let a release that waits for an approval go on."""
    with local_admin(load_settings()) as admin:
        _say(ReleaseClient(admin).approve(name, reason))


@app.command()
@clear_errors
def skip(
    name: Name, step: Annotated[ReleaseStep, typer.Argument(help="evaluation, shadow or ramp.")], reason: Reason
) -> None:
    """Pass a step without its evidence, which is recorded as missing."""
    with local_admin(load_settings()) as admin:
        _say(ReleaseClient(admin).skip(name, step, reason))


@app.command()
@clear_errors
def stop(name: Name, reason: Reason) -> None:
    """End a release; a ramp under way is taken back at once."""
    with local_admin(load_settings()) as admin:
        _say(ReleaseClient(admin).stop(name, reason))


@app.command()
@clear_errors
def page(
    name: Name,
    decision: Annotated[int | None, typer.Option(help="Number of the decision; default: the newest.")] = None,
    output: Annotated[Path | None, typer.Option(help="Where to write it; default: the terminal.")] = None,
    as_json: Json = False,
) -> None:
    """Write the page of a decision: HTML, or its numbers as JSON."""
    with local_admin(load_settings()) as admin:
        client = ReleaseClient(admin)
        text = json.dumps(client.decision(name, decision), indent=2) if as_json else client.page(name, decision)
    if output is None:
        typer.echo(text)
    else:
        output.write_text(text)
        console().print(f"written to {escape(str(output))}")


def _say(run: ReleaseRun) -> None:
    where = f", {run.step} under way" if run.step is not None and run.is_open else ""
    console().print(
        f"release {run.id}: {escape(run.label)} against @{run.baseline} is [bold]{run.status}[/]{where}",
        highlight=False,
    )
    for wait in run.waits:
        console().print(f"  waits: {escape(wait)}", highlight=False)
