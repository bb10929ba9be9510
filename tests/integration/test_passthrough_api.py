"""Embeddings, tokenise and detokenise through the gateway, before engines with the routes and engines without."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest
from aiohttp import web

from core.errors import RateLimited
from serving.engines.fake import FakeEngineServer
from tests.client_api_harness import BASE, POLICY, ClientApi, running_client_api


class RoutedEngine(FakeEngineServer):
    """An engine with the routes that are passed through; it notes what it was asked."""

    def __init__(self) -> None:
        super().__init__(base_name=BASE)
        self.asked: list[tuple[str, dict]] = []
        self.status = 200
        self._side: web.AppRunner | None = None
        self.side_url = ""

    @property
    def url(self) -> str:
        """Where the routes are."""
        return self.side_url

    async def start(self) -> None:
        """Listen."""
        application = web.Application()
        application.add_routes(
            [web.post(path, self._passed) for path in ("/v1/embeddings", "/tokenize", "/detokenize", "/v1/score")]
        )
        application.add_routes([web.get("/health", self._health)])
        self._side = web.AppRunner(application, access_log=None)
        await self._side.setup()
        site = web.TCPSite(self._side, "127.0.0.1", 0)
        await site.start()
        self.side_url = f"http://127.0.0.1:{self._side.addresses[0][1]}"

    async def stop(self) -> None:
        """Die."""
        if self._side is not None:
            await self._side.cleanup()
            self._side = None

    async def _passed(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, await request.json()))
        if self.status != 200:
            return web.json_response({"error": {"message": "too long", "param": "input"}}, status=self.status)
        if request.path == "/tokenize":
            return web.json_response({"count": 2, "max_model_len": 2048, "tokens": [1, 2]})
        usage = {"prompt_tokens": 3, "total_tokens": 3}
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}]
        return web.json_response({"object": "list", "model": BASE, "data": data, "usage": usage})


class Ledger:
    """Limits that note what they are told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.settled: list[int] = []
        self.released = 0
        self.full = False
        self.headers = [(b"x-ratelimit-limit-requests", b"9")]

    async def admit(self, caller, model, *, stream, tokens):
        """Let in, unless full."""
        if self.full:
            raise RateLimited("full")
        self.calls.append((model, tokens))
        return self

    def settle(self, *, prompt_tokens: int, completion_tokens: int) -> None:
        """Note."""
        self.settled.append(prompt_tokens + completion_tokens)

    def release(self) -> None:
        """Note."""
        self.released += 1


@asynccontextmanager
async def engine_of(api: ClientApi, name: str = "dep_a") -> AsyncIterator[RoutedEngine]:
    """A running replica with the routes."""
    async with RoutedEngine() as engine:
        await api.add_engine(name, engine)
        yield engine


@pytest.fixture
async def api(fresh_sqlite_url, open_store, make_config):
    """The client routes on SQLite."""
    async with running_client_api(await open_store(fresh_sqlite_url), make_config) as api:
        yield api


async def test_embeddings_by_the_official_client(api: ClientApi):
    """The engine gets its own model name and all fields, the client the vectors under the public name."""
    async with engine_of(api) as engine:
        found = await api.client().embeddings.create(
            model=POLICY, input="hello", encoding_format="float", extra_body={"truncate_prompt_tokens": 5}
        )
    assert found.data[0].embedding == [0.5, -1.0]
    assert found.model == "coder@0"
    assert engine.asked == [
        (
            "/v1/embeddings",
            {"model": BASE, "input": "hello", "encoding_format": "float", "truncate_prompt_tokens": 5},
        )
    ]


async def test_tokens_pass_both_ways(api: ClientApi):
    """Answers without a model field come back byte for byte."""
    async with engine_of(api) as engine:
        assert await api.call("POST", "/tokenize", {"model": BASE, "prompt": "a b"}) == (
            200,
            {"count": 2, "max_model_len": 2048, "tokens": [1, 2]},
        )
        assert (await api.call("POST", "/detokenize", {"model": BASE, "tokens": [1]}))[0] == 200
    assert [path for path, _ in engine.asked] == ["/tokenize", "/detokenize"]


async def test_an_engine_without_the_route_says_so(api: ClientApi):
    """A living engine that answers 404 or 501 is told from a dead one."""
    async with FakeEngineServer(base_name=BASE) as engine:
        await api.add_engine("dep_a", engine)
        with pytest.raises(openai.NotFoundError, match="the engine that serves 'coder' has no embeddings route"):
            await api.client().embeddings.create(model=POLICY, input="x")
    status, body = await api.call("POST", "/v1/embeddings", {"model": POLICY, "input": "x"})
    assert (status, body["error"]["code"]) == (503, "engine_unavailable")
    async with engine_of(api) as engine:
        engine.status = 501
        assert (await api.call("POST", "/v1/score", {"model": BASE}))[0] == 404


async def test_a_dead_replica_is_stepped_over(api: ClientApi):
    """Another replica answers."""
    dead = FakeEngineServer(base_name=BASE)
    await dead.start()
    await dead.stop()
    await api.add_engine("dep_0", dead)
    async with engine_of(api, "dep_b"):
        for _ in range(2):
            assert (await api.call("POST", "/tokenize", {"model": BASE, "prompt": "a"}))[0] == 200


async def test_what_the_engine_refuses_is_the_callers_fault(api: ClientApi):
    """The engine's 400 keeps its message and param."""
    async with engine_of(api) as engine:
        engine.status = 400
        status, body = await api.call("POST", "/v1/embeddings", {"model": BASE, "input": "x"})
    assert (status, body["error"]["message"], body["error"]["param"]) == (400, "too long", "input")


async def test_limits_are_asked_and_told(api: ClientApi):
    """Tokens are settled by the engine's usage, none for tokenise; a full limit is 429; all is released."""
    ledger = api.parts.limits = Ledger()
    async with engine_of(api) as engine:
        await api.call("POST", "/v1/embeddings", {"model": POLICY, "input": "x" * 400})
        await api.call("POST", "/tokenize", {"model": POLICY, "prompt": "x" * 400})
        engine.status = 400
        await api.call("POST", "/v1/embeddings", {"model": POLICY, "input": "x"})
        ledger.full = True
        assert (await api.call("POST", "/v1/embeddings", {"model": POLICY, "input": "x"}))[0] == 429
    assert ledger.settled == [3, 0]
    assert ledger.released == 3
    assert ledger.calls[0][0] == POLICY
    assert ledger.calls[0][1] >= 100
    assert ledger.calls[1] == (POLICY, 0)


async def test_scope_and_model_lists_hold(api: ClientApi):
    """Only inference keys, and only models that the key may use."""
    await api.add_key("narrow", {"inference"}, models=("coder",))
    async with engine_of(api):
        for key, model, status in (
            ("rater", BASE, 403),
            ("nobody", BASE, 401),
            ("narrow", BASE, 403),
            ("narrow", POLICY, 200),
            ("user", "absent", 404),
        ):
            assert (await api.call("POST", "/tokenize", {"model": model, "prompt": "a"}, key))[0] == status


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"{}", b'{"model": 1}', b'{"model": null}', b"\xff", b"[" * 5000])
async def test_odd_bodies_are_refused(api: ClientApi, body):
    """What is not a JSON object that names a model is 400."""
    headers = {"authorization": f"Bearer {api.keys['user']}"}
    async with api.http.post(api.url + "/tokenize", data=body, headers=headers) as response:
        assert response.status == 400
        assert "error" in json.loads(await response.read())
