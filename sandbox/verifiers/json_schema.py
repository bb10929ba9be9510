"""``json_schema``: the final answer is JSON that fits the schema which the user asked for."""

import json
from typing import Any, ClassVar

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from pydantic import Field, field_validator

from sandbox.parsing import MAX_TEXT, find_json_object
from sandbox.text import clean_text
from sandbox.verifiers.base import Attempt, Judgement, Options, agent_failed, read_options

_EVIDENCE_CHARACTERS = 500
_ALMOST = 0.5
"""Of a right answer with text around it."""


class JsonSchemaOptions(Options):
    """The schema, and what being JSON at all is worth."""

    json_schema: dict[str, Any] = Field(min_length=1)
    """JSON schema (draft 2020-12) of the answer."""
    json_score: float = Field(default=0.2, ge=0.0, lt=1.0)
    """For JSON that does not fit."""

    @field_validator("json_schema")
    @classmethod
    def _is_schema(cls, given: dict[str, Any]) -> dict[str, Any]:
        try:
            Draft202012Validator.check_schema(given)
        except SchemaError as error:
            raise ValueError(f"not a JSON schema: {error.message}") from error
        if any(not reference.startswith("#") for reference in _strings(given, "$ref", "$dynamicRef")):
            raise ValueError("a schema may refer only to parts of itself")
        return given


def _strings(schema: Any, *keys: str) -> list[str]:
    """The strings under any of ``keys``, however deep."""
    if isinstance(schema, list):
        return [text for one in schema for text in _strings(one, *keys)]
    if not isinstance(schema, dict):
        return []
    own = [value for key, value in schema.items() if key in keys and isinstance(value, str)]
    return own + [text for one in schema.values() for text in _strings(one, *keys)]


class JsonSchemaVerifier:
    """Judges the form of the last answer."""

    name: ClassVar[str] = "json_schema"
    version: ClassVar[str] = "1"
    wanted_files: tuple[str, ...] = ()

    def __init__(self, options: dict[str, object]) -> None:
        self._options = read_options(self.name, JsonSchemaOptions, options)
        self._schema = Draft202012Validator(self._options.json_schema)

    async def judge(self, attempt: Attempt) -> Judgement:
        """1 for an answer that is JSON and fits, less with text around it, ``json_score`` for other JSON, else 0."""
        text = attempt.final_text[:MAX_TEXT].strip()
        evidence = {"answer": clean_text(text, _EVIDENCE_CHARACTERS)}
        try:
            given, alone = json.loads(text), True
        except (ValueError, RecursionError):
            given, alone = find_json_object(text)
            if given is None:
                return agent_failed("the answer is not JSON", evidence=evidence)
        problem = next(self._schema.iter_errors(given), None)
        if problem is not None:
            reason = clean_text(problem.message, _EVIDENCE_CHARACTERS)
            return agent_failed(reason, score=self._options.json_score, evidence=evidence)
        return Judgement(score=1.0 if alone else _ALMOST, success=alone, evidence=evidence)
