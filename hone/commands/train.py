"""``hone train``: ask the learner for a run and watch it."""

import asyncio
from typing import Annotated

import typer

from core.config.schema import HoneConfig
from core.errors import InvalidRequest
from hone.dry_run import check_layout, forecast, forecast_table, free_bytes, present_device
from hone.jobs import nothing_to_check
from hone.opened_store import opened_store
from hone.output import clear_errors, console
from hone.run_progress import RunProgress
from hone.settings import load_settings
from hone.training import request_run, watch_run

_QUEUED_SECONDS = 30.0


@clear_errors
def train(
    policy: Annotated[str, typer.Argument(help="Policy to train.")],
    domain: Annotated[list[str] | None, typer.Option(help="Domain to train on; may be given several times.")] = None,
    algorithm: Annotated[str, typer.Option(help="grpo, sft or live.")] = "grpo",
    live: Annotated[bool, typer.Option("--live", help="Learn from clients' Episodes and their feedback.")] = False,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Optimizer steps; default: 10, or with --live all that was said.")
    ] = None,
    start_version: Annotated[int | None, typer.Option(help="Default: the promoted version.")] = None,
    seed: Annotated[int, typer.Option()] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would need, and start nothing.")] = False,
) -> None:
    """Train a Policy with the running learner; each step publishes a new version."""
    algorithm = "live" if live else algorithm
    if algorithm not in {"grpo", "sft", "live"}:
        raise InvalidRequest(f"'{algorithm}' is not an algorithm", hint="use grpo, sft or live")
    if not domain and algorithm != "live":
        raise InvalidRequest("name at least one --domain to train on", hint="or learn from clients with --live")
    if dry_run:
        asyncio.run(_forecast(load_settings(), policy, tuple(domain or ()), algorithm, steps or 10))
        return
    wanted = steps if steps is not None else 0 if algorithm == "live" else 10
    asyncio.run(_train(load_settings(), policy, tuple(domain or ()), algorithm, wanted, start_version, seed))


async def _train(
    config: HoneConfig,
    policy_name: str,
    domains: tuple[str, ...],
    algorithm: str,
    steps: int,
    start_version: int | None,
    seed: int,
) -> None:
    screen = console()
    async with opened_store(config) as store:
        async with store.transaction() as tx:
            policy = await tx.policies.get(policy_name)
        start = policy.promoted_version if start_version is None else start_version
        run_id, job = await request_run(
            store,
            policy=policy_name,
            algorithm=algorithm,
            domains=domains,
            steps=steps,
            start_version=start,
            seed=seed,
        )
        planned = f"{steps} steps" if steps else "until what was said is used up"
        screen.print(f"run {run_id}: {algorithm} from {policy_name}@{start}, {planned}")
        steps_done = watch_run(store, run_id=run_id, job=job, check=nothing_to_check, queued_seconds=_QUEUED_SECONDS)
        with RunProgress(screen, steps=steps) as progress:
            async for step in steps_done:
                progress.step(step)
        screen.print(
            f"done; 'hone policies show {policy_name}' lists the versions, 'hone runs page {run_id}' draws it"
        )


async def _forecast(config: HoneConfig, policy: str, domains: tuple[str, ...], algorithm: str, steps: int) -> None:
    if algorithm not in {"grpo", "sft"}:
        raise InvalidRequest("--dry-run is for grpo and sft", hint="what clients say is not known before")
    section = config.learner
    device = present_device()
    async with opened_store(config) as store:
        found = await forecast(store, section, policy=policy, domains=domains, device=device, algorithm=algorithm)
    console().print(forecast_table(found, section, steps=steps))
    check_layout(found, section, size=free_bytes(device))
    console().print("[green]it fits[/]; without --dry-run it is started")
