"""Ids: a prefix that names the noun, then a time-ordered random part.

The random part is a ULID (48 bits of milliseconds, 80 bits of randomness, Crockford base 32), so ids sort
by creation time and need no coordination between processes. Source: https://github.com/ulid/spec.
"""

import os
import random
import time
from functools import lru_cache

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
# Ids are made several times in every request. 32 divides 256, so a random byte picks a letter evenly.
_LETTERS = _ALPHABET.encode() * 8
_SHIFTS = range(45, -1, -5)
# Seeded once by the system: asking it for every id would cost a system call each. Not the ``random`` module's own
# generator, which anybody may seed. Ids are names and never secrets.
_RANDOM = random.Random()
os.register_at_fork(after_in_child=_RANDOM.seed)

EPISODE = "ep"
TURN = "turn"
TASK = "task"
GROUP = "grp"
VERDICT = "vd"
CHECKPOINT = "ckpt"
DEPLOYMENT = "dep"
EVALUATION = "eval"
SUITE_RESULT = "sres"
JOB = "job"
KEY = "key"
TENANT = "ten"
AUDIT = "aud"
EXPERIMENT = "exp"
RELEASE = "rel"
RELEASE_RUN = "rrun"
REQUEST = "req"
DRAFTER = "drf"
RUN = "run"
JOURNAL = "jrn"
RESPONSE = "resp"
REPLICA = "rep"
SAMENESS = "same"
FEEDBACK = "fb"
TOMBSTONE = "tomb"
LEADER = "led"


def new_id(prefix: str) -> str:
    """A fresh id such as ``ep_01k…`` (26 characters after the prefix)."""
    letters = _RANDOM.getrandbits(128).to_bytes(16, "little").translate(_LETTERS).decode()
    return f"{prefix}_{_time_part(int(time.time() * 1000))}{letters}"


@lru_cache(maxsize=16)
def _time_part(milliseconds: int) -> str:
    return "".join([_ALPHABET[(milliseconds >> shift) & 31] for shift in _SHIFTS])


def time_of(identity: str) -> float | None:
    """Unix seconds at which ``new_id`` gave out ``identity``; None for a text of another form."""
    random_part = identity.rpartition("_")[2]
    if len(random_part) != 26 or not all(character in _ALPHABET for character in random_part):
        return None
    milliseconds = 0
    for character in random_part[:10]:
        milliseconds = milliseconds * 32 + _ALPHABET.index(character)
    return milliseconds / 1000
