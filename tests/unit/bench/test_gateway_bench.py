"""The benchmark's instruments: what they say must be true before what they measure means anything."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.checks import met
from bench.gateway import native, report, results
from bench.gateway.load import LoadGenerator, Target, Window, Workload, request_body
from bench.gateway.ours import Hone, TurnCount
from gateway.capture.record import CapturedCall

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or shutil.which("taskset") is None, reason="needs gcc and taskset"
)


@pytest.fixture
def mock(tmp_path: Path):
    """A mock engine with a load generator beside it."""
    native.build()
    with native.MockEngine(tmp_path) as engine:
        yield engine, LoadGenerator(folder=tmp_path, stamps=engine.stamps, mock_pid=engine.pid)


def large(engine: native.MockEngine) -> dict[str, Any]:
    """An answer with log-probs and token ids."""
    found: dict[str, Any] = json.loads(engine.ask(request_body(Workload("w", 1, large=True), "base")))
    return found


def captured(payload: bytes, **changes: Any) -> CapturedCall:
    """The record of one answer."""
    fields: dict[str, Any] = {
        "endpoint": "chat.completions",
        "surface": "chat.completions",
        "request": b"{}",
        "payloads": [payload],
        "policy": "coder",
        "version": 0,
        "variant": "standard",
        "deployment_id": "dep",
        "episode_id": "ep",
        "opens_episode": True,
        "index": 0,
        "tenant_id": "ten",
        "key_id": "key",
        "turn_ids": ["turn"],
        "request_id": "req",
        "idempotency_key": None,
        "consent": True,
        "stored": False,
        "redact": False,
        "started_at": 0.0,
        "total_seconds": 0.0,
    }
    return CapturedCall(**(fields | changes))


def checked(*calls: CapturedCall) -> tuple[TurnCount, set[int]]:
    """What the comparison says about these records."""
    found: set[int] = set()
    count = TurnCount()
    for call in calls:
        Hone._check_call(call, found, count)
    return count, found


def test_mock_answers_follow_from_their_counter(mock):
    """Ids and log-probs of an answer are those that Python derives from the text of its first token."""
    engine, _ = mock
    engine.ask(request_body(Workload("w", 1), "base"))
    choice = large(engine)["choices"][0]
    counter = int(choice["message"]["content"][:8])
    assert counter == 1
    assert tuple(choice["token_ids"]) == native.token_ids(counter)
    entries = choice["logprobs"]["content"]
    assert tuple(entry["logprob"] for entry in entries) == native.logprobs(counter)
    assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in entries)
    assert "".join(entry["token"] for entry in entries) == choice["message"]["content"]


def test_load_generator_accepts_what_the_engine_answers(mock):
    """Direct answers and events arrive whole, equal and with a counter each."""
    engine, load = mock
    target = Target(name="direct", port=engine.port, pid=0)
    for workload in (
        Workload("json", 2, requests=20, warmup=0.0),
        Workload("stream", 2, stream=True, requests=20, warmup=0.0),
        Workload("paced", 2, stream=True, pace_ms=1, requests=4, warmup=0.0),
    ):
        window = load.once(target, workload)
        detail = window.detail
        assert detail["requests"] > 0
        assert (detail["errors"], detail["mismatched"], detail["events_missing"], detail["unfinished"]) == (
            0,
            0,
            0,
            0,
        )
        assert window.counters is not None
        assert window.counters.stat().st_size == 4 * detail["answers_total"]


def test_load_generator_sees_every_difference(mock):
    """An answer with log-probs is not what a client receives that asked for none."""
    engine, load = mock
    body = load._folder / "large.json"
    body.write_bytes(request_body(Workload("w", 1, large=True), "base"))
    target = Target(name="direct", port=engine.port, pid=0)
    honest = load.once(target, Workload("large", 1, large=True, requests=5, warmup=0.0))
    assert honest.detail["mismatched"] == 0
    command = f"{native.BUILD / 'load'} port={engine.port} body={body} requests=5 warmup=0 exact=1"
    done = subprocess.run(command.split(), capture_output=True, text=True, check=True)
    detail = json.loads(done.stdout.splitlines()[-1])
    assert detail["mismatched"] == detail["answers_total"] > 0


def test_right_turn_is_counted_as_checked(mock):
    """A record with the engine's own ids and log-probs is checked and not wrong."""
    engine, _ = mock
    payload = engine.ask(request_body(Workload("w", 1, large=True), "base"))
    count, found = checked(captured(payload))
    assert count == TurnCount(checked=1)
    assert found == {0}


