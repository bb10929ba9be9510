"""Which engine may be restarted when, how an engine is drained, and who has which place in the fleet."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.config.serving import FleetSection
from core.deployment import MOST_SWAPS, Deployment, DeploymentStatus, LoadedVersion, Restart, SwapRecord
from core.errors import EngineUnavailable, EngineUnsupported
from core.policy import ProbeResult
from core.variant import Variant
from serving.engines.base import EngineMetrics
from serving.engines.vllm import VllmEngine
from serving.launcher import EngineProcess
from serving.observe import observe, observe_drafts
from serving.reconciler import keep_off_other_weights
from serving.replica import Replica
from serving.restarts import drain, why_not_now
from serving.slots import log_name, next_port, take_row, wanted_slots
from tests import nouns

STANDARD, FAST = Variant.STANDARD, Variant.FAST
READY, AWAY = DeploymentStatus.READY, DeploymentStatus.UNHEALTHY


def replica(variant: Variant = STANDARD, status: DeploymentStatus = READY, **fields: Any) -> Replica:
    deployment = nouns.deployment(variant=variant, status=status, **fields)
    return Replica(deployment=deployment, engine=VllmEngine(deployment.url))


class Counting:
    """An engine that gives one reading after the other."""

    url = "http://engine"

    def __init__(self, *readings: EngineMetrics | None, healthy: bool = False) -> None:
        self.readings = list(readings)
        self.healthy = healthy
        self.versions = 0

    async def version(self) -> str:
        """Its release, counted."""
        self.versions += 1
        return "0.32.0"

    async def health(self) -> bool:
        """Whether it says that it can answer."""
        return self.healthy

    async def metrics(self) -> EngineMetrics:
        """The next reading; None: it is away."""
        reading = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        if reading is None:
            raise EngineUnavailable("away")
        return reading


@pytest.mark.parametrize(
    ("variant", "others", "allowed"),
    [
        (STANDARD, [(STANDARD, READY)], True),
        (FAST, [(FAST, READY)], True),
        (FAST, [(STANDARD, READY)], True),
        (STANDARD, [(FAST, READY)], True),
        (FAST, [(STANDARD, AWAY)], False),
        (FAST, [(STANDARD, AWAY), (FAST, READY)], True),
        (STANDARD, [(STANDARD, AWAY), (FAST, AWAY)], False),
        (STANDARD, [], True),
    ],
)
def test_an_engine_goes_down_only_while_others_cover(variant, others, allowed):
    """The last ready one of a Variant goes only while the standard one serves, or is the only one there is."""
    chosen = replica(variant)
    everyone = [chosen, *(replica(*other) for other in others)]
    assert (why_not_now(chosen, everyone) is None) is allowed


@given(
    variants=st.lists(
        st.tuples(st.sampled_from([STANDARD, FAST]), st.sampled_from([READY, AWAY])), min_size=2, max_size=5
    )
)
def test_no_restart_takes_the_last_answer_away(variants):
    """Whatever the fleet looks like, after an allowed restart of a ready replica another one still answers."""
    everyone = [replica(*one) for one in variants]
    for chosen in everyone:
        if chosen.ready and why_not_now(chosen, everyone) is None:
            left = [one for one in everyone if one is not chosen and one.ready]
            assert left
            standard = any(one.deployment.variant is STANDARD for one in left)
            same = any(one.deployment.variant is chosen.deployment.variant for one in left)
            assert same or standard or chosen.deployment.variant is STANDARD


def test_after_a_failed_start_the_others_are_left_alone():
    """A configuration with which no engine starts takes one replica down, not all of them."""
    failed, serving, other = replica(status=AWAY), replica(), replica()
    failed.attempts = 1
    assert "did not start" in (why_not_now(serving, [failed, serving, other]) or "")
    assert why_not_now(failed, [failed, serving, other]) is None


@pytest.mark.parametrize("status", [DeploymentStatus.STARTING, DeploymentStatus.SWAPPING])
def test_what_is_being_changed_is_not_restarted(status):
    """An engine that starts or gets new weights is left to finish that."""
    assert why_not_now(replica(status=status), [replica()]) is not None


async def test_draining_waits_for_requests_in_flight():
    """It ends when nothing runs and nothing waits, and soon when the engine is away."""
    busy, queued = EngineMetrics(running=1), EngineMetrics(waiting=1)
    engine = Counting(busy, queued, EngineMetrics())
    assert await drain(engine, settle_seconds=0.0, longest_seconds=30.0)
    assert len(engine.readings) == 1
    assert await drain(Counting(None), settle_seconds=30.0, longest_seconds=30.0)


async def test_a_failed_reading_is_no_empty_engine():
    """One that runs is waited for through failed readings; one whose process ended is not waited for."""
    busy = EngineMetrics(running=1)
    engine = Counting(None, None, busy, None, None, busy, EngineMetrics())
    assert await drain(engine, settle_seconds=0.0, longest_seconds=30.0, alive=lambda: True)
    assert len(engine.readings) == 1
    assert not await drain(Counting(None, healthy=True), settle_seconds=0.0, longest_seconds=0.5)
    dead = Counting(None, healthy=True)
    assert await drain(dead, settle_seconds=30.0, longest_seconds=30.0, alive=lambda: False)


def full_weights(version: int, *, candidate: bool = False) -> LoadedVersion:
    return LoadedVersion(
        policy="coder",
        version=version,
        engine_model="base",
        checksum="c",
        candidate=candidate,
        swap_seconds=0.1,
        probe=ProbeResult(passed=True, error=0.0, parent_distance=0.0, base_distance=0.0, reason="r"),
    )


def test_a_replica_that_only_tries_a_version_covers_nothing():
    """Full weights that are not promoted answer nobody who asks for the Policy, so that the other one must stay."""
    serving = replica(policy="coder", weights=full_weights(1))
    tries = replica(policy="coder", weights=full_weights(2, candidate=True))
    answers = replica(policy="coder", weights=full_weights(2))
    assert why_not_now(serving, [serving, tries]) is not None
    assert why_not_now(serving, [serving, tries, answers]) is None
    assert why_not_now(tries, [serving, tries]) is None


def test_a_closed_replica_is_opened_by_nobody():
    """Whoever waited while it was closed leaves it closed; after its restart it opens."""
    one = replica()
    one.closed = True
    one.move_to(DeploymentStatus.DRAINING)
    one.move_to(READY)
    assert one.deployment.status is DeploymentStatus.DRAINING
    one.closed = False
    one.move_to(READY)
    assert one.ready


class Labelled:
    """An engine that says whose weights it holds."""

    url = "http://engine"

    def __init__(self, label: str | Exception) -> None:
        self.label = label

    async def load_weights(self, path: str, *, label: str) -> None:
        """It can replace its weights."""

    async def weights_label(self) -> str:
        """Its label; raises what was given in its place."""
        if isinstance(self.label, Exception):
            raise self.label
        return self.label


@pytest.mark.parametrize(
    ("label", "status", "after", "asks_restart"),
    [
        ("coder@1", READY, DeploymentStatus.DRAINING, True),
        ("coder@1", DeploymentStatus.SWAPPING, AWAY, False),
        ("default", READY, READY, False),
        (EngineUnsupported("no"), READY, READY, False),
        (EngineUnavailable("away"), READY, AWAY, False),
    ],
)
async def test_a_launched_engine_with_a_policys_weights_is_not_the_base(tmp_path, label, status, after, asks_restart):
    """One that serves is drained and restarted, another one is started anew; one that cannot tell has the Base's."""
    process = EngineProcess(command=[], environment={}, log_path=tmp_path / "log")
    one = Replica(deployment=nouns.deployment(status=status), engine=Labelled(label), process=process)
    assert await keep_off_other_weights(one) is (after is READY)
    assert one.deployment.status is after
    assert (one.closed, one.deployment.restart is not None) == (asks_restart, asks_restart)


