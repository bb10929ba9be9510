"""The contract of Tenants, ApiKeys and Usage in the store, on SQLite and on PostgreSQL."""

import asyncio

import pytest

from core.access import Allowance, ApiKey, Scope, Tenant
from core.errors import NotFound
from core.usage import Usage, month_end, month_of
from store.store import Store

KEY = ApiKey(id="key_a", tenant_id="ten_a", name="k", key_hash="new", scopes=frozenset({Scope.INFERENCE}))


def usage(**fields: object) -> Usage:
    """One request of one key in one month."""
    values = {"tenant_id": "ten_a", "key_id": "key_a", "month": "2026-11", "requests": 1}
    return Usage.model_validate(values | fields)


async def test_a_tenant_is_replaced_as_a_whole(store: Store) -> None:
    """Limits and lists come back as they were; an unknown Tenant is NotFound."""
    tenant = Tenant(id="ten_a", name="A")
    changed = tenant.model_copy(
        update={"models": ("coder*",), "allowance": Allowance(dollars_per_month=0.5, tokens_per_month=2**40)}
    )
    async with store.transaction() as work:
        await work.tenants.add(tenant)
        assert await work.tenants.get("ten_a", lock=True) == tenant
        await work.tenants.update(changed)
        with pytest.raises(NotFound):
            await work.tenants.update(Tenant(id="ten_b", name="B"))
    async with store.reading() as work:
        assert await work.tenants.get("ten_a") == changed


async def test_a_key_is_found_by_both_of_its_hashes(store: Store) -> None:
    """By the present one and by the one before the last rotation, and by no older one."""
    async with store.transaction() as work:
        await work.tenants.add(Tenant(id="ten_a", name="A"))
        await work.api_keys.add(KEY.model_copy(update={"key_hash": "oldest"}))
        for hashes in (("old", "oldest"), ("new", "old")):
            rotated = KEY.model_copy(
                update={"key_hash": hashes[0], "previous_hash": hashes[1], "previous_until": 2.0}
            )
            await work.api_keys.update(rotated)
    async with store.reading() as work:
        assert await work.api_keys.by_hash("new") == rotated
        assert await work.api_keys.by_hash("old") == rotated
        assert await work.api_keys.by_hash("oldest") is None


async def test_usage_is_added_up(store: Store) -> None:
    """Rows of one key and month become one, whoever adds and when; large numbers stay exact."""
    great = usage(key_id="key_b", prompt_tokens=2**50, completion_tokens=2**50, cost_microdollars=2**50)

    async def add(*usages: Usage) -> None:
        async with store.transaction() as work:
            await work.usage.add(usages)

    await add()
    await add(usage(prompt_tokens=5), great, usage(month="2026-10"))
    await asyncio.gather(*(add(great.model_copy(update={"key_id": "key_c"}), usage()) for _ in range(8)))
    await add(usage(tenant_id="ten_b"))
    async with store.reading() as work:
        rows = await work.usage.list("ten_a")
        assert [(row.month, row.key_id, row.requests) for row in rows] == [
            ("2026-11", "key_a", 9),
            ("2026-11", "key_b", 1),
            ("2026-11", "key_c", 8),
            ("2026-10", "key_a", 1),
        ]
        assert rows[0].tokens == 5
        assert rows[2].cost_microdollars == 8 * 2**50
        assert [row.month for row in await work.usage.list("ten_a", "2026-10")] == ["2026-10"]
        assert await work.usage.list("ten_c") == []


@pytest.mark.parametrize(
    ("seconds", "month", "end"),
    [
        (0.0, "1970-01", 2_678_400.0),
        (1_796_083_199.9, "2026-11", 1_796_083_200.0),
        (1_798_761_600.0, "2027-01", None),
    ],
)
def test_months_are_calendar_months_in_utc(seconds: float, month: str, end: float | None) -> None:
    """A month ends where the next begins."""
    assert month_of(seconds) == month
    if end is not None:
        assert month_end(seconds) == end
    assert month_of(month_end(seconds) - 1) == month
    assert month_of(month_end(seconds)) != month
