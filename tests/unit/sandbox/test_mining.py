"""What is proposed as a Task from a recorded Episode, and how fresh attempts at it are judged."""

import json

import pytest

from core import ids
from core.config.learner import LearnerSection
from core.episode import ToolResult
from core.errors import TaskError
from core.feedback import Feedback, FeedbackKind, read_value
from core.mined_task import MinedTask
from core.task import VerifierSpec
from sandbox.mining.miner import MiningRefusal, propose
from sandbox.mining.starting_point import starting_points
from sandbox.verifiers.registry import check_spec
from tests import nouns

ASKED = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"})
CONFIG = LearnerSection.model_validate({"mining": {"rubric_model": "judge"}})
SCHEMA = {"type": "object", "required": ["sum"], "properties": {"sum": {"type": "integer"}}}


def feedback(name: str, value, turn_id: str | None = "turn_a", **fields) -> Feedback:
    kind, value = read_value(value, fields.pop("kind", None))
    values = {"id": ids.new_id(ids.FEEDBACK), "tenant_id": "ten_a", "key_id": "key_a", "episode_id": "ep_a"}
    granted = {"turn_id": turn_id, "name": name, "kind": kind, "value": value, "training_granted": True}
    return Feedback(**(values | granted | fields))


def turn(text: str = "4", **fields):
    values = {"id": "turn_a", "messages": ASKED, "response": {"role": "assistant", "content": text}}
    return nouns.turn(**(values | {"trainable": True} | fields))


def mined(*said: Feedback, turns=None, config=CONFIG, **episode) -> list[MinedTask]:
    one = nouns.episode(**({"id": "ep_a", "trainable": True} | episode))
    return propose(one, turns or [turn()], said, config=config)[0]


def refused(*said: Feedback, turns=None, config=CONFIG, **episode) -> list[str]:
    one = nouns.episode(**({"id": "ep_a", "trainable": True} | episode))
    found, causes = propose(one, turns or [turn()], said, config=config)
    assert found == []
    return list(causes)


GOOD = feedback("thumbs_up", True)
BAD = feedback("thumbs_up", False)


def spec(one: MinedTask) -> VerifierSpec:
    (found,) = one.task.verifiers
    check_spec(found)
    return found


def test_a_praised_short_answer_is_what_others_must_equal() -> None:
    """Prompt, split, Domain and limits come from the record; the Task names its Episode and is not held out."""
    (one,) = mined(GOOD)
    assert (spec(one).name, spec(one).options["expected"], one.judged_by) == ("exact", "4", "answer")
    assert one.task.messages == ASKED
    assert (one.task.split, one.task.domain, one.task.limits.max_turns) == ("train", "live", 1)
    assert (one.episode_id, one.task.metadata["episode_id"]) == ("ep_a", "ep_a")
    assert one.id == one.task.id


def test_a_demonstration_is_stronger_than_the_answer() -> None:
    """A correction becomes the expected answer, and the Task's demonstration."""
    (one,) = mined(BAD, feedback("fix", "four", kind=FeedbackKind.DEMONSTRATION))
    assert (spec(one).options["expected"], one.judged_by, one.task.demonstration) == ("four", "demonstration", "four")
    (one,) = mined(feedback("fix", '{"sum": 4}', kind=FeedbackKind.DEMONSTRATION))
    assert spec(one).name == "json_answer"


def test_json_is_compared_as_json_or_by_the_schema_that_was_asked_for() -> None:
    """A praised object becomes the expected object; a schema in the request is enough by itself."""
    (one,) = mined(GOOD, turns=[turn('{"sum": 4}')])
    assert (spec(one).name, spec(one).options["expected"]) == ("json_answer", {"sum": 4})
    wanted = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}}
    (one,) = mined(turns=[turn("{}", sampling=wanted)])
    assert (spec(one).name, one.judged_by) == ("json_schema", "json")
    slow = SCHEMA | {"properties": {"sum": {"type": "string", "pattern": "(a+)+$"}}}
    wanted["response_format"]["json_schema"]["schema"] = slow
    assert refused(turns=[turn("{}", sampling=wanted)]) == [MiningRefusal.NO_JUDGEMENT]


def test_a_schema_never_leads_out_of_itself() -> None:
    """A reference to another document is refused: nothing is fetched for a client."""
    with pytest.raises(TaskError, match="parts of itself"):
        check_spec(VerifierSpec(name="json_schema", options={"json_schema": {"$ref": "http://example.com/s"}}))


def test_a_tools_output_is_what_the_answer_rests_on() -> None:
    """The last recorded call that ran becomes the verifier; the tool is offered again, with Turns to use it."""
    tools = {"tools": [{"type": "function", "function": {"name": "python"}}]}
    result = ToolResult(
        turn_id="turn_a", tool="python", arguments={"code": "print(4)"}, output="4\n", outcome="ok", seconds=0.1
    )
    (one,) = mined(GOOD, turns=[turn("The sum is 4, I computed it.", sampling=tools)], tool_results=(result,))
    assert (spec(one).name, spec(one).options) == ("tool_output", {"expected": "4\n", "tool": "python"})
    assert [tool.name for tool in one.task.tools] == ["python"]
    assert one.task.limits.max_turns == CONFIG.mining.max_turns
    failed = result.model_copy(update={"outcome": "nonzero"})
    (one,) = mined(GOOD, turns=[turn("x" * 500, sampling=tools)], tool_results=(failed,))
    assert one.judged_by == "rubric"