@pytest.mark.parametrize("part", ["token_ids", "logprob", "missing"])
def test_wrong_turn_is_noticed(mock, part):
    """One other id, one other log-prob or a token less makes a Turn wrong."""
    engine, _ = mock
    answer = large(engine)
    choice = answer["choices"][0]
    if part == "token_ids":
        choice["token_ids"][7] += 1
    elif part == "logprob":
        choice["logprobs"]["content"][7]["logprob"] += 1e-9
    else:
        choice["token_ids"].pop()
    count, _ = checked(captured(json.dumps(answer).encode()))
    assert count.wrong == 1


def test_turn_that_comes_twice_is_wrong(mock):
    """The same answer recorded twice is noticed."""
    engine, _ = mock
    payload = engine.ask(request_body(Workload("w", 1, large=True), "base"))
    count, _ = checked(captured(payload), captured(payload))
    assert (count.checked, count.wrong) == (2, 1)


def test_content_without_consent_is_noticed():
    """A record that keeps content although nobody agreed is counted."""
    count, _ = checked(
        captured(b"{}", consent=False),
        captured(b"", consent=False, payloads=[], request=b'{"messages":[]}'),
        captured(b"", consent=False, payloads=[], request=b""),
    )
    assert count.content_without_consent == 2


def window(target: str, workload: str, rate: float, *, stream: bool = False) -> Window:
    """A quiet window in which no event came."""
    detail = {
        "errors": 0,
        "mismatched": 0,
        "events_missing": 0,
        "latency_ms": {"p50": 1000 / rate, "p99": 2000 / rate, "max": 3000 / rate},
        "stream": stream,
        "first_event_ms": None,
        "event_delay_ms": None,
    }
    return Window(target, workload, rate, 0.0, 1e6 / rate, 0.0, 1.0, 0.0, 0.5, 0.0, detail)


def test_checks_are_ratios_of_medians():
    """A check divides medians, is met by its bound, and is not met where nothing was measured."""
    found = results.Findings()
    found.windows += [window(results.ON, "json c=64", rate) for rate in (900.0, 3000.0, 1000.0)]
    found.windows += [window(results.ROUTER, "json c=64", 1000.0)]
    checks = {check["name"]: check for check in results.checks(found)}
    first = checks["json_c64_vs_vllm_router_capture_on"]
    assert first == {"name": first["name"], "value": 1.0, "unit": "x", "target": ">= 1.0"}
    assert met(first)
    assert checks["json_c64_vs_nginx_capture_on"]["value"] is None
    assert not met(checks["json_c64_vs_nginx_capture_on"])
    assert checks["turns_lost"]["value"] == 0


def test_streams_that_never_ended_are_a_row_too():
    """A candidate that finishes no stream gets a row without figures, and meets no target by that."""
    found = results.Findings()
    found.windows += [window(results.ON, "stream 5 ms c=256", 1.0, stream=True)]
    row = results.row(found, results.ON, "stream 5 ms c=256")
    assert row is not None
    assert (row["first_event_p50_ms"], row["latest_event_ms"], row["events_lost"]) == (None, None, 0)
    checks = {check["name"]: check for check in results.checks(found)}
    assert not met(checks["stream_latest_event_ms"])


def test_section_shows_every_row_and_check():
    """The generated section has a line for each check and each measured row."""
    found = results.Findings()
    found.windows += [window(name, "json c=64", 100.0) for name in (results.ON, results.NGINX)]
    text = report.section(
        {
            "checks": results.checks(found),
            "tables": {
                "rows": results.rows(found),
                "large_answer": {},
                "recording": {},
                "drain": {"turns": 0, "us_per_turn": 0.0},
                "memory": {"requests": 0, "mb": []},
                "idle_streams": {},
                "two_workers": "not measured: 2 cores",
                "turns": {"journal": 0, "store": 0, "lost": 0, "wrong": 0, "content_without_consent": 0},
            },
            "sizes": {"request": 1, "small": 2, "large": 3},
            "machine": {"cpu": "x"},
            "versions": {"nginx": "1"},
        }
    )
    assert "| json c=64 | hone, capture on | 100 |" in text
    assert all(f"`{check['name']}`" in text for check in results.checks(found))
