"""WeightControl over vLLM's development routes (read from 0.32.0) and the methods of Hone's engine plugin.

What vLLM 0.32 does where it matters for a hot-swap (``v1/engine/core.py``, ``v1/core/sched/scheduler.py``):

- ``/pause?mode=keep`` answers when the running step has ended, whatever is in flight. With ``clear_cache``, which it
  heeds in this mode too, requests in flight are preempted and all keys and values forgotten at once.
- ``/reset_prefix_cache`` does nothing while a request holds blocks, and says so, unless ``reset_running_requests``
  is set: then those are preempted, and recomputed from their tokens, prompt and sampled alike, when they go on.
- ``reload_weights`` clears no keys and values, and only warns of parameters that the folder lacks, which keep their
  old values: what was loaded must be checked by digests. It takes LoRA adapters out of the slots; they are loaded
  again by the next request that needs them.
"""

from typing import Any

from core.errors import AdapterRejected, EngineError, EngineUnavailable, EngineUnsupported
from serving.engines.http import HttpEngine, error_message, json_of

_HINT = "start vLLM with VLLM_SERVER_DEV_MODE=1, which Hone does where it replaces weights or controls speculation"
_LOAD_DRAFTER = "hone_load_drafter"
_SET_SPECULATION = "hone_set_speculation"


class VllmWeights(HttpEngine):
    """The routes that replace what a vLLM server computes with."""

    async def pause(self) -> None:
        """POST /pause in keep mode; what is in flight is recomputed when it goes on."""
        await self._step("pause", "/pause?mode=keep&clear_cache=true", seconds=self._weights_seconds)

    async def resume(self) -> None:
        """POST /resume."""
        await self._step("resume", "/resume")

    async def paused(self) -> bool:
        """GET /is_paused."""
        return bool((await self._step("say whether it is paused", "/is_paused", method="GET")).get("is_paused"))

    async def load_weights(self, path: str, *, label: str) -> None:
        """POST /collective_rpc ``reload_weights``, then /update_weight_version."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        async with self._send("POST", "/collective_rpc", json=body, seconds=self._weights_seconds) as response:
            status = response.status
            refused = _refused(await json_of(response)) if status == 200 else None
            message = refused or ("" if status == 200 else await error_message(response))
        if status == 404:
            raise _unsupported(self.url, "replace weights")
        if refused is not None:
            raise AdapterRejected(f"the engine refused the weights in {path}: {message}")
        if status != 200:
            if not await self.health():
                raise EngineUnavailable(f"{self.url} failed while loading {path}: {message}")
            raise AdapterRejected(f"the engine refused the weights in {path}: {message}")
        await self._step("label its weights", "/update_weight_version", json={"new_version": label})

    async def clear_caches(self) -> None:
        """POST /reset_prefix_cache with running requests preempted, then the caches of other inputs."""
        path = "/reset_prefix_cache?reset_running_requests=true&reset_external=true"
        answer = await self._step("clear its caches", path)
        if answer.get("success") is not True:
            raise EngineError(f"{self.url} kept keys and values that it was told to forget")
        for path in ("/reset_mm_cache", "/reset_encoder_cache"):
            await self._step("clear its caches", path)

    async def weights_label(self) -> str:
        """GET /weight_info."""
        answer = await self._step("name its weights", "/weight_info", method="GET")
        return str(answer.get("weight_version") or "default")

    async def weight_checksums(self) -> dict[str, str]:
        """POST /weight_checker: sha256 over each parameter's bytes, with ranks in the name's prefix."""
        answer = await self._step(
            "digest its weights", "/weight_checker", json={"action": "checksum"}, seconds=self._weights_seconds
        )
        found = answer.get("checksums")
        if not isinstance(found, dict):
            raise EngineError(f"{self.url}/weight_checker answered in an unknown form")
        return {str(name): str(digest) for name, digest in found.items()}

    async def load_drafter(self, path: str) -> None:
        """The plugin's ``hone_load_drafter``; requests in flight are recomputed."""
        refused = await self._call(_LOAD_DRAFTER, {"path": path}, seconds=self._weights_seconds)
        if refused is not None:
            raise AdapterRejected(f"the engine refused the drafter in {path}: {refused}")

    async def set_speculation(self, on: bool) -> None:
        """The plugin's ``hone_set_speculation``; requests in flight go on, at most one draft later."""
        await self._call(_SET_SPECULATION, {"on": "true" if on else "false"})

    async def _step(
        self,
        what: str,
        path: str,
        *,
        method: str = "POST",
        json: dict[str, Any] | None = None,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Call a development route; its JSON object, or an empty one where it answers with nothing."""
        async with self._send(method, path, json=json, seconds=seconds) as response:
            if response.status == 200:
                return await json_of(response) if response.content_length else {}
            status, message = response.status, await error_message(response)
        if status == 404:
            raise _unsupported(self.url, what)
        raise await self._failed(what, message)

    async def _call(self, name: str, arguments: dict[str, str], *, seconds: float | None = None) -> str | None:
        """Call a method of the plugin on every worker; why the first one refused its argument, or None."""
        body = {"method": name, "kwargs": arguments}
        async with self._send("POST", "/collective_rpc", json=body, seconds=seconds) as response:
            status = response.status
            answer = await json_of(response) if status == 200 else {}
            message = "" if status == 200 else await error_message(response)
        if status == 404:
            raise _unsupported(self.url, f"call {name}")
        if status != 200:
            error = await self._failed(f"call {name}", message)
            if isinstance(error, EngineUnavailable):
                raise error
            raise EngineUnsupported(
                f"{self.url} has no working {name}: {message}",
                hint="let Hone launch the engine, or put serving/engine_plugin on its PYTHONPATH",
            )
        for one in _results(answer):
            if "unsupported" in one:
                raise EngineUnsupported(f"{self.url} cannot do {name}: {one['unsupported']}")
        return _refused(answer)


def _unsupported(url: str, what: str) -> EngineUnsupported:
    return EngineUnsupported(f"{url} cannot {what}: its development routes are off", hint=_HINT)


def _results(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """What each worker, or the plugin in their place, answered with an object."""
    return [one for one in answer.get("results") or () if isinstance(one, dict)]


def _refused(answer: dict[str, Any]) -> str | None:
    return next((str(one["refused"]) for one in _results(answer) if "refused" in one), None)
