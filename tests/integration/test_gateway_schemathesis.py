"""The gateway against its own OpenAPI document: generated requests to every route, with several keys."""

import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from yarl import URL

from core.access import Scope
from tests.gateway_harness import POLICY, TENANT, Harness, hone_headers, running_gateway

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    allow_header_conformance,
]
EXAMPLES = {"everything": 4, "user": 2}
"""Key → requests of each kind to each route."""
OPEN = {"/health", "/ready", "/metrics"}
"""Routes that answer without a key."""
SHAPES = ({"message", "type", "param", "code"}, {"type", "message"})
"""Of OpenAI's error object and of Anthropic's."""
MOST_TOKENS = 16
STEPS = ["evaluation", "shadow", "ramp"]
JSON = {"content-type": "application/json"}
_TALK = [{"role": "user", "content": "2 + 2?"}]
RIGHT: dict[str, dict[str, Any]] = {
    "POST /v1/chat/completions": {"messages": _TALK},
    "POST /v1/completions": {"prompt": "2 + 2?"},
    "POST /v1/messages": {"messages": _TALK, "max_tokens": 4},
    "POST /v1/messages/count_tokens": {"messages": _TALK},
    "POST /v1/responses": {"input": "2 + 2?"},
    "POST /v1/feedback": {"name": "thumbs_up"},
}
"""What makes a generated body one that can be answered."""


@pytest.fixture
async def harness(fresh_postgres_url, open_store, make_config):
    """A gateway on PostgreSQL, which takes fewer texts and numbers than SQLite, with an engine."""
    store = await open_store(fresh_postgres_url)
    async with running_gateway(store, make_config, {"store.url": fresh_postgres_url}) as harness:
        await harness.add_engine()
        await harness.mint()
        await harness.deploy("dep_a", versions=(1,))
        await harness.add_key("everything", scopes=set(Scope))
        yield harness


async def known(harness: Harness) -> dict[str, str]:
    """Path parameter → the name of something that exists."""
    chat = {"model": POLICY, "messages": [{"role": "user", "content": "2 + 2?"}], "max_tokens": 4, "store": True}
    answer = await harness.post("/v1/chat/completions", chat, key="admin")
    response = await harness.post("/v1/responses", {"model": POLICY, "input": "Hi", "max_output_tokens": 4}, "admin")
    spare = await harness.add_key("spare", scopes={Scope.INFERENCE})
    job = await harness.store.queue.enqueue("rollout", {}, max_attempts=1)
    assert await harness.gateway.recorder.flush(10.0)
    assert (answer.status, response.status) == (200, 200)
    return {
        "name": POLICY,
        "number": "1",
        "tenant_id": TENANT,
        "key_id": spare.id,
        "job_id": job.id,
        "episode_id": hone_headers(answer)["episode-id"],
        "completion_id": (await answer.json())["id"],
        "response_id": (await response.json())["id"],
    }


def bounded(case: Case) -> Case:
    """The case without a wish for more text than a test has time for."""
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body.setdefault("max_output_tokens" if "input" in case.body else "max_tokens", MOST_TOKENS)
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            if isinstance(case.body.get(name), int):
                case.body[name] = min(case.body[name], MOST_TOKENS)
        if isinstance(case.body.get("n"), int):
            case.body["n"] = min(case.body["n"], 2)
    return case


def cases(operation: APIOperation, names: dict[str, str]) -> st.SearchStrategy[Case]:
    """Right and wrong requests; half of them about things that exist."""
    parameters = {
        parameter.name: names[parameter.name]
        for parameter in operation.path_parameters
        if parameter.name in names and "{" + parameter.name + "}" in operation.path
    }
    found = [operation.as_strategy(GenerationMode.POSITIVE), operation.as_strategy(GenerationMode.NEGATIVE)]
    if parameters:
        found.append(operation.as_strategy(GenerationMode.POSITIVE, path_parameters=parameters))
    if operation.label in RIGHT:
        real = operation.as_strategy(GenerationMode.POSITIVE)
        found.append(real.map(lambda case: _made_right(case, RIGHT[operation.label], names)))
    return st.one_of(found).map(bounded)


