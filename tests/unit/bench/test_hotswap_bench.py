"""The hot-swap benchmark's judgement: every lost token and every wrong version must show."""

import json
from pathlib import Path

import pytest

from bench.engine_records import EngineAnswer, compare, lost_tokens, read_records
from bench.engine_side.engine_record import EngineRecord, record
from bench.hotswap import report, results
from bench.hotswap.rescore import Piece, Scored, rescore
from bench.hotswap.results import Block, Findings, Phase
from bench.hotswap.swaps import Swap
from bench.streams import Answer
from core.policy import PolicySpan
from core.turn import Timing, Turn
from core.variant import Variant


def answer(number: int = 0, *, started: float = 0.0, seconds: float = 1.0, **changes) -> Answer:
    """A whole answer of three tokens by version 1."""
    fields = {
        "engine_id": f"chatcmpl-{number}",
        "turn_id": f"turn_{number}",
        "episode_id": f"ep_{number}",
        "version": 1,
        "ids": [5, 6, 7],
        "counted": 3,
        "arrivals": [started + 0.2 * seconds, started + 0.5 * seconds, started + seconds],
        "ended": started + seconds,
        "begun": True,
    }
    return Answer(client=number, conversation=number, turn=0, started=started, **(fields | changes))


def turn(number: int = 0, *, spans: tuple[PolicySpan, ...] = (PolicySpan(version=1),), **changes) -> Turn:
    """The Turn of that answer."""
    fields = {
        "id": f"turn_{number}",
        "episode_id": f"ep_{number}",
        "index": 0,
        "tenant_id": "ten",
        "policy": "coder",
        "policy_spans": spans,
        "variant": Variant.STANDARD,
        "deployment_id": "dep",
        "prompt_ids": (1, 2),
        "output_ids": (5, 6, 7),
        "output_logprobs": (-0.1, -0.2, -0.3),
        "timing": Timing(started_at=0.0, total_seconds=1.0),
        "request_id": "req",
    }
    return Turn(**(fields | changes))


def engine(number: int = 0, *, version: int = 1, ids: tuple[int, ...] = (5, 6, 7)) -> EngineAnswer:
    """What the engine wrote down about that answer."""
    return EngineAnswer(f"chatcmpl-{number}", f"coder.v{version}-0123abcd", ids, finished=True)


def compared(answers, engines, turns, **options):
    """The comparison of these."""
    return compare(answers, {one.id: one for one in engines}, {one.id: one for one in turns}, **options)


def test_equal_records_lose_nothing():
    """Client, engine and Turn with the same ids and version are one checked Turn."""
    found = compared([answer()], [engine()], [turn()])
    assert (found.checked, found.tokens, found.lost, found.wrong_version, found.usage_differs) == (1, 3, 0, 0, 0)


@pytest.mark.parametrize(
    ("client", "stored", "expected"),
    [([5, 6], (5, 6, 7), (1, 0)), ([5, 6, 7, 8], (5, 6, 7), (1, 0)), ([5, 9, 7], (5,), (1, 2)), ([], (), (3, 3))],
)
def test_every_token_out_of_place_is_lost(client, stored, expected):
    """Missing, changed and added tokens count, for the client and for the Turn."""
    kept = turn(output_ids=stored, output_logprobs=tuple(-0.1 for _ in stored))
    found = compared([answer(ids=client)], [engine()], [kept])
    assert (found.lost_to_client, found.lost_to_turn) == expected
    assert found.examples


def test_missing_turns_and_missing_records_show():
    """A Turn that is not stored loses all its tokens; an answer that no engine wrote down is counted."""
    found = compared([answer(0), answer(1)], [engine(0)], [turn(1)])
    assert (found.turns_missing, found.lost_to_turn, found.unrecorded, found.checked) == (1, 3, 1, 0)


def test_failed_requests_are_not_compared():
    """An answer that broke off is a failed request, not a comparison."""
    found = compared([answer(error="the stream ended without [DONE]")], [engine()], [turn()])
    assert (found.checked, found.lost) == (0, 0)


@pytest.mark.parametrize(
    ("changes", "named", "spans"),
    [({"version": 2}, 1, 1), ({}, 2, 1), ({}, 1, 2)],
)
def test_header_engine_and_turn_must_name_one_version(changes, named, spans):
    """Any one of the three that differs makes the Turn's version wrong."""
    kept = turn(spans=(PolicySpan(version=spans),))
    found = compared([answer(**changes)], [engine(version=named)], [kept])
    assert found.wrong_version == 1


