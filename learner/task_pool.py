"""The Tasks that a run chooses from, with their lengths, and the Domains that earlier runs trained on."""

from core.config.learner import LearnerSection
from core.run import RunStatus, TrainingRun
from core.task import Task
from learner.data_state import TaskPool
from store.store import Store

_PAGE = 1000
_CHARACTERS_PER_TOKEN = 4


def conversation_tokens(task: Task) -> int:
    """An estimate of the longest conversation about the Task: what it says, and all that may be answered."""
    characters = sum(len(str(message.get("content", ""))) for message in task.messages)
    return characters // _CHARACTERS_PER_TOKEN + task.limits.max_turns * task.limits.max_tokens


class TaskPools:
    """Reads the pool anew for every step: Tasks may be added while a run goes on."""

    def __init__(self, *, store: Store, config: LearnerSection, run: TrainingRun) -> None:
        self._store = store
        self._config = config
        self._run = run
        self._lengths: dict[str, dict[str, int]] = {}

    async def now(self, earlier: tuple[str, ...]) -> TaskPool:
        """All Tasks of split ``train`` of the run's Domains and of ``earlier`` ones."""
        own = self._run.domains
        lengths: dict[str, dict[str, int]] = {}
        quotas = {}
        async with self._store.reading() as work:
            for domain in dict.fromkeys((*own, *earlier)):
                ids = await work.tasks.ids(domain=domain, split="train")
                known = self._lengths.setdefault(domain, {})
                # Only the length curriculum looks at Tasks; ids are all that the others need.
                if self._config.data.length_start and not known.keys() >= set(ids):
                    for offset in range(0, len(ids), _PAGE):
                        page = await work.tasks.list(domain=domain, split="train", limit=_PAGE, offset=offset)
                        known.update({task.id: conversation_tokens(task) for task in page})
                lengths[domain] = {task_id: known.get(task_id, 0) for task_id in ids}
            for domain in own:
                given = self._config.data.shares.get(domain)
                quotas[domain] = (await work.domains.get(domain)).quota if given is None else given
        return TaskPool(lengths=lengths, quotas=quotas)

    async def earlier_domains(self) -> tuple[str, ...]:
        """Domains that the versions this run starts from were trained on, and that it does not train on itself."""
        async with self._store.reading() as work:
            runs = await work.runs.list(self._run.policy)
            versions = {version.version: version for version in await work.versions.list(self._run.policy)}
        line, at = set[int](), self._run.start_version
        while at in versions and at not in line:
            line.add(at)
            at = versions[at].parent_version or 0
        before = [
            run
            for run in runs
            if run.id != self._run.id
            and run.status is not RunStatus.RUNNING
            and line & {step.version for step in run.steps} - {run.start_version}
        ]
        return tuple(sorted({domain for run in before for domain in run.domains} - set(self._run.domains)))
