"""What clients said becomes rewards, preferences and demonstrations, and those become samples."""

import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import ids
from core.config.learner_live import FeedbackRewardSection, LiveSection, LossWeightsSection
from core.episode import StopReason
from core.feedback import Feedback, FeedbackKind, read_value
from core.live import RewardBaseline
from core.live_signals import read_signal, reward_of, said_about
from core.policy import PolicySpan
from learner.end_of_turn import end_of_turn
from learner.live.intake import LiveBatch, LiveEpisode, LiveRefusal, build_live_batch, take
from learner.live.quota import choose_fairly, tenant_weights
from tests import nouns

CONFIG = LiveSection(rewards={"thumbs_up": FeedbackRewardSection(), "stars": FeedbackRewardSection(low=1, high=5)})
LINE = (0, 1, 2)


class Words:
    """A tokenizer whose tokens are lengths of words."""

    eos_token_id = 99

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [len(word) for word in text.split()]


def feedback(name: str, value, turn_id: str | None = "turn_a", *, at: float = 1.0, **fields) -> Feedback:
    kind, value = read_value(value, fields.pop("kind", None))
    values = {
        "id": ids.new_id(ids.FEEDBACK),
        "tenant_id": "ten_a",
        "key_id": "key_a",
        "episode_id": "ep_a",
        "turn_id": turn_id,
        "name": name,
        "kind": kind,
        "value": value,
        "training_granted": True,
        "created_at": at,
    }
    return Feedback(**(values | fields))


def turn(turn_id: str = "turn_a", **fields):
    return nouns.turn(**({"id": turn_id, "episode_id": "ep_a", "trainable": True} | fields))


def taken(
    *said: Feedback, turns=None, judged: float | None = None, learned=None, **episode
) -> LiveEpisode | LiveRefusal:
    one = nouns.episode(**({"id": "ep_a"} | episode))
    about = said_about(one, said, judged=judged, config=CONFIG)
    return take(about, turns or [turn()], policy="coder", config=CONFIG, learned=learned)


def batch(*chosen: LiveEpisode, config: LiveSection = CONFIG, baselines=None, **options) -> LiveBatch:
    return build_live_batch(chosen, baselines=baselines or {}, line=LINE, config=config, tokenizer=Words(), **options)


@pytest.mark.parametrize(("value", "expected"), [(1, 0.0), (3, 0.5), (5, 1.0), (9, 1.0), (-2, 0.0), ("x", None)])
def test_values_become_rewards_by_their_range(value, expected) -> None:
    """Values are mapped linearly onto 0 to 1 and cut off there; a range may be upside down."""
    assert reward_of(value, FeedbackRewardSection(low=1, high=5)) == expected
    assert reward_of(True, FeedbackRewardSection(low=1, high=0)) == 0.0


def test_rewards_are_weighted_means_of_the_latest_word() -> None:
    """Of one name the latest counts; several names, and a judge's reward, are averaged by weight."""
    said = [
        feedback("thumbs_up", True, at=1.0),
        feedback("thumbs_up", False, at=2.0),
        feedback("stars", 5, at=3.0),
        feedback("unknown", 1),
        feedback("stars", 5, None),
    ]
    about = said_about(nouns.episode(id="ep_a"), said, judged=0.5, config=CONFIG)
    signal = read_signal(about, [turn()], CONFIG)
    assert signal.rewards == {"turn_a": 0.5}
    assert signal.whole == pytest.approx(0.75)
    assert about.newest == 3.0


def test_what_may_not_train_does_not_count() -> None:
    """Feedback without the grant, or of another tenant, is as if it were not there, also for the digest."""
    nothing = said_about(nouns.episode(id="ep_a"), [], judged=None, config=CONFIG)
    refused = [feedback("thumbs_up", True, training_granted=False), feedback("thumbs_up", True, tenant_id="ten_b")]
    about = said_about(nouns.episode(id="ep_a"), refused, judged=None, config=CONFIG)
    assert (about.feedback, about.digest) == ((), nothing.digest)
    more = said_about(nouns.episode(id="ep_a"), [feedback("thumbs_up", True)], judged=None, config=CONFIG)
    assert more.digest != nothing.digest


