"""Which adapter speaks with an engine of a kind."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from core.errors import ConfigurationError
from serving.engines.base import Engine, WeightControl
from serving.engines.sglang import SglangEngine
from serving.engines.vllm import VllmEngine


class ControlledEngine(Engine, WeightControl, Protocol):
    """An adapter with both ports."""


_ADAPTERS: dict[str, type[VllmEngine] | type[SglangEngine]] = {
    "vllm": VllmEngine,
    "fake": VllmEngine,
    "sglang": SglangEngine,
}


def engine_maker(kind: str, base: str) -> Callable[[str], ControlledEngine]:
    """URL → adapter, for ``engine.kind`` and the name of its Base. ConfigurationError: no such kind."""
    try:
        return partial(_ADAPTERS[kind], base=base)
    except KeyError:
        raise ConfigurationError(f"'{kind}' is no engine that Hone knows", hint="use vllm or sglang") from None
