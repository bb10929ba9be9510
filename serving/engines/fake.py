"""A real HTTP server that answers as vLLM 0.32 does, from a toy model, and fails on request.

For tests of the gateway and the fleet: ids and log-probs are deterministic, adapters are told apart by the
bytes of their weights file, and every failure that a replica can show can be scripted. ``weights`` plays the
routes that replace an engine's own weights.
"""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from serving.engines import fake_model, fake_shapes
from serving.engines.fake_metrics import Counted, metrics_text
from serving.engines.fake_model import Generation, Sampling
from serving.engines.fake_script import ScriptedAnswer, scripted
from serving.engines.fake_shapes import Call, error_body
from serving.engines.fake_weights import FakeWeights, KeysAndValues


def _compact(body: object) -> str:
    """JSON without spaces, as vLLM writes it."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False)


class _Refusal(Exception):
    """A request that gets an error answer in vLLM's shape."""

    def __init__(self, status: int, message: str, type_: str, param: str | None = None) -> None:
        super().__init__(message)
        self.response = web.json_response(error_body(message, type_=type_, code=status, param=param), status=status)


@dataclass
class _Answer:
    """One request being answered."""

    call: Call
    generations: list[Generation]
    sampling: Sampling
    adapter: str | None
    """Identity of its adapter; None: the Base."""
    held: KeysAndValues
    under: str
    """As which weights its next tokens are sampled."""
    labels: list[tuple[str, int]]
    """Labels of the weights that sampled it, each with its first token."""


