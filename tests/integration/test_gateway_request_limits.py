"""Requests that are too deep, too long, too many, or odd: refused in OpenAI's shape before anything is done."""

import asyncio
import json
from typing import Any

import pytest

from tests.gateway_harness import POLICY, QUESTION, Harness, running_gateway

CHAT: dict[str, Any] = {"model": POLICY, "messages": QUESTION, "max_tokens": 4}
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/feedback"]
DEEP = b"[" * 100_000 + b"]" * 100_000
MANY = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


@pytest.fixture
async def harness(fresh_sqlite_url, open_store, make_config):
    """A gateway on SQLite with one engine."""
    store = await open_store(fresh_sqlite_url)
    async with running_gateway(store, make_config, {"store.url": fresh_sqlite_url}) as harness:
        await harness.add_engine()
        yield harness


async def refused(harness: Harness, path: str, body: bytes, status: int, key: str = "admin", **headers: str) -> None:
    """The answer has this status and an error object, and no engine was asked."""
    headers = {"content-type": "application/json"} | headers
    response = await harness.post(path, body, key=key, **headers)
    text = await response.text()
    assert response.status == status, text
    error = json.loads(text)["error"]
    assert error["message"]
    assert harness.engine.requests == []


@pytest.mark.parametrize("nested", [DEEP, MANY], ids=["lists", "objects"])
async def test_deep_json_is_400(harness: Harness, nested):
    """A body that is nested more deeply than anything real is a bad request, wherever the nesting stands."""
    for path in (*PATHS, "/admin/v1/policies", "/admin/v1/keys"):
        for body in (
            nested,
            b'{"model":"coder","messages":' + nested + b"}",
            b'{"model":"coder","prompt":' + nested + b',"input":' + nested + b"}",
            b'{"model":"coder","metadata":' + nested + b',"messages":[{"role":"user","content":"x"}]}',
            b'{"model":' + nested + b"}",
            b'{"name":"x","value":' + nested + b"}",
        ):
            await refused(harness, path, body, 400)


async def test_large_and_many_headers_are_431(harness: Harness):
    """One header of a MiB, or hundreds of small ones, end the connection with 431 in OpenAI's shape."""
    many = b"".join(b"x-%d: 1\r\n" % number for number in range(300))
    for path in (b"/v1/chat/completions", b"/v1/models", b"/admin/v1/policies"):
        for lines in (b"x-long: " + b"x" * 2**20 + b"\r\n", many):
            answer = await raw(harness, b"POST " + path + b" HTTP/1.1\r\nhost: x\r\n" + lines + b"\r\n")
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 431 "), head[:100]
            assert json.loads(body)["error"]["code"] == "request_headers_too_large"
    answer = await raw(harness, b"GET /" + b"x" * 2**20 + b" HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/v1/messages", "/admin/v1/policies"])
async def test_a_long_body_is_413(harness: Harness, path):
    """Above 32 MiB the answer is 413, declared or in chunks."""

    async def chunks():
        for _ in range(33):
            yield b" " * 1024 * 1024

    for body in (b" " * (33 * 1024 * 1024), chunks()):
        headers = harness.headers("admin", **{"content-type": "application/json"})
        async with harness.http.post(harness.url + path, headers=headers, data=body) as response:
            assert response.status == 413
            error = (await response.json())["error"]
            assert (error.get("code") or error["type"]) == "request_too_large"
    assert harness.engine.requests == []


async def test_many_query_parameters_change_nothing(harness: Harness):
    """Thousands of parameters are ignored where none is known, and refused in OpenAI's shape where some are."""
    query = "&".join(f"a{number}={number}" for number in range(4000))
    assert (await harness.post(f"/v1/chat/completions?{query}", CHAT)).status == 200
    for path, status in (("/v1/models", 200), ("/admin/v1/episodes", 400)):
        response = await harness.http.get(f"{harness.url}{path}?{query}", headers=harness.headers("admin"))
        assert response.status == status, await response.text()
        if status != 200:
            assert "error" in await response.json()


async def test_odd_methods_are_405_or_404(harness: Harness):
    """A method that a route does not have is 405 with ``allow``, an unknown path 404, both in OpenAI's shape."""
    for path in ("/v1/completions", "/v1/messages", "/admin/v1/policies/coder/promote", "/nothing"):
        for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE", "PROPFIND"):
            response = await harness.http.request(method, harness.url + path, headers=harness.headers("admin"))
            assert response.status == (404 if path == "/nothing" else 405), (method, path)
            assert response.status == 404 or "POST" in response.headers["allow"], (method, path)
            if method != "HEAD":
                assert (await response.json())["error"]["code"] in ("not_found", "method_not_allowed")


async def test_an_unknown_method_is_400(harness: Harness):
    """What is no HTTP method does not reach a route."""
    answer = await raw(harness, b"BREW /v1/chat/completions HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")


async def raw(harness: Harness, request: bytes) -> bytes:
    """What the server answers to these bytes until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(harness.url.rpartition(":")[2]))
    try:
        writer.write(request)
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()