def test_full_weights_have_no_version_in_the_engine_name():
    """An engine that carries full weights is asked for the Base's name: a header behind the Turn is counted apart."""
    plain = EngineAnswer("chatcmpl-0", "base", (5, 6, 7), finished=True)
    assert compared([answer()], [plain], [turn()], lora=False).wrong_version == 0
    late = compared([answer(version=2)], [plain], [turn()], lora=False)
    assert (late.wrong_version, late.header_differs) == (0, 1)


def test_lost_tokens_of_a_gap():
    """A token that is left out shifts all later ones out of place."""
    assert lost_tokens([1, 2, 3, 4], [1, 3, 4]) == 3


def test_engine_record_reads_streams_and_whole_answers():
    """Ids of all events are joined, and the asked model and the answer's id are kept."""
    asked = json.dumps({"model": "coder.v1-0123abcd"}).encode()
    events = [
        {"id": "chatcmpl-1", "choices": [{"delta": {"role": "assistant"}}]},
        {"id": "chatcmpl-1", "choices": [{"delta": {"content": "a"}, "token_ids": [5, 6]}]},
        {"id": "chatcmpl-1", "choices": [{"delta": {"content": "b"}, "token_ids": [7], "finish_reason": "stop"}]},
        {"id": "chatcmpl-1", "choices": [], "usage": {"completion_tokens": 3}},
    ]
    stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    expected = {"id": "chatcmpl-1", "model": "coder.v1-0123abcd", "ids": [5, 6, 7], "finished": True}
    assert record(asked, stream, finished=True) == expected
    whole = json.dumps({"id": "chatcmpl-1", "choices": [{"token_ids": [5, 6, 7]}]}).encode()
    assert record(asked, whole, finished=True) == expected
    assert record(b"", b'data: {"id": "x", "cho', finished=False)["ids"] == []


