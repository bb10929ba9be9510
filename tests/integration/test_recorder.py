"""From the journal into the store: nothing lost in an outage, nothing twice, nobody held up."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import make_url

from core.errors import StoreError
from gateway.capture import drain as drain_module
from gateway.capture.drain import Drain
from gateway.capture.frames import frame_parts
from gateway.capture.journal import Journal, journal_root
from gateway.capture.position import Position, read_position, write_position
from gateway.capture.reader import JournalReader
from gateway.metrics import GatewayMetrics
from gateway.recorder import Recorder
from store.migrate import upgrade
from store.store import Store
from tests.captured_calls import captured_call
from tests.services import PostgresServer


@pytest.fixture
def config(make_config):
    """An in-process recorder."""
    return make_config({"gateway.recorder": "inline"})


@pytest.fixture
async def make_recorder(config, store):
    """Starts Recorders on the Store of the test, and stops them."""
    running = []

    async def make(which=config, its_store=store) -> Recorder:
        recorder = Recorder(config=which, store=its_store, metrics=GatewayMetrics(CollectorRegistry()))
        await recorder.start()
        running.append(recorder)
        return recorder

    yield make
    for recorder in running:
        await recorder.stop()


@pytest.fixture
def make_drain(config, store):
    """Drains of the test's journals."""

    def make(**options) -> Drain:
        return Drain(journal_root(config), store=store, flush_seconds=0.01, **options)

    return make


def left_behind(config, *numbers: int, then: bytes = b"") -> Journal:
    """The journal of a process that has ended, with these calls."""
    journal = Journal(journal_root(config), capacity_bytes=2**30, lost=lambda *_: None)
    journal.open()
    for number in numbers:
        journal.append(captured_call(number))
    journal.write()
    journal.close()
    if then:
        (segment,) = journal.folder.glob("*.journal")
        with segment.open("ab") as file:
            file.write(then)
    return journal


async def stored(store: Store, *numbers: int) -> list[int]:
    """How many Turns the Episode of each of these calls has."""
    async with store.reading() as work:
        return [len(await work.turns.for_episode(captured_call(number).episode_id)) for number in numbers]


async def test_a_recorded_call_is_in_the_store_after_flush(make_recorder, store):
    """Turn and Episode are durable, and nothing counts as buffered any more."""
    recorder = await make_recorder()
    for number in range(200):
        assert recorder.record(captured_call(number))
    assert recorder.buffered == 200
    assert await recorder.flush(20.0)
    assert (recorder.buffered, recorder.buffered_bytes, recorder.lost, recorder.last_error) == (0, 0, 0, None)
    assert await stored(store, *range(200)) == [1] * 200
    async with store.reading() as work:
        assert (await work.episodes.get(captured_call(7).episode_id)).trainable


async def test_two_gateways_on_one_folder_share_one_writer(make_recorder, config, store):
    """Each flushes what it recorded, whoever of them writes; when the writer stops the other takes over."""
    first, second = await make_recorder(), await make_recorder()
    for number in range(20):
        (first if number % 2 else second).record(captured_call(number))
    assert await first.flush(10.0)
    assert await second.flush(10.0)
    assert await stored(store, *range(20)) == [1] * 20
    await first.stop()
    second.record(captured_call(20))
    assert await second.flush(10.0)
    assert await stored(store, 20) == [1]


async def test_the_journal_of_a_dead_process_is_drained_and_removed(make_drain, config, store):
    """What a killed gateway left gets into the store, and then the folder goes."""
    journal = left_behind(config, *range(150))
    drain = make_drain()
    await drain.start()
    await drain.stop()
    assert await stored(store, *range(150)) == [1] * 150
    assert not journal.folder.exists()


async def test_reading_a_journal_again_adds_nothing(make_drain, config, store):
    """A position that was lost costs work, and makes no second Turn and no second Episode."""
    journal = left_behind(config, 0, 1)
    await asyncio.to_thread(write_position, journal.folder, Position())
    copy = journal.folder.with_name("jrn_copy")
    copy.mkdir()
    for path in journal.folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    drain = make_drain()
    await drain.start()
    await drain.stop()
    assert await stored(store, 0, 1) == [1, 1]
    assert not copy.exists()


