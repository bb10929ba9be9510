"""TrainingSession: one TrainingRun in progress, with what its steps share.

Torch work runs in one thread of its own, so that heartbeats go on and OpenMP keeps one team of threads.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from core.config.learner import LearnerSection
from core.config.schema import HoneConfig
from core.errors import ConfigurationError, CorruptArtefact, HoneError
from core.live import LiveState
from core.policy import Base, Provenance
from core.run import RunStatus, StepMetrics, TrainingRun
from core.sample import TrainingSample
from learner.checkpoints import (
    ResumeState,
    ResumeStates,
    WrittenCheckpoint,
    make_provenance,
    verify_folder,
    write_checkpoint,
)
from learner.data_state import DataState
from learner.distributed import World
from learner.full_weights import load_model, score_sequences
from learner.metrics import LearnerMetrics
from learner.probe import ProbeDraft, candidate_sequences, choose_probe
from learner.publish import publish, wait_until_served
from learner.retention import remove_orphans, remove_superseded
from learner.tracking.base import Tracker
from learner.trainer import Trainer, TrainerSpec, open_trainer
from serving.weights.folder import base_fingerprint
from serving.weights.signing import signer_of
from store.held_versions import pin, unpin
from store.store import Store

log = structlog.get_logger(__name__)

T = TypeVar("T")

STEPS_PER_STATE = 10
"""How many steps SFT, which publishes at the end only, does between two resume states."""


class TrainingSession:
    """Opened for a run (new or interrupted), used by the training loop, closed in every case."""

    def __init__(
        self,
        *,
        run: TrainingRun,
        config: HoneConfig,
        store: Store,
        world: World,
        executor: Executor,
        metrics: LearnerMetrics,
        tracker: Tracker | None = None,
    ) -> None:
        self.run = run
        self.config: LearnerSection = config.learner
        self._engine_dtype = config.engine.dtype
        self._signer = signer_of(config)
        self.store = store
        self.version = run.start_version
        """The PolicyVersion that the weights in training come from."""
        self.data_state: DataState | None = None
        """Where the choice of Tasks stands; saved with every resume state."""
        self._world = world
        self._executor = executor
        self._metrics = metrics
        self._tracker = tracker
        data = config.data_dir.expanduser().absolute()
        self._checkpoints = data / "checkpoints" / run.policy
        self._states = ResumeStates(data / "runs" / run.id / "resume", keep=config.learner.keep_resume_states)
        self._trainer: Trainer | None = None
        self._base: Base | None = None
        self._folder: Path | None = None
        """Of ``version``; the Base's for version 0."""
        self._restored: ResumeState | None = None
        self._pinned: set[int] = set()

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return len(self.run.steps)

    @property
    def line(self) -> tuple[int, ...]:
        """The PolicyVersions of this run, oldest first: where it started, and what it published."""
        return tuple(dict.fromkeys((self.run.start_version, *(step.version for step in self.run.steps))))

    @property
    def trainer(self) -> Trainer:
        """The run's Trainer, on the training thread only."""
        assert self._trainer is not None, "the session is not open"
        return self._trainer

    @property
    def base(self) -> Base:
        """The Base of the run's Policy."""
        assert self._base is not None, "the session is not open"
        return self._base

    @property
    def restored_draft(self) -> ProbeDraft | None:
        """The Probe draft of an interrupted run."""
        draft = self._restored.probe_draft if self._restored else None
        return ProbeDraft.model_validate(draft) if draft else None

    async def open(self, learning_rate: float) -> None:
        """Load Base, adapter and, for an interrupted run, its newest state.

        Raises CorruptArtefact when a file is missing or not what was recorded, LearnerError when the model cannot
        be trained, LeaseLost when another learner has the run, ConfigurationError.
        """
        check_temperature(self.config)
        async with self.store.reading() as work:
            policy = await work.policies.get(self.run.policy)
            self._base = await work.bases.get(policy.base)
        async with self.store.transaction() as work:
            self.run = await work.runs.take_over(self.run)
        await self.in_thread(self._states.sweep)
        await remove_orphans(self.store, self.run.policy, self._checkpoints)
        state = await self.in_thread(lambda: self._states.newest(up_to_step=self.step))
        self._go_back_to(state)
        await self._record()
        adapter = await self._adapter(self.version)
        spec = TrainerSpec(
            config=self.config,
            base_path=Path(self.base.path),
            adapter=adapter,
            learning_rate=learning_rate,
            seed=self.run.seed,
            engine_dtype=self._engine_dtype,
        )
        self._folder = adapter or spec.base_path
        await self.in_thread(lambda: self._check_base(Path(self.base.path), self.base.fingerprint))
        await self.in_thread(lambda: self._open_trainer(spec))
        if state is not None:
            await self.in_thread(partial(self._states.restore, self.trainer, state))
            log.info("run_resumed", run=self.run.id, step=self.step, version=self.version)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run torch work on the training thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def draft_probe(self, samples: Sequence[TrainingSample]) -> ProbeDraft:
        """Candidates for the next version's Probe with the parent's and the Base's log-probs: before the update."""
        vocabulary = max(max(sample.tokens) for sample in samples) + 1
        sequences = candidate_sequences(samples, vocabulary=vocabulary, seed=self.run.seed)
        parent = await self.in_thread(lambda: self.trainer.logprobs(sequences))
        base = await self.in_thread(lambda: self.trainer.base_logprobs(sequences))
        return ProbeDraft(sequences=tuple(sequences), parent=tuple(parent), base=tuple(base))

    async def publish(
        self,
        draft: ProbeDraft,
        *,
        step: StepMetrics,
        episode_ids: tuple[str, ...] = (),
        live: LiveState | None = None,
    ) -> None:
        """Checkpoint, resume state and PolicyVersion of the present weights; ``step`` is recorded with them."""
        provenance = make_provenance(
            parent_version=self.version,
            config=self.run.config,
            seed=self.run.seed,
            step=step.step,
            episode_ids=episode_ids,
            metrics={"loss": step.loss, "gradient_norm": step.gradient_norm, **step.values},
            live=live,
        )
        written = await self.in_thread(lambda: self._write(draft, provenance, step.step))

        def record(version: int) -> TrainingRun:
            finished = step.model_copy(update={"version": version})
            return self.run.model_copy(update={"steps": (*self.run.steps, finished)})

        version, self.run = await publish(
            self.store,
            written,
            run=self.run,
            base=self.base,
            parent_version=self.version,
            record_step=record,
            signer=self._signer,
        )
        parent = self.version
        self.version, self._folder = version.version, written.path
        self._pinned.add(version.version)
        self._observe()
        await self.in_thread(self._states.prune)
        needed = {self.run.start_version, self.version, parent}
        await remove_superseded(
            self.store, self.run.policy, self._checkpoints, keep=self.config.keep_checkpoints, needed=needed
        )

    async def record_step(self, step: StepMetrics, *, resumable_with: ProbeDraft | None = None) -> None:
        """Append a step that publishes nothing; ``resumable_with``: write a resume state with this draft too."""
        if resumable_with is not None:
            await self.in_thread(lambda: self._save_state(step.step, resumable_with))
        self.run = self.run.model_copy(update={"steps": (*self.run.steps, step)})
        await self._record()
        self._observe()
        await self.in_thread(self._states.prune)

    async def wait_until_served(self) -> float:
        """Pin the newest version; seconds until it is live. See ``learner.publish``."""
        self._pinned.add(self.version)
        await pin(self.store, self.run.policy, self.version, self.run.id)
        return await wait_until_served(
            self.store, self.run.policy, self.version, timeout_seconds=self.config.episode_timeout_seconds
        )

    async def hold(self, version: int) -> None:
        """Pin an earlier version that is still to be sampled, and wait until it is live."""
        if version in self._pinned or version == 0:
            return
        self._pinned.add(version)
        await pin(self.store, self.run.policy, version, self.run.id)
        await wait_until_served(
            self.store, self.run.policy, version, timeout_seconds=self.config.episode_timeout_seconds
        )

    async def unpin_all_but(self, *needed: int) -> None:
        """Take back this run's pins of other versions."""
        for version in sorted(self._pinned.difference(needed)):
            await unpin(self.store, self.run.policy, version, self.run.id)
            self._pinned.discard(version)

    async def note(self, **values: float) -> None:
        """Add values to the newest step's record."""
        *earlier, last = self.run.steps
        last = last.model_copy(update={"values": {**last.values, **values}})
        self.run = self.run.model_copy(update={"steps": (*earlier, last)})
        await self._record()

    def plan(self, steps: int) -> None:
        """Set how many steps the run has, where that follows from the data."""
        self.run = self.run.model_copy(update={"planned_steps": steps})

    async def finish(self) -> TrainingRun:
        """Mark the run as finished."""
        self.run = self.run.model_copy(update={"status": RunStatus.FINISHED, "error": None})
        await self._record()
        return self.run

    async def stop(self, reason: str) -> TrainingRun:
        """End the run because of an alarm: what it published stays."""
        self.run = self.run.model_copy(update={"status": RunStatus.STOPPED, "error": reason})
        await self._record()
        log.warning("run_stopped", run=self.run.id, step=self.step, version=self.version, reason=reason)
        return self.run

    async def close(self) -> None:
        """Free the model, also one that was still loading when the run was cancelled, and take pins back."""
        await self.in_thread(self._close_trainer)
        try:
            async with self.store.reading() as work:
                stored = await work.runs.get(self.run.id)
            # Another learner that has the run pins under the same name.
            if (stored.job_id, stored.lease_token) == (self.run.job_id, self.run.lease_token):
                await self.unpin_all_but()
        except HoneError as error:
            log.warning("pins_not_taken_back", run=self.run.id, versions=sorted(self._pinned), error=str(error))

    def _observe(self) -> None:
        self._metrics.observe(self.run)
        if self._tracker is not None:
            self._tracker.step(self.run.steps[-1])

    def _open_trainer(self, spec: TrainerSpec) -> None:
        self._trainer = open_trainer(spec, world=self._world)

    def _close_trainer(self) -> None:
        if self._trainer is not None:
            self._trainer.close()
            self._trainer = None

    def _go_back_to(self, state: ResumeState | None) -> None:
        """Steps after the newest state were never saved: they are done again."""
        reached = state.step if state else 0
        steps, lost = self.run.steps[:reached], self.run.steps[reached:]
        self.version = steps[-1].version if steps else self.run.start_version
        saved = [step for step in lost if step.version != self.version]
        if self.run.algorithm == "sft" and len(lost) >= STEPS_PER_STATE:
            saved = list(lost)
        if saved:
            raise CorruptArtefact(
                f"run {self.run.id} has recorded step {saved[-1].step}, and the newest resume state found in "
                f"{self._states.folder} is of step {reached}",
                hint="restore the folder from a backup, or begin a new run from the newest version",
            )
        self._restored = state
        saved_data = state.data_state if state else None
        self.data_state = DataState.model_validate(saved_data) if saved_data else None
        self.run = self.run.model_copy(update={"steps": steps, "status": RunStatus.RUNNING, "error": None})

    async def _record(self) -> None:
        async with self.store.transaction() as work:
            await work.runs.advance(self.run)

    async def _adapter(self, version: int) -> Path | None:
        if version == 0:
            return None
        async with self.store.reading() as work:
            checkpoint = await work.checkpoints.for_version(self.run.policy, version)
        if checkpoint.base_fingerprint != self.base.fingerprint:
            raise CorruptArtefact(f"{self.run.policy}@{version} was trained on another Base than {self.base.name}")
        if checkpoint.kind != self.config.train:
            raise ConfigurationError(
                f"{self.run.policy}@{version} is of kind '{checkpoint.kind}', and learner.train is "
                f"'{self.config.train}'",
                hint="start from a version of that kind, or from 0; 'hone merge' makes full weights of an adapter",
                param="learner.train",
            )
        path = Path(checkpoint.path)
        await self.in_thread(lambda: verify_folder(path, checkpoint.checksum))
        return path

    @staticmethod
    def _check_base(path: Path, fingerprint: str) -> None:
        if base_fingerprint(path) != fingerprint:
            raise CorruptArtefact(f"the base model in {path} is not the one that was registered")

    def _write(self, draft: ProbeDraft, provenance: Provenance, step: int) -> WrittenCheckpoint:
        own = self.trainer.logprobs(draft.sequences)
        probe = choose_probe(draft, own, dtype=str(self.trainer.dtype).removeprefix("torch."))
        written = write_checkpoint(self.trainer, self._checkpoints, provenance=provenance, probe=probe)
        if not self.trainer.exports_exactly:
            # Engines will say what the rounded weights say, and said so of the parent.
            own = list(score_sequences(load_model(written.path), draft.sequences))
            written = replace(written, probe=choose_probe(self._rounded(draft), own, dtype="float32"))
        return replace(written, resume_path=self._save_state(step, draft))

    def _rounded(self, draft: ProbeDraft) -> ProbeDraft:
        """The draft with what the parent's folder and the Base's say, in the place of the weights in training."""
        base = score_sequences(load_model(Path(self.base.path)), draft.sequences)
        parent = draft.parent
        if self.version == 0:
            parent = base
        elif self._folder is not None and self._folder.is_dir():
            parent = score_sequences(load_model(self._folder), draft.sequences)
        return draft.model_copy(update={"parent": parent, "base": base})

    def _save_state(self, step: int, draft: ProbeDraft) -> Path:
        return self._states.save(
            self.trainer,
            run_id=self.run.id,
            step=step,
            probe_draft=draft.model_dump(mode="json"),
            data_state=None if self.data_state is None else self.data_state.model_dump(mode="json"),
        )


def check_temperature(config: LearnerSection) -> None:
    """Raise ConfigurationError for a sampling temperature whose log-probs the learner could not reproduce."""
    if config.temperature != 1.0:
        raise ConfigurationError(
            f"learner.temperature is {config.temperature}: the engine reports raw log-probs; only 1 trains on what "
            "was sampled",
            param="learner.temperature",
        )
