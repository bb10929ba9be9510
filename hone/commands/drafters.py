"""``hone drafters``: list draft models, and have one trained."""

from typing import Annotated, Any

import typer
from rich.markup import escape

from hone.admin_client import local_admin
from hone.output import clear_errors, console, table
from hone.settings import load_settings

app = typer.Typer(no_args_is_help=True, help="Draft models of the fast Variant.")


@app.command("list")
@clear_errors
def list_(
    policy: Annotated[str | None, typer.Option(help="Those distilled from this Policy.")] = None,
    status: Annotated[str | None, typer.Option(help="candidate, live, retired or rejected.")] = None,
) -> None:
    """List Drafters with their targets and what was accepted of their guesses."""
    with local_admin(load_settings()) as admin:
        drafters = admin.get("/drafters", policy=policy, status=status)
    rows = table("number", "target", "status", "trained", "live", "per draft", "reason")
    for drafter in drafters:
        name = drafter["policy"] or drafter["base"]
        rows.add_row(
            str(drafter["number"]),
            f"{name}@{drafter['target_version']}",
            drafter["status"],
            _share(drafter["metrics"].get("acceptance")),
            _share(drafter["acceptance"]),
            "-" if drafter["accepted_per_draft"] is None else f"{drafter['accepted_per_draft']:.2f}",
            escape(drafter["reason"] or ""),
        )
    console().print(rows)


@app.command()
@clear_errors
def train(
    policy: Annotated[str | None, typer.Argument(help="Policy to draft for; left out: the Base.")] = None,
    version: Annotated[int | None, typer.Option(min=0, help="Default: the promoted version.")] = None,
    seed: Annotated[int, typer.Option()] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not begin with the live Drafter.")] = False,
) -> None:
    """Ask the running learner for a draft model; the fleet tries it when it is there."""
    body: dict[str, Any] = {"policy": policy, "version": version, "seed": seed, "warm_start": not fresh}
    with local_admin(load_settings()) as admin:
        job = admin.post("/drafters", body)
    name = job["payload"]["policy"] or job["payload"]["base"]
    target = f"{name}@{job['payload']['target_version']}"
    console().print(f"job {job['id']} distils a drafter for {target}; 'hone drafters list' shows it when it is there")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
