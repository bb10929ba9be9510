"""ReleaseRule: when evidence is enough to promote a candidate, or to reject it. Pure; valid at every look.

A candidate is promoted when every requirement is proven, each at the whole ``alpha``: a claim that all of several
things hold is wrong with probability at most ``alpha`` whichever of them is false (intersection-union). It is
rejected when one requirement's opposite is proven, or when the budget is spent.

Differences are candidate minus promoted version on the same prompt, in [-1, 1]; the unit is the prompt.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from core.noun import Noun
from core.statistics.betting import BettingTest, difference_test
from core.statistics.sequences import unit_interval


class Family(Noun):
    """Domains that may make good for one another, up to a bound for each."""

    domains: tuple[str, ...] = Field(min_length=1)
    margin: float = Field(default=0.03, gt=0, lt=1)
    """Loss of the mean over its Domains, each weighing the same, that is still no regression."""
    hard_margin: float = Field(default=0.06, gt=0, lt=1)
    """Loss of any one of its Domains that is still no regression."""


class ReleaseRule(Noun):
    """What a policy file says about evidence."""

    targets: tuple[str, ...] = Field(min_length=1)
    """Domains of which at least one must gain; with several, alpha is split among them."""
    families: Mapping[str, Family]
    guardrails: Mapping[str, Annotated[float, Field(gt=0, lt=1)]] = Field(default_factory=dict)
    """Name of a bad event of a request → the largest acceptable share of it, such as ``errors: 0.01``."""
    alpha: float = Field(default=0.005, gt=0, lt=0.5)
    """Chance that a candidate which is not better is promoted."""
    harm_alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """Chance that a candidate which keeps all requirements is rejected early, over all of them."""
    prompts: int = Field(default=5_000, ge=1)
    """Most paired prompts of a Domain."""

    @model_validator(mode="after")
    def _targets_are_covered(self) -> "ReleaseRule":
        known = {domain for family in self.families.values() for domain in family.domains}
        missing = set(self.targets) - known
        if missing:
            raise ValueError(f"targets are in no family: {', '.join(sorted(missing))}")
        return self


class Outcome(StrEnum):
    """What the evidence says so far."""

    PROMOTE = "promote"
    REJECT = "reject"
    CONTINUE = "continue"


class Decision(Noun):
    """An outcome and why."""

    outcome: Outcome
    reasons: tuple[str, ...]
    """Of a rejection: what speaks against the candidate. Of ``continue``: what is not proven yet."""


class Requirement(Noun):
    """One claim, with the evidence for it and for its opposite."""

    proof: BettingTest | None
    """Rejects the claim's opposite; None: the claim holds until harm is shown (guardrails)."""
    harm: BettingTest
    """Rejects the claim itself."""

    def after(self, values: ArrayLike) -> "Requirement":
        """With more observations, in [0, 1]."""
        proof = None if self.proof is None else self.proof.after(values)
        return Requirement(proof=proof, harm=self.harm.after(values))


