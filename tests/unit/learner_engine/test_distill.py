"""Distillation of a drafter on a tiny model: it learns, it repeats, and what it writes is a model."""

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from core.config.learner import DrafterSection
from core.errors import CorruptArtefact, LearnerError
from learner.distill import DistilledDrafter, DistilProgress, distil
from learner.drafter_data import DistilSequence, hold_out, limited
from learner.drafter_loss import DistilLoss, replay
from learner.drafter_model import LayerCut, chosen_layers
from learner.drafter_target import DraftTarget, TargetModel, TopLogprobs
from serving.weights.folder import folder_checksum
from tests.tiny_model import VOCABULARY

OPTIONS = DrafterSection(
    layers=1, epochs=6, learning_rate=2e-3, micro_batch_tokens=256, min_tokens=3000, sample_tokens=24
)
PROMPTS = [(4, 10 + index, 11 + index, 2, 5) for index in range(40)]


@pytest.fixture(scope="module")
def target(base_path: Path) -> DraftTarget:
    """The tiny Base itself."""
    torch.set_num_threads(1)
    return DraftTarget(base_path)


@pytest.fixture(scope="module")
def distilled(target: DraftTarget, tmp_path_factory: pytest.TempPathFactory) -> DistilledDrafter:
    """A drafter that was made from text that the target sampled itself."""
    root = tmp_path_factory.mktemp("drafters")
    return distil(target=target, sequences=[], prompts=PROMPTS, root=root, options=OPTIONS, seed=3)


def test_acceptance_rises(distilled: DistilledDrafter) -> None:
    """On held-out text, by all three measures, by more than noise."""
    found = distilled.metrics
    # A random target is nearly uniform: there is little to guess, and the likeliest token is not very likely.
    for name, gain in (("acceptance", 0.02), ("acceptance_greedy", 0.005), ("agreement", 0.02)):
        assert found[name] > found[f"{name}_before"] + gain, name
    assert 0 <= found["accepted_per_draft"] <= 3
    assert found["heldout_tokens"] > 0
    assert found["train_tokens"] > found["heldout_tokens"]