def test_only_exact_turns_of_the_policy_with_consent_train() -> None:
    """Each of the other kinds leaves nothing to train on."""
    good = feedback("thumbs_up", True)
    for bad in (
        turn(trainable=False),
        turn(exact=False),
        turn(policy="other"),
        turn(output_logprobs=(math.nan,) * 3),
    ):
        assert taken(good, turns=[bad]) is LiveRefusal.NO_TURNS
    assert taken(turns=[turn()]) is LiveRefusal.NO_SIGNAL
    assert isinstance(taken(good, turns=[turn(policy="base", policy_spans=(PolicySpan(version=0),))]), LiveEpisode)


def test_siblings_give_preferences() -> None:
    """A preferred answer, one that is named as worse, and far apart ratings; contradictions cancel."""
    turns = [turn("turn_a"), turn("turn_b", choice=1), turn("turn_c", choice=2, prompt_ids=(9,))]
    assert taken(feedback("preferred", True), turns=turns).signal.preferences == (("turn_a", "turn_b"),)
    named = feedback("preferred_over", "turn_a", "turn_b")
    assert taken(named, turns=turns).signal.preferences == (("turn_b", "turn_a"),)
    rated = [feedback("stars", 5), feedback("stars", 2, "turn_b"), feedback("stars", 1, "turn_c")]
    assert taken(*rated, turns=turns).signal.preferences == (("turn_a", "turn_b"),)
    both = taken(named, feedback("preferred", True), turns=turns)
    assert both is LiveRefusal.NO_SIGNAL


def test_a_preference_becomes_a_pair_of_the_sampled_tokens() -> None:
    """Chosen and rejected are prompt and output ids as the engine had them."""
    turns = [turn("turn_a"), turn("turn_b", choice=1, output_ids=(7, 8, 9))]
    built = batch(taken(feedback("preferred", True), turns=turns))
    (pair,) = built.mixture.pairs
    assert (pair.chosen.tokens, pair.rejected.tokens) == ((1, 2, 3, 4, 5, 6), (1, 2, 3, 7, 8, 9))
    assert pair.chosen.loss_mask == (0, 0, 0, 1, 1, 1)
    assert built.mixture.policy == ()


def test_a_correction_is_imitated_and_preferred_to_what_it_corrects() -> None:
    """A thumbs-down with a demonstration: SFT on it behind the very prompt ids, and a DPO pair."""
    said = [
        feedback("thumbs_up", False),
        feedback("correction", "it is 4", kind=FeedbackKind.DEMONSTRATION),
    ]
    built = batch(taken(*said))
    (shown,) = built.mixture.demonstrations
    assert shown.tokens == (1, 2, 3, 2, 2, 1, 99)
    assert shown.loss_mask == (0, 0, 0, 1, 1, 1, 1)
    (pair,) = built.mixture.pairs
    assert (pair.chosen.tokens, pair.rejected.tokens) == (shown.tokens, (1, 2, 3, 4, 5, 6))
    praised = batch(taken(feedback("thumbs_up", True), said[1]))
    assert (len(praised.mixture.demonstrations), praised.mixture.pairs) == (1, ())


def test_each_turn_carries_its_own_reward() -> None:
    """In one conversation a praised and a blamed answer pull in different directions, an unrated one not at all."""
    turns = [
        turn("turn_a"),
        turn("turn_b", index=1, prompt_ids=(1, 2, 3, 4, 5, 6, 30)),
        turn("turn_c", index=2, prompt_ids=(1, 2, 3, 4, 5, 6, 30, 4, 5, 6, 31)),
    ]
    one = taken(feedback("thumbs_up", True), feedback("thumbs_up", False, "turn_c"), turns=turns)
    (sample,) = batch(one, config=CONFIG.model_copy(update={"scale": False})).mixture.policy
    assert sample.loss_mask == (0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1)
    assert sample.advantages[3:6] == (1.0, 1.0, 1.0)
    assert sample.advantages[-3:] == (-1.0, -1.0, -1.0)