def test_what_can_be_said_in_many_ways_goes_to_a_judge() -> None:
    """A praised long answer is the reference, comments are a part of the rubric; without a judge it is not mined."""
    (one,) = mined(GOOD, feedback("why", "nice and short"), turns=[turn("word " * 100)])
    options = spec(one).options
    assert (spec(one).name, options["model"], one.judged_by) == ("rubric", "judge", "rubric")
    assert options["reference"].startswith("word")
    assert "nice and short" in options["rubric"]
    assert refused(GOOD, turns=[turn("word " * 100)], config=LearnerSection()) == [MiningRefusal.NO_JUDGEMENT]
    assert refused(BAD) == [MiningRefusal.NO_JUDGEMENT]


def test_what_may_not_be_mined() -> None:
    """No consent, functions that only the client has, and what is too long."""
    assert refused(GOOD, turns=[turn(trainable=False)]) == [MiningRefusal.NO_CONSENT]
    assert refused(GOOD, turns=[turn(content_kept=False)]) == [MiningRefusal.NO_CONSENT]
    foreign = {"tools": [{"type": "function", "function": {"name": "book_flight"}}]}
    assert refused(GOOD, turns=[turn(sampling=foreign)]) == [MiningRefusal.FOREIGN_TOOLS]
    long = ({"role": "user", "content": "x" * 20_000},)
    assert refused(GOOD, turns=[turn(messages=long)]) == [MiningRefusal.TOO_LONG]


def test_a_redacted_turn_is_mined_as_it_was_redacted() -> None:
    """Its tokens are gone and it trains no more; its text, without personal data, may stand in a Task."""
    gone = {"exact": False, "prompt_ids": (), "output_ids": (), "output_logprobs": ()}
    redacted = turn(trainable=False, redacted=True, consented=True, **gone)
    (one,) = mined(GOOD, turns=[redacted])
    assert one.task.messages == ASKED
    assert refused(GOOD, turns=[redacted], trainable=False) == [MiningRefusal.NO_CONSENT]
    only_stored = redacted.model_copy(update={"consented": False, "stored": True})
    assert refused(GOOD, turns=[only_stored]) == [MiningRefusal.NO_CONSENT]


def test_a_bad_schema_of_a_client_costs_its_own_request_only() -> None:
    """What is no JSON schema is refused; other requests of the Episode are mined."""
    wanted = {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}}
    bad = turn("{}", id="turn_b", messages=({"role": "user", "content": "JSON?"},), index=1, sampling=wanted)
    assert refused(turns=[bad]) == [MiningRefusal.UNUSABLE]
    (one,) = mined(GOOD, turns=[turn(), bad])
    assert one.task.messages == ASKED


def test_each_request_is_a_starting_point_with_the_files_that_were_read() -> None:
    """Calls and results after a request are the attempt; what they read is the state, what they wrote is not."""

    def call(number: int, **arguments) -> list[dict]:
        function = {"name": "files", "arguments": json.dumps(arguments)}
        return [
            {"role": "assistant", "tool_calls": [{"id": f"c{number}", "function": function}]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"text {number}"},
        ]

    first = ({"role": "user", "content": "look"},)
    work = (
        *call(1, action="read", path="/data/a.txt"),
        *call(2, action="write", path="b.txt", content="x"),
        *call(3, action="read", path="b.txt"),
        *call(4, action="read", path="../etc/passwd"),
    )
    answer = {"role": "assistant", "content": "done"}
    later = (*first, *work, answer, {"role": "user", "content": "and now?"})
    turns = [
        turn("one", id="t1", messages=first),
        turn("done", id="t2", index=1, messages=(*first, *work)),
        turn("yes", id="t3", index=2, messages=later),
    ]
    one, two = starting_points(nouns.episode(id="ep_a"), turns)
    assert (one.messages, one.text, [t.id for t in one.turns]) == (first, "done", ["t1", "t2"])
    assert one.files == {"data/a.txt": "text 1"}
    assert (two.messages, two.text, two.files) == (later, "yes", {"data/a.txt": "text 1"})


def test_the_same_question_has_the_same_digest() -> None:
    """However it is spaced and wherever it was recorded; another expected answer is another Task."""
    spaced = ({"role": "system", "content": "Be  brief."}, {"role": "user", "content": "2 + 2? "})
    one, same = mined(GOOD)[0], mined(GOOD, turns=[turn(messages=spaced)])[0]
    other = mined(GOOD, turns=[turn("5")])[0]
    assert one.digest == same.digest
    assert one.digest != other.digest
