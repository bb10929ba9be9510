"""How fresh attempts at a mined Task are judged: a verifier, or a rubric, taken from the recorded Episode. Pure."""

import json
from dataclasses import dataclass
from typing import Any

from core.config.learner_live import MiningSection
from core.message import Message
from core.task import VerifierSpec
from sandbox.mining.starting_point import StartingPoint
from sandbox.parsing import find_json_object, message_text

_SHORT = 120
"""Characters of an answer that another right answer may be expected to equal."""
_REFERENCE_CHARACTERS = 4_000


@dataclass(frozen=True)
class Judging:
    """The verifiers, where they come from, and whether one of them is a judge model."""

    verifiers: tuple[VerifierSpec, ...]
    judged_by: str
    demonstration: str | None = None

    @property
    def needs_model(self) -> bool:
        """Whether a model judges."""
        return self.judged_by == "rubric"


def judging_of(
    point: StartingPoint,
    *,
    reward: float | None,
    demonstration: Message | None,
    comments: tuple[str, ...],
    config: MiningSection,
) -> Judging | None:
    """The strictest judgement that the record supports; None: it supports none.

    In this order: a demonstration that can be compared, the schema that the client asked for, the output of the tool
    that a well-rated answer rests on, a well-rated JSON object or short answer, else a rubric with the answer as it
    was or should have been, where a judge model is configured.
    """
    good = reward is not None and reward >= config.min_reward
    shown = "" if demonstration is None else message_text(demonstration).strip()
    if shown:
        compared = _compared(shown)
        if compared is not None:
            return Judging((compared,), "demonstration", demonstration=shown)
    schema = _wanted_schema(point)
    if schema is not None:
        return Judging((VerifierSpec(name="json_schema", options={"json_schema": schema}),), "json", shown or None)
    if good and not shown:
        found = _by_tool(point) or _by_answer(point)
        if found is not None:
            return found
    if not config.rubric_model or (not good and not shown and not comments):
        return None
    options = {"model": config.rubric_model, "rubric": _rubric(comments)}
    reference = shown or (point.text if good else "")
    if reference:
        options["reference"] = reference[:_REFERENCE_CHARACTERS]
    return Judging((VerifierSpec(name="rubric", options=options),), "rubric", demonstration=shown or None)


def _by_tool(point: StartingPoint) -> Judging | None:
    ran = [use for use in point.uses if use.ran and use.output.strip()]
    if not ran or len(ran[-1].output) > _REFERENCE_CHARACTERS:
        return None
    options = {"expected": ran[-1].output, "tool": ran[-1].tool}
    return Judging((VerifierSpec(name="tool_output", options=options),), "tool_outcome")


def _by_answer(point: StartingPoint) -> Judging | None:
    compared = _compared(point.text)
    if compared is None:
        return None
    return Judging((compared,), "json" if compared.name == "json_answer" else "answer")


def _compared(text: str) -> VerifierSpec | None:
    """Equality with a JSON object or a short text; None for what can be said in many ways."""
    found, alone = find_json_object(text)
    if found and alone:
        return VerifierSpec(name="json_answer", options={"expected": found, "strict": False})
    if text and len(text) <= _SHORT and "\n" not in text:
        steps = ["strip", "casefold", "collapse_spaces"]
        return VerifierSpec(name="exact", options={"expected": text, "normalise": steps})
    return None


def _wanted_schema(point: StartingPoint) -> dict[str, Any] | None:
    wanted = point.turns[-1].sampling.get("response_format")
    described = wanted.get("json_schema") if isinstance(wanted, dict) else None
    schema = described.get("schema") if isinstance(described, dict) else None
    # A client's regular expressions could take for ever on a policy's answers.
    return (
        schema if isinstance(schema, dict) and schema and not _has(schema, {"pattern", "patternProperties"}) else None
    )


def _has(schema: Any, keys: set[str]) -> bool:
    if isinstance(schema, list):
        return any(_has(one, keys) for one in schema)
    return isinstance(schema, dict) and (bool(keys & set(schema)) or any(_has(one, keys) for one in schema.values()))


def _rubric(comments: tuple[str, ...]) -> str:
    said = json.dumps(list(comments)[:5], ensure_ascii=False)[:_REFERENCE_CHARACTERS]
    asked = "The answer does what the user asked for, correctly, completely and in the form that was asked for."
    return f"{asked} The user said about an earlier answer: {said}" if comments else asked