def _made_right(case: Case, right: dict[str, Any], names: dict[str, str]) -> Case:
    """The same request about something that exists; what passes to the engine stays as it was generated."""
    if isinstance(case.body, dict):
        if "input" in right:
            # Most other fields contradict one another.
            case.body = {name: case.body[name] for name in ("model", "stream", "store") if name in case.body}
        case.body |= right
        if "model" in case.body:
            case.body["model"] = POLICY
        if "name" in right:
            case.body |= {"episode_id": names["episode_id"], "turn_id": None}
    return case


class Prober:
    """Sends generated requests and collects whatever does not hold."""

    def __init__(self, harness: Harness, document: dict[str, Any], names: dict[str, str]) -> None:
        self._harness = harness
        self._session = requests.Session()
        self._names = names
        self.operations = [found.ok() for found in schemathesis.openapi.from_dict(document).get_all_operations()]
        self.failures: dict[str, str] = {}
        self.seen: dict[str, set[int]] = {}

    def probe(self, key: str) -> None:
        """Every route with this key."""
        for operation in self.operations:
            self._probe_one(operation, key)

    def _probe_one(self, operation: APIOperation, key: str) -> None:
        @seed(20_261_130)
        @settings(
            max_examples=EXAMPLES[key] * (4 if operation.body else 3),
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases(operation, self._names))
        def run(case: Case) -> None:
            self._check(operation, case, key)

        run()

    def _check(self, operation: APIOperation, case: Case, key: str) -> None:
        headers = self._harness.headers(key)
        response = case.call(base_url=self._harness.url, session=self._session, headers=headers, timeout=30)
        self.seen.setdefault(operation.label, set()).add(response.status_code)
        try:
            case.validate_response(response, checks=CHECKS, headers=headers)
            check_error_shape(response)
        except (AssertionError, schemathesis.errors.SchemathesisError, BaseExceptionGroup) as error:
            said = "\n".join(str(one) for one in getattr(error, "exceptions", (error,)))
            sent = f"{case.method} {case.formatted_path} {case.query} {case.headers} {str(case.body)[:600]}"
            found = f"{operation.label} {response.status_code} {said.splitlines()[0]}"
            self.failures.setdefault(found, f"{said[:900]}\n{sent}\n{response.content[:300]!r}")

    def without_key(self) -> None:
        """Every route but the open ones refuses a request without a key, and one with a wrong key."""
        for operation in self.operations:
            path = operation.path
            for name, value in self._names.items():
                path = path.replace("{" + name + "}", value)
            for headers in ({}, {"authorization": "Bearer hone-wrong"}, {"authorization": "Basic eDp5"}):
                response = self._session.request(
                    operation.method, self._harness.url + path, headers=headers, json={}, timeout=30
                )
                wanted = operation.path in OPEN or response.status_code == 401
                if not wanted:
                    self.failures[f"{operation.label} {headers}"] = f"{response.status_code} {response.text[:200]}"


def check_error_shape(response: Any) -> None:
    """A refusal has OpenAI's error object, or Anthropic's under its routes, and names its request."""
    if response.status_code < 400:
        return
    body = response.json()
    assert set(body["error"]) in SHAPES, body
    assert isinstance(body["error"]["message"], str), body
    assert body["error"]["message"], body
    assert "x-request-id" in response.headers or "request-id" in response.headers, response.headers


@pytest.mark.parametrize("key", EXAMPLES)
async def test_every_route_keeps_what_its_document_says(harness: Harness, key):
    """No request makes an internal error, and every answer is one that the document describes."""
    document = await (await harness.http.get(harness.url + "/openapi.json")).json()
    names = await known(harness)
    prober = Prober(harness, document, names)
    await asyncio.to_thread(prober.probe, key)
    assert not prober.failures, report(prober.failures)
    assert len(prober.seen) == len(prober.operations)