async def test_draining_ends_after_its_time():
    """A request that never ends does not keep an engine for ever, nor does settling."""
    assert not await drain(Counting(EngineMetrics(running=1)), settle_seconds=0.0, longest_seconds=0.2)
    assert await drain(Counting(EngineMetrics()), settle_seconds=60.0, longest_seconds=0.2)


async def test_an_engine_is_asked_for_version_and_load():
    """The version is asked once in an engine's life; prefix hits are those between two readings."""
    engine = Counting(
        EngineMetrics(running=1, waiting=2, kv_use=0.5, prefix_queries=100, prefix_hits=50),
        EngineMetrics(prefix_queries=200, prefix_hits=140),
        EngineMetrics(prefix_queries=200, prefix_hits=140),
        EngineMetrics(prefix_queries=10, prefix_hits=1),
    )
    one = Replica(deployment=nouns.deployment(status=READY), engine=engine)
    hits = []
    for _ in range(4):
        await observe(one)
        assert one.deployment.load is not None
        hits.append(one.deployment.load.prefix_hits)
    assert hits == [0.5, 0.9, None, 0.1]
    assert (one.deployment.engine_version, engine.versions) == ("0.32.0", 1)
    one.lose("gone")
    assert one.deployment.load is None
    await observe(one)
    assert engine.versions == 2


