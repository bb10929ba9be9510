"""Tenants, keys and limits through the whole gateway: admin API, permissions, headers, 429, usage."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from core.access import Scope
from tests.gateway_harness import BASE, POLICY, QUESTION, Harness, running_gateway

CHAT: dict[str, Any] = {"model": POLICY, "messages": QUESTION, "max_tokens": 8}
PATH = "/v1/chat/completions"


@pytest.fixture
async def harness(fresh_sqlite_url, open_store, make_config) -> AsyncIterator[Harness]:
    """A gateway with one engine."""
    store = await open_store(fresh_sqlite_url)
    overrides = {
        "store.url": fresh_sqlite_url,
        "gateway.usage_flush_seconds": 0.1,
        "gateway.prices": {POLICY: {"prompt": 1.0, "completion": 2.0}},
    }
    async with running_gateway(store, make_config, overrides) as harness:
        await harness.add_engine()
        yield harness


async def new_key(harness: Harness, name: str = "new", **body: Any) -> str:
    """A key made through the admin API; its id."""
    status, minted = await harness.admin("POST", "/keys", {"name": name} | body)
    assert status == 201, minted
    harness.keys[name] = minted["plaintext"]
    return minted["key"]["id"]


async def actions(harness: Harness) -> list[str]:
    """What the audit says was done, newest first."""
    _, records = await harness.admin("GET", "/audit")
    return [record["action"] for record in records]


async def test_a_tenants_life(harness: Harness) -> None:
    """Created without any grant, listed, shown, changed field by field; every write is on record."""
    status, tenant = await harness.admin("POST", "/tenants", {"name": "C", "allowance": {"requests_per_minute": 2}})
    assert status == 201
    assert (tenant["training_granted"], tenant["redact"], tenant["models"]) == (False, False, None)
    path = f"/tenants/{tenant['id']}"
    status, changed = await harness.admin("PATCH", path, {"models": ["cod*"], "redact": True})
    assert (status, changed["models"], changed["redact"]) == (200, ["cod*"], True)
    assert (changed["name"], changed["allowance"]["requests_per_minute"]) == ("C", 2)
    _, changed = await harness.admin("PATCH", path, {"models": None, "allowance": {}})
    assert (changed["models"], changed["allowance"]["requests_per_minute"]) == (None, None)
    assert await harness.admin("GET", path) == (200, changed)
    _, tenants = await harness.admin("GET", "/tenants")
    assert tenant["id"] in [found["id"] for found in tenants]
    assert await actions(harness) == ["tenant.change", "tenant.change", "tenant.create"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/tenants", {}, 400),
        ("POST", "/tenants", {"name": ""}, 400),
        ("POST", "/tenants", {"name": "x", "color": 1}, 400),
        ("POST", "/tenants", {"name": "x", "allowance": {"requests_per_minute": -1}}, 400),
        ("PATCH", "/tenants/ten_a", {"name": None}, 400),
        ("PATCH", "/tenants/none", {"name": "x"}, 404),
        ("GET", "/tenants/none", None, 404),
        ("GET", "/tenants/none/usage", None, 404),
        ("GET", "/tenants/ten_a/usage?month=2026-13", None, 400),
        ("PATCH", "/keys/none", {"name": "x"}, 404),
        ("POST", "/keys/none/rotate", {}, 404),
        ("POST", "/keys", {"name": "x", "tenant_id": "none"}, 404),
        ("POST", "/keys", {"name": "x", "scopes": ["root"]}, 400),
    ],
)
async def test_impossible_writes_are_refused(harness: Harness, method, path, body, status) -> None:
    """In OpenAI's shape, and nothing is on record."""
    answered, error = await harness.admin(method, path, body)
    assert (answered, set(error)) == (status, {"error"})
    assert await actions(harness) == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/tenants"),
        ("POST", "/tenants"),
        ("GET", "/tenants/ten_a"),
        ("PATCH", "/tenants/ten_a"),
        ("GET", "/tenants/ten_a/usage"),
        ("GET", "/keys"),
        ("POST", "/keys"),
        ("GET", "/keys/key_a"),
        ("PATCH", "/keys/key_a"),
        ("POST", "/keys/key_a/rotate"),
        ("DELETE", "/keys/key_a"),
        ("GET", "/audit"),
    ],
)
async def test_every_route_asks_for_its_scope(harness: Harness, method: str, path: str) -> None:
    """Without a key 401; with inference and feedback only 403; a reader may read and not write."""
    await harness.add_key("plain", scopes={Scope.INFERENCE, Scope.FEEDBACK})
    await harness.add_key("reader", scopes={Scope.ADMIN_READ})
    body = {"name": "x"} if method in ("POST", "PATCH") else None
    assert (await harness.admin(method, path, body, key="none"))[0] == 401
    assert (await harness.admin(method, path, body, key="plain"))[0] == 403
    assert (await harness.admin(method, path, body, key="reader"))[0] in ((200, 404) if method == "GET" else (403,))
    assert await actions(harness) == []


