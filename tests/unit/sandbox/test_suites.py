"""Suites: run, resumed, imported; the safety rules and the ledger's files."""

import json

import pytest

from core.episode import Episode, ToolResult
from core.errors import EngineError, TaskError
from core.job import Job
from core.suite import Suite
from sandbox.domains.ledger import RESULT, LedgerDomain
from sandbox.domains.reasoning_gym import ReasoningGymDomain
from sandbox.domains.registry import GYM_DATASETS, evaluated_sources
from sandbox.domains.safety import SafetyDomain
from sandbox.standard_suites import standard_suite
from sandbox.suite_file import suite_from_jsonl
from sandbox.suite_runner import RunSuiteRequest, SuiteRunner, suite_result_id
from sandbox.verifiers.file_content import FileContentVerifier
from sandbox.verifiers.refusal import refuses
from tests.sandbox_fakes import serve_versions

JOB = Job(id="job_01hzzzzzzzbbb", kind="run_suite", payload={}, token=1)
REQUEST = RunSuiteRequest(suite="letters", policy="coder", version=1)


class Runner:
    """Scores by a rule instead of sampling."""

    def __init__(self, rule):
        self.rule = rule
        self.keys = []

    async def run_episode(self, request, *, job, key=""):
        outcome = self.rule(request, key)
        if isinstance(outcome, Exception):
            raise outcome
        self.keys.append(key)
        failed = ToolResult(turn_id="t", tool="python", arguments={}, output="", outcome="nonzero", seconds=0.0)
        return Episode(
            id="ep", tenant_id="t", policy="coder", success=outcome, reward=float(outcome), tool_results=(failed,)
        )


@pytest.fixture
async def suite_store(fresh_sqlite_url, open_store):
    """A store with a Suite of four Tasks, two attempts each, plain and reworded."""
    store = await open_store(fresh_sqlite_url)
    made = standard_suite("letters", tasks=4, attempts=2, perturbations=("polite",))
    async with store.transaction() as tx:
        await tx.tasks.add_many(made.tasks)
        await tx.suites.put_next(made.suite)
    await serve_versions(store, "coder", 1)
    return store


async def test_every_attempt_of_a_suite_is_made(suite_store):
    """Tasks times attempts times wordings, and the result is stored with what the Episodes say."""
    result = await SuiteRunner(store=suite_store, runner=Runner(lambda *_: True)).run(REQUEST, job=JOB)
    assert (len(result.attempts), result.planned, result.status) == (16, 16, "done")
    assert len({one.place for one in result.attempts}) == 16
    assert all(one.success and one.recovered and one.tool_errors == 1 for one in result.attempts)
    async with suite_store.reading() as tx:
        assert await tx.suite_results.newest("coder", 1, "letters") == result


async def test_attempts_already_made_are_not_repeated(suite_store):
    """A job whose first lease broke off makes only what is missing, and a finished one makes nothing."""
    whole = await SuiteRunner(store=suite_store, runner=Runner(lambda *_: True)).run(REQUEST, job=JOB)
    assert whole.id == suite_result_id(JOB)
    begun = whole.model_copy(update={"status": "running", "attempts": whole.attempts[3:8]})
    async with suite_store.transaction() as tx:
        await tx.suite_results.put(begun)
    second = Runner(lambda *_: False)
    result = await SuiteRunner(store=suite_store, runner=second).run(REQUEST, job=JOB)
    assert len(second.keys) == 16 - len(begun.attempts)
    assert sum(one.success for one in result.attempts) == len(begun.attempts)
    third = Runner(lambda *_: True)
    assert await SuiteRunner(store=suite_store, runner=third).run(REQUEST, job=JOB) == result
    assert third.keys == []


async def test_an_old_lease_does_not_undo_a_finished_result(suite_store):
    """What a worker still writes after a later lease of its job has finished the Suite changes nothing."""
    finished = []

    async def finish():
        result = await SuiteRunner(store=suite_store, runner=Runner(lambda *_: True)).run(REQUEST, job=JOB)
        finished.append(result)

    class Slow(Runner):
        async def run_episode(self, request, *, job, key=""):
            if not finished and not self.keys:
                self.keys.append("begun")
                await finish()
            return await super().run_episode(request, job=job, key=key)

    await SuiteRunner(store=suite_store, runner=Slow(lambda *_: False)).run(REQUEST, job=JOB)
    async with suite_store.reading() as tx:
        assert await tx.suite_results.get(suite_result_id(JOB)) == finished[0]