async def test_draft_tokens_are_seen_between_readings():
    """Acceptance counts what was drafted since it was last asked for."""
    before = EngineMetrics(drafts=10, draft_tokens=40, accepted_tokens=40, accepted_by_position=(10, 10, 10, 10))
    after = EngineMetrics(drafts=20, draft_tokens=80, accepted_tokens=60, accepted_by_position=(20, 15, 13, 12))
    one = Replica(deployment=nouns.deployment(status=READY, variant=FAST), engine=Counting(before, after))
    await observe(one)
    observe_drafts(one)
    await observe(one)
    assert observe_drafts(one) is not None
    seen = one.deployment.speculation_seen
    assert seen is not None
    assert (seen.acceptance, seen.accepted_per_draft) == (0.5, 2.0)
    assert seen.by_position == (1.0, 0.5, 0.3, 0.2)
    assert observe_drafts(one) is None
    assert one.deployment.speculation_seen == seen


def swap(version: int, outcome: Any = "live") -> SwapRecord:
    return SwapRecord(kind="lora", policy="coder", version=version, outcome=outcome, seconds=0.1)


def test_the_newest_swaps_are_remembered():
    """The oldest ones go; a failure that repeats itself takes one place."""
    one = replica()
    for number in range(MOST_SWAPS + 5):
        one.note_swap(swap(number))
    assert [each.version for each in one.deployment.swaps] == list(range(5, MOST_SWAPS + 5))
    for _ in range(3):
        one.note_swap(swap(99, "failed"))
    assert [each.version for each in one.deployment.swaps[-2:]] == [MOST_SWAPS + 4, 99]


def test_a_restart_is_carried_out_once():
    """A wish that was carried out and is read again from an older row is not taken for a new one."""
    one, wish = replica(), Restart(reason="r", asked_at=5.0)
    one.ask_restart(wish)
    assert one.deployment.restart == wish
    one.restarted(wish)
    one.ask_restart(wish)
    assert one.deployment.restart is None
    one.ask_restart(Restart(reason="again", asked_at=6.0))
    assert one.deployment.restart is not None


def test_slots_follow_the_configuration():
    """Attached Variants have a slot for each URL, launched ones for each wanted replica, counted through."""
    fleet = FleetSection(replicas={"standard": 2}, attach={"fast": "http://a:1/, http://b:2,http://a:1"})
    slots = wanted_slots(fleet)
    assert [(one.variant, one.replica, one.url) for one in slots] == [
        (STANDARD, 0, None),
        (STANDARD, 1, None),
        (FAST, 0, "http://a:1"),
        (FAST, 1, "http://b:2"),
    ]
    launched = wanted_slots(FleetSection(replicas={"standard": 2, "fast": 2}))
    assert [one.order for one in launched] == [0, 1, 2, 3]
    assert [log_name(one.variant, one.replica) for one in launched] == [
        "engine-standard.log",
        "engine-standard-1.log",
        "engine-fast.log",
        "engine-fast-1.log",
    ]


def test_known_deployments_keep_their_places():
    """A launched one is known by Variant and number, an attached one by its URL, and never one as the other."""
    rows: list[Deployment] = [
        nouns.deployment(id="launched", machine="m", replica=1),
        nouns.deployment(id="older", pid=7),
        nouns.deployment(id="attached", url="http://a:1"),
    ]
    slots = wanted_slots(FleetSection(variants=("standard",), replicas={"standard": 3}))
    assert [found and found.id for found in (take_row(rows, slot) for slot in slots)] == ["older", "launched", None]
    (attached,) = wanted_slots(FleetSection(variants=("standard",), attach={"standard": "http://a:1"}))
    found = take_row(rows, attached)
    assert found is not None and found.id == "attached" and rows == []


@pytest.mark.parametrize(("taken", "port"), [((), 10), ((10, 11), 12), ((11,), 10)])
def test_a_new_engine_gets_a_port_that_no_other_has(taken, port):
    """Ports count up from the first one, past those in use."""
    assert next_port(10, taken) == port


def test_every_status_has_an_answer():
    """Whatever the status of a replica, the question whether it may be restarted has an answer."""
    for status, other in product(DeploymentStatus, DeploymentStatus):
        chosen = replica(status=status)
        reason = why_not_now(chosen, [chosen, replica(status=other)])
        assert reason is None or reason