async def test_a_record_that_nobody_can_read_holds_up_no_other(make_drain, config, store):
    """A frame whose content is of an unknown form is put aside, counted as lost, and passed over."""
    strange = [*frame_parts(captured_call(1, variant=7)), *frame_parts(captured_call(2))]  # type: ignore[arg-type]
    journal = left_behind(config, 0, then=b"".join(strange))
    reader = JournalReader(journal.folder)
    drain = make_drain()
    await asyncio.to_thread(journal_root(config).mkdir, exist_ok=True)
    chunk = reader.read(10)
    await drain._move(reader, chunk.bodies, chunk.ends)
    assert await stored(store, 0, 1, 2) == [1, 0, 1]
    assert read_position(journal.folder).lost == {"unreadable_record": 1}
    (aside,) = (journal_root(config) / "corrupt").iterdir()
    assert aside.read_bytes() == strange[1]


async def test_a_link_is_counted_once_and_only_when_its_turn_is_stored(make_drain, config):
    """A transaction that fails, and a record that is read again, count nothing."""
    asked = []

    async def link(work, call, turns):
        asked.append(call.turn_ids[0])
        if len(asked) == 2:
            raise StoreError("the connection was lost")
        return "continues"

    journal = left_behind(config, 0, 1)
    reader, drain = JournalReader(journal.folder), make_drain(link=link)
    chunk = reader.read(10)
    with pytest.raises(drain_module._Away):
        await drain._move(reader, chunk.bodies, chunk.ends)
    assert read_position(journal.folder).links == {}
    for _ in range(2):
        await drain._move(reader, chunk.bodies, chunk.ends)
    assert read_position(journal.folder).links == {"continues": 2}
    assert len(asked) == 4


async def test_flush_all_waits_for_the_journals_of_others(make_recorder, config, store):
    """What another worker has recorded is in the store too; a writer that is away is told in time."""
    first = await make_recorder()
    other = left_behind(config, *range(300))
    assert await first.flush_all(20.0)
    assert await stored(store, *range(300)) == [1] * 300
    assert not other.folder.exists() or read_position(other.folder).offset == other.offset
    await first._drain.stop()
    left_behind(config, 300)
    assert await first.flush(5.0)
    assert not await first.flush_all(0.1)


async def test_extras_are_written_in_the_transaction_of_the_turns(make_drain, config, store):
    """What others write about a call is there exactly when its Turn is; one that fails costs no Turn."""
    seen = []

    async def extra(work, call, turns):
        assert await work.turns.existing(call.turn_ids) == {turn.id for turn in turns}
        if call.turn_ids == captured_call(1).turn_ids:
            raise ValueError("no")
        seen.append(call.turn_ids[0])

    left_behind(config, 0, 1, 2)
    drain = make_drain(extras=[extra])
    await drain.start()
    await drain.stop()
    assert await stored(store, 0, 1, 2) == [1, 1, 1]
    assert {captured_call(0).turn_ids[0], captured_call(2).turn_ids[0]} <= set(seen)


async def test_what_a_store_outage_leaves_is_written_by_the_next_process(
    make_recorder, make_drain, config, store, monkeypatch
):
    """A gateway that is stopped while the store is away loses nothing: its journal is drained later."""

    @asynccontextmanager
    async def away():
        raise OSError("down")
        yield

    recorder = await make_recorder()
    monkeypatch.setattr(store, "transaction", away)
    monkeypatch.setattr(store, "reading", away)
    recorder.record(captured_call(0))
    assert not await recorder.flush(0.3)
    assert "down" in recorder.last_error
    stop = recorder._drain.stop
    monkeypatch.setattr(recorder._drain, "stop", lambda: stop(0.1))
    await recorder.stop()
    monkeypatch.undo()
    drain = make_drain()
    await drain.start()
    await drain.stop()
    assert await stored(store, 0) == [1]


async def test_a_malformed_answer_is_counted_and_its_episode_is_kept(make_recorder, store):
    """An engine's garbage costs its own Turn; the Episode that it opened can go on."""
    recorder = await make_recorder()
    recorder.record(captured_call(0, payloads=[b"garbage"]))
    recorder.record(captured_call(1, episode_id=captured_call(0).episode_id, opens_episode=False, index=1))
    assert await recorder.flush(10.0)
    assert recorder.lost == 1
    assert await stored(store, 0) == [1]
    async with store.reading() as work:
        assert (await work.episodes.get(captured_call(0).episode_id)).policy == "coder"