def test_the_folder_is_a_model_with_the_targets_head(distilled: DistilledDrafter, target: DraftTarget) -> None:
    """transformers loads it, with fewer layers, the target's embedding, and the tokenizer's files."""
    model = AutoModelForCausalLM.from_pretrained(str(distilled.path), dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(str(target.base_path), dtype=torch.float32)
    assert model.config.num_hidden_layers == 1
    assert torch.equal(model.get_input_embeddings().weight, base.get_input_embeddings().weight)
    assert model(input_ids=torch.tensor([[4, 10, 2]])).logits.shape == (1, 3, VOCABULARY)
    assert (distilled.path / "tokenizer.json").is_file()
    assert folder_checksum(distilled.path) == distilled.checksum


def test_the_same_seed_gives_the_same_drafter(
    distilled: DistilledDrafter, target: DraftTarget, tmp_path: Path
) -> None:
    """Byte for byte, so that an interrupted job may begin anew; another seed gives another one."""
    again = distil(target=target, sequences=[], prompts=PROMPTS, root=tmp_path, options=OPTIONS, seed=3)
    assert again.checksum == distilled.checksum
    assert again.path != distilled.path
    short = OPTIONS.model_copy(update={"epochs": 1})
    other = distil(target=target, sequences=[], prompts=PROMPTS, root=tmp_path, options=short, seed=4)
    assert other.checksum != distilled.checksum


def test_an_upkeep_begins_with_the_drafter_before(
    distilled: DistilledDrafter, target: DraftTarget, tmp_path: Path
) -> None:
    """It starts where that one ended; one of another form is left aside, a broken one is CorruptArtefact."""
    options = OPTIONS.model_copy(update={"epochs": 1, "learning_rate": 1e-4})
    common = {"target": target, "sequences": [], "prompts": PROMPTS, "root": tmp_path, "seed": 3}
    warm = distil(**common, options=options, warm_start=distilled.path)
    assert warm.metrics["acceptance_before"] == pytest.approx(distilled.metrics["acceptance"], abs=1e-3)
    wide = distil(
        **{**common, "target": dataclasses.replace(target)},
        options=options,
        method=LayerCut(1),
        warm_start=target.base_path,
    )
    assert wide.metrics["acceptance_before"] == pytest.approx(distilled.metrics["acceptance_before"], abs=1e-3)
    with pytest.raises(CorruptArtefact):
        distil(**common, options=options, warm_start=tmp_path / "absent")


def test_recorded_text_is_used_before_the_target_samples(target: DraftTarget, tmp_path: Path) -> None:
    """Enough recorded tokens: nothing is sampled; none at all and no prompt: LearnerError says what to do."""
    recorded = [DistilSequence((*prompt, *(20 + n for n in range(20))), len(prompt)) for prompt in PROMPTS]
    stages: list[str] = []

    def note(progress: DistilProgress) -> None:
        stages.append(progress.stage)
        assert 0 < progress.done <= progress.total

    options = OPTIONS.model_copy(update={"epochs": 1, "min_tokens": 500})
    made = distil(target=target, sequences=recorded, root=tmp_path, options=options, progress=note)
    assert "sampling" not in stages
    assert {"target", "training", "measuring"} <= set(stages)
    assert made.metrics["train_tokens"] % 20 == 0
    with pytest.raises(LearnerError, match="no text"):
        distil(target=target, sequences=[], root=tmp_path, options=options)


def test_a_distillation_that_is_called_off_leaves_nothing(target: DraftTarget, tmp_path: Path) -> None:
    """What the progress callback raises ends it, and no folder appears."""

    def stop(progress: DistilProgress) -> None:
        if progress.stage == "training":
            raise LearnerError("called off")

    with pytest.raises(LearnerError, match="called off"):
        distil(target=target, sequences=[], prompts=PROMPTS, root=tmp_path, options=OPTIONS, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_the_loss_is_cross_entropy_where_the_whole_vocabulary_is_kept() -> None:
    """With every token among the target's, nothing is estimated: the plain computation gives the same."""
    generator = torch.Generator().manual_seed(0)
    head, hidden = torch.randn(16, 8, generator=generator), torch.randn(5, 8, generator=generator)
    logprobs = torch.randn(5, 16, generator=generator).log_softmax(-1)
    targets = TopLogprobs(torch.arange(16, dtype=torch.int32).repeat(5, 1), logprobs)
    loss = DistilLoss(targets, head, seed=0)(hidden, torch.arange(5))
    plain = -(logprobs.exp() * (hidden @ head.t()).log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(loss, plain)


def test_the_rest_of_the_vocabulary_is_estimated_without_bias() -> None:
    """The mean partition sum over many samples is the exact one."""
    generator = torch.Generator().manual_seed(1)
    head, hidden = torch.randn(6000, 8, generator=generator) * 0.3, torch.randn(2, 8, generator=generator)
    targets = TopLogprobs(torch.tensor([[0], [1]], dtype=torch.int32), torch.zeros(2, 1))
    loss = DistilLoss(targets, head, seed=0)
    exact = -(hidden @ head.t()).log_softmax(-1)[torch.arange(2), torch.arange(2)].mean()
    found = torch.stack([loss(hidden, torch.arange(2)) for _ in range(50)]).mean()
    torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-3)


def test_a_drafter_is_smaller_than_its_target() -> None:
    """The first layers are taken; as many layers as the target has are refused."""
    assert chosen_layers(30, 3) == (0, 1, 2)
    assert chosen_layers(2, 1) == (0,)
    with pytest.raises(LearnerError):
        chosen_layers(2, 2)


def test_samples_end_with_the_end_token(target: DraftTarget) -> None:
    """The target's answers follow their prompts and hold nothing after an end token."""
    model = TargetModel(target, device=torch.device("cpu"))
    answers = model.sample(PROMPTS[:5], max_tokens=30, seed=0, advanced=lambda _: None)
    for prompt, answer in zip(PROMPTS, answers, strict=False):
        assert answer.tokens[: answer.first_output] == prompt
        assert 2 not in answer.tokens[answer.first_output : -1]


sequences = st.builds(
    lambda prompt, output: DistilSequence((*prompt, *output), len(prompt)),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
)


@given(texts=st.lists(sequences, min_size=1, max_size=30), share=st.floats(0.05, 0.9), seed=st.integers(0, 99))
@settings(deadline=None)
def test_no_prompt_is_on_both_sides(texts: list[DistilSequence], share: float, seed: int) -> None:
    """Where there are two prompts, both sides hold text, none of the same prompt, and nothing is lost."""
    train, held = hold_out(texts, share=share, seed=seed)
    prompts = {text.tokens[: text.first_output] for text in texts}
    assert train
    assert held
    if len(prompts) > 1:
        ours, theirs = ({one.tokens[: one.first_output] for one in side} for side in (train, held))
        assert not ours & theirs
        assert len(train) + len(held) == len(texts)


@given(texts=st.lists(sequences, max_size=20), most=st.integers(0, 40), longest=st.integers(2, 9))
@settings(deadline=None)
def test_limits_hold(texts: list[DistilSequence], most: int, longest: int) -> None:
    """Never more sampled tokens than asked for, nor a longer sequence; prompts stay whole."""
    chosen = limited(texts, max_outputs=most, longest=longest)
    assert sum(one.outputs for one in chosen) <= most
    assert all(len(one.tokens) <= longest for one in chosen)
    assert all(one.outputs >= 1 for one in chosen)


def test_a_replay_counts_what_an_engine_would_accept() -> None:
    """Drafts of three, each followed by a token of the target's own; the text's end cuts the last one short."""
    assert replay([1, 2, 3, 9, 5, 6], [1, 2, 3, 4, 5, 6], tokens=3) == (2, 5)
    assert replay([1, 9, 3, 9], [1, 2, 3, 4], tokens=3) == (2, 2)
    assert replay([9, 9], [1, 2], tokens=3) == (2, 0)
    assert replay([], [], tokens=3) == (0, 0)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=40), st.integers(1, 5))
@settings(deadline=None)
def test_a_replay_says_the_whole_text(places: list[tuple[bool, int]], tokens: int) -> None:
    """Accepted tokens and the target's own, one a draft, are the text, but for a last one that was accepted whole."""
    said = [token for _, token in places]
    drafts, accepted = replay([token if right else token + 1 for right, token in places], said, tokens=tokens)
    assert accepted <= sum(right for right, _ in places)
    assert accepted <= drafts * tokens
    assert drafts + accepted - len(said) in (0, 1)