class FakeEngineServer:
    """One engine replica at ``url``. Set the public attributes at any time to script what happens next."""

    def __init__(
        self,
        *,
        base_name: str = "base",
        max_model_len: int = 2048,
        speculative: bool = False,
        port: int = 0,
        base_path: Path | None = None,
    ) -> None:
        self.base_name = base_name
        self.max_model_len = max_model_len
        self.speculative = speculative
        """Report draft tokens in ``/metrics``: four drafted and three accepted per four sampled tokens."""
        self.weights = FakeWeights(identity=fake_model.base_identity(base_name), base_path=base_path, die=self._die)
        """Its own weights. With ``base_path`` it has that folder's checksums at first, and refuses other shapes."""
        self.adapters: dict[str, str] = {}
        """Loaded adapter name → identity of its weights."""
        self.requests: list[dict[str, Any]] = []
        """Bodies of all completion requests so far, in order."""
        self.loads: list[str] = []
        """Names of all adapters that were asked for, in order."""
        self.running = 0
        """Completion requests being answered now, those that are frozen by a pause included."""
        self.kv_use = 0.0
        """Share of the KV cache in use, as reported."""
        self.healthy = True
        self.token_delay_seconds = 0.0
        """Pause before each token of a stream, and as often before a whole answer."""
        self.load_delay_seconds = 0.0
        self.fail_requests = 0
        """How many of the next completion requests get a 500."""
        self.die_after_tokens: int | None = None
        """Cut the connection of each stream after this many chunks with tokens."""
        self.refuse_loads: str | None = None
        """Refuse to load adapters, with this message."""
        self.script: list[ScriptedAnswer] = []
        """What the next chat completions say, in order; afterwards the toy model speaks again."""
        self.refuse_renders: int | None = None
        """Answer requests to render with this status: 403 as without ``--enable-scale-out``, 404 as other engines."""
        self.render_prefix = ""
        """What a changed template writes before every conversation; renderings alone show it."""
        self.twins = False
        """Sample tokens that a rendering of their text does not have."""
        self.refuse_ids: str | None = None
        """Refuse chat requests that carry the ids of their prompt, with this message."""
        self.renders: list[dict[str, Any]] = []
        """Bodies of all requests to render, in order."""
        self.wrong_content: str | None = None
        """Identity that newly loaded adapters get instead of their own (see ``fake_model``)."""
        self._port = port
        self._runner: web.AppRunner | None = None
        self._waiting = 0
        self._generated = 0
        self._unspeculated = 0
        self._deaths: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``; known once started, and kept over ``stop`` and ``start``."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen, on the same port as before if there was one; a started engine holds its Base and no adapters."""
        self.adapters.clear()
        self.weights.restart()
        application = web.Application(client_max_size=64 * 2**20)
        application.add_routes(
            [
                web.get("/health", self._health),
                web.get("/version", self._version),
                web.get("/v1/models", self._models),
                web.get("/metrics", self._metrics),
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/chat/completions/render", self._render),
                web.post("/v1/completions", self._completions),
                web.post("/v1/load_lora_adapter", self._load),
                web.post("/v1/unload_lora_adapter", self._unload),
                *self.weights.routes(),
            ]
        )
        # As vLLM does: a client that leaves ends its request.
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Die: connections are cut and nothing listens any more."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def __aenter__(self) -> "FakeEngineServer":
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    def identity(self, model: str) -> str:
        """What stands for the weights that answer under ``model``; KeyError: not served."""
        return self.weights.present(None if model == self.base_name else self.adapters[model])

    def _die(self) -> None:
        server = None if self._runner is None else self._runner.server
        for connection in [] if server is None else server.connections:
            # Requests in flight end with their connections.
            if connection.transport is not None:
                connection.transport.close()
        death = asyncio.create_task(self.stop())
        self._deaths.add(death)
        death.add_done_callback(self._deaths.discard)

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _models(self, request: web.Request) -> web.Response:
        cards: list[dict[str, Any]] = [_card(self.base_name, max_model_len=self.max_model_len)]
        cards += [_card(name, parent=self.base_name) for name in self.adapters]
        return web.json_response({"object": "list", "data": cards})

    async def _metrics(self, request: web.Request) -> web.Response:
        counted = Counted(
            model=self.base_name,
            running=self.running,
            waiting=self._waiting,
            kv_use=self.kv_use,
            prefix_queries=self.weights.prefix_queries,
            prefix_hits=self.weights.prefix_hits,
            output_tokens=self._generated,
            speculated_tokens=self._generated - self._unspeculated if self.speculative else None,
        )
        return web.Response(text=metrics_text(counted), content_type="text/plain")

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        name, path = body["lora_name"], body["lora_path"]
        self.loads.append(name)
        await asyncio.sleep(self.load_delay_seconds)
        try:
            if self.refuse_loads is not None:
                raise _Refusal(500, self.refuse_loads, "InternalServerError")
            if name in self.adapters or name == self.base_name:
                raise _Refusal(
                    400,
                    f"The lora adapter '{name}' has already been loaded. If you want to load the adapter "
                    "in place, set 'load_inplace' to True.",
                    "InvalidUserInput",
                )
            try:
                identity = fake_model.adapter_identity(Path(path))
            except OSError as error:
                message = f"No adapter found for {path}"
                raise _Refusal(404, message, "NotFoundError") from error
        except _Refusal as refusal:
            return refusal.response
        self.adapters[name] = self.wrong_content or identity
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        if name not in self.adapters:
            message = f"The lora adapter '{name}' cannot be found."
            return _Refusal(404, message, "NotFoundError").response
        del self.adapters[name]
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=True)

    async def _render(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.renders.append(body)
        try:
            if self.refuse_renders is not None:
                raise _Refusal(self.refuse_renders, "Scale-out endpoints are disabled.", "PermissionDeniedError")
            if body.get("model") != self.base_name and body.get("model") not in self.adapters:
                raise _Refusal(404, "The model does not exist.", "NotFoundError", "model")
            token_ids = _prompt_ids(body, chat=True)
        except _Refusal as refusal:
            return refusal.response
        if self.render_prefix:
            token_ids = fake_model.encode(self.render_prefix) + token_ids
        return web.json_response({"request_id": "chatcmpl-fake", "token_ids": token_ids, "features": None})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=False)

    async def _answer(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        try:
            body = await request.json()
            self.requests.append(body)
            if self.fail_requests > 0:
                self.fail_requests -= 1
                raise _Refusal(500, "EngineCore encountered an issue.", "InternalServerError")
            if self.refuse_ids is not None and body.get("kv_transfer_params"):
                raise _Refusal(400, self.refuse_ids, "BadRequestError")
            await self._not_paused()
            answer = self._generate(body, chat=chat)
        except _Refusal as refusal:
            return refusal.response
        except json.JSONDecodeError as error:
            return _Refusal(400, f"Invalid JSON: {error}", "Bad Request").response
        self.running += 1
        try:
            if body.get("stream"):
                return await self._stream(request, answer)
            step = 0
            while step < max(len(one.token_ids) for one in answer.generations):
                await self._before_token(answer, step)
                step += 1
            self._count(answer)
            body = fake_shapes.whole(answer.call, answer.generations)
            told = self._told(answer)
            return web.json_response(body | ({"kv_transfer_params": told} if told else {}), dumps=_compact)
        finally:
            self.running -= 1

    async def _not_paused(self) -> None:
        if self.weights.paused:
            self._waiting += 1
            try:
                await self.weights.frozen()
            finally:
                self._waiting -= 1

    async def _stream(self, request: web.Request, answer: _Answer) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        sent = 0
        chunks = fake_shapes.stream(answer.call, answer.generations)
        while True:
            await self._before_token(answer, sent // answer.call.n)
            chunk = next(chunks, None)
            if chunk is None:
                break
            if chunk["choices"] and "role" not in chunk["choices"][0].get("delta", {}):
                sent += 1
            if self.die_after_tokens is not None and sent > self.die_after_tokens:
                if request.transport is not None:
                    request.transport.close()
                return response
            await response.write(f"data: {_compact(chunk)}\n\n".encode())
        self._count(answer)
        if told := self._told(answer):
            await response.write(f"data: {_compact(told)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _before_token(self, answer: _Answer, step: int) -> None:
        """Take the time of a token; then sample it, and all after it, anew if the weights are others by now."""
        await asyncio.sleep(self.token_delay_seconds)
        await self.weights.frozen()
        if self.weights.label != answer.labels[-1][0]:
            answer.labels.append((self.weights.label, step))
        under = self.weights.answering(answer.adapter, answer.held)
        if under == answer.under:
            return
        answer.under = under
        for index, one in enumerate(answer.generations):
            if one.deltas is None and step < len(one.token_ids):
                resampled = fake_model.generate(
                    under, answer.call.prompt_ids, answer.sampling, index, begun=one, steps=step
                )
                answer.generations[index] = fake_model.twinned(resampled) if self.twins else resampled

    def _told(self, answer: _Answer) -> dict[str, Any]:
        """What Hone's plugin adds to an answer (``engine_plugin/hone_weight_spans.py``)."""
        # A change before the first token leaves nothing of the label before.
        labels = {first: label for label, first in answer.labels}
        if not self.weights.plugin or set(labels.values()) == {"default"}:
            return {}
        spans = {
            str(index): [[label, first] for first, label in labels.items() if first < len(one.token_ids)]
            for index, one in enumerate(answer.generations)
        }
        return {"hone_weight_versions": spans}

    def _count(self, answer: _Answer) -> None:
        sampled = sum(len(one.token_ids) for one in answer.generations)
        self._generated += sampled
        if not self.weights.speculating:
            self._unspeculated += sampled

    def _generate(self, body: dict[str, Any], *, chat: bool) -> _Answer:
        model = body.get("model") or self.base_name
        if model != self.base_name and model not in self.adapters:
            names = ", ".join([self.base_name, *self.adapters])
            message = f"The model `{model}` does not exist. Valid aliases: {names}."
            raise _Refusal(404, message, "NotFoundError", "model")
        identity = self.identity(model)
        prompt_ids = _prompt_ids(body, chat=chat)
        sampling = self._sampling(body, len(prompt_ids), chat=chat)
        n = int(body.get("n") or 1)
        if n > 1 and sampling.greedy:
            message = f"n must be 1 when using greedy sampling, got {n}."
            raise _Refusal(400, message, "BadRequestError")
        entries = None
        if body.get("prompt_logprobs") is not None:
            values = fake_model.prompt_logprobs(identity, prompt_ids)
            entries = fake_shapes.prompt_logprob_entries(prompt_ids, values)
        call = Call(
            model=model,
            chat=chat,
            prompt_ids=prompt_ids,
            n=n,
            logprobs=_logprobs_wanted(body, chat=chat),
            return_token_ids=bool(body.get("return_token_ids")),
            include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
            prompt_logprobs=entries,
        )
        adapter = None if model == self.base_name else self.adapters[model]
        held = self.weights.prompt(adapter, prompt_ids)
        under = self.weights.answering(adapter, held)
        if chat and self.script:
            generations = [scripted(under, prompt_ids, self.script.pop(0), sampling.max_tokens)] * n
        else:
            generations = [fake_model.generate(under, prompt_ids, sampling, choice) for choice in range(n)]
        if self.twins:
            generations = [fake_model.twinned(one) for one in generations]
        return _Answer(call, generations, sampling, adapter, held, under, [(self.weights.label, 0)])

    def _sampling(self, body: dict[str, Any], prompt_tokens: int, *, chat: bool) -> Sampling:
        limit = body.get("max_completion_tokens") if chat else None
        param = "max_tokens" if limit is None else "max_completion_tokens"
        limit = body.get("max_tokens") if limit is None else limit
        if limit is not None and limit > self.max_model_len:
            raise _Refusal(
                400,
                f"{param}={limit} cannot be greater than max_model_len={self.max_model_len}. "
                f"Please request fewer output tokens. (parameter={param}, value={limit})",
                "BadRequestError",
                param,
            )
        if prompt_tokens > self.max_model_len:
            raise _Refusal(
                400,
                f"This model's maximum context length is {self.max_model_len} tokens. However, your prompt "
                f"contains {prompt_tokens} input tokens, which exceeds this limit even without any output "
                "tokens. Please reduce the length of the input prompt.",
                "BadRequestError",
                "input_tokens",
            )
        room = self.max_model_len - prompt_tokens
        stop = body.get("stop") or ()
        temperature = body.get("temperature")
        return Sampling(
            max_tokens=max(1, min(room, limit if limit is not None else (room if chat else 16))),
            seed=int(body.get("seed") or 0),
            greedy=temperature is not None and temperature == 0,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            ignore_eos=bool(body.get("ignore_eos")),
        )


def _prompt_ids(body: dict[str, Any], *, chat: bool) -> list[int]:
    if chat:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise _Refusal(400, "1 validation error:\n  messages: Field required", "Bad Request", "messages")
        given = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
        if given is not None:
            return list(given)
        return fake_model.render_chat(messages, opening=body.get("add_generation_prompt") is not False)
    prompt = body.get("prompt")
    if isinstance(prompt, str) and prompt:
        return fake_model.encode(prompt)
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return list(prompt)
    raise _Refusal(400, "the prompt must be text or a list of token ids", "BadRequestError", "prompt")


def _logprobs_wanted(body: dict[str, Any], *, chat: bool) -> int | None:
    if chat:
        return int(body.get("top_logprobs") or 0) if body.get("logprobs") else None
    wanted = body.get("logprobs")
    return None if wanted is None else int(wanted)


def _card(name: str, *, parent: str | None = None, max_model_len: int | None = None) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "vllm",
        "root": name,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [],
    }
