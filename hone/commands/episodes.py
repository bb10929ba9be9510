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
            episode["id"],
            episode["policy"] + ("" if version is None else f"@{version}"),
            episode.get("domain") or "-",
            episode["purpose"],
            episode["status"],
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
    screen.print(f"[bold]{episode['id']}[/] {episode['policy']} {episode['status']} {episode.get('error') or ''}")
    for turn in found["turns"]:
        for message in turn["messages"]:
            screen.print(f"[cyan]{message['role']}[/] {escape(str(message.get('content') or ''))}")
        screen.print(f"[green]assistant[/] {escape(str(turn['response'].get('content') or ''))}")
        spans = ", ".join(f"@{span['version']}" for span in turn["policy_spans"])
        counts = f"{len(turn['prompt_ids'])} prompt + {len(turn['output_ids'])} sampled tokens"
        screen.print(f"[dim]{turn['id']} {spans} {turn['variant']}, {counts}[/]")
    for result in episode["tool_results"]:
        screen.print(f"[magenta]{result['tool']}[/] {result['outcome']}: {escape(result['output'][:500])}")
    for verdict in found["verdicts"]:
        screen.print(f"[yellow]{verdict['verifier']}[/] {verdict['status']} score {verdict['score']:.2f}")
