"""Names in the API, ids, Tasks, samples, keys, Assignments and Rewards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from core.access import hash_key, mint_key
from core.errors import EngineError, InvalidRequest, ModelNotFound, boundary
from core.experiment import Arm, Experiment, assign
from core.ids import new_id
from core.job import retry_delay_seconds
from core.policy import Policy
from core.sample import TrainingSample
from core.task import VerifierSpec, make_task
from core.variant import ModelName, Variant, parse_model_name
from core.verdict import Verdict, VerdictStatus, combine_verdicts

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True).filter(
    lambda name: not name.endswith(("-fast", "-auto"))
)


@given(names, st.sampled_from([*Variant, None]), st.none() | st.integers(0, 10**6))
def test_model_names_round_trip(name, variant, version):
    """Every Policy name with Variant (or the choice left open) and pin is parsed back to itself."""
    model = ModelName(name=name, variant=variant or Variant.STANDARD, version=version, auto=variant is None)
    assert parse_model_name(str(model)) == model


@pytest.mark.parametrize("text", ["", "a b", "coder@", "coder@X", "@3", "coder@-1"])
def test_impossible_model_names_are_the_callers_fault(text):
    """A name that nothing could have is an invalid request with the field's name."""
    with pytest.raises(InvalidRequest) as caught:
        parse_model_name(text)
    assert caught.value.param == "model"


@pytest.mark.parametrize("name", ["x-fast", "x-auto", "", "a b", "-x", "x@1"])
def test_policy_names_cannot_be_mistaken(name):
    """A Policy cannot have a name that the API would read otherwise."""
    with pytest.raises(ValidationError):
        Policy(name=name, base="b")


def test_ids_sort_by_time_and_never_repeat():
    """Ids made later sort later by their time part, and 2,000 of them differ."""
    made = [new_id("ep") for _ in range(2000)]
    assert len(set(made)) == 2000
    assert [item[:13] for item in made] == sorted(item[:13] for item in made)


def test_the_same_task_has_the_same_id():
    """A Task's id is its content."""
    fields = {
        "domain": "d",
        "split": "train",
        "messages": ({"role": "user", "content": "q"},),
        "verifiers": (VerifierSpec(name="exact", options={"expected": "a"}),),
    }
    assert make_task(**fields).id == make_task(**fields).id
    assert make_task(**fields).id != make_task(**{**fields, "split": "heldout"}).id


def test_a_sample_has_one_length():
    """Arrays of different lengths are refused."""
    with pytest.raises(ValidationError, match="one length"):
        TrainingSample(
            episode_id="e", group_id=None, domain=None, tokens=(1, 2), loss_mask=(1,),
            behaviour_logprobs=(0.0, 0.0), advantages=(0.0, 0.0), versions=(1, 1),
        )  # fmt: skip


def test_keys_are_long_and_only_hashes_compare():
    """Two keys differ, and a hash does not hold the key."""
    first, second = mint_key(), mint_key()
    assert first != second and len(first) > 40
    assert first not in hash_key(first) and hash_key(first) != hash_key(second)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.text(min_size=1, max_size=8))
def test_assignment_is_stable(weights, salt):
    """The same key gets the same arm, and it is one of the arms."""
    arms = tuple(
        Arm(name=str(index), version=index, share=weight / sum(weights)) for index, weight in enumerate(weights)
    )
    experiment = Experiment(id="exp_1", policy="p", kind="ab", arms=arms, salt=salt)
    first, again = assign(experiment, "user-1"), assign(experiment, "user-1")
    assert (first.arm, first.bucket) == (again.arm, again.bucket)
    assert first.arm in {arm.name for arm in arms}


def test_assignment_is_proportional():
    """Over 20,000 keys an arm with a share of 0.2 gets 18-22% of them."""
    arms = (Arm(name="a", version=1, share=0.8), Arm(name="b", version=2, share=0.2))
    experiment = Experiment(id="exp_1", policy="p", kind="ab", arms=arms, salt="s")
    hits = sum(assign(experiment, f"user-{n}").arm == "b" for n in range(20_000))
    assert 0.18 < hits / 20_000 < 0.22


def verdict(score, status=VerdictStatus.SCORED, weight=1.0):
    return Verdict(
        id="vd_1", episode_id="ep_1", verifier=f"v{score}{weight}", verifier_version="1", status=status,
        score=score, success=score == 1.0, weight=weight,
    )  # fmt: skip


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 5)), min_size=1, max_size=5))
def test_a_reward_is_the_weighted_mean(pairs):
    """The Reward lies between the lowest and the highest score and is their weighted mean."""
    reward = combine_verdicts("ep_1", [verdict(score, weight=weight) for score, weight in pairs])
    expected = sum(s * w for s, w in pairs) / sum(w for _, w in pairs)
    assert reward is not None and reward.value == pytest.approx(expected)


def test_an_invalid_verdict_voids_the_reward_and_a_failed_agent_does_not():
    """Infrastructure gives no Reward at all; the agent's own failure gives a real zero."""
    assert combine_verdicts("ep_1", [verdict(1.0), verdict(0.0, VerdictStatus.INVALID)]) is None
    assert combine_verdicts("ep_1", []) is None
    failed = combine_verdicts("ep_1", [verdict(0.0, VerdictStatus.AGENT_FAILED)])
    assert failed is not None and failed.value == 0.0 and not failed.success


def test_boundaries_attribute_what_escapes():
    """A foreign exception becomes the boundary's error with its cause; Hone's own pass as they are."""
    with pytest.raises(EngineError, match="asking: KeyError") as caught, boundary(EngineError, "asking"):
        raise KeyError("x")
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(ModelNotFound), boundary(EngineError, "asking"):
        raise ModelNotFound("no such model")


@given(st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_retry_delays_are_bounded(attempt, jitter):
    """A retry waits at least a quarter of a second and at most a minute."""
    assert 0.25 <= retry_delay_seconds(attempt, jitter) <= 60.0
