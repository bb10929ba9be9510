"""The speculation report of the admin API, and the counts that its Turns carry."""

import json

import pytest

from core.message import Usage
from core.noun import now
from core.sameness import SamenessCheck
from core.turn import SpeculationCounts, Timing
from core.variant import Variant
from serving.engines import fake_shapes
from tests import nouns
from tests.gateway_harness import running_gateway

COUNTS = SpeculationCounts(drafted=12, accepted=6, steps=4, accepted_at=(3, 2, 1))


def turn(episode_id: str, variant: Variant, *, seconds: float, counts: SpeculationCounts = COUNTS):
    """A Turn of 20 sampled tokens."""
    return nouns.turn(
        episode_id=episode_id,
        variant=variant,
        usage=Usage(prompt_tokens=3, completion_tokens=20),
        speculation=counts,
        timing=Timing(started_at=0.0, first_token_seconds=1.0, total_seconds=1.0 + seconds),
    )


async def test_the_report_is_by_version_and_domain(fresh_sqlite_url, open_store, make_config):
    """Acceptance by position, tokens per step and both speeds are told for each Policy version and Domain."""
    store = await open_store(fresh_sqlite_url)
    code, old = nouns.episode(domain="code"), nouns.episode(domain="code", created_at=now() - 7200.0)
    async with store.transaction() as work:
        for episode in (code, old):
            await work.episodes.add(episode)
        await work.turns.add_many(
            [
                turn(code.id, Variant.FAST, seconds=1.0),
                turn(code.id, Variant.STANDARD, seconds=2.0, counts=SpeculationCounts()).model_copy(
                    update={"index": 1}
                ),
                turn(old.id, Variant.FAST, seconds=9.0),
            ]
        )
    async with running_gateway(store, make_config, {"store.url": fresh_sqlite_url}) as harness:
        status, report = await harness.admin("GET", "/speculation?hours=1")
        assert status == 200
        [row] = report["rows"]
        assert (row["policy"], row["version"], row["domain"]) == ("coder", 1, "code")
        assert (row["fast_turns"], row["standard_turns"], row["acceptance"]) == (1, 1, 0.5)
        assert (row["tokens_per_step"], row["by_position"]) == (2.5, [0.75, 0.5, 0.25])
        assert (row["fast_tokens_per_second"], row["standard_tokens_per_second"], row["speedup"]) == (20, 10, 2)
        assert (await harness.admin("GET", "/speculation?hours=1&policy=absent"))[1]["rows"] == []
        assert (await harness.admin("GET", "/speculation?hours=0"))[0] == 400


async def test_comparisons_are_listed(fresh_sqlite_url, open_store, make_config):
    """Comparisons of replicas are told newest first, with what speaks against sameness."""
    store = await open_store(fresh_sqlite_url)
    checks = [
        SamenessCheck(
            id=f"same_{number}",
            base="smol",
            policy="coder",
            version=1,
            standard_id="dep_a",
            fast_id="dep_b",
            prompts=2,
            same=number == 0,
            reason=None if number == 0 else "1 of 2 greedy answers differ",
            created_at=float(number),
        )
        for number in range(2)
    ]
    async with store.transaction() as work:
        for check in checks:
            await work.sameness.add(check, keep=10)
    async with running_gateway(store, make_config, {"store.url": fresh_sqlite_url}) as harness:
        status, found = await harness.admin("GET", "/speculation/sameness?deployment=dep_b")
        assert status == 200 and found == [json.loads(check.model_dump_json()) for check in reversed(checks)]
        assert (await harness.admin("GET", "/speculation/sameness?base=other"))[1] == []


TOLD = {
    "speculative_decoding": {
        "num_draft_tokens": 12,
        "num_accepted_draft_tokens": 6,
        "num_spec_steps": 4,
        "acceptance_histogram": [1, 1, 1, 1],
    }
}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_has_the_counts_that_its_client_does_not_see(
    fresh_sqlite_url, open_store, make_config, monkeypatch, stream
):
    """What the engine says of its draft tokens is recorded, and the client gets what it would get without."""
    whole, chunks = fake_shapes.whole, fake_shapes.stream
    monkeypatch.setattr(fake_shapes, "whole", lambda *told: whole(*told) | {"metrics": TOLD})
    monkeypatch.setattr(
        fake_shapes,
        "stream",
        lambda *told: (one | ({"metrics": TOLD} if "usage" in one else {}) for one in chunks(*told)),
    )
    body = {"model": "coder-fast", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    body |= {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    async with running_gateway(await open_store(fresh_sqlite_url), make_config) as harness:
        await harness.add_engine("dep_fast", variant=Variant.FAST)
        response = await harness.post("/v1/chat/completions", body, "trainer")
        assert response.status == 200 and response.headers["x-hone-variant"] == "fast"
        text = await response.text()
        assert "speculative_decoding" not in text and '"prompt_tokens":' in text.replace('": ', '":')
        assert stream == ("metrics" not in text)
        (turn,) = await harness.turns(response.headers["x-hone-episode-id"])
        assert turn.speculation == COUNTS
