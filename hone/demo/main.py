"""The demo from end to end: each stage in order, timed, with its result in plain words."""

import asyncio
import shutil
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from core.config.sandbox import WorkerSection
from core.config.schema import HoneConfig, StoreSection
from core.errors import HoneError, boundary
from hone.demo.plan import POLICY, DemoPlan
from hone.demo.report import print_report, write_html
from hone.demo.stages import Demo
from hone.demo.summary import Figures, Outcome, Stopwatch, Summary, checks_of, write_summary
from hone.leftovers import end_leftover_engines
from hone.output import complain, console
from hone.signals import EXIT_INTERRUPTED, until_signal
from hone.up import check_machine

FOLDER = Path("runs/demo")
EXIT_NOT_PROVEN = 3


def run_demo(config: HoneConfig, *, seed: int, keep: bool) -> int:
    """Run the demo in ``runs/demo``; returns the exit code.

    0: proven, 3: not proven, 1: a stage or a request failed, 130: ended by a signal.
    """
    settings = demo_settings(config)
    screen = console()
    stopwatch = Stopwatch()
    try:
        with boundary(HoneError, "the demo failed"):
            for name in ("summary.json", "report.html"):
                (FOLDER / name).unlink(missing_ok=True)
            code = asyncio.run(until_signal(_run(settings, DemoPlan(), seed, keep, screen, stopwatch)))
        if code is not None:
            return code
        error = HoneError("the demo was ended by a signal")
        code = EXIT_INTERRUPTED
    except HoneError as raised:
        error, code = raised, 1
    complain(error)
    screen.print(f"[dim]logs: {escape(str(settings.data_dir / 'logs'))}[/]")
    _write_failure(error, seed, stopwatch)
    return code


def demo_settings(config: HoneConfig) -> HoneConfig:
    """The given configuration cut off from every other installation.

    The demo has its own data folder and database, calls its own gateway and launches its own engines.
    """
    worker = WorkerSection()
    return config.model_copy(
        update={
            "data_dir": (FOLDER / "state").absolute(),
            "store": StoreSection(),
            "worker": config.worker.model_copy(update={"gateway_url": worker.gateway_url, "api_key": worker.api_key}),
            "fleet": config.fleet.model_copy(update={"attach": {}}),
        }
    )


async def _fresh_folder(config: HoneConfig) -> None:
    if (config.data_dir / "hone.db").exists():
        await end_leftover_engines(config)
    if config.data_dir.exists():
        shutil.rmtree(config.data_dir)
    config.data_dir.mkdir(parents=True)


async def _run(
    config: HoneConfig, plan: DemoPlan, seed: int, keep: bool, screen: Console, stopwatch: Stopwatch
) -> int:
    await asyncio.to_thread(check_machine, config)
    await _fresh_folder(config)
    async with Demo(config, plan, seed=seed, keep=keep, screen=screen, stopwatch=stopwatch) as demo:
        await demo.prepare()
        await demo.start()
        await demo.chat()
        start_version = await demo.warm_up()
        warmup = await demo.evaluate(start_version, baseline=0, stage="evaluate start")
        run = await demo.train(start_version)
        last = run.steps[-1].version
        trained = await demo.evaluate(last, baseline=start_version, stage="evaluate trained")
        # A run in which something failed proves nothing, whatever its figures say.
        proven = trained.proven_better and await demo.trouble() is None
        if proven:
            await demo.promote_and_roll_back(last)
        figures = await demo.figures(warmup, trained, run)
        return _conclude(demo, figures, seed, proven, await demo.trouble(), screen, stopwatch)


def _conclude(
    demo: Demo,
    figures: Figures,
    seed: int,
    promoted: bool,
    trouble: str | None,
    screen: Console,
    stopwatch: Stopwatch,
) -> int:
    outcome: Outcome = "failed" if trouble else "proven" if promoted else "not_proven"
    summary = Summary(
        outcome=outcome,
        seed=seed,
        policy=POLICY,
        domain=demo.plan.domain,
        promoted_version=figures.trained.version if promoted else None,
        stages=stopwatch.stages,
        checks=checks_of(figures, stopwatch.total_seconds),
        rewards=tuple(step.reward_mean or 0.0 for step in figures.run.steps),
        error=trouble,
        details={"gain": figures.trained.gain.model_dump(), "swap_seconds": figures.swap_seconds},
    )
    write_summary(summary, FOLDER)
    next_steps = demo.next_steps()
    html_path = write_html(summary, figures, FOLDER, next_steps)
    print_report(screen, summary, figures, html_path)
    screen.print("\n[bold]what to try next[/]")
    for line in next_steps:
        screen.print(f"  {line}", markup=False)
    if trouble:
        screen.print(f"[red]failed:[/] {escape(trouble)}")
        return 1
    return 0 if promoted else EXIT_NOT_PROVEN


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
    try:
        write_summary(summary, FOLDER)
    except OSError as failure:
        complain(HoneError(f"{FOLDER} cannot be written: {failure}"))
