"""Distils a draft model for a target: few layers, trained to guess the target's next tokens.

``distil`` is the whole of it. Target log-probs are computed once, then the student trains on them for a few
passes; only its layers and norms train, the target's embedding and head are kept as they are.

Plain torch in one process, not DeepSpeed: the student is a tenth of the Base and most of the time goes into the
target's one forward pass, so there is nothing to shard; other ranks of the learner wait meanwhile. It repeats
exactly for one seed, so an interrupted job begins anew and ends with the same drafter.
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from core.config.learner import DrafterSection
from core.errors import LearnerError
from core.ids import DRAFTER, new_id
from learner.drafter_data import DistilSequence, hold_out, limited, without_repeats
from learner.drafter_loss import Acceptance, DistilLoss, acceptance
from learner.drafter_model import DrafterMethod, LayerCut, Student
from learner.drafter_target import DraftTarget, TargetModel, TopLogprobs, batches
from learner.storage import new_folder
from serving.weights.folder import folder_checksum

log = structlog.get_logger(__name__)

_WARM_UP_SHARE = 0.05
_PROGRESS_SECONDS = 2.0
_HELDOUT_POSITIONS = 2048
"""Exact acceptance needs both whole distributions: enough positions for a standard error of about 0.01."""


@dataclass(frozen=True)
class DistilProgress:
    """Where a distillation stands."""

    stage: str
    """``sampling``, ``target`` (its log-probs), ``training``, ``measuring``."""
    done: int
    total: int
    loss: float | None = None
    """Mean cross-entropy to the target (nats) of the last steps, while training."""


@dataclass(frozen=True)
class DistilledDrafter:
    """A drafter's folder and what was measured. Shares are of held-out positions, teacher-forced."""

    id: str
    path: Path
    checksum: str
    metrics: dict[str, float]
    """``acceptance`` = mean sum(min(p, q)): how often a draft token that is sampled is accepted;
    ``acceptance_greedy`` = mean p(argmax q), of one that is the likeliest; ``agreement`` = argmax p is argmax q, what
    counts where the target decodes greedily; ``accepted_per_draft``: accepted tokens per draft of three likeliest
    tokens along the held-out text. Each also with ``_before`` (before training). Counts: ``train_tokens``,
    ``heldout_tokens``, ``steps``; ``seconds`` of wall clock, and of these ``target_seconds``, ``train_seconds``."""


def _silent(_: DistilProgress) -> None:
    return


def distil(
    *,
    target: DraftTarget,
    sequences: Sequence[DistilSequence],
    root: Path,
    options: DrafterSection,
    seed: int = 0,
    prompts: Sequence[tuple[int, ...]] = (),
    warm_start: Path | None = None,
    method: DrafterMethod | None = None,
    device: torch.device | None = None,
    progress: Callable[[DistilProgress], None] = _silent,
) -> DistilledDrafter:
    """Distil a drafter for ``target`` into a new immutable folder below ``root``.

    Where ``sequences`` hold fewer sampled tokens than ``options.min_tokens``, the target samples more after their
    prompts and ``prompts``. ``warm_start``: folder of the drafter before, whose layers the student starts from.
    Blocking: minutes. Raises LearnerError when there is nothing to train on or the loss is not finite,
    CorruptArtefact for a broken folder, StoreFull or StoreError.
    """
    started = time.monotonic()
    device = device or torch.device("cpu")
    torch.manual_seed(seed)
    model = TargetModel(target, device=device)
    texts = _texts(model, sequences, prompts=prompts, options=options, seed=seed, progress=progress)
    train, heldout = hold_out(texts, share=options.heldout_share, seed=seed)
    held = Measure(model, heldout, options=options, seed=seed)
    material = _material(model, train, options=options, progress=progress)
    target_seconds = time.monotonic() - started
    student = (method or LayerCut(options.layers)).student(model, warm_start=warm_start)
    before = held.of(student)
    progress(DistilProgress("measuring", 1, 2))
    training_started = time.monotonic()
    steps = _train(student, material, options=options, seed=seed, progress=progress)
    train_seconds = time.monotonic() - training_started
    after = held.of(student)
    progress(DistilProgress("measuring", 2, 2))
    drafter_id = new_id(DRAFTER)
    path = root / drafter_id
    with new_folder(path) as draft:
        student.export(draft)
    metrics = {
        **after.metrics(),
        **before.metrics("_before"),
        "train_tokens": float(sum(sequence.outputs for sequence in train)),
        "heldout_tokens": float(after.positions),
        "steps": float(steps),
        "seconds": time.monotonic() - started,
        "target_seconds": target_seconds,
        "train_seconds": train_seconds,
    }
    log.info("drafter_distilled", path=str(path), **{name: round(value, 4) for name, value in metrics.items()})
    return DistilledDrafter(id=drafter_id, path=path, checksum=folder_checksum(path), metrics=metrics)


@dataclass(frozen=True)
class Material:
    """The training text in batches, with what the target says at every sampled position of it."""

    batches: list[list[DistilSequence]]
    positions: list[Tensor]
    """Per batch: where its positions are in ``targets``."""
    targets: TopLogprobs
    features: Tensor | None
    """The target's hidden states at the same positions, in 16 bits, where they are learned too."""