async def test_middleware_passes_on_and_writes_down(tmp_path: Path, monkeypatch):
    """What the application sends arrives unchanged, and a line about it is on disk."""
    monkeypatch.setenv("ENGINE_RECORD_FOLDER", str(tmp_path))
    body = json.dumps({"id": "chatcmpl-9", "choices": [{"token_ids": [5]}]}).encode()
    sent = []

    async def app(scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": body})

    async def receive():
        return {"type": "http.request", "body": b'{"model": "coder.v3-0123abcd"}'}

    async def send(message):
        sent.append(message)

    await EngineRecord(app)({"type": "http", "path": "/v1/chat/completions"}, receive, send)
    await EngineRecord(app)({"type": "http", "path": "/v1/completions"}, receive, send)
    assert [message.get("body") for message in sent] == [None, body, None, body]
    found = read_records(tmp_path)
    assert list(found) == ["chatcmpl-9"]
    assert found["chatcmpl-9"].lora_version == 3


def phase(kind="lora", *, slow: float = 1.0) -> Phase:
    """Two blocks with sixteen clients; answers in the one with swaps take ``slow`` times as long."""
    quiet = [answer(number, started=0.0, seconds=1.0) for number in range(16)]
    busy = [answer(number, started=10.0, seconds=slow) for number in range(16)]
    swap = Swap(
        version=2, published=10.1, live=10.3, promoted=10.35, first_token=10.5, engine_seconds=0.1, ended=10.6
    )
    found = Phase(kind, answers=quiet + busy, swaps=[swap])
    found.blocks = [Block(swaps=False, begin=0.0, end=5.0), Block(swaps=True, begin=9.0, end=14.0)]
    return found


def values(findings: Findings) -> dict[str, float | None]:
    """Check → value."""
    return {one["name"]: one["value"] for one in results.checks(findings)}


def test_checks_have_exactly_the_agreed_names():
    """The results file holds these checks and no others, measured or not."""
    expected = [
        "streams_during_swap",
        "turns_checked",
        "lora_swaps",
        "lora_failed_requests",
        "lora_to_first_token_seconds_p95",
        "full_swaps",
        "full_failed_requests",
        "tokens_lost",
        "wrong_version_turns",
        "added_p99_ratio",
    ]
    assert list(values(Findings())) == expected
    assert list(values(Findings([phase(), phase("full")]))) == expected


def test_added_latency_is_the_larger_one_of_both_phases():
    """The ratio of p99 with and without swaps is taken per phase; with one phase alone nothing is said."""
    both = values(Findings([phase(slow=1.2), phase("full", slow=2.0)]))
    assert both["added_p99_ratio"] == pytest.approx(2.0)
    assert both["streams_during_swap"] == 16
    assert both["lora_to_first_token_seconds_p95"] == pytest.approx(0.4)
    assert values(Findings([phase()]))["added_p99_ratio"] is None


def test_requests_beside_the_clients_are_no_latency():
    """The request that asks for a version's first token is short, and not one of the compared ones."""
    found = phase()
    found.answers.append(answer(99, started=10.2, seconds=0.1))
    found.answers[-1].client = -1
    assert results.row(found, swaps=True)["requests"] == 16


def test_failed_swaps_and_requests_are_counted():
    """A swap without a first token is none, and every broken answer is a failed request."""
    found = phase()
    found.swaps.append(Swap(version=3, published=11.0, error="refused"))
    found.answers.append(answer(50, started=1.0, error="HTTP 500"))
    checked = values(Findings([found, phase("full")]))
    assert (checked["lora_swaps"], checked["lora_failed_requests"]) == (1, 1)


def test_turns_are_cut_where_their_version_changes():
    """Each piece holds the tokens up to its end and the log-probs of its own run, beside a neighbour."""
    straddling = turn(0, spans=(PolicySpan(version=1), PolicySpan(version=2, first_token=2)))
    first, second = results.pieces([straddling], per_version=3, straddling=5)
    assert (first.version, first.neighbour, first.tokens, first.first) == (1, 2, [1, 2, 5, 6], 2)
    assert first.logprobs == [-0.1, -0.2]
    assert (second.version, second.neighbour, second.tokens, second.first) == (2, 1, [1, 2, 5, 6, 7], 4)
    assert second.logprobs == [-0.3]


def test_sample_holds_turns_of_every_version():
    """At most so many Turns of each version are taken, and none without exact ids."""
    turns = [turn(number, spans=(PolicySpan(version=number % 3),)) for number in range(30)]
    turns.append(turn(31, exact=False))
    sample = results.pieces(turns, per_version=2, straddling=0)
    assert sorted(piece.version for piece in sample) == [0, 0, 1, 1, 2, 2]


def test_versions_are_swapped_in_the_order_in_which_they_were_made():
    """The blocks' shares are runs of nearly equal length that leave nothing out."""
    found = results.shares(list(range(11)), 3)
    assert [number for share in found for number in share] == list(range(11))
    assert {len(share) for share in found} <= {3, 4}


class _Weights:
    """Stands for the Judge: every version says the same number for every token."""

    def become(self, folder: Path | None) -> None:
        self.value = -1.0 if folder is None else float(folder.name)

    def logprobs(self, sequences):
        return [[self.value] * len(one) for one in sequences]


def test_rescoring_tells_the_version_from_its_neighbour():
    """A piece recorded under its own version is right, and one that is its neighbour's is wrong."""
    folders = {0: None, 1: Path("/versions/-0.5")}
    right = Piece("turn_1", 1, 0, [1, 2, 5], 2, [-0.5])
    wrong = Piece("turn_2", 1, 0, [1, 2, 5], 2, [-1.0])
    scored = rescore(_Weights(), folders, [right, wrong])
    assert [one.wrong for one in scored] == [False, True]
    assert all(one.clear or one.wrong for one in scored)
    found = Phase("lora", scored=scored)
    assert found.wrong_turns() == 1


def test_section_shows_every_check_and_both_phases():
    """The document's section has a line for each check and rows for both kinds of swap."""
    findings = Findings([phase(), phase("full")])
    findings.phases[0].scored = [Scored("turn_1", 1, 3, 0.001, 0.4)]
    found = {
        "checks": results.checks(findings),
        "tables": results.tables(findings),
        "settings": {
            "streams": 16,
            "max_tokens": 20,
            "settle": 6.0,
            "lora_every": 4.0,
            "full_every": 12.0,
            "base": "base",
        },
        "machine": {"cpu": "x"},
        "versions": {"vllm": "1"},
    }
    text = report.section(found)
    assert all(f"`{one['name']}`" in text for one in found["checks"])
    assert text.count("\n| full |") == 4