async def test_what_the_writer_counts_is_shown_by_the_gateway(make_recorder):
    """Turns written, incomplete captures and broken continuations reach the metrics of the process that answered."""
    recorder = await make_recorder()
    recorder.record(captured_call(0))
    recorder.record(captured_call(1, episode_id=captured_call(0).episode_id, opens_episode=False, index=1))
    recorder.record(captured_call(2, payloads=[b'{"choices":[{"index":0,"message":{},"finish_reason":"stop"}]}']))
    assert await recorder.flush(10.0)
    read = recorder._metrics.registry.get_sample_value
    assert read("hone_recorded_turns_total") == 3
    assert read("hone_capture_failures_total", {"cause": "inexact"}) == 1
    assert sum(sample.value for sample in _samples(recorder, "hone_turn_links_total")) == 1


def _samples(recorder, name):
    families = recorder._metrics.registry.collect()
    return [sample for family in families for sample in family.samples if sample.name == name]


async def test_a_journal_that_is_forced_to_the_disk_records_as_well(make_recorder, make_config, store):
    """With ``journal_sync = disk`` every call is synced in the background and stored."""
    config = make_config({"gateway.recorder": "inline", "gateway.journal_sync": "disk"})
    recorder = await make_recorder(
        config.model_copy(
            update={"gateway": config.gateway.model_copy(update={"journal_sync_seconds": 0.01, "journal_max_mib": 1})}
        )
    )
    for number in range(50):
        assert recorder.record(captured_call(number))
        await asyncio.sleep(0.002)
    assert await recorder.flush(10.0)
    assert await stored(store, *range(50)) == [1] * 50
    assert recorder.last_error is None


async def test_content_without_consent_does_not_reach_the_journal(make_recorder, config, store):
    """Also when a record carries it by mistake."""
    recorder = await make_recorder()
    recorder.record(captured_call(0, consent=False, prompt_tokens=3))
    recorder._journal.write()
    written = b"".join(path.read_bytes() for path in journal_root(config).rglob("*.journal"))
    assert captured_call(0).turn_ids[0].encode() in written
    assert b"question" not in written
    assert b"answer" not in written
    assert await recorder.flush(10.0)
    assert await stored(store, 0) == [1]


async def test_personal_data_of_a_redacting_tenant_does_not_reach_the_store(make_recorder, store):
    """Through the whole write path: what is stored has the kind in place of the value."""
    request = b'{"model":"coder","messages":[{"role":"user","content":"I am john.doe@example.com"}]}'
    recorder = await make_recorder()
    recorder.record(captured_call(0, request=request, redact=True))
    recorder.record(captured_call(1, redact=True))
    assert await recorder.flush(60.0)
    async with store.reading() as work:
        (changed,) = await work.turns.for_episode(captured_call(0).episode_id)
        (unchanged,) = await work.turns.for_episode(captured_call(1).episode_id)
    assert changed.messages[0]["content"] == "I am <EMAIL_ADDRESS>"
    assert (changed.trainable, unchanged.trainable) == (False, True)


async def test_a_postgresql_that_goes_away_and_comes_back_costs_nothing(make_config):
    """While the server is down calls are taken without waiting; afterwards each Turn is there once."""
    server = PostgresServer()
    try:
        await asyncio.to_thread(server.start)
        url = make_url(server.url).render_as_string(hide_password=False)
        await asyncio.to_thread(upgrade, url)
        config = make_config({"gateway.recorder": "inline", "store.url": url})
        store = await Store.open(config)
        recorder = Recorder(config=config, store=store, metrics=GatewayMetrics(CollectorRegistry()))
        await recorder.start()
        for number in range(300):
            recorder.record(captured_call(number))
            if number == 100:
                await asyncio.sleep(0.05)
                await asyncio.to_thread(server.stop)
            if number % 10 == 0:
                await asyncio.sleep(0.01)
        assert not await recorder.flush(0.5)
        assert recorder.last_error
        await asyncio.to_thread(server.resume)
        assert await recorder.flush(30.0)
        assert (recorder.lost, recorder.buffered, recorder.last_error) == (0, 0, None)
        assert await stored(store, *range(300)) == [1] * 300
        await recorder.stop()
        await store.close()
    finally:
        await asyncio.to_thread(server.remove)
