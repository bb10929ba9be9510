"""Keys of engines and the fleet that runs them."""

from typing import Any, Literal

from pydantic import Field

from core.config.section import Section
from core.variant import SpeculationMethod


class EngineSection(Section):
    """How the fleet starts engines."""

    kind: Literal["vllm", "sglang"] = "vllm"
    """The engine of launched and attached replicas."""
    python: str = ""
    """Interpreter of the environment that holds vLLM; empty: this one."""
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    """Weights and activations; float32 is the faster one on CPUs without AVX-512."""
    max_model_len: int = Field(default=2048, ge=128)
    """Longest prompt + answer in tokens."""
    max_num_seqs: int = Field(default=64, ge=1)
    """Sequences that are decoded together."""
    prefix_caching: bool = True
    """Prompts that begin like an earlier one take its part of the KV cache."""
    chunked_prefill: bool = True
    """Long prompts are read in pieces between the tokens of other answers; GPU builds only, because a CPU engine
    dies of it when a request has a seed."""
    prefill_tokens: int = Field(default=0, ge=0)
    """Most tokens of one step, prompts and answers together, of GPU builds: fewer keep streams smooth while long
    prompts are read, more read them faster; 0: the engine's own choice."""
    kv_cache_gib: int = Field(default=1, ge=1)
    """KV cache on CPU builds."""
    gpu_memory_share: float = Field(default=0.85, gt=0, le=1)
    """Share of GPU memory that an engine may take."""
    max_lora_rank: int = Field(default=16, ge=1)
    """Largest adapter rank that the engine accepts; a learner's rank must not exceed it."""
    max_loaded_versions: int = Field(default=6, ge=2)
    """PolicyVersions kept loaded on one replica."""
    start_timeout_seconds: float = Field(default=300.0, gt=0)
    """Longest time that an engine may take to become healthy."""
    omp_threads: int = Field(default=0, ge=0)
    """OpenMP threads of a CPU engine; 0: all cores."""
    tool_call_parser: str = "auto"
    """vLLM's parser of tool calls, such as ``hermes``; ``auto``: the demo's Base has one; empty: none."""
    reasoning_parser: str = ""
    """vLLM's parser that keeps reasoning apart from the answer, such as ``qwen3``; empty: none."""
    chat_template: str = "auto"
    """Jinja file for conversations; ``auto``: the demo's Base gets one that knows tools; empty: the model's own."""
    extra_args: tuple[str, ...] = ()
    """Further arguments for vLLM, as they stand."""


class FleetSection(Section):
    """Which Deployments there are."""

    variants: tuple[Literal["standard", "fast"], ...] = ("standard", "fast")
    """Variants to serve."""
    replicas: dict[str, int] = Field(default_factory=dict)
    """Variant → number of engines that the fleet launches for it; one where nothing is said."""
    attach: dict[str, str] = Field(default_factory=dict)
    """Variant → URLs (comma-separated) of engines that somebody else runs, instead of launching any."""
    full_weights_policy: str = ""
    """A Policy trained in full weights: the replicas carry its weights in place of the Base's and serve nothing
    else; empty: Policies are LoRA adapters beside the Base."""
    weight_wire: Literal["disk", "nccl"] = "disk"
    """How full weights reach engines: each reads the folder, or a sender broadcasts them to the engines' GPUs."""
    weight_wire_port: int = Field(default=8450, ge=1, le=65535)
    """Port on which the sender of ``nccl`` meets an engine's workers."""
    lease_seconds: float = Field(default=10.0, gt=0)
    """One fleet process of a Base leads; a killed leader is followed by a waiting one after this time."""
    host: str = "127.0.0.1"
    """Address on which launched engines listen."""
    advertised_host: str = ""
    """Address under which other machines reach launched engines; empty: ``host``."""
    first_port: int = Field(default=8410, ge=0, le=65535)
    """Port of the first launched engine, the next ones count up; 0: free ports."""
    fast_method: SpeculationMethod = "ngram"
    """Speculation of the ``fast`` Variant; ``eagle3`` and ``mtp`` need a Base that has such heads."""
    fast_tokens: int = Field(default=4, ge=1, le=16)
    """Draft tokens per step."""
    speculation_switch: bool = True
    """Switch speculation off while it makes a fast replica slower at its load, and on again when it pays."""
    speculation_seconds: float = Field(default=10.0, gt=0)
    """How often that is judged."""
    speculation_off_below: float = Field(default=0.97, gt=0)
    """Decoding speed, as a multiple of standard's, below which speculation is switched off."""
    speculation_on_above: float = Field(default=1.03, gt=0)
    """The same, above which it is switched on again."""
    sameness_seconds: float = Field(default=900.0, ge=0)
    """How often each fast replica's answers are compared with a standard one's; 0: never."""
    sameness_prompts: int = Field(default=2, ge=1)
    """Prompts of one comparison; another sample each time."""
    sameness_tokens: int = Field(default=24, ge=1)
    """Longest answer in a comparison."""
    sameness_samples: int = Field(default=2, ge=0)
    """Sampled answers per prompt on each side, for the two-sample test; below 2: none."""
    sameness_logprob_error: float = Field(default=0.02, gt=0)
    """Largest mean difference of log-probs under speculation from standard's (nats), beyond standard's own."""
    sameness_near_tie: float = Field(default=0.0, ge=0)
    """Tokens whose log-probs lie closer (nats) are as likely; 0: 0.001 for float32, 0.03 for float16, else 0.25."""
    sameness_stops_fast: bool = True
    """Use a fast replica that was shown to answer otherwise no more, until its engine starts anew."""
    fast_options: dict[str, Any] = Field(default_factory=dict)
    """Further settings of the engine's speculation, as the engine names them; only lossless ones are taken."""
    draft_model: str = ""
    """Folder of the draft model or heads that no Drafter of the store replaces yet; empty, with ``draft_model``:
    ``fast`` decodes plainly until the learner has distilled one."""
    drafter_trial_drafts: int = Field(default=500, ge=1)
    """Drafts after which a candidate is compared with the Drafter before, and acceptance is believed."""
    drafter_retrain_drop: float = Field(default=0.1, gt=0, lt=1)
    """A successor is distilled when acceptance falls by more than this share of its value at the last Drafter."""
    drafter_retrain_on_promotion: bool = True
    """Distil a successor whenever a version is promoted, whatever its acceptance."""
    reconcile_seconds: float = Field(default=1.0, gt=0)
    """How often wanted and live state are compared when no event wakes the fleet."""
    drain_seconds: float = Field(default=30.0, ge=0)
    """Longest time that a version, or an engine that is to end, is kept for requests in flight, with no new ones;
    running Episodes keep a version longer while there is room."""
    keep_engines: bool = False
    """Leave launched engines running when the fleet is stopped, for the next one to take over."""
    probe_max_error: float = Field(default=0.02, gt=0)
    """Largest mean |engine - learner| log-prob of a passing probe, for float32."""
    metrics_port: int = Field(default=8431, ge=0, le=65535)
    """Prometheus port of the fleet process; 0: none."""
