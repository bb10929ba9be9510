"""What every noun has in common: it is frozen data that crosses process boundaries."""

import time

from pydantic import BaseModel, ConfigDict


class Noun(BaseModel):
    """A frozen, validated value; unknown fields are refused so that a typo cannot travel."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def now() -> float:
    """The present as Unix seconds, the one form in which times are stored."""
    return time.time()
