"""The order of attempts, and the waits between them."""

from hypothesis import given
from hypothesis import strategies as st

from core.errors import EngineError, EngineUnavailable, HoneError, InvalidRequest, ProviderRefused, RateLimited
from gateway.inference.fallbacks import (
    FIRST_DELAY_SECONDS,
    LONGEST_DELAY_SECONDS,
    Attempt,
    delay,
    next_attempt,
    plan_attempts,
    should_fall_back,
    should_retry,
)
from gateway.upstream.base import Unreachable

NAMES = st.sampled_from(["coder", "base", "openai/gpt", "anthropic/claude"])
PLANS = st.tuples(NAMES, st.dictionaries(NAMES, st.lists(NAMES, max_size=5)), st.integers(0, 4))
FAILURES: list[Exception] = [
    Unreachable("away"),
    EngineUnavailable("none"),
    EngineError("broken"),
    ProviderRefused("key"),
    RateLimited("busy"),
    RateLimited("busy", retry_after_seconds=3600),
    RateLimited("never", retry_after_seconds=float("inf")),
]


@given(PLANS)
def test_every_model_is_tried_equally_often_and_the_asked_one_first(plan):
    """Each distinct name has ``1 + retries`` numbered attempts in a row, in the configured order."""
    model, fallbacks, retries = plan
    attempts = plan_attempts(model, fallbacks, retries)
    order = list(dict.fromkeys([model, *fallbacks.get(model, [])]))
    assert [(a.model, a.number) for a in attempts] == [(m, n) for m in order for n in range(1 + retries)]
    assert all((a.fallback_from is None) == (a.model == model) for a in attempts)


@given(PLANS, st.data())
def test_attempts_only_go_forward(plan, data):
    """Whatever fails, the next attempt is a later one, and at last there is none."""
    attempts = plan_attempts(*plan)
    at: Attempt | None = attempts[0]
    made = 0
    while at is not None:
        made += 1
        following = next_attempt(attempts, at, data.draw(st.sampled_from(FAILURES)))
        assert following is None or attempts.index(following) > attempts.index(at)
        at = following
    assert made <= len(attempts)


@given(PLANS, st.sampled_from([ProviderRefused("key"), RateLimited("busy", retry_after_seconds=60.0)]))
def test_what_cannot_get_better_soon_moves_on(plan, error):
    """A refused key and a long wait are not tried again: the next model is asked at once."""
    attempts = plan_attempts(*plan)
    following = next_attempt(attempts, attempts[0], error)
    others = [attempt for attempt in attempts if attempt.model != attempts[0].model]
    assert following == (others[0] if others else None)


@given(PLANS)
def test_the_callers_mistake_is_the_answer(plan):
    """An invalid request is neither repeated nor sent elsewhere."""
    attempts = plan_attempts(*plan)
    for error in (InvalidRequest("no"), HoneError("no")):
        assert not should_retry(error, 0) and not should_fall_back(error)
        assert next_attempt(attempts, attempts[0], error) is None


@given(st.integers(0, 1000), st.none() | st.floats(0, 100), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_bounded_and_honours_retry_after(attempt, retry_after, drawn):
    """Never below what was asked for, never above it by more than the first step, and bounded without it."""
    seconds = delay(attempt, retry_after, lambda: drawn)
    if retry_after is None:
        assert 0 <= seconds <= LONGEST_DELAY_SECONDS
    else:
        assert retry_after <= seconds <= retry_after + FIRST_DELAY_SECONDS


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 20))
def test_waits_grow(drawn, attempt):
    """With the same draw a later attempt never waits less."""
    assert delay(attempt, None, lambda: drawn) <= delay(attempt + 1, None, lambda: drawn)