async def test_requests_that_are_right_are_answered(harness: Harness):
    """What generated bodies are completed with makes a request that succeeds."""
    names = await known(harness)
    for operation, right in RIGHT.items():
        body = {"model": POLICY, "max_tokens": 4, **right}
        if operation == "POST /v1/messages/count_tokens":
            # This engine has no such route.
            continue
        if operation == "POST /v1/responses":
            body["max_output_tokens"] = body.pop("max_tokens")
        if operation == "POST /v1/feedback":
            body = {**right, "value": True, "episode_id": names["episode_id"]}
        answered = await harness.post(operation.partition(" ")[2], body, key="everything")
        assert answered.status in (200, 201), (operation, await answered.text())


async def test_no_route_but_the_open_ones_answers_without_a_key(harness: Harness):
    """Without a key, with a wrong one and with another scheme the answer is 401."""
    document = await (await harness.http.get(harness.url + "/openapi.json")).json()
    prober = Prober(harness, document, await known(harness))
    await asyncio.to_thread(prober.without_key)
    assert not prober.failures, report(prober.failures)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert bool(operation.get("security")) == (path not in OPEN), path


async def test_texts_that_a_database_refuses_are_no_internal_errors(harness: Harness):
    """A NUL and half a surrogate pair are stored or refused, in paths, queries and bodies alike."""
    episode_id = (await known(harness))["episode_id"]
    found = []
    for text in ("a\0b", "\ud800", "\uffff"):
        quoted = quote(text.encode("utf-8", "surrogatepass"))
        for path in (
            *(
                f"/admin/v1/episodes?{name}={quoted}"
                for name in ("policy", "domain", "tenant_id", "group_id", "before")
            ),
            *(f"/admin/v1/{name}/{quoted}" for name in ("policies", "episodes", "jobs", "runs", "tenants", "keys")),
            *(f"/admin/v1/{name}?policy={quoted}" for name in ("runs", "evaluations")),
            *(f"/v1/{name}/{quoted}" for name in ("models", "episodes", "responses", "chat/completions")),
            *(f"/v1/chat/completions?{name}={quoted}" for name in ("after", "model", "metadata[a]")),
            f"/admin/v1/keys?tenant_id={quoted}",
            f"/v1/feedback?name={quoted}",
            f"/v1/episodes?after={quoted}",
        ):
            url = URL(harness.url + path, encoded=True)
            response = await harness.http.get(url, headers=harness.headers("everything"))
            found.append((path, response.status, await response.text()))
        for path, body in (
            ("/admin/v1/policies", {"name": "x" + text}),
            (f"/admin/v1/policies/{POLICY}/promote", {"version": 1, "reason": text, "skip": STEPS}),
            (f"/admin/v1/policies/{POLICY}/rollback", {"reason": text}),
            ("/admin/v1/keys", {"name": text}),
            ("/admin/v1/tenants", {"name": text}),
            ("/v1/feedback", {"name": "a", "value": text, "episode_id": episode_id}),
            ("/v1/episodes", {"metadata": {"a": text}}),
            ("/v1/chat/completions", {"model": text, "messages": _TALK}),
            (
                "/v1/chat/completions",
                {"model": POLICY, "messages": [{"role": "user", "content": text}], "store": True},
            ),
            ("/v1/responses", {"model": POLICY, "input": text, "metadata": {"a": text}, "max_output_tokens": 4}),
            ("/v1/messages", {"model": POLICY, "max_tokens": 4, "messages": [{"role": "user", "content": text}]}),
        ):
            response = await harness.post(path, json.dumps(body).encode(), "everything", **JSON)
            found.append((f"{path} {body}", response.status, await response.text()))
    for path in ("/v1/feedback", "/v1/episodes", "/v1/chat/completions", "/admin/v1/audit", "/admin/v1/keys"):
        response = await harness.http.get(harness.url + path, headers=harness.headers("everything"))
        found.append((path, response.status, await response.text()))
    bad = [f"{path} {status} {text[:200]}" for path, status, text in found if status >= 500]
    assert not bad, "\n".join(bad)
    assert await harness.gateway.recorder.flush(20.0)
    assert harness.gateway.recorder.lost == 0


def report(failures: dict[str, str]) -> str:
    """All that was found, for whoever has to put it right."""
    return "\n\n".join(f"=== {name}\n{said}" for name, said in failures.items())
