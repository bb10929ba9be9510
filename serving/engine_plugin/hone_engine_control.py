"""Runs inside a vLLM engine: replaces the draft model's weights in place, and switches speculation off and on.

vLLM 0.32 has neither over HTTP without a weight-transfer engine, and lets any method of its workers be called with
``/collective_rpc``, a route of the development mode. Two methods are added there:

- ``hone_load_drafter(path)`` loads a Hugging Face folder into the draft model (method ``draft_model`` alone: other
  drafters share tensors with the target, which a reload would overwrite).
- ``hone_set_speculation(on)``: the scheduler's table of draft tokens per batch size, vLLM's own for dynamic
  speculation, says zero while it is off, and proposers return at once, so that an engine costs what it would
  without speculation. (Where vLLM schedules ahead of the sampled tokens, as on GPUs, proposers still keep a draft
  model's keys and values up to date.)

Both answer ``{"unsupported": reason}`` for what this engine cannot do. For a folder that does not fit, the first
answers ``{"refused": reason}``, and so does vLLM's own ``reload_weights`` here; the engine goes on as before.

The keys and values of a draft model lie in the same blocks as the target's. They are stale after its weights were
replaced and missing for what was decoded while speculation was off; both would lower acceptance unseen, so requests
in flight are recomputed and the prefix cache is forgotten after either.

vLLM finds ``register`` as an entry point of the group ``vllm.general_plugins``, as that of ``hone_engine_plugin``.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOAD_DRAFTER = "hone_load_drafter"
SET_SPECULATION = "hone_set_speculation"
RELOAD = "reload_weights"
_SAME = (
    "architectures",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "tie_word_embeddings",
    "rope_theta",
    "rms_norm_eps",
)
"""What a folder's config.json must share with the running model, where it says anything about it."""


def register() -> None:
    """Add the methods to vLLM's classes; vLLM calls this in every engine process.

    Nothing is imported here that is not loaded yet: vLLM's CPU build looks through all loaded modules after the
    plugins, and fails at some that its model runner brings in.
    """
    workers, cores = sys.modules.get("vllm.v1.worker.worker_base"), sys.modules.get("vllm.v1.engine.core")
    if workers is not None and not hasattr(workers.WorkerBase, LOAD_DRAFTER):
        setattr(workers.WorkerBase, LOAD_DRAFTER, load_drafter)
        setattr(workers.WorkerBase, SET_SPECULATION, _worker_set_speculation)
    if cores is not None and not hasattr(cores.EngineCore, "_hone_collective_rpc"):
        cores.EngineCore._hone_collective_rpc = True
        cores.EngineCore.collective_rpc = _collective_rpc(cores.EngineCore.collective_rpc)


def mismatch(running: dict[str, Any], offered: dict[str, Any]) -> str | None:
    """What keeps a model of configuration ``offered`` from taking the place of the running one, or None."""
    for key in _SAME:
        if key in running and key in offered and running[key] != offered[key]:
            return f"its {key} is {offered[key]}, the engine's is {running[key]}"
    return None


def unfit(running: Path, offered: Path, configuration: dict[str, Any]) -> str | None:
    """What keeps the weights of a folder from taking the place of those of ``running``, or None.

    vLLM itself only warns of tensors that are missing, and then dies when it computes with what it had set free.
    """
    try:
        reason = mismatch(configuration, json.loads((offered / "config.json").read_text()))
        if reason is not None:
            return reason
        expected, found = tensor_shapes(running), tensor_shapes(offered)
    except (OSError, ValueError) as error:
        return f"it cannot be read: {error}"
    for name in sorted(expected.keys() | found.keys()):
        if name == "lm_head.weight" and configuration.get("tie_word_embeddings"):
            continue
        if expected.get(name) != found.get(name):
            return f"its '{name}' is {_shape(found.get(name))}, the engine's is {_shape(expected.get(name))}"
    return None


def _shape(shape: list[int] | None) -> str:
    return "missing" if shape is None else f"of shape {shape}"


