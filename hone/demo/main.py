"""The demo from end to end: each stage in order, timed, with its result in plain words."""

import asyncio
import shutil
from pathlib import Path

from rich.console import Console

from core.config.schema import HoneConfig
from core.errors import HoneError
from hone.demo.plan import POLICY, DemoPlan
from hone.demo.report import print_report, write_html
from hone.demo.stages import Demo
from hone.demo.summary import Figures, Outcome, Stopwatch, Summary, checks_of, write_summary
from hone.output import complain, console
from hone.up import check_machine

FOLDER = Path("runs/demo")
EXIT_NOT_PROVEN = 3


def run_demo(config: HoneConfig, *, seed: int, keep: bool) -> int:
    """Run the demo in ``runs/demo``; returns the exit code: 0 proven, 3 not proven, 1 a stage failed."""
    settings = demo_settings(config)
    screen = console()
    stopwatch = Stopwatch()
    try:
        check_machine(settings)
        _fresh_folder(settings)
        return asyncio.run(_run(settings, DemoPlan(), seed, keep, screen, stopwatch))
    except HoneError as error:
        complain(error)
        _write_failure(error, seed, stopwatch)
        screen.print(f"[dim]logs: {settings.data_dir / 'logs'}[/]")
        return 1


def demo_settings(config: HoneConfig) -> HoneConfig:
    """The given configuration with the demo's own data folder, so that it never touches another one."""
    return config.model_copy(update={"data_dir": (FOLDER / "state").absolute()})


def _fresh_folder(config: HoneConfig) -> None:
    shutil.rmtree(config.data_dir, ignore_errors=True)
    config.data_dir.mkdir(parents=True)


async def _run(
    config: HoneConfig, plan: DemoPlan, seed: int, keep: bool, screen: Console, stopwatch: Stopwatch
) -> int:
    async with Demo(config, plan, seed=seed, keep=keep, screen=screen, stopwatch=stopwatch) as demo:
        await demo.prepare()
        await demo.start()
        await demo.chat()
        start_version = await demo.warm_up()
        warmup = await demo.evaluate(start_version, baseline=0, stage="evaluate start")
        run = await demo.train(start_version)
        last = run.steps[-1].version
        trained = await demo.evaluate(last, baseline=start_version, stage="evaluate trained")
        proven = trained.proven_better
        if proven:
            await demo.promote_and_roll_back(last)
        figures = await demo.figures(warmup, trained, run)
        return _conclude(demo, figures, seed, proven, screen, stopwatch)


def _conclude(demo: Demo, figures: Figures, seed: int, proven: bool, screen: Console, stopwatch: Stopwatch) -> int:
    outcome: Outcome = "proven" if proven else "not_proven"
    summary = Summary(
        outcome=outcome,
        seed=seed,
        policy=POLICY,
        domain=demo.plan.domain,
        promoted_version=figures.trained.version if proven else None,
        stages=stopwatch.stages,
        checks=checks_of(figures, stopwatch.total_seconds),
        rewards=tuple(step.reward_mean or 0.0 for step in figures.run.steps),
        details={"gain": figures.trained.gain.model_dump(), "swap_seconds": figures.swap_seconds},
    )
    write_summary(summary, FOLDER)
    next_steps = demo.next_steps()
    html_path = write_html(summary, figures, FOLDER, next_steps)
    print_report(screen, summary, figures, html_path)
    screen.print("\n[bold]what to try next[/]")
    for line in next_steps:
        screen.print(f"  {line}", markup=False)
    failed_checks = [check for check in summary.checks if check.name == "failed_requests" and check.value]
    if failed_checks:
        screen.print("[red]requests failed during the run[/]")
        return 1
    return 0 if proven else EXIT_NOT_PROVEN


def _write_failure(error: HoneError, seed: int, stopwatch: Stopwatch) -> None:
    summary = Summary(
        outcome="failed",
        seed=seed,
        policy=POLICY,
        domain=DemoPlan().domain,
        promoted_version=None,
        stages=stopwatch.stages,
        checks=(),
        rewards=(),
        error=error.message,
    )
    write_summary(summary, FOLDER)
