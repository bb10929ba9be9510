"""``hone tasks``: list, make, import and run Tasks."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from core.config.schema import HoneConfig
from core.job import Job
from core.task import Split, Task
from hone.bootstrap import migrate
from hone.commands import mined_tasks
from hone.jobs import finished, nothing_to_check
from hone.opened_store import opened_store
from hone.output import clear_errors, console, table
from hone.settings import load_settings
from sandbox.domains.registry import domain_source
from sandbox.task_folder import load_task_folder

app = typer.Typer(no_args_is_help=True, help="Tasks and their Domains.")
app.command("mine")(mined_tasks.mine)
app.add_typer(mined_tasks.review, name="review")

_RUN_TIMEOUT_SECONDS = 300.0


@app.command("list")
@clear_errors
def list_(
    domain: Annotated[str | None, typer.Option(help="Only of this Domain.")] = None,
    split: Annotated[str | None, typer.Option(help="train, heldout or warmup.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
) -> None:
    """List Tasks."""
    tasks = asyncio.run(_list(load_settings(), domain, split, limit))
    rows = table("task", "domain", "split", "asked")
    for task in tasks:
        rows.add_row(task.id, task.domain, task.split, escape(str(task.messages[-1].get("content", ""))[:70]))
    console().print(rows)


@app.command()
@clear_errors
def generate(
    domain: Annotated[str, typer.Argument(help="Domain, such as python_tool or reasoning_gym/<dataset>.")],
    count: Annotated[int, typer.Option(min=1, help="How many.")] = 100,
    split: Annotated[str, typer.Option(help="train, heldout or warmup.")] = "train",
    seed: Annotated[int, typer.Option(help="Another seed gives other Tasks.")] = 0,
) -> None:
    """Make Tasks of a Domain and store them."""
    source = domain_source(domain)
    added = asyncio.run(_add(load_settings(), source.generate(_split(split), count, seed), source.domain()))
    console().print(f"{added} new Tasks in {domain}")


@app.command("import")
@clear_errors
def import_(folder: Annotated[Path, typer.Argument(help="Folder of Task files; see docs/tasks.md.")]) -> None:
    """Check a folder of Tasks and store them; nothing is stored when one has an error."""
    added = asyncio.run(_add(load_settings(), load_task_folder(folder), None))
    console().print(f"{added} new Tasks from {folder}")


@app.command()
@clear_errors
def run(
    task_id: Annotated[str, typer.Argument(help="Id of the Task.")],
    policy: Annotated[str, typer.Option(help="Policy that attempts it.")],
    version: Annotated[int | None, typer.Option(help="PolicyVersion; default: the promoted one.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0)] = 1.0,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Run one attempt at a Task with the running workers and show its Reward."""
    job = asyncio.run(_run(load_settings(), task_id, policy, version, temperature, seed))
    result = job.result or {}
    reward = result.get("reward")
    shown = "no reward" if reward is None else f"reward {reward:.2f}"
    console().print(f"{result.get('episode_id')} {result.get('status')}: {shown}")
    console().print(f"[dim]hone episodes show {result.get('episode_id')}[/]")


async def _list(config: HoneConfig, domain: str | None, split: str | None, limit: int) -> list[Task]:
    await asyncio.to_thread(migrate, config)
    async with opened_store(config) as store, store.transaction() as tx:
        return await tx.tasks.list(domain=domain, split=_split(split) if split else None, limit=limit)


async def _add(config: HoneConfig, tasks: list[Task], domain: Any) -> int:
    await asyncio.to_thread(migrate, config)
    async with opened_store(config) as store, store.transaction() as tx:
        if domain is not None:
            await tx.domains.put(domain)
        return await tx.tasks.add_many(tasks)


async def _run(
    config: HoneConfig, task_id: str, policy_name: str, version: int | None, temperature: float, seed: int
) -> Job:
    async with opened_store(config) as store:
        async with store.transaction() as tx:
            task = await tx.tasks.get(task_id)
            policy = await tx.policies.get(policy_name)
        payload = {
            "task_id": task.id,
            "policy": policy.name,
            "version": policy.promoted_version if version is None else version,
            "variant": "standard",
            "group_id": None,
            "attempt": 0,
            "purpose": "evaluate",
            "temperature": temperature,
            "seed": seed,
            "run_id": None,
        }
        job = await store.queue.enqueue("rollout", payload, priority=10)
        return await finished(store, job, check=nothing_to_check, seconds=_RUN_TIMEOUT_SECONDS)


def _split(text: str) -> Split:
    match text:
        case "train" | "heldout" | "warmup":
            return text
        case _:
            raise typer.BadParameter(f"'{text}' is not train, heldout or warmup")
