"""Variant, how it speculates, and the names that clients use for it."""

import re
from enum import StrEnum
from typing import Literal

from core.errors import InvalidRequest
from core.noun import Noun

FAST_SUFFIX = "-fast"
AUTO_SUFFIX = "-auto"
_MODEL_NAME = re.compile(
    r"^(?P<name>[^@\s]+?)(?P<suffix>-fast|-auto)?(?:@(?:(?P<version>\d{1,9})|(?P<alias>[a-z][a-z0-9._-]{0,31})))?$"
)


class Variant(StrEnum):
    """How a Policy is decoded; both give the same distribution."""

    STANDARD = "standard"
    FAST = "fast"


def unsuffixed(name: str) -> str:
    """A name without ``-fast`` or ``-auto``: the Policy or Base that it belongs to."""
    return name.removesuffix(FAST_SUFFIX).removesuffix(AUTO_SUFFIX)


class ModelName(Noun):
    """A parsed ``model`` field: ``coder``, ``coder-fast``, ``coder-auto``, and each with a pin: ``coder@17``."""

    name: str
    variant: Variant
    """Of an ``auto`` name ``standard``, until a rule has chosen."""
    version: int | None = None
    """None: the promoted version."""
    auto: bool = False
    """The gateway chooses the Variant."""
    alias: str | None = None
    """``candidate`` of ``coder@candidate``: the gateway knows which version it means."""

    def __str__(self) -> str:
        suffix = AUTO_SUFFIX if self.auto else FAST_SUFFIX if self.variant is Variant.FAST else ""
        named = self.alias if self.version is None else self.version
        pin = "" if named is None else f"@{named}"
        return f"{self.name}{suffix}{pin}"


def parse_model_name(text: str) -> ModelName:
    """Parse a ``model`` field; raises InvalidRequest for a name that no Policy or Base could have."""
    match = _MODEL_NAME.match(text)
    if match is None:
        raise InvalidRequest(
            f"'{text}' is not a model name",
            hint="use NAME, NAME-fast or NAME-auto, each with or without @VERSION or @ALIAS",
            param="model",
        )
    return ModelName(
        name=match["name"],
        variant=Variant.FAST if match["suffix"] == FAST_SUFFIX else Variant.STANDARD,
        version=None if match["version"] is None else int(match["version"]),
        auto=match["suffix"] == AUTO_SUFFIX,
        alias=match["alias"],
    )


SpeculationMethod = Literal["ngram", "suffix", "draft_model", "eagle3", "mtp"]


class Speculation(Noun):
    """How a ``fast`` engine speculates; only lossless acceptance is ever configured."""

    method: SpeculationMethod
    tokens: int = 4
    """Draft tokens per step."""
    drafter_id: str | None = None
    """The Drafter whose weights propose the tokens, for methods that have one."""
