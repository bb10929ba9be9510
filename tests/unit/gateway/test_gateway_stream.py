"""Cutting a byte stream into events."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.inference.stream import EventSplitter, event_data, frame

LINES = st.binary(max_size=30).filter(lambda data: b"\n" not in data and b"\r" not in data)
EVENTS = st.lists(LINES, max_size=8)


@given(EVENTS, st.lists(st.integers(0, 400), max_size=10), st.sampled_from([b"\n", b"\r\n"]))
def test_events_do_not_depend_on_where_the_network_cuts(datas, cuts, newline):
    """The same bytes in other pieces give the same events."""
    stream = b"".join(b"data: " + data + newline * 2 for data in datas)
    whole = EventSplitter().feed(stream)
    splitter = EventSplitter()
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    pieces = [event for a, b in pairwise(places) for event in splitter.feed(stream[a:b])]
    assert pieces == whole
    assert [event_data(event) for event in whole] == [data.strip() for data in datas]
    assert splitter.rest == b""


@given(LINES)
def test_a_framed_event_reads_back(data):
    """What is framed for the client is one event with the same data."""
    (event,) = EventSplitter().feed(frame(data.strip()))
    assert event_data(event) == data.strip()


def test_comments_and_named_events_are_events_too():
    """Comments carry no data; other fields beside data do no harm; data lines are joined."""
    events = EventSplitter().feed(b": ping\n\nevent: x\ndata: 1\n\ndata: a\ndata: b\n\n\n\ndata: cut")
    assert [event_data(event) for event in events] == [None, b"1", b"a\nb"]


def test_a_cut_stream_leaves_a_rest():
    """Bytes of an unfinished event stay visible, so that a cut is noticed."""
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n\ndata: 2\n") == [b"data: 1"]
    assert splitter.rest == b"data: 2"
