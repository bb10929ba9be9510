"""``hone runs``: list, show, and draw TrainingRuns."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from core.run import StepMetrics, TrainingRun
from hone.admin_client import local_admin
from hone.output import clear_errors, console, table
from hone.run_page import run_page
from hone.settings import load_settings

app = typer.Typer(no_args_is_help=True, help="Training runs: what they did, step by step.")

RunId = Annotated[str, typer.Argument(help="Id of the run, from 'hone runs list'.")]


@app.command("list")
@clear_errors
def list_(policy: Annotated[str | None, typer.Option(help="Only of this Policy.")] = None) -> None:
    """List TrainingRuns, newest first."""
    with local_admin(load_settings()) as admin:
        found = admin.get("/runs", policy=policy)
    rows = table("run", "policy", "algorithm", "domains", "steps", "versions", "status", "reward", "why it ended")
    for run in (TrainingRun.model_validate(one) for one in found):
        versions = sorted({step.version for step in run.steps} - {run.start_version})
        rewards = [step.reward_mean for step in run.steps if step.reward_mean is not None]
        rows.add_row(
            run.id,
            escape(run.policy),
            run.algorithm,
            escape(", ".join(run.domains)),
            f"{len(run.steps)}/{run.planned_steps}",
            f"@{versions[0]}-@{versions[-1]}" if versions else "-",
            run.status.value,
            f"{rewards[0]:.3f} → {rewards[-1]:.3f}" if rewards else "-",
            escape((run.error or "")[:80]),
        )
    console().print(rows)


@app.command()
@clear_errors
def show(run_id: RunId) -> None:
    """Show a run's steps and alarms."""
    with local_admin(load_settings()) as admin:
        run = TrainingRun.model_validate(admin.get(f"/runs/{run_id}"))
    screen = console()
    screen.print(
        f"[bold]{escape(run.id)}[/] {run.algorithm} on {escape(run.policy)}, {run.status.value}, "
        f"{len(run.steps)}/{run.planned_steps} steps from @{run.start_version}, seed {run.seed}"
    )
    if run.error:
        screen.print(f"[yellow]{escape(run.error)}[/]")
    rows = table(
        "step", "version", "reward", "success", "tokens", "entropy", "mismatch", "ESS", "clip", "norm", "alarms"
    )
    for step in run.steps:
        rows.add_row(*step_cells(step), escape(", ".join(str(alarm) for alarm in step.alarms)))
    screen.print(rows)
    for name in sorted({name for step in run.steps for name in step.domains}):
        screen.print(_domain_line(run, name), markup=False)


@app.command()
@clear_errors
def page(
    run_id: RunId,
    output: Annotated[Path | None, typer.Option(help="File to write; default: RUN.html.")] = None,
) -> None:
    """Write a run as one HTML page with its pictures."""
    with local_admin(load_settings()) as admin:
        run = TrainingRun.model_validate(admin.get(f"/runs/{run_id}"))
        lineage = admin.get(f"/runs/{run_id}/lineage")
    path = output or Path(f"{run.id}.html")
    path.write_text(run_page(run, lineage))
    console().print(f"{path}: open it in a browser", markup=False)


def step_cells(step: StepMetrics) -> tuple[str, ...]:
    """A step's numbers for a table; '-' where there is none."""
    values = step.values

    def shown(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    return (
        str(step.step),
        f"@{step.version}",
        shown(step.reward_mean, ".3f"),
        shown(step.success_rate, ".2f"),
        shown(values.get("tokens"), ".0f"),
        shown(values.get("entropy"), ".3f"),
        shown(values.get("mismatch_kl"), ".2g"),
        shown(values.get("ess"), ".2f"),
        shown(values.get("clip_share"), ".3f"),
        f"{step.gradient_norm:.3g}",
    )


def _domain_line(run: TrainingRun, name: str) -> str:
    seen = [step.domains[name] for step in run.steps if name in step.domains]
    rewards = [one.reward_mean for one in seen if one.reward_mean is not None]
    curve = f"reward {rewards[0]:.3f} → {rewards[-1]:.3f}" if rewards else "no reward"
    flat = sum(one.zero_variance_groups for one in seen)
    return f"{name}: {sum(one.groups for one in seen)} groups ({flat} without variance), {curve}"
