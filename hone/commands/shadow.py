"""``hone shadow``: mirror live requests to a candidate that no client sees, and see how it compares."""

from typing import Annotated, Any

import typer
from rich.markup import escape

from hone.admin_client import local_admin
from hone.output import arm_label, clear_errors, console, table
from hone.settings import load_settings

app = typer.Typer(no_args_is_help=True, help="Live requests mirrored to a candidate that no client sees.")

_Id = Annotated[str, typer.Argument(help="Id of the shadow.")]


@app.command()
@clear_errors
def begin(
    policy: Annotated[str, typer.Argument(help="Policy whose requests are mirrored.")],
    version: Annotated[int | None, typer.Option(min=0, help="Candidate; left out: the Variant 'fast'.")] = None,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Of the requests that may be mirrored.")] = 0.1,
    max_requests: Annotated[int, typer.Option(min=1, help="Most requests that are mirrored.")] = 1000,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens that the candidate samples.")] = None,
) -> None:
    """Begin a shadow; every gateway follows within a second."""
    body: dict[str, Any] = {"policy": policy, "sample_share": share, "max_requests": max_requests}
    body |= {"max_tokens": max_tokens}
    body |= {"candidate_variant": "fast"} if version is None else {"candidate_version": version}
    with local_admin(load_settings()) as admin:
        began = admin.post("/shadows", body)
    console().print(f"{began['id']} runs: {escape(_arms(began))}")


@app.command("list")
@clear_errors
def list_(
    policy: Annotated[str | None, typer.Option(help="Those of this Policy.")] = None,
    status: Annotated[str | None, typer.Option(help="running or stopped.")] = None,
) -> None:
    """List shadows, oldest first."""
    with local_admin(load_settings()) as admin:
        found = admin.get("/shadows", policy=policy, status=status)
    rows = table("id", "policy", "status", "arms", "share", "ended because")
    for one in found:
        why = escape(one["stopped_because"] or "")
        rows.add_row(one["id"], one["policy"], one["status"], _arms(one), f"{one['sample_share']:.0%}", why)
    console().print(rows)


@app.command()
@clear_errors
def report(experiment_id: _Id) -> None:
    """Say what the mirrored requests prove so far, and what was not mirrored."""
    with local_admin(load_settings()) as admin:
        view = admin.get(f"/shadows/{experiment_id}/report")
    experiment, found = view["experiment"], view["report"]
    console().print(
        f"{experiment['id']}: {experiment['policy']}, {experiment['status']}, {escape(_arms(experiment))}"
    )
    if experiment["stopped_because"]:
        console().print(f"ended because {escape(experiment['stopped_because'])}")
    fates = ", ".join(f"{name} {found[name]}" for name in ("scored", "unscored", "failed"))
    console().print(f"mirrored {found['mirrored']}: {fates}")
    rows = table("Domain", "pairs", "primary", "candidate", "difference", "interval", "better/worse", "McNemar p")
    for one in found["domains"]:
        rows.add_row(
            escape(one["domain"]),
            str(one["pairs"]),
            f"{one['primary']:.3f}",
            f"{one['candidate']:.3f}",
            f"{one['difference']:+.4f}",
            escape(f"[{one['low']:+.4f}, {one['high']:+.4f}]"),
            f"{one['better']}/{one['worse']}",
            f"{one['mcnemar_p']:.3g}",
        )
    console().print(rows)
    sides = table("side", "answers", "seconds", "tokens", "bad events")
    for name in ("primary", "candidate"):
        one = found[name]
        events = ", ".join(f"{event} {count}" for event, count in one["events"].items())
        sides.add_row(
            name, str(one["answers"]), _shown(one["mean_seconds"]), _shown(one["mean_tokens"]), events or "-"
        )
    console().print(sides)
    for reason, count in sorted(found["skipped"].items(), key=lambda item: -item[1]):
        console().print(f"not mirrored, {escape(reason)}: {count}")


@app.command()
@clear_errors
def stop(
    experiment_id: _Id, reason: Annotated[str, typer.Option(help="Why; it is kept.")] = "stopped by hand"
) -> None:
    """Mirror no more."""
    with local_admin(load_settings()) as admin:
        admin.post(f"/shadows/{experiment_id}/stop", {"reason": reason})
    console().print(f"{experiment_id} is stopped")


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _arms(experiment: dict[str, Any]) -> str:
    """``candidate 3 beside primary 2``."""
    primary, candidate = (arm_label(arm) for arm in experiment["arms"][:2])
    return f"{candidate} beside {primary}"
