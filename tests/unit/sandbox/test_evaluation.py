"""A version against a baseline on the same held-out Tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.episode import Episode
from core.errors import EngineError, NotFound, TaskError, VerifierError
from core.job import Job
from core.release import Release, ReleaseStatus
from sandbox.domains.letters import LettersDomain
from sandbox.evaluation import EvaluateRequest, Evaluator, Pair, choose_tasks, compare, evaluation_id
from tests.sandbox_fakes import serve_versions

REQUEST = EvaluateRequest(policy="coder", version=2, baseline_version=1, domain="letters", tasks=6, seed=3)
JOB = Job(id="job_01hzzzzzzzaaa", kind="evaluate", payload={}, token=1)


def episode(success, reward=0.0):
    """A scored Episode."""
    return Episode(id="ep", tenant_id="t", policy="coder", success=success, reward=reward)


class Runner:
    """Scores by a rule instead of sampling."""

    def __init__(self, rule):
        self.rule = rule
        self.requests = []

    async def run_episode(self, request, *, job, key=""):
        self.requests.append((request, key))
        outcome = self.rule(request, key)
        if isinstance(outcome, Exception):
            raise outcome
        return episode(outcome, float(outcome))


@pytest.fixture
async def letters_store(fresh_sqlite_url, open_store):
    """A store with held-out Tasks of one Domain and a candidate Release."""
    store = await open_store(fresh_sqlite_url)
    async with store.transaction() as tx:
        await tx.tasks.add_many(LettersDomain().generate("heldout", 10, 0))
        await tx.tasks.add_many(LettersDomain().generate("train", 10, 0))
        await tx.releases.add(Release(id="rel_1", policy="coder", version=2))
    await serve_versions(store, "coder", 2)
    return store


async def release(store):
    """The candidate's Release as stored."""
    async with store.reading() as tx:
        return await tx.releases.get("coder", 2)


async def test_both_sides_get_the_same_tasks_and_the_release_moves(letters_store):
    """Each held-out Task is asked of both versions alike; the Evaluation is the Release's evidence."""
    runner = Runner(lambda request, key: request.version == 2)
    evaluation = await Evaluator(store=letters_store, runner=runner).evaluate(REQUEST, job=JOB)
    by_version = {
        version: [(r.task_id, r.seed, r.temperature, r.purpose) for r, _ in runner.requests if r.version == version]
        for version in (1, 2)
    }
    assert sorted(by_version[1]) == sorted(by_version[2]) and len(set(by_version[1])) == 6
    assert {purpose for *_, purpose in by_version[1]} == {"evaluate"}
    assert (evaluation.success, evaluation.baseline_success, evaluation.tasks) == (1.0, 0.0, 6)
    assert evaluation.proven_better and evaluation.gain.mean == 1.0
    moved = await release(letters_store)
    assert moved.status is ReleaseStatus.EVALUATED
    assert moved.evidence["evaluation"]["id"] == evaluation.id


async def test_a_repeated_job_writes_one_evaluation(letters_store):
    """After a crash between writing and reporting, the same Evaluation is returned without new Episodes."""
    runner = Runner(lambda request, key: True)
    evaluator = Evaluator(store=letters_store, runner=runner)
    first = await evaluator.evaluate(REQUEST, job=JOB)
    asked = len(runner.requests)
    assert await evaluator.evaluate(REQUEST, job=JOB.model_copy(update={"token": 2})) == first
    assert len(runner.requests) == asked and first.id == evaluation_id(JOB)


async def test_spoiled_episodes_are_repeated_and_then_left_out_of_both_sides(letters_store):
    """One failure is mended by repeating; a Task that stays spoiled counts for neither version."""
    spoiled = []

    def rule(request, key):
        if key.endswith(":0"):
            return EngineError("first try fails")
        spoiled.append(request.task_id)
        return EngineError("always") if request.task_id == spoiled[0] and request.version == 2 else True

    evaluation = await Evaluator(store=letters_store, runner=Runner(rule)).evaluate(REQUEST, job=JOB)
    assert (evaluation.tasks, evaluation.invalid) == (5, 1)
    assert evaluation.success == evaluation.baseline_success == 1.0


async def test_too_many_spoiled_tasks_are_no_evaluation(letters_store):
    """When infrastructure fails throughout, nothing is written and the Release stays."""
    evaluator = Evaluator(store=letters_store, runner=Runner(lambda request, key: EngineError("down")))
    with pytest.raises(VerifierError):
        await evaluator.evaluate(REQUEST, job=JOB)
    assert (await release(letters_store)).status is ReleaseStatus.CANDIDATE


async def test_what_repeating_cannot_mend_ends_the_job_at_once(letters_store):
    """A wrong request is not repeated Task by Task; a Domain without Tasks is an error."""
    runner = Runner(lambda request, key: NotFound("no such version"))
    with pytest.raises(ExceptionGroup):
        await Evaluator(store=letters_store, runner=runner).evaluate(REQUEST, job=JOB)
    assert all(key.endswith(":0") for _, key in runner.requests)
    nothing = REQUEST.model_copy(update={"domain": "nothing"})
    with pytest.raises(TaskError, match="no held-out"):
        await Evaluator(store=letters_store, runner=runner).evaluate(nothing, job=JOB)


async def test_a_release_past_candidate_keeps_its_status(letters_store):
    """Evaluating again later writes an Evaluation and leaves the Release where it is."""
    async with letters_store.transaction() as tx:
        stored = await tx.releases.get("coder", 2)
        await tx.releases.update(stored.model_copy(update={"status": ReleaseStatus.PROMOTED}))
    runner = Runner(lambda request, key: False)
    await Evaluator(store=letters_store, runner=runner).evaluate(REQUEST, job=JOB)
    assert (await release(letters_store)).status is ReleaseStatus.PROMOTED


@given(st.lists(st.text(min_size=1), unique=True), st.integers(0, 30), st.integers(0, 5), st.randoms())
def test_the_choice_of_tasks_depends_on_count_and_seed_alone(ids, count, seed, shuffler):
    """The order in which the store gives the ids does not matter, and a larger choice holds a smaller one."""
    shuffled = list(ids)
    shuffler.shuffle(shuffled)
    chosen = choose_tasks(shuffled, count, seed)
    assert chosen == choose_tasks(ids, count, seed)
    assert len(set(chosen)) == min(count, len(ids)) and set(chosen) <= set(ids)
    assert choose_tasks(ids, count + 1, seed)[: len(chosen)] == chosen


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_the_gain_is_the_mean_paired_difference(outcomes):
    """The point estimate is the difference of both success rates, inside of its interval."""
    pairs = [Pair("t", episode(ours), episode(theirs)) for ours, theirs in outcomes]
    result = compare(REQUEST, pairs, "eval_1")
    assert result.gain.mean == pytest.approx(result.success - result.baseline_success)
    assert result.gain.low - 1e-9 <= result.gain.mean <= result.gain.high + 1e-9
