"""The command line and environment of one SGLang server, and which launch and build belong to ``engine.kind``.

Options are those of SGLang 0.5.23 (``python -m sglang.launch_server --help``).
"""

from core.errors import ConfigurationError
from core.variant import Speculation, SpeculationMethod
from serving.launch import Build, Launch, find_build
from serving.speculation.drafter_link import draft_folder
from serving.speculation.methods import refuse_speculation_in

SGLANG_MODULE = "sglang.launch_server"
_ALGORITHMS: dict[SpeculationMethod, str] = {
    "ngram": "NGRAM",
    "draft_model": "STANDALONE",
    "eagle3": "EAGLE3",
    "mtp": "NEXTN",
}
_PLUGIN_FREE = ("VLLM_",)
_FIND_BUILD = """
import importlib.metadata as m
names = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in m.distributions() if d.metadata["Name"]}
print("none" if "sglang" not in names else "cpu" if "cpu" in names.get("torch", "") else "cuda")
"""


class SglangLaunch(Launch):
    """A Launch of SGLang.

    Danger: SGLang's routes that replace weights and adapters are always open to whoever reaches its port, so that
    ``fleet.host`` must be an address that clients cannot reach.
    """

    @property
    def development_mode(self) -> bool:
        """SGLang has no such switch."""
        return False

    def command(self) -> list[str]:
        """SGLang's server with run-time LoRA; ``engine.extra_args`` come last and win."""
        engine = self.config.engine
        command = [self.python, "-m", SGLANG_MODULE]
        command += ["--model-path", self.base.path, "--served-model-name", self.base.name]
        command += ["--host", self.host, "--port", str(self.port)]
        command += ["--dtype", engine.dtype, "--context-length", str(engine.max_model_len)]
        command += ["--max-running-requests", str(engine.max_num_seqs)]
        # Defaults of the model's generation_config.json would bend the distribution unseen by the learner.
        command += ["--sampling-defaults", "openai", "--enable-metrics", "--log-level", "warning"]
        if not self.config.fleet.full_weights_policy:
            command += ["--enable-lora", "--max-loras-per-batch", str(engine.max_loaded_versions)]
            command += ["--max-lora-rank", str(engine.max_lora_rank)]
            command += ["--lora-target-modules", *self.config.learner.lora.target_modules]
        if self.build == "cpu":
            command += ["--device", "cpu", "--max-total-tokens", str(engine.max_num_seqs * engine.max_model_len)]
            if not self.config.fleet.full_weights_policy:
                command += ["--lora-backend", "torch_native"]
        else:
            command += ["--mem-fraction-static", f"{engine.gpu_memory_share / self.engines:.3f}"]
            if engine.prefill_tokens or not engine.chunked_prefill:
                piece = engine.prefill_tokens if engine.chunked_prefill else -1
                command += ["--chunked-prefill-size", str(piece)]
        # How many tokens of each prompt the prefix cache had.
        command += ["--enable-cache-report", *(() if engine.prefix_caching else ("--disable-radix-cache",))]
        command += self._conversation_options()
        refuse_speculation_in(engine.extra_args)
        if self.speculation is not None:
            command += self._speculation_options(self.speculation)
        return [*command, *engine.extra_args]

    def environment(self) -> dict[str, str]:
        """As that of other engines; health is asked often and must not sample a token each time."""
        inherited = super().environment()
        kept = {key: value for key, value in inherited.items() if not key.startswith(_PLUGIN_FREE)}
        kept.pop("PYTHONPATH", None)
        return kept | {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"}

    def _conversation_options(self) -> list[str]:
        found = self._conversation()
        options: list[str] = []
        # The same settings as vLLM's, under SGLang's names.
        for name in ("--tool-call-parser", "--reasoning-parser", "--chat-template"):
            if name in found:
                value = found[found.index(name) + 1]
                options += [name, "qwen25" if (name, value) == ("--tool-call-parser", "hermes") else value]
        return options

    def _speculation_options(self, speculation: Speculation) -> list[str]:
        algorithm = _ALGORITHMS.get(speculation.method)
        if algorithm is None:
            raise ConfigurationError(
                f"SGLang cannot speculate by '{speculation.method}'", hint="set fleet.fast_method to another method"
            )
        # With these thresholds a draft token is accepted as often as the target would sample it: lossless.
        options = ["--speculative-accept-threshold-single", "1.0", "--speculative-accept-threshold-acc", "1.0"]
        options += ["--speculative-algorithm", algorithm]
        options += ["--speculative-num-draft-tokens", str(speculation.tokens + 1)]
        if speculation.method == "ngram":
            return options
        options += ["--speculative-num-steps", str(speculation.tokens), "--speculative-eagle-topk", "1"]
        folder = draft_folder(self.config, speculation, self.port)
        return [*options, "--speculative-draft-model-path", folder] if folder else options


LAUNCHES: dict[str, type[Launch]] = {"vllm": Launch, "sglang": SglangLaunch}
"""``engine.kind`` → how it is launched."""


async def find_build_of(kind: str, python: str) -> Build:
    """Which build of the engine the interpreter's environment holds; MachineError when it has none."""
    if kind != "sglang":
        return await find_build(python)
    return await find_build(python, engine="SGLang", script=_FIND_BUILD)
