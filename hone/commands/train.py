"""``hone train``: ask the learner for a run and watch it."""

import asyncio
from typing import Annotated

import typer

from core.config.schema import HoneConfig
from core.errors import InvalidRequest
from hone.jobs import nothing_to_check
from hone.opened_store import opened_store
from hone.output import clear_errors, console
from hone.settings import load_settings
from hone.training import request_run, watch_run

_QUEUED_SECONDS = 30.0


@clear_errors
def train(
    policy: Annotated[str, typer.Argument(help="Policy to train.")],
    domain: Annotated[list[str], typer.Option(help="Domain to train on; may be given several times.")],
    algorithm: Annotated[str, typer.Option(help="grpo or sft.")] = "grpo",
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 10,
    start_version: Annotated[int | None, typer.Option(help="Default: the promoted version.")] = None,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Train a Policy with the running learner; each step publishes a new version."""
    if algorithm not in {"grpo", "sft"}:
        raise InvalidRequest(f"'{algorithm}' is not an algorithm", hint="use grpo or sft")
    asyncio.run(_train(load_settings(), policy, tuple(domain), algorithm, steps, start_version, seed))


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
        screen.print(f"run {run_id}: {algorithm} from {policy_name}@{start}, {steps} steps")
        steps_done = watch_run(store, run_id=run_id, job=job, check=nothing_to_check, queued_seconds=_QUEUED_SECONDS)
        async for step in steps_done:
            reward = "" if step.reward_mean is None else f" reward {step.reward_mean:.3f}"
            screen.print(f"step {step.step}: @{step.version}{reward} loss {step.loss:.4f}")
        screen.print("done; see 'hone policies show' for the versions")
