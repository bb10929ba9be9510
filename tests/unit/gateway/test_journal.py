"""The journal's files: what is written is read, and damage never becomes a record."""

import errno
import os
import stat
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.capture import journal as module
from gateway.capture.frames import HEADER_BYTES, decode_call, frame_parts, split_frames
from gateway.capture.journal import Journal
from gateway.capture.reader import JournalReader
from gateway.capture.record import CapturedCall, numbers_alone
from tests.captured_calls import captured_call

CALLS = st.builds(
    captured_call,
    st.integers(0, 10**6),
    request=st.binary(max_size=40),
    payloads=st.lists(st.binary(max_size=20), max_size=4),
    broken=st.none() | st.just("cancelled"),
    first_token_seconds=st.none() | st.floats(0, 1),
)


def frames_of(calls: list[CapturedCall]) -> tuple[bytes, list[int]]:
    """The bytes of a segment, and where each record ends."""
    buffer = bytearray()
    ends = []
    for call in calls:
        buffer += b"".join(frame_parts(call))
        ends.append(len(buffer))
    return bytes(buffer), ends


def decoded(data: bytes) -> list[CapturedCall]:
    """The records that can be read."""
    return [decode_call(body) for body in split_frames(data, 10**6).bodies]


@pytest.fixture
def lost():
    """Cause → Turns that a journal reported as lost."""
    return {}


@pytest.fixture
def make_journal(tmp_path, lost):
    """Opens journals under ``tmp_path/journal``."""

    def make(**options) -> Journal:
        def count(cause, turns):
            lost[cause] = lost.get(cause, 0) + turns

        journal = Journal(tmp_path / "journal", **({"capacity_bytes": 2**30, "lost": count} | options))
        journal.open()
        return journal

    return make


def drained(folder: Path) -> list[CapturedCall]:
    """All records of a journal, read as a Drain does."""
    reader = JournalReader(folder)
    reader.look_whether_dead()
    calls = []
    while (chunk := reader.read(3)).bodies:
        calls += [decode_call(body) for body in chunk.bodies]
        reader.advance(chunk.ends[-1])
    reader.close()
    return calls


@given(st.lists(CALLS, max_size=5))
def test_records_are_read_as_they_were_written(calls):
    """Encoding and decoding give back every field of every record, in order."""
    data, ends = frames_of(calls)
    split = split_frames(data, 100)
    assert (decoded(data), split.ends, split.rest) == (calls, ends, "none")


@given(st.lists(CALLS, min_size=1, max_size=4), st.data())
def test_any_cut_leaves_exactly_the_whole_records_before_it(calls, data):
    """However many bytes of the file a crash left, the records that are whole are read, and no other."""
    written, ends = frames_of(calls)
    cut = data.draw(st.integers(0, len(written)))
    whole = sum(end <= cut for end in ends)
    assert decoded(written[:cut]) == calls[:whole]
    assert (split_frames(written[:cut], 100).rest == "none") == (cut in (0, *ends))


