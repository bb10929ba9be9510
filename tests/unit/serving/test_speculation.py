"""Draft acceptance from counters."""

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.engines.base import EngineMetrics
from serving.engines.fake import FakeEngineServer
from serving.engines.vllm import VllmEngine
from serving.speculation.acceptance import acceptance


def counters(drafts: float, draft_tokens: float, accepted: float, positions: tuple[float, ...] = ()) -> EngineMetrics:
    return EngineMetrics(
        drafts=drafts, draft_tokens=draft_tokens, accepted_tokens=accepted, accepted_by_position=positions
    )


def test_acceptance_is_what_happened_in_between():
    """Rates are of the difference of two readings, not of all time."""
    seen = acceptance(counters(10, 40, 40, (10, 10)), counters(20, 80, 60, (20, 15)))
    assert seen is not None
    assert (seen.drafts, seen.draft_tokens, seen.accepted_tokens) == (10, 40, 20)
    assert (seen.rate, seen.tokens_per_step, seen.by_position) == (0.5, 3.0, (1.0, 0.5))


def test_nothing_happened():
    """Without a step, or without speculation, there is nothing to say."""
    assert acceptance(EngineMetrics(), EngineMetrics()) is None
    assert acceptance(counters(5, 20, 3), counters(5, 20, 3)) is None


def test_a_restarted_engine_counts_from_zero():
    """Counters that fell were reset: the new reading counts alone."""
    seen = acceptance(counters(100, 400, 300), counters(10, 40, 10))
    assert seen is not None and seen.rate == 0.25


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 10_000), st.integers(1, 16), st.floats(0, 1))
def test_rates_are_shares(drafts, per_step, share):
    """The rate lies in [0, 1] and a step yields between one token and one more than were drafted."""
    drafted = drafts * per_step
    seen = acceptance(EngineMetrics(), counters(drafts, drafted, int(drafted * share)))
    assert seen is not None and 0 <= seen.rate <= 1
    assert 1 <= seen.tokens_per_step <= 1 + per_step


async def test_an_engines_metrics_are_read():
    """The names are those that the engine uses."""
    async with FakeEngineServer(speculative=True) as server:
        engine = VllmEngine(server.url)
        before = await engine.metrics()
        await engine.prompt_logprobs("base", [1, 2, 3])
        server._generated += 40
        seen = acceptance(before, await engine.metrics())
        assert seen is not None and seen.rate == 0.75 and seen.by_position == (1.0, 1.0, 1.0, 0.0)
        await engine.close()