def test_cut_off_and_stale_answers() -> None:
    """A cut off answer stays in the baseline and leaves the loss; a stale one, or one off the line, leaves both."""
    praised = feedback("thumbs_up", True)
    cut = taken(praised, turns=[turn(finish_reason="length")])
    blamed = taken(feedback("thumbs_up", False, "turn_b"), turns=[turn("turn_b")])
    built = batch(cut, blamed)
    assert [sample.advantages[-1] < 0 for sample in built.mixture.policy] == [True]
    assert built.state.baselines["live"].count == 2
    ended = taken(praised, stop_reason=StopReason.TRUNCATED)
    assert batch(ended, blamed).state.baselines["live"].count == 2
    strict = CONFIG.model_copy(update={"max_staleness": 0})
    old = batch(taken(praised), blamed, config=strict)
    assert (old.values["refused_stale"], old.mixture.policy, old.state.baselines["live"].count) == (2.0, (), 0)
    stranger = taken(praised, turns=[turn(policy_spans=(PolicySpan(version=7),))])
    assert batch(stranger, blamed).values["refused_other_line"] == 1.0


def test_the_best_answers_are_imitated_where_asked() -> None:
    """Rejection sampling takes what is above the threshold and better than the baseline, and nothing by default."""
    good, bad = (
        taken(feedback("thumbs_up", True)),
        taken(feedback("thumbs_up", False, "turn_b"), turns=[turn("turn_b")]),
    )
    assert batch(good, bad).mixture.best == ()
    wanted = CONFIG.model_copy(update={"losses": LossWeightsSection(rejection=1.0)})
    (best,) = batch(good, bad, config=wanted).mixture.best
    assert best.tokens == (1, 2, 3, 4, 5, 6)


def test_baselines_go_on_by_domain() -> None:
    """A single Episode is judged by its own Domain's past; what it adds is in the next state, with its digest."""
    known = {"a": RewardBaseline(mean=0.2, variance=0.04, count=1000), "b": RewardBaseline(mean=0.9, count=1000)}
    one = taken(feedback("stars", 3), domain="a")
    built = batch(one, baselines=known)
    # (0.5 - 0.2) over the deviation with the new reward in it.
    assert built.mixture.policy[0].advantages[-1] == pytest.approx(0.3 / math.sqrt(0.98 * (0.04 + 0.02 * 0.09)))
    assert built.state.baselines["b"].mean == 0.9
    assert built.state.baselines["a"].mean == pytest.approx(0.2 + 0.02 * 0.3)
    assert built.state.trained == {"ep_a": one.said.digest}


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=30),
    st.floats(0, 1),
    st.integers(0, 200),
)
def test_an_advantage_never_uses_its_own_reward_as_baseline(rewards, mean, count) -> None:
    """Changing one reward by d changes its own advantage by exactly d, and with no past they sum to zero."""
    baseline = RewardBaseline(mean=mean if count else 0.0, count=count)
    plain = baseline.advantages(rewards, scale=False)
    if count == 0:
        assert math.fsum(plain) == pytest.approx(0.0, abs=1e-9)
    if count or len(rewards) > 1:
        moved = baseline.advantages([rewards[0] + 0.25, *rewards[1:]], scale=False)
        assert moved[0] - plain[0] == pytest.approx(0.25)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_the_baseline_is_the_plain_mean_while_little_is_known(rewards) -> None:
    """Up to 1 / (1 - decay) rewards, mean and variance are the population's; then older ones fade."""
    after = RewardBaseline().taken(rewards)
    assert after.mean == pytest.approx(fmean(rewards))
    assert after.variance == pytest.approx(fmean((one - fmean(rewards)) ** 2 for one in rewards), abs=1e-9)
    assert after == RewardBaseline().taken(rewards[:3]).taken(rewards[3:])
    old = RewardBaseline(mean=0.0, count=10_000).taken([1.0] * 200)
    assert old.mean > 0.9


