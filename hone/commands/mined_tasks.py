"""``hone tasks mine`` and ``hone tasks review``: Tasks from what clients asked."""

import asyncio
from typing import Annotated

import typer
from rich.markup import escape

from core.config.schema import HoneConfig
from core.errors import InvalidRequest
from core.mined_task import MinedStatus, MinedTask
from core.task import Split
from hone.bootstrap import migrate
from hone.opened_store import opened_store
from hone.output import clear_errors, console, table
from hone.settings import load_settings
from sandbox.mining.miner import MiningReport, decide
from sandbox.mining.miner import mine as mine_tasks

review = typer.Typer(no_args_is_help=True, help="Decide about Tasks that were mined from clients' Episodes.")

_SHOWN = 70


@clear_errors
def mine(
    policy: Annotated[str, typer.Argument(help="Policy whose Episodes are looked at.")],
    domain: Annotated[str | None, typer.Option(help="Only Episodes of this Domain.")] = None,
    split: Annotated[str, typer.Option(help="train, warmup, or heldout where it is really meant.")] = "train",
    limit: Annotated[int, typer.Option(min=1, help="Most Tasks to propose; the newest Episodes come first.")] = 1_000,
) -> None:
    """Propose Tasks from consented Episodes: prompt, files, and a verifier or rubric from the record."""
    wanted = _split(split)
    report = asyncio.run(_mine(load_settings(), policy, domain, wanted, limit))
    screen = console()
    screen.print(f"{report.episodes} Episodes: {report.proposed} Tasks proposed, {report.accepted} accepted unseen")
    for cause, number in sorted(report.refused.items()):
        screen.print(f"  {number} not: {cause}")
    if report.proposed > report.accepted:
        screen.print("[dim]hone tasks review list[/]")


@review.command("list")
@clear_errors
def list_(
    status: Annotated[str, typer.Option(help="proposed, accepted or rejected.")] = "proposed",
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
) -> None:
    """List mined Tasks, oldest first."""
    mined = asyncio.run(_list(load_settings(), _status(status), limit))
    rows = table("task", "domain", "split", "judged by", "verifier", "asked")
    for one in mined:
        spec = one.task.verifiers[0]
        judged = f"{spec.name} {spec.options}"[:_SHOWN]
        asked = str(one.task.messages[-1].get("content", ""))[:_SHOWN]
        rows.add_row(one.id, one.task.domain, one.task.split, one.judged_by, escape(judged), escape(asked))
    console().print(rows)


@review.command()
@clear_errors
def accept(
    tasks: Annotated[list[str], typer.Argument(help="Ids of mined Tasks.")],
    reason: Annotated[str | None, typer.Option()] = None,
) -> None:
    """Let Tasks be attempted and trained on."""
    asyncio.run(_decide(load_settings(), tasks, True, reason))
    console().print(f"{len(tasks)} accepted")


@review.command()
@clear_errors
def reject(
    tasks: Annotated[list[str], typer.Argument(help="Ids of mined Tasks.")],
    reason: Annotated[str | None, typer.Option()] = None,
) -> None:
    """Turn Tasks down; they are not proposed again."""
    asyncio.run(_decide(load_settings(), tasks, False, reason))
    console().print(f"{len(tasks)} rejected")


async def _mine(config: HoneConfig, policy: str, domain: str | None, split: Split, limit: int) -> MiningReport:
    await asyncio.to_thread(migrate, config)
    async with opened_store(config) as store:
        async with store.reading() as work:
            await work.policies.get(policy)
        return await mine_tasks(store, config.learner, policy=policy, domain=domain, split=split, limit=limit)


async def _list(config: HoneConfig, status: MinedStatus, limit: int) -> list[MinedTask]:
    await asyncio.to_thread(migrate, config)
    async with opened_store(config) as store, store.reading() as work:
        return await work.mined.list(status, limit=limit)


async def _decide(config: HoneConfig, ids: list[str], accepted: bool, reason: str | None) -> None:
    """All of them or, where one cannot be decided, none."""
    async with opened_store(config) as store, store.transaction() as work:
        for one in ids:
            await decide(work, one, accept=accepted, by="operator", reason=reason)


def _split(text: str) -> Split:
    match text:
        case "train" | "heldout" | "warmup":
            return text
        case _:
            raise InvalidRequest(f"'{text}' is not a split", hint="use train, heldout or warmup")


def _status(text: str) -> MinedStatus:
    try:
        return MinedStatus(text)
    except ValueError:
        raise InvalidRequest(f"'{text}' is not a status", hint="use proposed, accepted or rejected") from None
