"""A tiny Llama with a chat tokenizer, made on the fly, and samples for it."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from core.config.learner import LearnerSection, LoraSection
from core.sample import TrainingSample
from learner.distributed import World, join_world
from learner.policy_model import build_policy_model
from learner.trainer import Trainer, TrainerSpec
from tests.tiny_model import VOCABULARY, build_tiny_base

SampleMaker = Callable[..., list[TrainingSample]]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Thread teams cost more than they bring on tensors this small."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def base_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random 2-layer Llama and a tokenizer."""
    return build_tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture
def world() -> World:
    """This process alone."""
    return join_world()


@pytest.fixture
def config() -> LearnerSection:
    """Small ranks and micro-batches, clipping off."""
    return LearnerSection(
        lora=LoraSection(rank=4, alpha=8.0), gradient_clipping=0.0, micro_batch_tokens=64, sft_batch=4
    )


@pytest.fixture
def adapter(base_path: Path, config: LearnerSection, tmp_path: Path) -> Path:
    """An adapter that changes something: both of its factors are random."""
    model = build_policy_model(base_path, lora=config.lora, adapter=None, device=torch.device("cpu"), seed=3)
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    model.export_adapter(tmp_path / "parent")
    return tmp_path / "parent"


@pytest.fixture
def make_samples() -> SampleMaker:
    """Random samples: a prompt, then sampled tokens with log-probs and one advantage."""

    def make(count: int, seed: int = 0) -> list[TrainingSample]:
        generator = random.Random(seed)
        samples = []
        for index in range(count):
            prompt, sampled = generator.randint(2, 12), generator.randint(1, 9)
            length = prompt + sampled
            advantage = generator.uniform(-1.5, 1.5)
            samples.append(
                TrainingSample(
                    episode_id=f"ep_{seed}_{index}",
                    group_id="grp_1",
                    domain="words",
                    tokens=tuple(generator.randrange(VOCABULARY) for _ in range(length)),
                    loss_mask=(0,) * prompt + (1,) * sampled,
                    behaviour_logprobs=(0.0,) * prompt + tuple(-generator.uniform(3.0, 6.0) for _ in range(sampled)),
                    advantages=(0.0,) * prompt + (advantage,) * sampled,
                    versions=(-1,) * prompt + (1,) * sampled,
                )
            )
        return samples

    return make


@pytest.fixture
def make_groups(make_samples: SampleMaker) -> Callable[[int, int], list[TrainingSample]]:
    """Groups of samples with one prompt each; the last of a group goes on from the middle of the one before it."""

    def make(groups: int, size: int) -> list[TrainingSample]:
        samples: list[TrainingSample] = []
        for number in range(groups):
            first, *others = make_samples(size, seed=number + 1)
            prompt = first.tokens[: first.loss_mask.index(1)] * 3
            for one in (first, *others):
                own = one.loss_mask.index(1)
                samples.append(_prefixed(one, prompt, own, group=f"grp_{number}"))
            past = samples[-2]
            half = past.loss_mask.index(1) + 1
            samples[-1] = _prefixed(samples[-1], past.tokens[:half], len(prompt), group=f"grp_{number}")
        return samples

    return make


def _prefixed(sample: TrainingSample, prefix: tuple[int, ...], drop: int, *, group: str) -> TrainingSample:
    """``sample`` without its first ``drop`` tokens, behind ``prefix``, which does not train."""
    length = len(prefix)
    return sample.model_copy(
        update={
            "group_id": group,
            "tokens": prefix + sample.tokens[drop:],
            "loss_mask": (0,) * length + sample.loss_mask[drop:],
            "behaviour_logprobs": (0.0,) * length + sample.behaviour_logprobs[drop:],
            "advantages": (0.0,) * length + sample.advantages[drop:],
            "versions": (-1,) * length + sample.versions[drop:],
        }
    )


@pytest.fixture
def make_trainer(base_path: Path, config: LearnerSection, world: World) -> Iterator[Callable[..., Trainer]]:
    """Opens Trainers on the tiny model and closes them at the end."""
    opened = []

    def make(
        *,
        adapter: Path | None = None,
        learning_rate: float = 0.01,
        base: Path = base_path,
        engine_dtype: str | None = None,
        **changes: object,
    ) -> Trainer:
        spec = TrainerSpec(
            config=config.model_copy(update=changes),
            base_path=base,
            adapter=adapter,
            learning_rate=learning_rate,
            seed=11,
            engine_dtype=engine_dtype,
        )
        opened.append(Trainer(spec, world=world))
        return opened[-1]

    yield make
    for trainer in opened:
        trainer.close()