class Measure:
    """Acceptance on held-out text; the target's hidden states there are computed once."""

    def __init__(
        self, model: TargetModel, heldout: Sequence[DistilSequence], *, options: DrafterSection, seed: int
    ) -> None:
        chosen = list(heldout)
        random.Random(seed).shuffle(chosen)
        longest = max(len(sequence.tokens) for sequence in chosen)
        chosen = limited(chosen, max_outputs=_HELDOUT_POSITIONS, longest=longest) or chosen[:1]
        self._batches = batches(chosen, token_budget=options.micro_batch_tokens)
        self._head = model.head_weight
        self._hidden = [model.hidden(batch) for batch in self._batches]

    @torch.no_grad()
    def of(self, student: Student) -> Acceptance:
        """How the student's guesses fare."""
        return acceptance(
            self._hidden,
            self._head,
            [student.hidden(batch) for batch in self._batches],
            student.head_weight,
            said=[sequence.tokens[sequence.first_output :] for batch in self._batches for sequence in batch],
        )


def _texts(
    model: TargetModel,
    sequences: Sequence[DistilSequence],
    *,
    prompts: Sequence[tuple[int, ...]],
    options: DrafterSection,
    seed: int,
    progress: Callable[[DistilProgress], None],
) -> list[DistilSequence]:
    """What to train and measure on: the given text, and the target's own where that is little."""
    longest = int(model.network.config.max_position_embeddings)
    texts = limited(without_repeats(sequences), max_outputs=options.max_tokens, longest=longest)
    wanted = options.min_tokens - sum(text.outputs for text in texts)
    starts = list(dict.fromkeys([*prompts, *(text.tokens[: text.first_output] for text in texts)]))
    starts = [start for start in starts if 0 < len(start) < longest - options.sample_tokens]
    if wanted > 0 and starts:
        count = math.ceil(wanted / options.sample_tokens)
        chosen = [starts[index % len(starts)] for index in range(count)]
        texts += model.sample(
            chosen,
            max_tokens=options.sample_tokens,
            seed=seed,
            advanced=lambda done: progress(DistilProgress("sampling", done, count)),
        )
    if not texts:
        raise LearnerError(
            "there is no text to distil a drafter on: no consented Turn with token ids, and no prompt to sample from",
            hint="serve requests with consent, or import Tasks",
        )
    return texts


def _material(
    model: TargetModel,
    train: Sequence[DistilSequence],
    *,
    options: DrafterSection,
    progress: Callable[[DistilProgress], None],
) -> Material:
    groups = batches(train, token_budget=options.micro_batch_tokens)
    found: list[TopLogprobs] = []
    features: list[Tensor] = []
    positions: list[Tensor] = []
    first = 0
    for done, batch in enumerate(groups, start=1):
        hidden = model.hidden(batch)
        top = model.top_logprobs(hidden, k=options.top_k)
        found.append(top)
        if options.feature_weight:
            features.append(hidden.to(torch.bfloat16))
        positions.append(torch.arange(first, first + len(top.ids), device=model.device))
        first += len(top.ids)
        progress(DistilProgress("target", done, len(groups)))
    targets = TopLogprobs(torch.cat([top.ids for top in found]), torch.cat([top.logprobs for top in found]))
    return Material(
        batches=groups, positions=positions, targets=targets, features=torch.cat(features) if features else None
    )


def _train(
    student: Student,
    material: Material,
    *,
    options: DrafterSection,
    seed: int,
    progress: Callable[[DistilProgress], None],
) -> int:
    """Train in place; the number of optimizer steps. Raises LearnerError when the loss is not finite."""
    loss_of = DistilLoss(
        material.targets,
        student.head_weight,
        seed=seed,
        features=material.features,
        feature_weight=options.feature_weight,
    )
    parameters = student.parameters()
    optimizer = AdamW(parameters, lr=options.learning_rate, weight_decay=0.0, betas=(0.9, 0.95))
    total = len(material.batches) * options.epochs
    schedule = LambdaLR(optimizer, lambda step: _rate(step, total))
    shuffled = random.Random(seed)
    step, told_at, recent = 0, time.monotonic(), []
    for _ in range(options.epochs):
        order = list(range(len(material.batches)))
        shuffled.shuffle(order)
        for index in order:
            loss = loss_of(student.hidden(material.batches[index]), material.positions[index])
            if not torch.isfinite(loss):
                raise LearnerError(
                    f"the drafter's loss is {float(loss)} at step {step}", hint="lower its learning rate"
                )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            recent.append(float(loss.detach()))
            if step == total or time.monotonic() - told_at > _PROGRESS_SECONDS:
                progress(DistilProgress("training", step, total, math.fsum(recent) / len(recent)))
                told_at, recent = time.monotonic(), []
    return step


def _rate(step: int, total: int) -> float:
    """Warm-up over the first steps, then a cosine down to a tenth."""
    warm = max(1, round(total * _WARM_UP_SHARE))
    if step < warm:
        return (step + 1) / warm
    return 0.1 + 0.45 * (1.0 + math.cos(math.pi * (step - warm) / max(1, total - warm)))
