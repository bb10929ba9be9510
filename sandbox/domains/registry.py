"""Finds Domain sources by name."""

from core.errors import TaskError
from sandbox.domains.base import DomainSource
from sandbox.domains.code import CodeDomain
from sandbox.domains.json_format import JsonFormatDomain
from sandbox.domains.ledger import LedgerDomain
from sandbox.domains.letters import LettersDomain
from sandbox.domains.python_tool import PythonToolDomain
from sandbox.domains.reasoning_gym import PREFIX, ReasoningGymDomain
from sandbox.domains.safety import SafetyDomain

GYM_DATASETS = (
    "basic_arithmetic",
    "calendar_arithmetic",
    "caesar_cipher",
    "chain_sum",
    "coin_flip",
    "count_bits",
    "count_primes",
    "decimal_arithmetic",
    "family_relationships",
    "fraction_simplification",
    "gcd",
    "lcm",
    "leg_counting",
    "letter_counting",
    "number_sorting",
    "prime_factorization",
    "products",
    "simple_equations",
    "spell_backward",
    "word_sorting",
)
"""Datasets of reasoning-gym with a Suite of their own: short questions, scorers that evaluate nothing."""


def domain_sources() -> tuple[DomainSource, ...]:
    """The sources that Hone ships, without those of reasoning-gym, which are found by name."""
    return (PythonToolDomain(), CodeDomain(), LettersDomain(), JsonFormatDomain())


def evaluated_sources() -> tuple[DomainSource, ...]:
    """Every source that has a Suite of its own: those that Hone trains on, and those that only measure."""
    gym: list[DomainSource] = [ReasoningGymDomain(dataset) for dataset in GYM_DATASETS]
    return (*domain_sources(), LedgerDomain(), SafetyDomain(), *gym)


def domain_source(name: str) -> DomainSource:
    """The source of the Domain ``name`` (also ``reasoning_gym/<dataset>``); raises TaskError."""
    if name.startswith(PREFIX):
        return ReasoningGymDomain(name.removeprefix(PREFIX))
    own: tuple[DomainSource, ...] = (*domain_sources(), LedgerDomain(), SafetyDomain())
    for source in own:
        if source.domain().name == name:
            return source
    known = ", ".join(source.domain().name for source in own)
    raise TaskError(f"there is no Domain '{name}'", hint=f"known: {known}, {PREFIX}<dataset>")
