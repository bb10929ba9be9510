"""DataState: where the choice of Tasks of one TrainingRun stands. Saved with every resume state.

Steps are planned ahead of their attempts, and a resumed run goes on with the plans that were made: it attempts the
Tasks that the uninterrupted one would have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from core.config.learner_data import DataSection
from core.errors import LearnerError
from core.noun import Noun
from learner.curriculum import DomainState, learned, length_limit, next_task, within_length
from learner.mixing import domain_shares, next_domain


@dataclass(frozen=True)
class TaskPool:
    """What there is to choose from."""

    lengths: Mapping[str, Mapping[str, int]]
    """By Domain, of each Task the estimated tokens of its whole conversation."""
    quotas: Mapping[str, float]
    """Relative shares of the run's own Domains."""


@dataclass(frozen=True)
class GroupOutcome:
    """What became of one EpisodeGroup."""

    domain: str
    task_id: str
    solved: float
    """Attempts that succeeded; where there is no success, the sum of rewards."""
    attempts: int
    """Those that counted."""
    useful: bool
    """Their rewards differed."""


class DataState(Noun):
    """All that decides which Tasks come next, beside configuration and pool."""

    seed: int
    earlier: tuple[str, ...] = ()
    """Domains that earlier runs of the Policy trained on and this one does not."""
    credits: dict[str, float] = Field(default_factory=dict)
    """By how many groups each Domain is behind its share."""
    domains: dict[str, DomainState] = Field(default_factory=dict)
    planned: dict[int, tuple[str, ...]] = Field(default_factory=dict)
    """Task ids by step, for steps that are not trained yet."""

    def plan(self, step: int, size: int, *, pool: TaskPool, config: DataSection) -> "DataState":
        """The state with ``size`` Tasks planned for ``step``; unchanged when they are.

        Raises LearnerError when there is no Task at all.
        """
        if step in self.planned:
            return self
        filled = {domain: lengths for domain, lengths in pool.lengths.items() if lengths}
        shares = domain_shares(
            {domain: pool.quotas.get(domain, 1.0) for domain in filled if domain not in self.earlier},
            {domain: state.useful_share for domain, state in self.domains.items()},
            earlier=[domain for domain in self.earlier if domain in filled],
            floor=config.floor,
            adapt=config.adapt,
            replay=config.replay,
        )
        if not shares:
            raise LearnerError(
                f"no Task of split 'train' in {', '.join(sorted(pool.lengths)) or 'any Domain'}",
                hint="import Tasks first, or give the Domain a share",
            )
        return self._planned(step, size, filled, shares, config)

    def learn(self, outcomes: Sequence[GroupOutcome], *, done: int, config: DataSection) -> "DataState":
        """The state after groups came in; plans of steps before ``done`` are dropped."""
        domains = dict(self.domains)
        for outcome in outcomes:
            if outcome.attempts == 0:
                continue
            domains[outcome.domain] = learned(
                domains.get(outcome.domain, DomainState()),
                outcome.task_id,
                solved=outcome.solved,
                failed=outcome.attempts - outcome.solved,
                useful=outcome.useful,
                memory=config.memory,
            )
        planned = {step: tasks for step, tasks in self.planned.items() if step >= done}
        return self.model_copy(update={"domains": domains, "planned": planned})

    def _planned(
        self,
        step: int,
        size: int,
        filled: Mapping[str, Mapping[str, int]],
        shares: Mapping[str, float],
        config: DataSection,
    ) -> "DataState":
        longest = max(max(lengths.values()) for lengths in filled.values())
        limit = length_limit(longest, start=config.length_start, steps=config.length_steps, step=step)
        pools = {domain: within_length(lengths, limit) for domain, lengths in filled.items() if domain in shares}
        credits, domains, chosen = dict(self.credits), dict(self.domains), list[str]()
        for slot in range(size):
            domain, credits = next_domain(credits, shares)
            task, domains[domain] = next_task(
                domains.get(domain, DomainState()),
                pools[domain],
                config=config,
                stream=f"{self.seed}:{domain}",
                step=step,
                slot=slot,
                taken=chosen,
            )
            chosen.append(task)
        planned = {**self.planned, step: tuple(chosen)}
        return self.model_copy(update={"credits": credits, "domains": domains, "planned": planned})