async def test_a_keys_life(harness: Harness) -> None:
    """Created with limits, changed, rotated with and without grace, revoked: each holds at once and is on record."""
    key_id = await new_key(harness, expires_at=4e9, allowance={"tokens_per_minute": 500}, models=[POLICY])
    _, shown = await harness.admin("GET", f"/keys/{key_id}")
    assert (shown["models"], shown["allowance"]["tokens_per_minute"], shown["expires_at"]) == ([POLICY], 500, 4e9)
    assert not {"key_hash", "previous_hash", "plaintext"} & set(shown)
    assert (await harness.post(PATH, CHAT, key="new")).status == 200
    assert (await harness.post(PATH, CHAT | {"model": BASE}, key="new")).status == 403
    await harness.admin("PATCH", f"/keys/{key_id}", {"models": None, "scopes": ["inference", "feedback"]})
    assert (await harness.post(PATH, CHAT | {"model": BASE}, key="new")).status == 200
    old = harness.keys["new"]
    status, minted = await harness.admin("POST", f"/keys/{key_id}/rotate", {"grace_seconds": 60})
    assert (status, minted["key"]["id"]) == (200, key_id)
    harness.keys |= {"old": old, "new": minted["plaintext"]}
    assert [(await harness.post(PATH, CHAT, key=name)).status for name in ("old", "new")] == [200, 200]
    status, minted = await harness.admin("POST", f"/keys/{key_id}/rotate")
    harness.keys |= {"older": old, "old": harness.keys["new"], "new": minted["plaintext"]}
    found = [(await harness.post(PATH, CHAT, key=name)).status for name in ("older", "old", "new")]
    assert found == [401, 401, 200]
    await harness.admin("PATCH", f"/keys/{key_id}", {"expires_at": 1.0})
    assert (await harness.post(PATH, CHAT, key="new")).status == 401
    await harness.admin("DELETE", f"/keys/{key_id}")
    assert (await harness.admin("POST", f"/keys/{key_id}/rotate"))[0] == 409
    expected = ["key.revoke", "key.change", "key.rotate", "key.rotate", "key.change", "key.create"]
    assert await actions(harness) == expected


async def test_models_are_listed_as_allowed(harness: Harness) -> None:
    """``/v1/models`` shows what Tenant and key both allow, and nothing else exists for the caller."""
    await harness.mint()
    everything = {model.id async for model in harness.client().models.list()}
    assert {BASE, POLICY, f"{POLICY}@0", f"{POLICY}@1"} <= everything
    await harness.admin("PATCH", "/tenants/ten_a", {"models": [POLICY]})
    assert {model.id async for model in harness.client().models.list()} == {
        name for name in everything if name.startswith(POLICY)
    }
    with pytest.raises(openai.NotFoundError):
        await harness.client().models.retrieve(BASE)
    await new_key(harness, models=[BASE])
    assert [model.id async for model in harness.client("new").models.list()] == []


