"""Ids: a prefix that names the noun, then a time-ordered random part.

The random part is a ULID (48 bits of milliseconds, 80 bits of randomness, Crockford base 32), so ids sort
by creation time and need no coordination between processes. Source: https://github.com/ulid/spec.
"""

import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"

EPISODE = "ep"
TURN = "turn"
TASK = "task"
GROUP = "grp"
VERDICT = "vd"
CHECKPOINT = "ckpt"
DEPLOYMENT = "dep"
EVALUATION = "eval"
JOB = "job"
KEY = "key"
TENANT = "ten"
AUDIT = "aud"
EXPERIMENT = "exp"
RELEASE = "rel"
REQUEST = "req"
DRAFTER = "drf"
RUN = "run"


def new_id(prefix: str) -> str:
    """A fresh id such as ``ep_01k…`` (26 characters after the prefix)."""
    value = (int(time.time() * 1000) << 80) | secrets.randbits(80)
    characters = []
    for _ in range(26):
        characters.append(_ALPHABET[value & 31])
        value >>= 5
    return f"{prefix}_{''.join(reversed(characters))}"
