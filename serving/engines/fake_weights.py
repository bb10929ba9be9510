"""Weights, caches and pauses of the fake vLLM: its development routes, each of which can be made to fail.

Answers have the forms of vLLM 0.32.0 (``entrypoints/rl/online/api_router.py``, ``entrypoints/serve/dev``). Keys and
values are stood for by the weights that they were computed under: a request whose prompt begins with a cached
block, or that was in flight, answers as neither the old nor the new weights would when they were not cleared.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aiohttp import web

from core.errors import CorruptArtefact
from serving.engines import fake_model
from serving.engines.fake_shapes import error_body
from serving.weights.safetensors_file import read_header

Step = Literal["pause", "resume", "paused", "reload", "clear", "label", "checksum", "drafter", "speculation"]
Handler = Callable[[web.Request], Awaitable[web.Response]]
BLOCK = 16
"""Tokens in a block of the prefix cache."""
_PREFIX = "dp0:pp0:pcp0:tp0:"
_FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj"}
_FUSED |= {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}
_ORDER = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
_MODULE = re.compile(r"\.(" + "|".join(_ORDER) + r")\.")


@dataclass
class KeysAndValues:
    """What one request has computed: under which weights, and how often the caches had been cleared by then."""

    identity: str
    clears: int


class FakeWeights:
    """What a fake vLLM holds, and how its next steps fail. Set the public attributes at any time."""

    def __init__(self, *, identity: str, base_path: Path | None, die: Callable[[], None]) -> None:
        self.development_routes = True
        """False: as without ``VLLM_SERVER_DEV_MODE``, none of the routes here exists."""
        self.plugin = True
        """False: as without Hone's engine plugin, drafters and speculation cannot be controlled, and a folder of
        other shapes breaks the engine's weights instead of being refused."""
        self.fail_next: dict[Step, str] = {}
        """Step → the message with which it fails next time; a reload that fails leaves broken weights."""
        self.die_next: set[Step] = set()
        """Steps at which the engine dies next time, before it answers."""
        self.delay_seconds: dict[Step, float] = {}
        """How long each step takes."""
        self.wrong_content: str | None = None
        """Identity that newly loaded weights get instead of their own; their checksums tell it too."""
        self.wrong_answers: str | None = None
        """Identity as which newly loaded weights answer, while their checksums are those of the folder."""
        self.keep_stale = False
        """Say that the caches were cleared, and keep them."""
        self.steps: list[Step] = []
        """All steps that were asked for, in order."""
        self.loaded: list[str] = []
        """Folders of full weights that were asked for, in order."""
        self.drafters: list[str] = []
        """Folders of draft models that were loaded, in order."""
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._base = (identity, base_path)
        self._die = die
        self._running = asyncio.Event()
        self.restart()

    def restart(self) -> None:
        """As a started engine: the Base's weights, nothing cached, not paused, speculating."""
        self.identity, self._path = self._base
        self.answers_as: str | None = None
        self.label = "default"
        self.speculating = True
        self._cached: dict[tuple[str | None, tuple[int, ...]], str] = {}
        self._clears = 0
        self._running.set()

    @property
    def paused(self) -> bool:
        """Whether requests are frozen."""
        return not self._running.is_set()

    def present(self, adapter: str | None) -> str:
        """What stands for the present weights with the adapter of this identity; None: without one."""
        weights = self.answers_as or self.identity
        if adapter is None:
            return weights
        return adapter if weights == self._base[0] else f"{adapter}+{weights}"

    def prompt(self, adapter: str | None, token_ids: Sequence[int]) -> KeysAndValues:
        """Look a new request's prompt up in the prefix cache, and keep it there."""
        present = self.present(adapter)
        self.prefix_queries += len(token_ids)
        if len(token_ids) < BLOCK:
            return KeysAndValues(present, self._clears)
        key = (adapter, tuple(token_ids[:BLOCK]))
        if key in self._cached:
            self.prefix_hits += BLOCK
        return KeysAndValues(self._cached.setdefault(key, present), self._clears)

    async def frozen(self) -> None:
        """Wait while the engine is paused."""
        await self._running.wait()

    def answering(self, adapter: str | None, held: KeysAndValues) -> str:
        """As which weights a request goes on; recomputes what it held if the caches were cleared meanwhile."""
        present = self.present(adapter)
        if held.identity == present or held.clears != self._clears:
            held.identity, held.clears = present, self._clears
            return present
        return f"stale:{held.identity}|{present}"

    def routes(self) -> list[web.RouteDef]:
        """The development routes."""
        return [
            web.post("/pause", self._step("pause", self._pause)),
            web.post("/resume", self._step("resume", self._resume)),
            web.get("/is_paused", self._step("paused", self._is_paused)),
            web.post("/collective_rpc", self._collective_rpc),
            web.post("/reset_prefix_cache", self._step("clear", self._reset_prefix_cache)),
            web.post("/reset_mm_cache", self._nothing),
            web.post("/reset_encoder_cache", self._nothing),
            web.post("/update_weight_version", self._step("label", self._update_weight_version)),
            web.get("/weight_info", self._weight_info),
            web.post("/weight_checker", self._step("checksum", self._weight_checker)),
        ]

    def _step(self, step: Step, handler: Handler) -> Handler:
        async def scripted(request: web.Request) -> web.Response:
            if not self.development_routes:
                return web.json_response({"detail": "Not Found"}, status=404)
            self.steps.append(step)
            await asyncio.sleep(self.delay_seconds.get(step, 0.0))
            if step in self.die_next:
                self.die_next.discard(step)
                self._die()
                if request.transport is not None:
                    request.transport.close()
                await asyncio.sleep(60)
            message = self.fail_next.pop(step, None)
            if message is not None:
                if step == "reload":
                    self.identity, self.answers_as = f"broken:{len(self.steps)}", None
                return _failure(message)
            return await handler(request)

        return scripted

    async def _nothing(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self.development_routes else 404)

    async def _pause(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "abort")
        if mode != "keep":
            return web.json_response({"error": f"the fake pauses in keep mode alone, not '{mode}'"}, status=400)
        self._running.clear()
        if request.query.get("clear_cache", "true") == "true":
            self._clear()
        return web.json_response({"status": "paused"})

    async def _resume(self, _request: web.Request) -> web.Response:
        self._running.set()
        return web.json_response({"status": "resumed"})

    async def _is_paused(self, _request: web.Request) -> web.Response:
        return web.json_response({"is_paused": self.paused})

    async def _collective_rpc(self, request: web.Request) -> web.Response:
        body = await request.json()
        methods: dict[str, tuple[Step, Callable[[dict[str, Any]], web.Response]]] = {
            "reload_weights": ("reload", self._reload)
        }
        if self.plugin:
            methods["hone_load_drafter"] = ("drafter", self._load_drafter)
            methods["hone_set_speculation"] = ("speculation", self._set_speculation)
        if body["method"] not in methods or not self.development_routes:
            # vLLM says no more than this for a method that its workers do not have.
            return (
                _failure("EngineCore encountered an issue.") if self.development_routes else web.Response(status=404)
            )
        step, method = methods[body["method"]]

        async def call(_request: web.Request) -> web.Response:
            return method(body.get("kwargs") or {})

        return await self._step(step, call)(request)

    def _reload(self, arguments: dict[str, Any]) -> web.Response:
        path = Path(arguments["weights_path"])
        self.loaded.append(str(path))
        try:
            identity = fake_model.weights_identity(path)
            if self._base[1] is not None and identity == fake_model.weights_identity(self._base[1]):
                identity = self._base[0]
            expected, found = (None if one is None else _shapes(one) for one in (self._base[1], path))
        except (OSError, CorruptArtefact) as error:
            return _failure(f"Cannot find any model weights with `{path}`: {error}")
        if expected is not None and expected != found:
            if self.plugin:
                return _refused("its 'model.embed_tokens.weight' is of another shape")
            self.identity, self.answers_as = f"broken:{len(self.steps)}", None
            return _failure("The size of a tensor does not fit that of the model")
        self.identity, self._path = self.wrong_content or identity, None if self.wrong_content else path
        self.answers_as = self.wrong_answers
        return web.json_response({"results": [None]})

    def _load_drafter(self, arguments: dict[str, Any]) -> web.Response:
        path = Path(arguments["path"])
        if not any(path.glob("*.safetensors")):
            return _refused("it has no *.safetensors")
        self.drafters.append(str(path))
        return web.json_response({"results": [{"loaded": 1}]})

    def _set_speculation(self, arguments: dict[str, Any]) -> web.Response:
        self.speculating = arguments["on"] == "true"
        return web.json_response({"results": [{"speculating": self.speculating}]})

    async def _reset_prefix_cache(self, request: web.Request) -> web.Response:
        if request.query.get("reset_running_requests") != "true":
            # Blocks of running requests would be kept.
            return web.json_response({"success": False})
        self._clear()
        return web.json_response({"success": True})

    def _clear(self) -> None:
        if not self.keep_stale:
            self._cached.clear()
            self._clears += 1

    async def _update_weight_version(self, request: web.Request) -> web.Response:
        self.label = (await request.json())["new_version"]
        return web.json_response({"success": True, "new_version": self.label})

    async def _weight_info(self, _request: web.Request) -> web.Response:
        if not self.development_routes:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response({"weight_version": self.label})

    async def _weight_checker(self, _request: web.Request) -> web.Response:
        broken = self.identity.startswith("broken:")
        if self._path is None or broken:
            digests = {f"{_PREFIX}model.embed_tokens.weight": hashlib.sha256(self.identity.encode()).hexdigest()}
        else:
            digests = checksums(self._path)
        return web.json_response({"checksums": digests})


def checksums(path: Path) -> dict[str, str]:
    """The digests of a folder's weights as vLLM holds them: sha256 over the bytes, fused projections in one."""
    parts: dict[str, list[tuple[int, bytes]]] = {}
    for file in sorted(path.glob("*.safetensors")):
        data = file.read_bytes()
        for name, entry in read_header(file).items():
            found = _MODULE.search(name)
            module = found[1] if found else ""
            fused = name.replace(f".{module}.", f".{_FUSED[module]}.") if module else name
            place = _ORDER.index(module) if module else 0
            parts.setdefault(_PREFIX + fused, []).append((place, data[entry.start : entry.end]))
    return {
        name: hashlib.sha256(b"".join(part for _, part in sorted(pieces))).hexdigest()
        for name, pieces in parts.items()
    }


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    return {name: entry.shape for file in path.glob("*.safetensors") for name, entry in read_header(file).items()}


def _refused(reason: str) -> web.Response:
    """As the engine plugin answers before anything was changed."""
    return web.json_response({"results": [{"refused": reason}]})


def _failure(message: str) -> web.Response:
    return web.json_response(error_body(message, type_="InternalServerError", code=500), status=500)
