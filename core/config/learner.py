"""Keys of the learner: adapters, drafters, the objective, DeepSpeed."""

from typing import Any, Literal

from pydantic import Field, model_validator

from core.config.learner_data import DataSection
from core.config.learner_live import LiveSection, LossWeightsSection, MiningSection
from core.config.learner_watch import AlarmsSection, TrackingSection
from core.config.section import Section


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
    epochs: int = Field(default=6, ge=1)
    """Passes over the training text."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """Peak learning rate."""
    micro_batch_tokens: int = Field(default=512, ge=64)
    """Padded tokens per optimizer step."""
    top_k: int = Field(default=32, ge=1)
    """Of the target's distribution at each position, how many of the likeliest tokens are learned."""
    feature_weight: float = Field(default=0.0, ge=0)
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
        "sequence_parallel_size",
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

    train: Literal["lora", "full"] = "lora"
    """What is trained: an adapter, or all weights, which need a deployment of their own."""
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
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on after the warm-up: it stays, or falls to 0 over ``decay_steps``."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps over which the learning rate rises."""
    decay_steps: int = Field(default=0, ge=0)
    """Optimizer steps from the end of the warm-up to 0, with schedules that fall."""
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
    max_staleness: int = Field(default=1, ge=0, le=8)
    """How many versions behind an Episode may be when it trains; so many steps are sampled ahead, and no more."""
    losses: LossWeightsSection = LossWeightsSection()
    """What a GRPO step adds to its loss: demonstrations, its best attempts."""
    live: LiveSection = LiveSection()
    """Learning from traffic of clients."""
    mining: MiningSection = MiningSection()
    """Tasks from recorded Episodes."""
    data: DataSection = DataSection()
    """Which Tasks a step attempts."""
    alarms: AlarmsSection = AlarmsSection()
    """What is watched, and what ends a run."""
    tracking: TrackingSection = TrackingSection()
    """Where metrics go beside the store and Prometheus."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """DeepSpeed ZeRO stage: 1 shards optimizer states over ranks, 2 gradients too, 3 parameters too."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of weights and activations; ``auto``: bfloat16 on a GPU, float32 elsewhere. The head and what follows it are
    float32 always, and so are the optimizer's own copies of what is trained."""
    sequence_parallel: int = Field(default=1, ge=1)
    """Ranks that share each row of tokens (Ulysses), for contexts that one GPU cannot hold; ZeRO stage 1 and above.
    It divides the number of ranks and the model's attention heads."""
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
    keep_checkpoints: int = Field(default=0, ge=0)
    """Newest versions of a Policy whose checkpoint folders stay in every case; of older ones only those that traffic,
    a release, a pin or the run needs. 0: all stay."""
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
        if self.sequence_parallel > 1 and self.zero_stage < 1:
            raise ValueError("learner.sequence_parallel needs learner.zero_stage 1, 2 or 3")
        if self.ranks > 1 and self.ranks % self.sequence_parallel:
            raise ValueError("learner.sequence_parallel must divide learner.ranks")
        if self.schedule != "constant" and not self.decay_steps:
            raise ValueError(f"learner.schedule '{self.schedule}' needs learner.decay_steps")
        taken = sorted(set(self.deepspeed) & _DEEPSPEED_KEYS)
        if taken:
            raise ValueError(f"learner.deepspeed must not set {', '.join(taken)}: learner has own keys for that")
        return self
