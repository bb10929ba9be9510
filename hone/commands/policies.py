"""``hone policies``: list, show, create, promote, roll back, merge."""

import subprocess
import sys
from typing import Annotated

import typer
from rich.markup import escape

from core.errors import InvalidRequest
from core.variant import parse_model_name
from hone.admin_client import local_admin
from hone.output import clear_errors, console, table
from hone.settings import child_environment, load_settings

app = typer.Typer(no_args_is_help=True, help="Policies and their versions.")

Name = Annotated[str, typer.Argument(help="Name of the Policy.")]


@app.command("list")
@clear_errors
def list_() -> None:
    """List Policies with what answers under their names."""
    with local_admin(load_settings()) as admin:
        policies = admin.get("/policies")
    rows = table("policy", "base", "promoted", "previous", "release policy")
    for policy in policies:
        previous = policy["previous_version"]
        rows.add_row(
            policy["name"],
            policy["base"],
            f"@{policy['promoted_version']}",
            "-" if previous is None else f"@{previous}",
            policy["release_policy"],
        )
    console().print(rows)


@app.command()
@clear_errors
def show(name: Name) -> None:
    """Show a Policy's versions, where each stands, and what its evaluations said."""
    with local_admin(load_settings()) as admin:
        view = admin.get(f"/policies/{name}")
    policy = view["policy"]
    releases = {release["version"]: release["status"] for release in view["releases"]}
    console().print(f"[bold]{policy['name']}[/] on {policy['base']}, promoted @{policy['promoted_version']}")
    rows = table("version", "origin", "parent", "serving", "release", "swap s", "refused because")
    for version in view["versions"]:
        parent, swap = version["parent_version"], version["swap_seconds"]
        rows.add_row(
            f"@{version['version']}",
            version["origin"],
            "-" if parent is None else f"@{parent}",
            version["serving"],
            releases.get(version["version"], "-"),
            "-" if swap is None else f"{swap:.2f}",
            escape(version["serving_reason"] or ""),
        )
    console().print(rows)


@app.command()
@clear_errors
def create(
    name: Name,
    release_policy: Annotated[str, typer.Option(help="What a promotion needs: default or demo.")] = "default",
) -> None:
    """Create a Policy on the configured Base; its version 0 is the Base itself."""
    config = load_settings()
    with local_admin(config) as admin:
        admin.post("/policies", {"name": name, "base": config.base.name, "release_policy": release_policy})
    console().print(f"{name} created: it answers as {config.base.name} until a version is promoted")


@app.command()
@clear_errors
def merge(
    source: Annotated[str, typer.Argument(help="The LoRA version: POLICY@VERSION.")],
    into: Annotated[str, typer.Option(help="Policy that gets the full weights as its next version.")],
) -> None:
    """Merge a LoRA version into full weights: a version for a fleet with fleet.full_weights_policy."""
    name = parse_model_name(source)
    if name.version is None:
        raise InvalidRequest(f"'{source}' names no version", hint=f"for example {source}@1")
    command = [sys.executable, "-m", "hone.processes.merge", source, into]
    merged = subprocess.run(command, env=child_environment(load_settings()), check=False)
    if merged.returncode != 0:
        raise typer.Exit(merged.returncode)


@app.command()
@clear_errors
def promote(
    name: Name,
    version: Annotated[int, typer.Argument(help="Version to promote.")],
    reason: Annotated[str | None, typer.Option(help="Why; required to skip a step.")] = None,
    skip: Annotated[list[str] | None, typer.Option(help="Pass a required step without evidence.")] = None,
) -> None:
    """Promote a version: requests for NAME are answered by it from now on."""
    with local_admin(load_settings()) as admin:
        admin.post(f"/policies/{name}/promote", {"version": version, "reason": reason, "skip": skip or []})
    console().print(f"{name}@{version} is promoted; 'hone policies rollback {name}' takes it back")


@app.command()
@clear_errors
def rollback(name: Name, reason: Annotated[str | None, typer.Option(help="Why.")] = None) -> None:
    """Go back to the version that was promoted before."""
    with local_admin(load_settings()) as admin:
        policy = admin.post(f"/policies/{name}/rollback", {"reason": reason})["policy"]
    console().print(f"{name} answers as @{policy['promoted_version']} again")