class Trial(Noun):
    """The evidence about one candidate: ``compared`` and ``guarded`` add to it, ``decide`` may be asked any time."""

    rule: ReleaseRule
    gains: Mapping[str, Requirement]
    """Target Domain → it gains."""
    families: Mapping[str, Requirement]
    """Family → it does not lose more than its margin."""
    domains: Mapping[str, Requirement]
    """Domain → it does not lose more than its hard margin."""
    guards: Mapping[str, Requirement]
    waiting: Mapping[str, Mapping[str, tuple[float, ...]]] = Field(default_factory=dict)
    """Family → Domain → differences, in [0, 1], that wait for those of the family's other Domains."""

    def compared(self, domain: str, differences: ArrayLike) -> "Trial":
        """With paired differences of a Domain added. Raises KeyError for a Domain of no family."""
        values = unit_interval(differences)
        families, waiting = dict(self.families), dict(self.waiting)
        for name, family in self.rule.families.items():
            if domain in family.domains:
                rounds, waiting[name] = _rounds(family, waiting.get(name, {}), domain, values)
                families[name] = families[name].after(rounds)
        changes: dict[str, object] = {
            "domains": {**self.domains, domain: self.domains[domain].after(values)},
            "families": families,
            "waiting": waiting,
        }
        if domain in self.gains:
            changes["gains"] = {**self.gains, domain: self.gains[domain].after(values)}
        return self.model_copy(update=changes)

    def guarded(self, name: str, events: ArrayLike) -> "Trial":
        """With a guardrail's events of the candidate's requests added: 1 where the bad event happened, else 0."""
        return self.model_copy(update={"guards": {**self.guards, name: self.guards[name].after(events)}})

    def decide(self) -> Decision:
        """What the evidence says."""
        against = self._against()
        if against:
            return Decision(outcome=Outcome.REJECT, reasons=against)
        open_claims = self._open()
        if not open_claims:
            return Decision(outcome=Outcome.PROMOTE, reasons=())
        if all(self._spent(domain) for domain in self.domains):
            reasons = tuple(f"not proven within the budget: {claim}" for claim in open_claims)
            return Decision(outcome=Outcome.REJECT, reasons=reasons)
        return Decision(outcome=Outcome.CONTINUE, reasons=open_claims)

    def _against(self) -> tuple[str, ...]:
        losses = {f"family {name} loses": one for name, one in self.families.items()}
        losses |= {f"Domain {name} loses": one for name, one in self.domains.items()}
        losses |= {f"guardrail {name} is broken": one for name, one in self.guards.items()}
        alpha = self.rule.harm_alpha / max(1, len(losses))
        return tuple(claim for claim, one in losses.items() if one.harm.rejects(alpha))

    def _open(self) -> tuple[str, ...]:
        rule = self.rule
        alpha = rule.alpha / len(rule.targets)
        claims = [
            f"{prefix} {name} {says}"
            for prefix, says, requirements in (
                ("family", "keeps its margin", self.families),
                ("Domain", "keeps its hard margin", self.domains),
            )
            for name, one in requirements.items()
            if one.proof is not None and not one.proof.rejects(rule.alpha)
        ]
        if not any(one.proof is not None and one.proof.rejects(alpha) for one in self.gains.values()):
            claims.append(f"a gain in {' or '.join(rule.targets)}")
        return tuple(claims)

    def _spent(self, domain: str) -> bool:
        return self.domains[domain].harm.count >= self.rule.prompts


def open_trial(rule: ReleaseRule) -> Trial:
    """A Trial without evidence."""
    hard = {domain: family.hard_margin for family in rule.families.values() for domain in family.domains}
    return Trial(
        rule=rule,
        gains={domain: _keeps(0.0) for domain in rule.targets},
        families={name: _keeps(-family.margin) for name, family in rule.families.items()},
        domains={domain: _keeps(-margin) for domain, margin in hard.items()},
        guards={
            name: Requirement(proof=None, harm=BettingTest(null=limit)) for name, limit in rule.guardrails.items()
        },
    )


def _rounds(
    family: Family, waiting: Mapping[str, tuple[float, ...]], domain: str, values: NDArray[np.float64]
) -> tuple[NDArray[np.float64], dict[str, tuple[float, ...]]]:
    """Means of one difference of each Domain, as many as there are of all, and what is left.

    A family is tested on such rounds: were its Domains shown one after another, the first ones could prove what the
    later ones disprove.
    """
    queued = {name: waiting.get(name, ()) for name in family.domains}
    queued[domain] = (*queued[domain], *values.tolist())
    whole = min(len(one) for one in queued.values())
    means = np.asarray([one[:whole] for one in queued.values()], dtype=np.float64).mean(axis=0)
    return means, {name: one[whole:] for name, one in queued.items()}


def _keeps(least: float) -> Requirement:
    """The claim that a mean difference is above ``least``."""
    return Requirement(proof=difference_test(least), harm=difference_test(least, above=False))
