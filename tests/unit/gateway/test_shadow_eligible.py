"""Which requests are in a shadow's sample."""

from hypothesis import given
from hypothesis import strategies as st

from core import ids
from core.experiment import Arm, Experiment
from gateway.inference.request import parse_request
from gateway.shadow.eligible import domain_of, sampled
from gateway.shadow.ledger import spent_reason

ARMS = (Arm(name="primary", version=1, share=1.0), Arm(name="candidate", version=2, share=0.0))


def shadow(**fields: object) -> Experiment:
    """A shadow."""
    return Experiment(**({"id": "exp_a", "policy": "coder", "kind": "shadow", "arms": ARMS, "salt": "s"} | fields))


@given(st.text(min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_only_adds_turns(turn_id: str, first: float, second: float) -> None:
    """The same Turn is drawn alike everywhere; whoever is in a small sample is in every larger one."""
    small, large = shadow(sample_share=min(first, second)), shadow(sample_share=max(first, second))
    assert sampled(large, turn_id) >= sampled(small, turn_id)
    assert sampled(shadow(sample_share=1.0), turn_id)
    assert not sampled(shadow(sample_share=0.0), turn_id)


def test_the_sample_has_its_share() -> None:
    """Of many Turns about the share is drawn, and another salt draws others."""
    turns = [ids.new_id(ids.TURN) for _ in range(4000)]
    first = {turn for turn in turns if sampled(shadow(sample_share=0.25), turn)}
    second = {turn for turn in turns if sampled(shadow(sample_share=0.25, salt="t"), turn)}
    assert 800 < len(first) < 1200
    assert 120 < len(first & second) < 400


def test_a_request_names_its_domain() -> None:
    """By its metadata, cut to a bounded length; anything but text names none."""
    text = '{"model": "coder", "messages": [], "metadata": %s}'
    assert domain_of(parse_request("chat.completions", (text % '{"hone_domain": "maths"}').encode())) == "maths"
    long = '{"hone_domain": "%s"}' % ("m" * 100)
    assert len(domain_of(parse_request("chat.completions", (text % long).encode())) or "") == 64
    for other in ("{}", '{"hone_domain": 3}', '{"hone_domain": ""}', "7"):
        assert domain_of(parse_request("chat.completions", (text % other).encode())) is None


@given(st.integers(0, 20), st.integers(0, 20), st.none() | st.integers(1, 10), st.none() | st.integers(1, 10))
def test_a_budget_is_spent_when_either_part_is(requests: int, tokens: int, most: int | None, most_tokens: int | None):
    """Without a bound nothing is ever spent; with one it is from the bound on."""
    reason = spent_reason(shadow(max_requests=most, max_tokens=most_tokens), (requests, tokens))
    over = (most is not None and requests >= most) or (most_tokens is not None and tokens >= most_tokens)
    assert (reason is not None) == over
