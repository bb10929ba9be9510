"""Comparing an engine's log-probs with a Probe."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import EngineError
from core.policy import Probe, ProbePrompt, ProbeResult
from serving.engines.fake import FakeEngineServer
from serving.engines.fake_model import base_identity, probe_for
from serving.engines.vllm import VllmEngine
from serving.probe import check_probe, compare, select


def probe(parent: float = 1.0, base: float = 2.0) -> Probe:
    """Eight prompts whose version log-prob is -3 everywhere, with parent and Base so far away."""
    prompt = ProbePrompt(
        token_ids=(1, 2, 3),
        positions=(1, 2),
        version_logprobs=(-3.0, -3.0),
        parent_logprobs=(-3.0 - parent,) * 2,
        base_logprobs=(-3.0 - base,) * 2,
    )
    return Probe(prompts=(prompt,) * 8)


def judged(offset: float, *, parent: float = 1.0, base: float = 2.0, max_error: float = 0.02) -> ProbeResult:
    return compare(probe(parent, base), [-3.0 - offset] * 16, max_error=max_error)


def test_the_right_version_passes():
    """A small error far from parent and Base passes, and is told apart."""
    result = judged(0.01)
    assert result.passed and not result.indistinguishable
    assert result.error == pytest.approx(0.01)
    assert (result.parent_distance, result.base_distance) == pytest.approx((1.0, 2.0))


@pytest.mark.parametrize("wrong", [1.0, 2.0])
def test_parent_or_base_under_the_right_name_fails(wrong):
    """Weights of parent or Base are recognised, and named when they match."""
    result = judged(wrong)
    assert not result.passed and "the answers are those of" in result.reason


def test_a_wrong_parent_close_by_is_recognised():
    """A parent nearer than the largest error is still refused when the answers are exactly its own."""
    result = judged(0.012, parent=0.012)
    assert not result.passed and "those of the parent" in result.reason


def test_parent_and_child_that_agree_are_indistinguishable():
    """A version that did not move passes, and the record says that identity rests on the checksum."""
    result = judged(0.0, parent=0.0)
    assert result.passed and result.indistinguishable and "checksum" in result.reason


def test_noise_above_a_small_distance_is_indistinguishable():
    """Noise larger than a quarter of a small distance neither fails nor proves identity."""
    result = judged(0.01, parent=0.02)
    assert result.passed and result.indistinguishable


def test_a_number_that_is_none_fails():
    """NaN from an engine fails the probe and can be stored as JSON."""
    result = judged(math.nan)
    assert not result.passed and math.isfinite(result.error)
    assert ProbeResult.model_validate(result.model_dump(mode="json")) == result


def test_a_missing_logprob_is_an_engine_error():
    """An engine that leaves out a compared position has not answered the probe."""
    with pytest.raises(EngineError):
        select(probe(), [[None, -3.0]] * 8)


offsets = st.floats(0, 5, allow_nan=False)


@settings(deadline=None, max_examples=50)
@given(offset=offsets, parent=offsets, base=offsets, max_error=st.floats(0.001, 0.5))
def test_what_passing_means(offset, parent, base, max_error):
    """Whatever passes is within the largest error, and within a quarter of both distances or marked."""
    result = judged(offset, parent=parent, base=base, max_error=max_error)
    if result.passed:
        nearest = min(result.parent_distance, result.base_distance)
        assert result.error <= max_error
        assert result.indistinguishable or result.error <= nearest / 4
        assert not result.indistinguishable or nearest < 4 * max_error
    elif result.error <= max_error:
        assert "the answers are those of" in result.reason


@settings(deadline=None, max_examples=50)
@given(parent=st.floats(0.05, 5), base=st.floats(0.05, 5), noise=st.floats(0, 0.001))
def test_weights_of_another_never_pass(parent, base, noise):
    """With float32-like noise, the parent's or the Base's answers never pass for the version."""
    for wrong in (parent, base):
        assert not judged(wrong + noise, parent=parent, base=base).passed
        assert judged(noise, parent=parent, base=base).passed


async def test_the_prompts_are_scored_by_the_engine():
    """A probe of the served weights passes, and one of other weights fails."""
    async with FakeEngineServer() as server:
        engine = VllmEngine(server.url)
        right = probe_for(version=base_identity("base"), parent="adapter:p", base="adapter:b")
        wrong = probe_for(version="adapter:x", parent=base_identity("base"), base="adapter:b")
        assert (await check_probe(engine, "base", right, 0.02)).passed
        assert not (await check_probe(engine, "base", wrong, 0.02)).passed
        await engine.close()
