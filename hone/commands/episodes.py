"""``hone episodes``: what was attempted, and every token of it."""

import json
from typing import Annotated

import typer
from rich.markup import escape

from hone.admin_client import local_admin
from hone.output import clear_errors, console, table
from hone.settings import load_settings

app = typer.Typer(no_args_is_help=True, help="Recorded Episodes.")


@app.command("list")
@clear_errors
def list_(
    policy: Annotated[str | None, typer.Option(help="Only of this Policy.")] = None,
    domain: Annotated[str | None, typer.Option(help="Only of this Domain.")] = None,
    status: Annotated[str | None, typer.Option(help="running, finished, scored, invalid or expired.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")] = 20,
) -> None:
    """List Episodes, newest first."""
    with local_admin(load_settings()) as admin:
        episodes = admin.get("/episodes", policy=policy, domain=domain, status=status, limit=limit)
    rows = table("episode", "policy", "domain", "purpose", "status", "reward")
    for episode in episodes:
        version = episode.get("version")
        reward = episode.get("reward")
        rows.add_row(
            escape(episode["id"]),
            escape(episode["policy"] + ("" if version is None else f"@{version}")),
            escape(episode.get("domain") or "-"),
            escape(episode["purpose"]),
            escape(episode["status"]),
            "-" if reward is None else f"{reward:.2f}",
        )
    console().print(rows)


@app.command()
@clear_errors
def show(
    episode_id: Annotated[str, typer.Argument(help="Id of the Episode.")],
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """Show one Episode: messages, tool results, Verdicts, token counts."""
    with local_admin(load_settings()) as admin:
        found = admin.get(f"/episodes/{episode_id}")
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    screen = console()
    episode = found["episode"]
    error = escape(episode.get("error") or "")
    screen.print(f"[bold]{escape(episode['id'])}[/] {escape(episode['policy'])} {escape(episode['status'])} {error}")
    for turn in found["turns"]:
        for message in turn["messages"]:
            screen.print(f"[cyan]{escape(str(message['role']))}[/] {escape(str(message.get('content') or ''))}")
        screen.print(f"[green]assistant[/] {escape(str(turn['response'].get('content') or ''))}")
        spans = ", ".join(f"@{span['version']}" for span in turn["policy_spans"])
        counts = f"{len(turn['prompt_ids'])} prompt + {len(turn['output_ids'])} sampled tokens"
        screen.print(f"[dim]{escape(turn['id'])} {spans} {escape(turn['variant'])}, {counts}[/]")
    for result in episode["tool_results"]:
        tool, outcome = escape(result["tool"]), escape(result["outcome"])
        screen.print(f"[magenta]{tool}[/] {outcome}: {escape(result['output'][:500])}")
    for verdict in found["verdicts"]:
        screen.print(
            f"[yellow]{escape(verdict['verifier'])}[/] {escape(verdict['status'])} score {verdict['score']:.2f}"
        )


@app.command()
@clear_errors
def withdraw(
    episode_id: Annotated[str, typer.Argument(help="Id of the Episode.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Erase an Episode and all that came of it; the versions that saw it are marked."""
    if not yes:
        typer.confirm(f"Erase {episode_id} for good?", abort=True)
    with local_admin(load_settings()) as admin:
        tombstone = admin.delete(f"/episodes/{episode_id}")
    removed = ", ".join(f"{number} {name}" for name, number in sorted(tombstone["counts"].items()))
    console().print(f"{escape(episode_id)} is gone ({removed}); proof: {tombstone['id']}")
    if tombstone["versions"]:
        console().print(f"versions that saw it: {escape(', '.join(tombstone['versions']))}")