@given(st.lists(st.sampled_from("aaaabc"), max_size=60), st.integers(1, 30), st.sampled_from([0.25, 0.5, 1.0]))
def test_no_tenant_has_more_than_its_share(tenants, size, share) -> None:
    """Whoever asks most gets at most its share of what is chosen, in its order; nothing is chosen twice."""
    items = list(enumerate(tenants))
    chosen = choose_fairly(items, tenant=lambda item: item[1], size=size, share=share)
    assert len(chosen) <= size
    assert chosen == sorted(set(chosen))
    for name in set(tenants) if len(set(tenants)) > 1 else ():
        mine = [item for item in chosen if item[1] == name]
        assert len(mine) <= math.ceil(share * len(chosen))
        assert mine == [item for item in items if item[1] == name][: len(mine)]


def test_what_earlier_steps_took_counts() -> None:
    """A tenant that has had its share waits until others have something."""
    items = ["a"] * 10 + ["b"] * 2
    chosen = choose_fairly(items, tenant=str, size=10, share=0.5)
    assert sorted(chosen) == ["a", "a", "a", "b", "b"]
    waiting = ["a"] * 8 + ["b"]
    assert choose_fairly(waiting, tenant=str, size=10, share=0.5, before={"a": 30, "b": 2}) == ["b"]
    assert len(choose_fairly(["a"] * 8, tenant=str, size=5, share=1.0)) == 5


def test_one_talkative_tenant_does_not_starve_learning() -> None:
    """The quota never leaves less than a step's least, and tenants with nothing waiting do not count."""
    chosen = choose_fairly(["a"] * 1000 + ["b"], tenant=str, size=64, share=0.5, least=8)
    assert sorted(chosen) == ["a"] * 7 + ["b"]
    alone = choose_fairly(["a"] * 100, tenant=str, size=64, share=0.5, least=8, before={"a": 7, "b": 1})
    assert len(alone) == 64


@given(
    st.dictionaries(st.sampled_from("abcde"), st.integers(1, 100), min_size=1),
    st.sampled_from([0.1, 0.25, 0.5, 0.8, 1.0]),
)
def test_weights_keep_a_tenant_to_its_share(numbers, share) -> None:
    """No tenant weighs more than its share (rounded up) of all weight, or than an equal one among few tenants."""
    weights = tenant_weights(numbers, share)
    held = {name: weights[name] * number for name, number in numbers.items()}
    fair = max(share, 1 / len(numbers))
    assert all(0.0 < weight <= 1.0 for weight in weights.values())
    if any(weight < 1.0 for weight in weights.values()):
        assert max(held.values()) <= fair * math.fsum(held.values()) + 1e-6
    else:
        assert max(numbers.values()) <= math.ceil(fair * sum(numbers.values()) - 1e-9)


def test_a_tenant_beyond_its_share_weighs_less() -> None:
    """Seven Episodes of one tenant beside one of another pull as hard as that one."""
    episodes = [
        taken(
            feedback("stars", 1 + 4 * (number % 2), f"turn_{number}", episode_id=f"ep_{number}", tenant_id=tenant),
            id=f"ep_{number}",
            tenant_id=tenant,
            turns=[turn(f"turn_{number}", episode_id=f"ep_{number}")],
        )
        for number, tenant in enumerate(["ten_a"] * 7 + ["ten_b"])
    ]
    known = {"live": RewardBaseline(mean=0.5, count=1000)}
    config = CONFIG.model_copy(update={"scale": False})
    sizes = [abs(one.advantages[-1]) for one in batch(*episodes, baselines=known, config=config).mixture.policy]
    plain = config.model_copy(update={"tenant_share": 1.0})
    free = [abs(one.advantages[-1]) for one in batch(*episodes, baselines=known, config=plain).mixture.policy]
    assert sizes == pytest.approx([size / 7 for size in free[:7]] + free[7:])


