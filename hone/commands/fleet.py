"""``hone fleet``: run it; status, restart, scale."""

import json
from typing import Annotated, Any

import typer
from rich.markup import escape

from core.errors import EngineUnavailable, InvalidRequest
from core.noun import now
from hone.admin_client import local_admin
from hone.output import clear_errors, console, table
from hone.process_entry import become
from hone.settings import load_settings

app = typer.Typer(help="Engines: without a command, run the fleet that starts, watches and hot-swaps them.")

_STALE_SECONDS = 15.0
_SHOWN_SWAPS = 3


@app.callback(invoke_without_command=True)
def run(context: typer.Context) -> None:
    """Run engines and keep the wanted versions loaded on them."""
    if context.invoked_subcommand is None:
        become("fleet")


@app.command()
@clear_errors
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything that is known, as JSON.")] = False,
) -> None:
    """Show who leads, and what each replica serves and does, as the engines themselves say."""
    with local_admin(load_settings()) as admin:
        fleets: list[dict[str, Any]] = admin.get("/fleets")
        deployments: list[dict[str, Any]] = admin.get("/deployments")
    if as_json:
        typer.echo(json.dumps({"fleets": fleets, "deployments": deployments}, indent=2))
        return
    for fleet in fleets:
        console().print(f"[bold]{escape(fleet['base'])}[/] {_leader(fleet)}")
    if not deployments:
        raise EngineUnavailable("there is no replica", hint="start the fleet with 'hone fleet' or 'hone up'")
    rows = table(
        "id", "variant", "status", "engine", "versions", "running", "KV", "prefix hits", "acceptance", "swaps", "url"
    )
    for one in deployments:
        rows.add_row(*(escape(cell) for cell in _row(one)))
    console().print(rows)
    for line in _remarks(deployments):
        console().print(f"[yellow]{escape(line)}[/]")
    if all(one["status"] != "ready" for one in deployments):
        raise EngineUnavailable("no replica answers", hint="see the engines' logs under the data folder")


@app.command()
@clear_errors
def restart(
    deployment_id: Annotated[str, typer.Argument(help="Id of the Deployment, from 'hone fleet status'.")],
    reason: Annotated[str | None, typer.Option(help="Why.")] = None,
) -> None:
    """Drain one engine and start it anew, once other replicas can answer in its place."""
    with local_admin(load_settings()) as admin:
        asked = admin.post(f"/deployments/{deployment_id}/restart", {} if reason is None else {"reason": reason})
    console().print(f"{escape(asked['url'])} will be restarted; 'hone fleet status' shows when it serves again")


@app.command()
@clear_errors
def scale(
    wanted: Annotated[
        list[str] | None, typer.Argument(help="VARIANT=NUMBER, or VARIANT=URL,URL for engines that run elsewhere.")
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Go back to what the configuration says.")] = False,
) -> None:
    """Say which replicas there shall be, for example 'hone fleet scale standard=2 fast=1'. Variants left out end."""
    config = load_settings()
    path = f"/fleets/{config.base.name}/plan"
    with local_admin(config) as admin:
        if reset:
            admin.delete(path)
            plan = admin.get(path)
        elif wanted:
            plan = admin.put(path, _plan_of(wanted))
        else:
            plan = admin.get(path)
    launched = [f"{variant}={count}" for variant, count in plan["launch"].items()]
    attached = [f"{variant}={','.join(urls)}" for variant, urls in plan["attach"].items()]
    console().print(f"wanted: {escape(' '.join(launched + attached))}; 'hone fleet status' shows what there is")


def _plan_of(wanted: list[str]) -> dict[str, dict[str, Any]]:
    plan: dict[str, dict[str, Any]] = {"launch": {}, "attach": {}}
    for one in wanted:
        variant, sign, value = one.partition("=")
        if not sign or not value:
            raise InvalidRequest(f"'{one}' is not VARIANT=NUMBER", hint="for example standard=2")
        if value.isdigit():
            plan["launch"][variant] = int(value)
        else:
            plan["attach"][variant] = value.split(",")
    return plan


def _leader(fleet: dict[str, Any]) -> str:
    leader = fleet["leader"]
    if leader is None:
        return "[yellow]no fleet ever led; start one with 'hone fleet'[/]"
    if not fleet["leads"]:
        return f"[yellow]no fleet leads (the last one was {escape(leader)}): nothing is loaded or restarted[/]"
    return f"led by {escape(leader)}"


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    load, seen = one["load"] or {}, one["speculation_seen"] or {}
    age = now() - one["heartbeat_at"]
    return (
        one["id"],
        f"{one['variant']}-{one['replica']}",
        one["status"] + (f" ({age:.0f} s ago)" if age > _STALE_SECONDS else ""),
        f"{one['engine']} {one['engine_version'] or '?'}",
        _versions(one),
        f"{load['running']}+{load['waiting']}" if load else "-",
        _share(load.get("kv_use")),
        _share(load.get("prefix_hits")),
        _share(seen.get("acceptance")),
        _swaps(one["swaps"]),
        one["url"],
    )


def _versions(one: dict[str, Any]) -> str:
    """What the engine itself lists; a version that is recorded and that it does not list is marked."""
    listed = set(one["answers_to"])
    names = []
    for loaded in one["loaded"]:
        mark = "" if loaded["engine_model"] in listed else "?"
        draining = " draining" if loaded["state"] == "draining" else ""
        names.append(f"{loaded['policy']}@{loaded['version']}{draining}{mark}")
    weights = one["weights"]
    carried = f"{weights['policy']}@{weights['version']}" if weights else one["base"]
    return ", ".join([carried, *names])


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"


def _swaps(swaps: list[dict[str, Any]]) -> str:
    newest = swaps[-_SHOWN_SWAPS:][::-1]
    return (
        ", ".join(f"{one['policy']}@{one['version']} {one['outcome']} {one['seconds']:.2f} s" for one in newest)
        or "-"
    )


def _remarks(deployments: list[dict[str, Any]]) -> list[str]:
    lines = []
    for one in deployments:
        if one["status"] != "ready" and one["status_reason"]:
            lines.append(f"{one['url']} is {one['status']}: {one['status_reason']}")
        if one["restart"]:
            lines.append(f"{one['url']} is to be restarted: {one['restart']['reason']}")
    return lines