async def test_the_headers_of_other_clients_are_taken(harness: Harness) -> None:
    """``x-api-key`` and ``api-key`` work in place of a bearer."""
    for name in ("x-api-key", "api-key"):
        async with harness.http.get(f"{harness.url}/v1/models", headers={name: harness.keys["user"]}) as answer:
            assert answer.status == 200


async def test_limits_answer_as_openai_does(harness: Harness) -> None:
    """Headers on every answer while there is room; then 429 with the code, Retry-After and the headers."""
    await new_key(harness, allowance={"requests_per_minute": 2, "tokens_per_minute": 100_000})
    first = await harness.post(PATH, CHAT, key="new")
    assert first.status == 200
    assert (first.headers["x-ratelimit-limit-requests"], first.headers["x-ratelimit-remaining-requests"]) == (
        "2",
        "1",
    )
    assert first.headers["x-ratelimit-limit-tokens"] == "100000"
    assert first.headers["x-ratelimit-reset-requests"].endswith("s")
    unlimited = await harness.post(PATH, CHAT)
    assert not [name for name in unlimited.headers if name.lower().startswith("x-ratelimit")]
    with pytest.raises(openai.RateLimitError) as caught:
        for _ in range(2):
            await harness.client("new").chat.completions.create(**CHAT)
    error = caught.value
    assert (error.code, error.type, error.status_code) == ("rate_limit_exceeded", "requests", 429)
    assert 1 <= int(error.response.headers["retry-after"]) <= 62
    assert error.response.headers["x-ratelimit-remaining-requests"] == "0"
    assert harness.count("hone_limited_requests_total", unit="requests") == 1


async def test_streams_are_limited_and_freed(harness: Harness) -> None:
    """A stream that ended, was left, or failed gives its place back."""
    await new_key(harness, allowance={"concurrent_streams": 1})
    client = harness.client("new")
    for _ in range(3):
        async for _chunk in await client.chat.completions.create(**CHAT, stream=True):
            pass
    for _ in range(2):
        assert (await harness.post(PATH, CHAT | {"model": "nothing", "stream": True}, key="new")).status == 404
    stream = await client.chat.completions.create(**CHAT, stream=True)
    await stream.close()
    async with asyncio.timeout(30):
        while True:
            answer = await harness.post(PATH, CHAT | {"stream": True}, key="new")
            if answer.status == 200:
                break
            assert answer.status == 429
            await asyncio.sleep(0.05)


async def test_usage_is_added_up_and_a_budget_ends(harness: Harness) -> None:
    """What was used is there by key and month with its price, and the month's budget refuses with its own code."""
    key_id = await new_key(harness)
    used = (await harness.client("new").chat.completions.create(**CHAT)).usage
    assert used is not None
    async with asyncio.timeout(30):
        while not (rows := (await harness.admin("GET", "/tenants/ten_a/usage"))[1]):
            await asyncio.sleep(0.05)
    assert rows == [
        {
            "tenant_id": "ten_a",
            "key_id": key_id,
            "month": rows[0]["month"],
            "requests": 1,
            "prompt_tokens": used.prompt_tokens,
            "completion_tokens": used.completion_tokens,
            "cost_microdollars": used.prompt_tokens + 2 * used.completion_tokens,
        }
    ]
    assert (await harness.admin("GET", "/tenants/ten_a/usage?month=2000-01"))[1] == []
    await harness.admin("PATCH", f"/keys/{key_id}", {"allowance": {"tokens_per_month": used.total_tokens}})
    with pytest.raises(openai.RateLimitError) as caught:
        await harness.client("new").chat.completions.create(**CHAT)
    assert (caught.value.code, caught.value.type) == ("insufficient_quota", "insufficient_quota")
    assert caught.value.response.headers["x-should-retry"] == "false"
