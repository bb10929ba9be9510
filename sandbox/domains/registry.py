"""Finds Domain sources by name."""

from core.errors import TaskError
from sandbox.domains.base import DomainSource
from sandbox.domains.code import CodeDomain
from sandbox.domains.json_format import JsonFormatDomain
from sandbox.domains.letters import LettersDomain
from sandbox.domains.python_tool import PythonToolDomain
from sandbox.domains.reasoning_gym import PREFIX, ReasoningGymDomain


def domain_sources() -> tuple[DomainSource, ...]:
    """The sources that Hone ships, without those of reasoning-gym, which are found by name."""
    return (PythonToolDomain(), CodeDomain(), LettersDomain(), JsonFormatDomain())


def domain_source(name: str) -> DomainSource:
    """The source of the Domain ``name`` (also ``reasoning_gym/<dataset>``); raises TaskError."""
    if name.startswith(PREFIX):
        return ReasoningGymDomain(name.removeprefix(PREFIX))
    for source in domain_sources():
        if source.domain().name == name:
            return source
    known = ", ".join(source.domain().name for source in domain_sources())
    raise TaskError(f"there is no Domain '{name}'", hint=f"known: {known}, {PREFIX}<dataset>")
