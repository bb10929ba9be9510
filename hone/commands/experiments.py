"""``hone experiments``: split live traffic between versions or Variants, and see what comes of it."""

from typing import Annotated, Any

import typer
from rich.markup import escape

from hone.admin_client import local_admin
from hone.output import arm_label, clear_errors, console, table
from hone.settings import load_settings

app = typer.Typer(no_args_is_help=True, help="A/B Experiments on live traffic.")

_Id = Annotated[str, typer.Argument(help="Id of the Experiment.")]


@app.command("list")
@clear_errors
def list_(
    policy: Annotated[str | None, typer.Option(help="Those of this Policy.")] = None,
    status: Annotated[str | None, typer.Option(help="running or stopped.")] = None,
) -> None:
    """List Experiments, oldest first."""
    with local_admin(load_settings()) as admin:
        found = admin.get("/experiments", policy=policy, status=status)
    rows = table("id", "policy", "kind", "status", "arms", "stage", "ended because")
    for one in found:
        rows.add_row(
            one["id"],
            one["policy"],
            one["kind"],
            one["status"],
            _arms(one),
            str(one["stage"]),
            escape(one["stopped_because"] or ""),
        )
    console().print(rows)


@app.command()
@clear_errors
def begin(
    policy: Annotated[str, typer.Argument(help="Policy whose traffic is split.")],
    version: Annotated[int | None, typer.Option(min=0, help="Candidate; left out: compare the Variants.")] = None,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Of the keys that get the candidate.")] = 0.01,
    key: Annotated[str, typer.Option(help="What sticks to an arm: user, episode or api_key.")] = "episode",
    reason: Annotated[str | None, typer.Option(help="Why an untested candidate may have traffic.")] = None,
) -> None:
    """Begin an A/B Experiment."""
    body: dict[str, Any] = {"policy": policy, "share": share, "key": key, "reason": reason}
    body |= {"candidate_variant": "fast"} if version is None else {"candidate_version": version}
    with local_admin(load_settings()) as admin:
        began = admin.post("/experiments", body)
    console().print(f"{began['id']} runs: {escape(_arms(began))}")


@app.command()
@clear_errors
def show(experiment_id: _Id) -> None:
    """Show an Experiment and how many Episodes each arm has had."""
    with local_admin(load_settings()) as admin:
        found = admin.get(f"/experiments/{experiment_id}")
    one = found["experiment"]
    console().print(f"{one['id']}: {one['policy']}, {one['status']}, stage {one['stage']}, {escape(_arms(one))}")
    if one["stopped_because"]:
        console().print(f"ended because {escape(one['stopped_because'])}")
    for arm, count in sorted(found["episodes"].items()):
        console().print(f"{arm}: {count} Episodes")


@app.command()
@clear_errors
def report(experiment_id: _Id) -> None:
    """Say what the outcomes so far prove."""
    with local_admin(load_settings()) as admin:
        found = admin.get(f"/experiments/{experiment_id}/report")
    evidence = found["evidence"]
    ratio = evidence["sample_ratio"]
    state = "broken" if ratio["broken"] else "as planned"
    console().print(f"split: {state} (log evidence {ratio['evidence']:.2f} of {ratio['needed']:.2f})")
    console().print(f"Episodes: {evidence['episodes']}; that saw two arms: {evidence['mixed'] or 'none'}")
    guards = table("guardrail", "kind", "bound", "seen", "units", "state")
    for one in evidence["guardrails"]:
        seen = "-" if one["seen"] is None else f"{one['seen']:+.4f}"
        state = "broken" if one["broken"] else "holds"
        guards.add_row(one["name"], one["kind"], f"{one['bound']:g}", seen, str(one["units"]), state)
    console().print(guards)
    primary = table("Domain", "difference", "interval", "candidate", "promoted", "p")
    for one in evidence["primary"]:
        interval = "-" if one["low"] is None else f"[{one['low']:+.4f}, {one['high']:+.4f}]"
        difference = "-" if one["difference"] is None else f"{one['difference']:+.4f}"
        p_value = "-" if one["p_value"] is None else f"{one['p_value']:.3g}"
        units = str(one["candidate_units"]), str(one["promoted_units"])
        primary.add_row(escape(one["domain"]), difference, escape(interval), *units, p_value)
    console().print(primary)
    for reason in found["against"]:
        console().print(f"against the candidate: {escape(reason)}")


@app.command()
@clear_errors
def move(
    experiment_id: _Id,
    share: Annotated[float, typer.Argument(min=0.0, max=1.0, help="Of the keys; larger than before.")],
) -> None:
    """Give the candidate more traffic."""
    with local_admin(load_settings()) as admin:
        moved = admin.post(f"/experiments/{experiment_id}/share", {"share": share})
    console().print(f"stage {moved['stage']}: {escape(_arms(moved))}")


@app.command()
@clear_errors
def stop(
    experiment_id: _Id, reason: Annotated[str, typer.Option(help="Why; it is kept.")] = "stopped by hand"
) -> None:
    """Route everything back to the promoted version."""
    with local_admin(load_settings()) as admin:
        admin.post(f"/experiments/{experiment_id}/stop", {"reason": reason})
    console().print(f"{experiment_id} is stopped")


def _arms(experiment: dict[str, Any]) -> str:
    """``promoted 0 99%, candidate 3 1%``."""
    return ", ".join(f"{arm_label(arm)} {arm['share']:.0%}" for arm in experiment["arms"])