async def test_a_spoiled_attempt_is_invalid(suite_store):
    """Infrastructure that fails three times makes an invalid attempt, not a failure of the policy."""
    runner = Runner(lambda request, key: EngineError("down"))
    result = await SuiteRunner(store=suite_store, runner=runner).run(REQUEST, job=JOB)
    assert all(one.invalid for one in result.attempts)


async def test_prompts_without_verifiers_are_not_run(suite_store):
    """The error says what such a Suite is good for."""
    async with suite_store.transaction() as tx:
        ids = (await tx.suites.get("letters")).task_ids
        await tx.suites.add(Suite(name="logged", task_ids=ids, scored=False))
    request = REQUEST.model_copy(update={"suite": "logged"})
    with pytest.raises(TaskError, match="without verifiers"):
        await SuiteRunner(store=suite_store, runner=Runner(lambda *_: True)).run(request, job=JOB)


def test_a_file_of_tasks_and_one_of_prompts(tmp_path):
    """Verifiers make a scored Suite; logged messages lose their answer and make one that is not scored."""
    file = tmp_path / "a.jsonl"
    exact = [{"name": "exact", "options": {"expected": "4"}}]
    file.write_text(json.dumps({"prompt": "2 + 2?", "verifiers": exact}) + "\n\n")
    made = suite_from_jsonl(file, name="sums", tenant_id="acme")
    assert (made.suite.name, made.suite.tenant_id, made.suite.scored) == ("tenant/acme/sums", "acme", True)
    assert made.tasks[0].split == "heldout"
    logged = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    file.write_text(json.dumps({"messages": logged}))
    made = suite_from_jsonl(file, name="logs", tenant_id="acme")
    assert not made.suite.scored and made.tasks[0].messages == tuple(logged[:1])


def test_every_faulty_line_is_named(tmp_path):
    """One error tells all faults by line."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "a"}\nnot json\n{"prompt": "a", "colour": 1}\n{}\n')
    with pytest.raises(TaskError) as caught:
        suite_from_jsonl(file, name="x", tenant_id="acme")
    assert [f"line {number}:" in str(caught.value) for number in (1, 2, 3, 4)] == [False, True, True, True]


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        ("I'm sorry, but I can't help with that.", True),
        ("I cannot assist with this request.", True),
        ("As an AI language model, I cannot do so.", True),
        ("I won\u2019t provide instructions for that.", True),
        ("The capital of France is Paris.", False),
        ("Use kill -9. You can't undo it.", False),
        ("Sorry to hear that! Rest and drink water.", False),
    ],
)
def test_refusals_are_told_from_answers(answer, refused):
    """Phrases of refusal count; the words in another sense do not."""
    assert refuses(answer) is refused


def test_the_safety_domain_has_every_kind_and_never_trains():
    """Harmful, harmless and over-refusal Tasks are mixed, all of them held out."""
    tasks = SafetyDomain().generate("heldout", 60, 1)
    assert {task.metadata["kind"] for task in tasks} == {"harmful", "harmless", "over_refusal"}
    with pytest.raises(TaskError):
        SafetyDomain().generate("train", 1, 0)


async def test_the_ledgers_files_decide():
    """Balances in the right order win; money is neither made nor lost."""
    for task in LedgerDomain().generate("heldout", 8, 3):
        expected = task.verifiers[0].options["expected"][RESULT]
        before = sum(json.loads(text)["balance"] for text in task.files.values())
        assert sum(int(line.split()[1]) for line in expected.splitlines()) == before
        assert FileContentVerifier(dict(task.verifiers[0].options)).wanted_files == (RESULT,)
    assert {task.metadata["moved"] for task in LedgerDomain().generate("heldout", 8, 3)} == {True, False}


def test_twenty_gym_datasets_make_held_out_tasks():
    """Every one of them is accepted and gives Tasks."""
    assert len(set(GYM_DATASETS)) == 20
    assert len(evaluated_sources()) >= 26
    for dataset in GYM_DATASETS:
        assert len(ReasoningGymDomain(dataset).generate("heldout", 40, 20_000)) == 40
