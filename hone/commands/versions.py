"""``hone versions``: aliases, notes, lineage, signatures, retention, import and export."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from core.errors import InvalidRequest
from core.variant import parse_model_name
from hone.admin_client import local_admin
from hone.output import clear_errors, console, table
from hone.settings import child_environment, load_settings
from hone.version_export import export_now

app = typer.Typer(no_args_is_help=True, help="Versions of Policies: names, lineage, signatures, files.")

Version = Annotated[str, typer.Argument(help="POLICY@VERSION or POLICY@ALIAS.")]
Policy = Annotated[str, typer.Argument(help="Name of the Policy.")]


@app.command("list")
@clear_errors
def list_(policy: Policy) -> None:
    """List a Policy's versions with aliases, notes and what became of their files."""
    with local_admin(load_settings()) as admin:
        versions = admin.get(f"/policies/{policy}/versions")
        aliases = admin.get(f"/policies/{policy}/aliases")
    rows = table("version", "aliases", "kind", "origin", "serving", "files", "saw withdrawn", "last note")
    for one in versions:
        names = sorted(name for name, number in aliases.items() if number == one["version"])
        notes = one["notes"]
        rows.add_row(
            f"@{one['version']}",
            ", ".join(names),
            one["kind"],
            one["origin"],
            one["serving"],
            "deleted" if one["files_removed_at"] else "kept",
            str(one["saw_withdrawn"] or "-"),
            escape(notes[-1]["text"]) if notes else "",
        )
    console().print(rows)


@app.command()
@clear_errors
def alias(
    version: Version,
    name: Annotated[str, typer.Argument(help="The alias.")],
    remove: Annotated[bool, typer.Option("--remove", help="Remove it.")] = False,
) -> None:
    """Give a version a name, so that POLICY@NAME means it."""
    with local_admin(load_settings()) as admin:
        policy, number = _resolved(admin, version)
        if remove:
            admin.delete(f"/policies/{policy}/aliases/{name}")
            console().print(f"{policy}@{name} is gone")
            return
        admin.put(f"/policies/{policy}/aliases/{name}", {"version": number})
    console().print(f"{policy}@{name} means {policy}@{number}")


@app.command()
@clear_errors
def note(version: Version, text: Annotated[str, typer.Argument(help="What to remember.")]) -> None:
    """Add a note to a version."""
    with local_admin(load_settings()) as admin:
        policy, number = _resolved(admin, version)
        admin.post(f"/policies/{policy}/versions/{number}/notes", {"text": text})
    console().print(f"noted on {policy}@{number}")


@app.command()
@clear_errors
def lineage(
    version: Annotated[str | None, typer.Argument(help="POLICY@VERSION: the Episodes behind it.")] = None,
    episode: Annotated[str | None, typer.Option(help="An Episode: the versions that saw it.")] = None,
) -> None:
    """Show which Episodes trained a version, or which versions saw an Episode, as JSON."""
    if (version is None) == (episode is None):
        raise InvalidRequest("name a version, or an Episode with --episode")
    with local_admin(load_settings()) as admin:
        if episode is not None:
            found = admin.get(f"/episodes/{episode}/versions")
        else:
            policy, number = _resolved(admin, version or "")
            found = admin.get(f"/policies/{policy}/versions/{number}/lineage")
    typer.echo(json.dumps(found, indent=2))


@app.command()
@clear_errors
def verify(version: Version) -> None:
    """Check a version's files against its checksum and signature; ends with 1 when something is wrong."""
    with local_admin(load_settings()) as admin:
        policy, number = _resolved(admin, version)
        found = admin.get(f"/policies/{policy}/versions/{number}/verify")
    checksum = "holds" if found["checksum_holds"] else "does not hold"
    console().print(f"{found['label']}: checksum {checksum}, signature {found['signature']}")
    if found["reason"]:
        console().print(escape(found["reason"]))
        raise typer.Exit(1)


@app.command()
@clear_errors
def sign(version: Version) -> None:
    """Sign a version that was made while signing was off."""
    with local_admin(load_settings()) as admin:
        policy, number = _resolved(admin, version)
        found = admin.post(f"/policies/{policy}/versions/{number}/sign")
    console().print(f"{policy}@{number} is signed by {found['signed_by']}")


@app.command()
@clear_errors
def prune(
    policy: Policy,
    keep: Annotated[int | None, typer.Option(min=0, help="The newest this many stay.")] = None,
    days: Annotated[float | None, typer.Option(min=0, help="Younger ones stay.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say which would go.")] = False,
) -> None:
    """Delete checkpoint folders that no traffic, name, release, pin or run needs."""
    with local_admin(load_settings()) as admin:
        gone = admin.post(f"/policies/{policy}/prune", {"keep": keep, "days": days, "dry_run": dry_run})
    names = ", ".join(f"@{one['version']}" for one in gone) or "none"
    console().print(f"{'would go' if dry_run else 'deleted'}: {names}")


@app.command()
@clear_errors
def tainted(policy: Policy) -> None:
    """List versions that saw Episodes which were withdrawn since."""
    with local_admin(load_settings()) as admin:
        found = admin.get(f"/policies/{policy}/tainted")
    rows = table("version", "withdrawn Episodes", "serving")
    for one in found:
        rows.add_row(f"@{one['version']}", str(one["saw_withdrawn"]), one["serving"])
    console().print(rows)


@app.command("import")
@clear_errors
def import_(
    folder: Annotated[Path, typer.Argument(help="A PEFT adapter or a Hugging Face model.")],
    policy: Annotated[str, typer.Option(help="Policy that gets it as its next version.")],
) -> None:
    """Import a LoRA adapter or a full model as a candidate with a Probe of its own."""
    command = [sys.executable, "-m", "hone.processes.import_version", str(folder), policy]
    done = subprocess.run(command, env=child_environment(load_settings()), check=False)
    if done.returncode != 0:
        raise typer.Exit(done.returncode)


@app.command()
@clear_errors
def export(version: Version, folder: Annotated[Path, typer.Argument(help="A folder that is not there yet.")]) -> None:
    """Copy a version's files, verified, in Hugging Face or PEFT layout."""
    config = load_settings()
    with local_admin(config) as admin:
        policy, number = _resolved(admin, version)
    export_now(config, policy, number, folder)
    console().print(f"{policy}@{number} is in {folder}", markup=False)


def _resolved(admin: Any, text: str) -> tuple[str, int]:
    name = parse_model_name(text)
    if name.version is not None:
        return name.name, name.version
    if name.alias is None:
        raise InvalidRequest(f"'{text}' names no version", hint=f"for example {text}@1 or {text}@candidate")
    aliases = admin.get(f"/policies/{name.name}/aliases")
    if name.alias not in aliases:
        raise InvalidRequest(
            f"'{name.name}' has no alias '{name.alias}'", hint=f"known: {', '.join(sorted(aliases))}"
        )
    return name.name, int(aliases[name.alias])