@settings(max_examples=300)
@given(st.lists(CALLS, min_size=1, max_size=3), st.data())
def test_a_flipped_bit_never_yields_a_wrong_record(calls, data):
    """With any one bit changed, what is read is the records before the damage, unchanged."""
    written, ends = frames_of(calls)
    place = data.draw(st.integers(0, len(written) * 8 - 1))
    damaged = bytearray(written)
    damaged[place // 8] ^= 1 << place % 8
    hit = sum(end <= place // 8 for end in ends)
    assert decoded(bytes(damaged)) == calls[:hit]


def test_a_planted_frame_is_not_found_behind_damage():
    """A client that puts a frame into its request gains nothing when the record around it is damaged."""
    planted, _ = frames_of([captured_call(666)])
    written, _ = frames_of([captured_call(1, request=planted), captured_call(2)])
    damaged = bytearray(written)
    damaged[HEADER_BYTES] ^= 1
    assert decoded(bytes(damaged)) == []


def test_an_old_record_is_read_by_a_newer_version():
    """Fields at the end that an old journal does not have take their defaults."""
    values = msgspec.to_builtins(captured_call(1), builtin_types=(bytes,))
    assert isinstance(values, list)
    old = msgspec.msgpack.encode(values[: CapturedCall.__struct_fields__.index("first_token_seconds")])
    assert decode_call(memoryview(old)) == captured_call(1)


def test_without_content_only_numbers_of_a_request_remain():
    """Text, lists and objects are left out of the body that is kept without consent."""
    body = b'{"model":"coder","temperature":0.5,"n":2,"stream":true,"stop":["x"],"seed":-1,"user":null,"top_p":1e-1}'
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    assert msgspec.json.decode(numbers_alone(fields)) == {
        "temperature": 0.5, "n": 2, "stream": True, "seed": -1, "top_p": 0.1
    }  # fmt: skip


def test_a_journal_is_read_across_segments_and_removed(make_journal):
    """Records of many segments come in order; drained segments are deleted, and at the end the whole journal."""
    journal = make_journal(segment_bytes=2_000)
    calls = [captured_call(number) for number in range(10)]
    for call in calls:
        assert journal.append(call)
        journal.write()
    assert len(list(journal.folder.glob("*.journal"))) > 2
    journal.close()
    assert drained(journal.folder) == calls
    assert len(list(journal.folder.glob("*.journal"))) == 1
    reader = JournalReader(journal.folder)
    assert reader.look_whether_dead()
    assert reader.read(1).bodies == []
    reader.remove()
    assert not journal.folder.exists()


def test_only_the_owner_can_read_a_journal(make_journal):
    """Folders have mode 0700 and files 0600, whatever is in them."""
    journal = make_journal()
    journal.append(captured_call())
    journal.write()
    assert stat.S_IMODE(journal.folder.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(journal.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in journal.folder.iterdir()} == {0o600}
    journal.close()


def test_a_living_process_keeps_its_journal(make_journal):
    """While the process that appends lives its journal counts as alive; afterwards as dead."""
    journal = make_journal()
    assert not JournalReader(journal.folder).look_whether_dead()
    journal.close()
    assert JournalReader(journal.folder).look_whether_dead()


def test_drained_content_does_not_stay_in_the_open_segment(make_journal):
    """A segment with content is closed after its time, so that it can be deleted once it is drained."""
    journal = make_journal(segment_seconds=0.0)
    journal.append(captured_call())
    journal.look_after()
    assert drained(journal.folder) == [captured_call()]
    (left,) = journal.folder.glob("*.journal")
    assert left.stat().st_size == 0
    journal.close()


def test_a_torn_tail_is_skipped_and_counted(make_journal):
    """Half a record at the end of a dead process's journal is left out; a living one's may still grow."""
    journal = make_journal()
    for number in range(2):
        journal.append(captured_call(number))
    journal.write()
    (segment,) = journal.folder.glob("*.journal")
    os.truncate(segment, segment.stat().st_size - 5)
    assert drained(journal.folder) == [captured_call(0)]
    assert JournalReader(journal.folder).position.failures == {}
    journal.close()
    assert drained(journal.folder) == []
    assert JournalReader(journal.folder).position.failures == {"torn_tail": 1}


def test_zeros_behind_the_last_record_are_a_torn_tail(make_journal):
    """What a power failure can leave where a file had grown is no record and no corruption."""
    journal = make_journal()
    journal.append(captured_call(0))
    journal.close()
    (segment,) = journal.folder.glob("*.journal")
    os.truncate(segment, segment.stat().st_size + 4096)
    assert drained(journal.folder) == [captured_call(0)]
    assert JournalReader(journal.folder).position.failures == {"torn_tail": 1}


def test_a_damaged_segment_is_kept_aside_and_the_next_is_read(make_journal, tmp_path):
    """Behind a changed byte nothing of that segment is read; the file is kept, and the next segments are read."""
    journal = make_journal(segment_bytes=1)
    for number in range(2):
        journal.append(captured_call(number))
    journal.write()
    journal.append(captured_call(2))
    journal.write()
    first = min(journal.folder.glob("*.journal"))
    damaged = bytearray(first.read_bytes())
    damaged[100] ^= 1
    first.write_bytes(damaged)
    journal.close()
    assert drained(journal.folder) == [captured_call(2)]
    assert JournalReader(journal.folder).position.failures == {"corrupt_segment": 1}
    (aside,) = (tmp_path / "journal" / "corrupt").iterdir()
    assert aside.read_bytes() == damaged


def test_a_segment_that_was_taken_away_is_replaced(make_journal):
    """When the open segment is damaged, and kept aside, appending goes on in a new one."""
    journal = make_journal()
    for number in range(2):
        journal.append(captured_call(number))
    journal.write()
    (segment,) = journal.folder.glob("*.journal")
    damaged = bytearray(segment.read_bytes())
    damaged[100] ^= 1
    segment.write_bytes(damaged)
    reader = JournalReader(journal.folder)
    assert reader.read(10).bodies == []
    assert segment.exists(), "at the first look it may be half written"
    assert reader.read(10).bodies == []
    assert not segment.exists()
    journal.look_after()
    journal.append(captured_call(3))
    journal.write()
    (body,) = reader.read(10).bodies
    assert decode_call(body) == captured_call(3)
    journal.close()


@pytest.mark.parametrize(
    ("number", "cause"), [(errno.ENOSPC, "journal_disk_full"), (errno.EIO, "journal_disk_error")]
)
def test_a_failing_disk_is_tried_again(make_journal, monkeypatch, lost, number, cause):
    """While the disk refuses, records wait up to a bound, then are lost by cause; later ones are written whole."""
    journal = make_journal()
    journal.append(captured_call(0))
    journal.write()
    write = os.write

    def half(file, data):
        if len(data) < 100:
            raise OSError(number, "no")
        return write(file, bytes(data)[: len(data) - 50])

    monkeypatch.setattr(module.os, "write", half)
    monkeypatch.setattr(module.os, "writev", lambda file, parts: half(file, b"".join(parts)))
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(module, "_MOST_PENDING_BYTES", 1)
    assert journal.append(captured_call(1))
    journal.write()
    assert journal.error
    assert not journal.append(captured_call(2))
    assert lost == {cause: 1}
    monkeypatch.undo()
    journal._retry_at = 0.0
    journal.look_after()
    assert journal.error is None
    assert journal.append(captured_call(3))
    journal.close()
    assert drained(journal.folder) == [captured_call(0), captured_call(1), captured_call(3)]
    assert lost == {cause: 1}


def test_a_disk_that_cannot_even_truncate_costs_no_other_record(make_journal, monkeypatch):
    """A half-written record that stays in its segment is stepped over; appending goes on in the next one."""
    journal = make_journal()
    journal.append(captured_call(0))
    journal.write()
    write = os.write

    def broken(*_):
        raise OSError(errno.EIO, "no")

    def half(file, data):
        return write(file, bytes(data)[:50]) if len(data) > 100 and not hasattr(half, "done") else broken()

    monkeypatch.setattr(module.os, "write", half)
    monkeypatch.setattr(module.os, "writev", lambda file, parts: half(file, b"".join(parts)))
    monkeypatch.setattr(module.os, "ftruncate", broken)
    journal.append(captured_call(1))
    journal.write()
    monkeypatch.undo()
    journal._retry_at = 0.0
    journal.write()
    journal.append(captured_call(2))
    journal.close()
    assert drained(journal.folder) == [captured_call(number) for number in range(3)]


def test_beyond_its_bound_a_journal_refuses(make_journal, lost):
    """Undrained bytes are bounded; what is drained makes room again."""
    journal = make_journal(capacity_bytes=1)
    assert journal.append(captured_call(0))
    journal.write()
    assert not journal.append(captured_call(1, turn_ids=["turn_a", "turn_b"]))
    assert lost == {"journal_full": 2}
    assert journal.undrained_turns == 1
    journal.drained(journal.offset)
    assert (journal.undrained_bytes, journal.undrained_turns) == (0, 0)
    assert journal.append(captured_call(2))
    journal.close()


async def test_the_disk_itself_has_what_was_synced(make_journal, monkeypatch):
    """Syncing reaches every file that was written since the last time, also one that is closed by now."""
    journal = make_journal(segment_bytes=1, syncs=True)
    synced = []
    fdatasync = os.fdatasync
    monkeypatch.setattr(module.os, "fdatasync", lambda file: (synced.append(os.fstat(file).st_ino), fdatasync(file)))
    for number in range(2):
        journal.append(captured_call(number))
        journal.write()
    await journal.sync()
    assert set(synced) == {path.stat().st_ino for path in journal.folder.glob("*.journal")}
    await journal.sync()
    assert len(synced) == 2
    journal.close()
