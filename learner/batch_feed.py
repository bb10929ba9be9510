"""BatchFeed: Episodes of one step after the other, asked for ahead of time and never further than may train.

The Episodes of step ``s + max_staleness`` are asked for once those of step ``s`` have come in, and sampled by the
version of that moment. So workers go on while the learner trains, and nothing is ever too stale to train: what
would be is not sampled yet.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from learner.data_state import DataState, GroupOutcome
from learner.intake import Attempt
from learner.rollouts import BatchRequest, Rollouts
from learner.session import TrainingSession
from learner.task_pool import TaskPools

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class StepEpisodes:
    """What a step trains on."""

    groups: Sequence[Sequence[Attempt]]
    wait_seconds: float
    """How long training stood still for them."""


class BatchFeed:
    """The Episodes of one GRPO run, in order of steps."""

    def __init__(self, session: TrainingSession, rollouts: Rollouts) -> None:
        self._session = session
        self._rollouts = rollouts
        self._pools = TaskPools(store=session.store, config=session.config, run=session.run)
        self._asked: deque[BatchRequest] = deque()
        self._asked_through = session.step - 1

    async def open(self) -> None:
        """Take up the plans of an interrupted run, or begin new ones."""
        if self._session.data_state is None:
            earlier = await self._pools.earlier_domains()
            self._session.data_state = DataState(seed=self._session.run.seed, earlier=earlier)
            if earlier:
                log.info("earlier_domains_replayed", run=self._session.run.id, domains=earlier)
        await self._ask(through=self._session.step + max(self._session.config.max_staleness, 1) - 1)
        # A learner that stopped took its pins back: what is still to be sampled needs its version again.
        for version in sorted({version for request in self._asked for version in request.versions}):
            await self._session.hold(version)

    async def next(self) -> StepEpisodes:
        """The Episodes of the session's present step; asks for later ones. Raises LearnerError when none came."""
        started = time.monotonic()
        await self._ask(through=self._session.step)
        groups = await self._rollouts.collect(self._asked.popleft())
        waited = time.monotonic() - started
        return StepEpisodes(groups=groups, wait_seconds=waited)

    async def learn(self, outcomes: Sequence[GroupOutcome]) -> None:
        """Note how the step's groups went, and ask for what they make room for."""
        session, step = self._session, self._session.step
        session.data_state = self._state.learn(outcomes, done=step + 1, config=session.config.data)
        if session.config.max_staleness >= 1:
            await self._ask(through=step + session.config.max_staleness)
        # The version of this batch is needed no longer.
        await session.unpin_all_but(session.version, *(version for one in self._asked for version in one.versions))

    @property
    def ahead(self) -> int:
        """Steps whose Episodes are asked for and not trained on."""
        return len(self._asked)

    @property
    def _state(self) -> DataState:
        assert self._session.data_state is not None, "the feed is not open"
        return self._session.data_state

    async def _ask(self, *, through: int) -> None:
        session = self._session
        last = min(through, session.run.planned_steps - 1)
        for step in range(self._asked_through + 1, last + 1):
            pool = await self._pools.now(self._state.earlier)
            size = session.config.groups_per_step
            session.data_state = self._state.plan(step, size, pool=pool, config=session.config.data)
            tasks = self._state.planned[step]
            self._asked.append(await self._rollouts.request(step=step, version=session.version, tasks=tasks))
            self._asked_through = step