def test_the_same_word_is_learned_once() -> None:
    """New Feedback on a conversation trains the answer that it speaks of, not those that were rated before."""
    turns = [turn("turn_a"), turn("turn_b", index=1, prompt_ids=(1, 2, 3, 4, 5, 6, 30))]
    praised, corrected = (
        feedback("thumbs_up", True),
        feedback("fix", "it is 4", kind=FeedbackKind.DEMONSTRATION),
    )
    first = batch(taken(praised, corrected, turns=turns)).state.learned
    later = feedback("thumbs_up", False, "turn_b", at=2.0)
    again = taken(praised, corrected, later, turns=turns, learned=first)
    built = batch(
        again, config=CONFIG.model_copy(update={"scale": False}), baselines={"live": RewardBaseline(count=9)}
    )
    assert (built.values["rewarded"], built.mixture.demonstrations) == (1.0, ())
    assert built.state.baselines["live"].count == 10
    known = first | built.state.learned
    assert taken(praised, corrected, later, turns=turns, learned=known) is LiveRefusal.NOTHING_NEW
    changed = feedback("thumbs_up", False, at=3.0)
    assert batch(taken(praised, changed, corrected, later, turns=turns, learned=known)).values == {
        "live_episodes": 1.0,
        "live_tenants": 1.0,
        "rewarded": 1.0,
        "demonstrations": 0.0,
        "preferences": 1.0,
    }


def test_a_preference_is_learned_once() -> None:
    """A rating of a third answer makes its own pairs and repeats none."""
    turns = [turn("turn_a"), turn("turn_b", choice=1), turn("turn_c", choice=2)]
    rated = [feedback("stars", 5), feedback("stars", 1, "turn_b")]
    first = batch(taken(*rated, turns=turns))
    more = taken(*rated, feedback("stars", 1, "turn_c"), turns=turns, learned=first.state.learned)
    assert (len(first.mixture.pairs), more.signal.preferences) == (1, (("turn_a", "turn_b"), ("turn_a", "turn_c")))
    assert len(batch(more).mixture.pairs) == 1


def test_a_demonstration_that_calls_tools_is_not_imitated() -> None:
    """Its text alone would teach not to call."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    message = {"role": "assistant", "content": "Let me look.", "tool_calls": [call]}
    built = batch(taken(feedback("fix", message)))
    assert (built.mixture.demonstrations, built.values["refused_no_text"]) == ((), 1.0)


class Chat(Words):
    """A tokenizer whose chats end in a token of their own."""

    chat_template = "yes"
    all_special_ids = (99, 7)

    def __init__(self, end: str) -> None:
        self._end = end

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def apply_chat_template(self, messages, *, tokenize: bool) -> str:
        assert not tokenize
        return " ".join(message["content"] for message in messages) + self._end


def test_an_answer_ends_as_the_chat_template_ends_it() -> None:
    """The special token behind the answer; the end of text where there is none."""
    assert end_of_turn(Words()) == 99
    assert end_of_turn(Chat(" <|eot|> x")) == 7
    assert end_of_turn(Chat("")) == 99
    assert end_of_turn(Chat(" no special")) == 99


def test_the_control_deals_rewards_anew() -> None:
    """Shuffled rewards have the same values and the same seed gives the same ones."""
    episodes = [
        taken(
            feedback("stars", 1 + number % 5, f"turn_{number}", episode_id=f"ep_{number}"),
            id=f"ep_{number}",
            turns=[turn(f"turn_{number}", episode_id=f"ep_{number}")],
        )
        for number in range(12)
    ]
    true, first, again = batch(*episodes), batch(*episodes, shuffle_seed="1"), batch(*episodes, shuffle_seed="1")
    assert first.mixture == again.mixture
    assert first.mixture != true.mixture
    assert sorted(s.advantages[-1] for s in first.mixture.policy) == pytest.approx(
        sorted(s.advantages[-1] for s in true.mixture.policy)
    )
