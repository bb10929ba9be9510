"""What is particular to single Domains; what all share is in the contract suite."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.episode import ToolResult
from core.errors import TaskError
from core.task import Limits
from core.verdict import combine_verdicts
from sandbox.domains.base import pool, split_of
from sandbox.domains.code import CodeDomain
from sandbox.domains.python_tool import NUMBERS, TEMPLATES, PythonToolDomain, Template, call_text
from sandbox.domains.reasoning_gym import ReasoningGymDomain, check_dataset, evaluates_answers
from sandbox.domains.registry import domain_source, domain_sources
from sandbox.domains.words import WORDS
from sandbox.judge import judge_attempt, make_verifiers
from sandbox.parsing import parse_answer
from sandbox.runtimes.base import BoxSpec
from sandbox.tools.registry import make_tools
from sandbox.verifiers.base import Attempt
from tests.sandbox_fakes import DirectRuntime

SPLITS = ("train", "heldout", "warmup")


def test_every_ingredient_is_in_exactly_one_split():
    """Words and numbers are dealt without overlap, and each split gets enough of both."""
    for items in (WORDS, NUMBERS):
        pools = [pool(items, split) for split in SPLITS]
        assert sorted(item for part in pools for item in part) == sorted(items)
        assert min(len(part) for part in pools) >= 5


@given(st.text())
def test_split_is_a_function_of_the_item(text):
    """The same item is always in the same split."""
    assert split_of(text) == split_of(text) in SPLITS


def test_words_are_words():
    """The word list has no repetition and only lower-case letters."""
    assert len(set(WORDS)) == len(WORDS) > 500
    assert all(word.isalpha() and word.islower() and 5 <= len(word) <= 8 for word in WORDS)


async def _reward(task, text):
    """The Reward of ``text`` as the only answer to a python_tool Task, its call really run."""
    runtime = DirectRuntime()
    results = []
    for call in parse_answer({"role": "assistant", "content": text}).calls:
        tool = make_tools(task.tools).get(call.name)
        if tool is None or call.error:
            continue
        async with runtime.box(BoxSpec(wall_seconds=60)) as box:
            output = await tool.run(call.arguments, box)
        results.append(
            ToolResult(
                turn_id="t",
                tool=call.name,
                arguments=call.arguments,
                output=output.output,
                outcome=output.outcome,
                seconds=0.0,
            )
        )
    attempt = Attempt(
        episode_id="ep",
        task=task,
        messages=(),
        tool_results=tuple(results),
        responses=({"role": "assistant", "content": text},),
    )
    reward = combine_verdicts("ep", await judge_attempt(attempt, make_verifiers(task, runtime)))
    assert reward is not None
    return reward.value, reward.success


async def test_python_tool_rewards_each_step_on_the_way():
    """0 for words, 0.1 for JSON, 0.3 for a fitting call, 0.5 for one that runs, 1 for the right output."""
    (task,) = PythonToolDomain().generate("train", 1, 0)
    for text, value, success in (
        ("I do not know", 0.0, False),
        ('{"answer": 3}', 0.1, False),
        (call_text("print("), 0.3, False),
        (call_text("print('certainly wrong')"), 0.5, False),
        (task.demonstration, 1.0, True),
    ):
        assert await _reward(task, text) == (pytest.approx(value), success), text


async def test_every_python_tool_template_is_answered_by_its_own_code():
    """For each template, running the demonstration gives the expected output."""
    tasks = PythonToolDomain().generate("train", len(TEMPLATES), 3)
    assert {task.metadata["template"] for task in tasks} == {template.name for template in TEMPLATES}
    for task in tasks:
        assert await _reward(task, task.demonstration) == (pytest.approx(1.0), True)


async def test_warm_up_demonstrations_are_of_mixed_quality():
    """Every warm-up demonstration is a call that runs; those that forget to print are no success."""
    tasks = PythonToolDomain().generate("warmup", 2 * len(TEMPLATES), 3)
    rewards = [await _reward(task, task.demonstration) for task in tasks]
    printing = [task.demonstration.count("print(") for task in tasks]
    assert 0 < sum(printing) < len(tasks)
    assert rewards == [(pytest.approx(1.0), True) if prints else (pytest.approx(0.5), False) for prints in printing]


def test_templates_and_prompt_can_be_replaced():
    """The Domain is its table: another table and prompt make another Domain."""
    template = Template("double", "Double {a}.", "print({a}*2)", lambda i: i.a * 2)
    (task,) = PythonToolDomain((template,), system_prompt="").generate("train", 1, 0)
    assert [message["role"] for message in task.messages] == ["user"]
    assert json.loads(task.demonstration)["arguments"]["code"].startswith("print(")


async def test_every_code_template_passes_its_own_tests():
    """For each template, the demonstration passes the unit tests made by the reference."""
    for generated in CodeDomain().generate("train", 8, 1):
        task = generated.model_copy(update={"limits": Limits(tool_seconds=15.0)})
        attempt = Attempt(
            episode_id="ep",
            task=task,
            messages=(),
            responses=({"role": "assistant", "content": task.demonstration},),
        )
        (verdict,) = await judge_attempt(attempt, make_verifiers(task, DirectRuntime()))
        assert verdict.success, (task.metadata, verdict.evidence)


@pytest.mark.parametrize("dataset", ["countdown", "puzzle24", "n_queens", "simple_integration", "spiral_matrix"])
def test_datasets_whose_scorers_evaluate_answers_are_refused(dataset):
    """A scorer that would run the policy's text on the host is not used."""
    pytest.importorskip("reasoning_gym")
    with pytest.raises(TaskError, match="evaluates"):
        check_dataset(dataset)


def test_most_datasets_can_be_used():
    """The check on scorers refuses few of the datasets."""
    factory = pytest.importorskip("reasoning_gym.factory")
    pytest.importorskip("reasoning_gym")
    refused = {name for name, (kind, _) in factory.DATASETS.items() if evaluates_answers(kind)}
    assert len(refused) < 20


def test_unknown_names_are_refused_with_those_known():
    """An unknown Domain or dataset is a TaskError."""
    with pytest.raises(TaskError, match="no Domain"):
        domain_source("nothing")
    pytest.importorskip("reasoning_gym")
    with pytest.raises(TaskError, match="no dataset"):
        domain_source("reasoning_gym/nothing")


def test_asking_for_more_than_there_is_ends_in_an_error():
    """A split that holds too few different Tasks says so instead of searching for ever."""
    template = Template("constant", "Say 1.", "print(1)", lambda i: 1)
    with pytest.raises(TaskError, match="different Tasks"):
        PythonToolDomain((template,)).generate("train", 2, 0)


def test_shipped_sources_have_names_of_their_own():
    """Each source is found by the name of its Domain."""
    for source in domain_sources():
        assert domain_source(source.domain().name).domain() == source.domain()


def test_reasoning_gym_takes_a_configuration():
    """A dataset's own configuration reaches it and is kept in the Task."""
    pytest.importorskip("reasoning_gym")
    source = ReasoningGymDomain("chain_sum", {"min_terms": 2, "max_terms": 2})
    (task,) = source.generate("train", 1, 0)
    assert task.verifiers[0].options["config"] == {"min_terms": 2, "max_terms": 2}
