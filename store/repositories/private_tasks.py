"""Which Tasks hold a Tenant's words: those of its Suites and Domains, mined ones, and rewordings of all of these."""

from collections.abc import Collection, Iterable

from sqlalchemy import ColumnElement, select

from core.suite import Suite
from core.task import Task
from store.connection import Connection
from store.tables.mined_tasks import MINED_TASKS
from store.tables.suites import SUITES
from store.tables.tasks import TASKS

PAGE = 500
"""Ids in one statement: far below what either database takes."""
_REWORDED = '"perturbation_of":'


async def tasks_of_tenant(connection: Connection, tenant_id: str) -> list[str]:
    """Ids, ascending. A Task that somebody else's Suite has too is not the Tenant's alone and stays out."""
    own: set[str] = set()
    others: set[str] = set()
    for row in await connection.rows(select(SUITES.c.tenant_id, SUITES.c.payload)):
        (own if row.tenant_id == tenant_id else others).update(Suite.model_validate_json(row.payload).task_ids)
    in_domain = await connection.rows(select(TASKS.c.id).where(in_domain_of(TASKS.c.domain, tenant_id)))
    mined = await connection.rows(select(MINED_TASKS.c.id).where(MINED_TASKS.c.tenant_id == tenant_id))
    found = (own - others) | {row.id for row in in_domain} | {row.id for row in mined}
    return sorted(found | await _reworded(connection, found))


async def tasks_of_episode(connection: Connection, episode_id: str) -> list[str]:
    """Ids of the Tasks mined from an Episode and of their rewordings, ascending."""
    rows = await connection.rows(select(MINED_TASKS.c.id).where(MINED_TASKS.c.episode_id == episode_id))
    mined = {row.id for row in rows}
    return sorted(mined | await _reworded(connection, mined))


def in_domain_of(column: ColumnElement[str], tenant_id: str) -> ColumnElement[bool]:
    """The Domains of a Tenant's private Suites are named after it."""
    return column.startswith(f"tenant/{tenant_id}/", autoescape=True)


def pages(values: Iterable[str]) -> list[list[str]]:
    """``values`` in lists that one statement takes."""
    ordered = list(values)
    return [ordered[start : start + PAGE] for start in range(0, len(ordered), PAGE)]


async def _reworded(connection: Connection, task_ids: Collection[str]) -> set[str]:
    """Perturbed copies have the Domain of the first, and name it."""
    domains: set[str] = set()
    for page in pages(task_ids):
        rows = await connection.rows(select(TASKS.c.domain).where(TASKS.c.id.in_(page)).distinct())
        domains |= {row.domain for row in rows}
    found: set[str] = set()
    for domain in sorted(domains):
        query = select(TASKS.c.payload).where(TASKS.c.domain == domain)
        for row in await connection.rows(query.where(TASKS.c.payload.contains(_REWORDED, autoescape=True))):
            task = Task.model_validate_json(row.payload)
            if task.metadata.get("perturbation_of") in task_ids:
                found.add(task.id)
    return found
