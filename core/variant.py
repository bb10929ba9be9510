"""Variant, how it speculates, and the names that clients use for it."""

import re
from enum import StrEnum
from typing import Literal

from core.errors import InvalidRequest
from core.noun import Noun

FAST_SUFFIX = "-fast"
_MODEL_NAME = re.compile(r"^(?P<name>[^@\s]+?)(?P<fast>-fast)?(?:@(?P<version>\d{1,9}))?$")


class Variant(StrEnum):
    """How a Policy is decoded; both give the same distribution."""

    STANDARD = "standard"
    FAST = "fast"


class ModelName(Noun):
    """A parsed ``model`` field: ``coder``, ``coder-fast``, ``coder@17``, ``coder-fast@17``."""

    name: str
    variant: Variant
    version: int | None = None
    """None: the promoted version."""

    def __str__(self) -> str:
        suffix = FAST_SUFFIX if self.variant is Variant.FAST else ""
        pin = "" if self.version is None else f"@{self.version}"
        return f"{self.name}{suffix}{pin}"


def parse_model_name(text: str) -> ModelName:
    """Parse a ``model`` field; raises InvalidRequest for a name that no Policy or Base could have."""
    match = _MODEL_NAME.match(text)
    if match is None:
        raise InvalidRequest(
            f"'{text}' is not a model name",
            hint="use NAME, NAME-fast, NAME@VERSION or NAME-fast@VERSION",
            param="model",
        )
    return ModelName(
        name=match["name"],
        variant=Variant.FAST if match["fast"] else Variant.STANDARD,
        version=None if match["version"] is None else int(match["version"]),
    )


SpeculationMethod = Literal["ngram", "suffix", "draft_model", "eagle3", "mtp"]


class Speculation(Noun):
    """How a ``fast`` engine speculates; only lossless acceptance is ever configured."""

    method: SpeculationMethod
    tokens: int = 4
    """Draft tokens per step."""
    drafter_id: str | None = None
    """The Drafter whose weights propose the tokens, for methods that have one."""
