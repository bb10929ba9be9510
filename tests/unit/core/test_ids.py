"""Ids: their form, their order, and that none comes twice."""

import os
import re
import threading
import time

import pytest

from core import ids

FORM = re.compile(r"ep_[0-7][0-9abcdefghjkmnpqrstvwxyz]{25}")


def test_an_id_is_a_ulid_in_lower_case() -> None:
    """A prefix and 26 characters of Crockford's base 32; the first of a ULID is at most 7."""
    assert all(FORM.fullmatch(ids.new_id("ep")) for _ in range(2000))


@pytest.mark.parametrize("seconds", [0.0, 0.001, 1_795_000_000.123, (2**48 - 1) / 1000])
def test_the_time_can_be_read_back(monkeypatch, seconds: float) -> None:
    """To the millisecond, over all the times that a ULID can have."""
    monkeypatch.setattr(time, "time", lambda: seconds)
    assert ids.time_of(ids.new_id("ep")) == int(seconds * 1000) / 1000


def test_ids_sort_by_their_time(monkeypatch) -> None:
    """Of two milliseconds the later one's ids come later."""
    made = []
    for milliseconds in range(1_795_000_000_000, 1_795_000_000_100):
        monkeypatch.setattr(time, "time", lambda now=milliseconds: (now + 0.5) / 1000)
        made.append(ids.new_id("ep"))
    assert made == sorted(made)


def test_every_letter_comes_as_often() -> None:
    """At all 16 places of the random part."""
    made = [ids.new_id("ep")[-16:] for _ in range(16_000)]
    for place in range(16):
        letters = [one[place] for one in made]
        assert len(set(letters)) == 32
        # 500 are expected; this is ten standard deviations away.
        assert all(280 < letters.count(letter) < 720 for letter in set(letters))


def test_no_id_comes_twice_over_threads() -> None:
    """Threads share the source of randomness."""
    made: list[list[str]] = [[] for _ in range(8)]

    def make(mine: list[str]) -> None:
        mine += [ids.new_id("ep") for _ in range(5000)]

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one for mine in made for one in mine}) == 8 * 5000


def test_no_id_comes_twice_over_forks() -> None:
    """A child does not go on with its parent's randomness."""
    children = []
    for _ in range(3):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writing, "".join(ids.new_id("ep")[-16:] for _ in range(100)).encode())
            os._exit(0)
        os.close(writing)
        children.append((pid, reading))
    parts = [[ids.new_id("ep")[-16:] for _ in range(100)]]
    for pid, reading in children:
        with os.fdopen(reading, "rb") as pipe:
            text = pipe.read().decode()
        os.waitpid(pid, 0)
        parts.append([text[at : at + 16] for at in range(0, len(text), 16)])
    assert len({one for part in parts for one in part}) == 400
