"""How much memory a rank needs at its peak, part by part, from shapes and layout. Pure.

What is counted for activations are the tensors that a Llama layer keeps for the backward pass: with an adapter on
all linear layers, seven of the hidden width (two norms' inputs and outputs, queries, attention's output twice), keys
and values, and four of the feed-forward width; norms with trained weights keep two more. A test holds the sum against
the measured peak of a small model (tests/integration/test_memory_model.py).
"""

from dataclasses import dataclass, fields

from core.config.learner import LearnerSection
from learner.estimate.model_shape import ModelShape
from learner.mixture import uses_reference

HEAD_CHUNK_TOKENS = 512
"""Positions whose logits exist at the same time; as ``learner.policy_model`` has it."""
_HEAD_COPIES = 3
"""Logits, their exponentials and their gradient."""
_FLOAT = 4
_ALLOCATOR_SHARE = {"cpu": 0.6, "cuda": 0.1}
"""Of what comes and goes; glibc was measured to keep far more than CUDA's caching allocator does."""
_RUNTIME_BYTES = {"cpu": 600 << 20, "cuda": 1500 << 20}
"""Python, torch, DeepSpeed and, on a GPU, the CUDA context."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one rank at its peak."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    head: int
    workspace: int
    """Short-lived: one layer's backward pass, the optimizer's step."""
    allocator: int
    """Freed blocks that the allocator keeps."""
    runtime: int
    base_copy: int
    """The Base beside full weights, where the device has it: for a loss that asks it, or as main memory."""
    host: int
    """In main memory and not on the device: what was offloaded, and a Base that only the Probe asks."""

    @property
    def total(self) -> int:
        """Of the device: everything but ``host``."""
        return sum(int(getattr(self, field.name)) for field in fields(self)) - self.host


def estimate_memory(
    shape: ModelShape,
    config: LearnerSection,
    *,
    ranks: int,
    device: str,
    longest_sample: int = 0,
    step_tokens: int | None = None,
) -> MemoryEstimate:
    """Of one of ``ranks`` on ``device`` (``cpu`` or ``cuda``).

    ``longest_sample``: tokens of the longest Episode, which is a micro-batch of its own when the budget is smaller.
    ``step_tokens``: of a whole step, where they are known: a micro-batch never has more.
    """
    full = config.train == "full"
    half = config.precision == "bfloat16" or (config.precision == "auto" and device == "cuda")
    weight_bytes = 2 if half else _FLOAT
    adapter = 0 if full else shape.lora_parameters(config.lora.rank, config.lora.target_modules)
    trained = shape.parameters if full else adapter
    stage, part = config.zero_stage, 1 / ranks
    weights = int((shape.parameters + adapter) * weight_bytes * (part if stage == 3 else 1))
    # In half precision gradients are added up in float32.
    gradient_bytes = weight_bytes + (_FLOAT if half else 0)
    gradients = int(trained * gradient_bytes * (part if stage >= 2 else 1))
    copies = 3 if half or stage >= 1 else 2
    optimizer = int(trained * _FLOAT * copies * (part if stage >= 1 else 1))
    budget = config.micro_batch_tokens if step_tokens is None else min(config.micro_batch_tokens, step_tokens)
    tokens = max(budget, longest_sample) / config.sequence_parallel
    layer = _kept_per_token(shape, full=full, half=half)
    if config.gradient_checkpointing:
        activations = int(tokens * (shape.layers * shape.hidden * weight_bytes + layer))
    else:
        activations = int(tokens * shape.layers * layer)
    head_tokens = min(HEAD_CHUNK_TOKENS, tokens)
    step = trained * _FLOAT * (part if stage >= 1 else 0)
    workspace = int(step + tokens * weight_bytes * (3 * shape.intermediate + 4 * shape.hidden))
    if stage == 3:
        workspace += shape.parameters // max(shape.layers, 1) * weight_bytes * 2
    head = int(head_tokens * shape.vocabulary * _FLOAT * _HEAD_COPIES)
    if config.gradient_checkpointing:
        head = max(0, head - int(tokens * layer))  # the head is done before a layer is computed again
    base = int(shape.parameters * weight_bytes) if full else 0
    on_device = device == "cpu" or uses_reference(config)
    host = optimizer * config.offload_optimizer + weights * config.offload_parameters + base * (not on_device)
    return MemoryEstimate(
        weights=0 if config.offload_parameters else weights,
        gradients=gradients,
        optimizer=0 if config.offload_optimizer else optimizer,
        activations=activations,
        head=head,
        workspace=workspace,
        allocator=int(_ALLOCATOR_SHARE[device] * (activations + head + workspace)),
        runtime=_RUNTIME_BYTES[device],
        base_copy=base if on_device else 0,
        host=host,
    )


def _kept_per_token(shape: ModelShape, *, full: bool, half: bool) -> float:
    """Bytes that one layer keeps of one token for its backward pass."""
    width = 2 if half else _FLOAT
    hidden = 4 * shape.hidden + 3 * shape.query_width
    kept = (hidden + 2 * shape.key_value_width + 4 * shape.intermediate) * width
    # Norms work in float32; with trained weights they keep their normalised input too.
    return kept + 2 * shape.hidden * _FLOAT * (half + full)