def tensor_shapes(folder: Path) -> dict[str, list[int]]:
    """Tensor name → shape over all safetensors files of a folder. OSError or ValueError: they cannot be read."""
    shapes: dict[str, list[int]] = {}
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError("it has no *.safetensors")
    for file in files:
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        shapes |= {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    return shapes


def load_drafter(worker: Any, path: str) -> dict[str, Any]:
    """The worker's method: the draft model's tensors are those of ``path`` from now on."""
    from vllm.config import set_current_vllm_config  # noqa: PLC0415 - the engine's own
    from vllm.model_executor.model_loader.reload.inplace import reload_weights  # noqa: PLC0415

    speculative = worker.vllm_config.speculative_config
    if speculative is None or not speculative.uses_draft_model():
        return {"unsupported": "the engine was not started with a draft model"}
    drafter = getattr(worker.model_runner, "drafter", None)
    if drafter is None:
        return {"unsupported": "this model runner keeps its draft model elsewhere"}
    folder = Path(path)
    draft = speculative.draft_model_config
    if not hasattr(worker, "hone_draft_folder"):
        worker.hone_draft_folder = Path(draft.model).resolve()
    reason = unfit(worker.hone_draft_folder, folder, draft.hf_config.to_dict())
    if reason is not None:
        return {"refused": reason}
    config = drafter._create_draft_vllm_config()
    with set_current_vllm_config(config):
        reload_weights(config, worker.get_draft_model(), None, str(folder), True)
    worker.hone_draft_folder = folder.resolve()
    return {"loaded": str(folder)}


def _worker_set_speculation(worker: Any, on: str) -> dict[str, Any]:
    drafter = getattr(worker.model_runner, "drafter", None)
    # With steps in flight a proposer must go on for them; the scheduler's table is enough then.
    if drafter is not None and not worker.vllm_config.scheduler_config.async_scheduling:
        if not hasattr(drafter, "hone_silent"):
            drafter.propose = _silenced(drafter, drafter.propose)
        drafter.hone_silent = on != "true"
    return {"speculating": on == "true"}


def _collective_rpc(call: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """In the engine's core, where the scheduler is: what a worker's method cannot do alone."""

    def with_scheduler(
        core: Any, method: Any, timeout: float | None = None, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> list[Any]:
        if method == SET_SPECULATION:
            reason = _switch(core, on=(kwargs or {}).get("on") == "true")
            if reason is not None:
                return [{"unsupported": reason}]
        if method == RELOAD and (reason := _refuse_reload(core, (kwargs or {}).get("weights_path"))) is not None:
            return [{"refused": reason}]
        answers = call(core, method, timeout, args, kwargs)
        if method == LOAD_DRAFTER and all("loaded" in answer for answer in answers):
            _forget(core.scheduler)
        return answers

    return with_scheduler


def _refuse_reload(core: Any, path: str | None) -> str | None:
    """Why the folder cannot take the place of the one that the engine was started with, or None."""
    model = core.vllm_config.model_config
    if not hasattr(core, "hone_folder"):
        core.hone_folder = Path(model.model)
    if path is None or not core.hone_folder.is_dir():
        return None
    return unfit(core.hone_folder, Path(path), model.hf_config.to_dict())


def _switch(core: Any, *, on: bool) -> str | None:
    """Change the scheduler's table; the reason why that is not possible, or None."""
    from vllm.platforms import current_platform  # noqa: PLC0415 - the engine's own

    scheduler = core.scheduler
    if not getattr(scheduler, "num_spec_tokens", 0):
        return "the engine was started without speculation"
    if not hasattr(scheduler, "dynamic_sd_lookup"):
        return "this release of vLLM has no table of draft tokens per batch size"
    if scheduler.dynamic_sd_lookup is None and not current_platform.is_cpu() and not hasattr(scheduler, "hone_table"):
        # Graphs were captured for one length of verification alone.
        return "start the engine with num_speculative_tokens_per_batch_size in its speculative configuration"
    if not hasattr(scheduler, "hone_table"):
        scheduler.hone_table = scheduler.dynamic_sd_lookup
        scheduler.hone_on = True
    if on == scheduler.hone_on:
        return None
    batch_sizes = scheduler.scheduler_config.max_num_seqs + 1
    scheduler.dynamic_sd_lookup = scheduler.hone_table if on else [0] * batch_sizes
    scheduler.hone_on = on
    if on and not core.vllm_config.scheduler_config.async_scheduling:
        speculative = core.vllm_config.speculative_config
        if speculative.uses_draft_model() or speculative.use_eagle():
            _forget(scheduler)
    return None


def _forget(scheduler: Any) -> None:
    """Preempt and recompute what is in flight, and forget the prefix cache."""
    scheduler.reset_prefix_cache(reset_running_requests=True)


def _silenced(drafter: Any, propose: Callable[..., Any]) -> Callable[..., Any]:
    """A proposer's method that proposes nothing while speculation is off."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        if not drafter.hone_silent:
            return propose(*args, **kwargs)
        if "common_attn_metadata" not in kwargs:
            # Proposers of n-grams and suffixes: a list for each request, from lists of sampled tokens.
            sampled = kwargs.get("sampled_token_ids") or next(one for one in args if isinstance(one, list))
            return [[] for _ in sampled]
        # Proposers that run a model. vLLM reads the next verification by the width of the last proposal.
        drafter.num_speculative_tokens = 0
        rows, tokens = kwargs["common_attn_metadata"].batch_size(), kwargs["next_token_ids"]
        return tokens.new_empty((rows, 0))

    return checked
