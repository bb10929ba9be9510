"""What an engine's plugin says of its weights: read, taken out of the answer again, and judged."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.deployment import Deployment, DeploymentStatus, LoadedVersion, SwapRecord
from core.policy import PolicySpan, ProbeResult
from core.variant import Variant
from gateway.capture.record import CapturedCall
from gateway.capture.turns import build_turns
from gateway.inference.request import CapturePlan
from gateway.inference.target import Target
from gateway.inference.weight_spans import (
    corrected,
    first_version,
    labels_of_event,
    settle_spans,
    version_spans,
    without_labels,
)
from serving.full_routing import weights_key
from tests.captured_calls import captured_call

FIELD = "hone_weight_versions"
PASSED = ProbeResult(passed=True, error=0.0, parent_distance=1.0, base_distance=1.0, reason="test")


def _compact(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _deployment(version: int, *outcomes: tuple[int, str], status: str = "ready") -> Deployment:
    swaps = tuple(
        SwapRecord.model_validate(
            {"kind": "full", "policy": "coder", "version": number, "outcome": outcome, "seconds": 1.0, "at": at + 1.0}
        )
        for at, (number, outcome) in enumerate(outcomes)
    )
    weights = LoadedVersion(
        policy="coder", version=version, engine_model="base", checksum="c", swap_seconds=0.1, probe=PASSED
    )
    return Deployment(
        id="dep",
        base="base",
        variant=Variant.STANDARD,
        engine="fake",
        url="http://e",
        status=DeploymentStatus(status),
        policy="coder",
        weights=weights if version else None,
        swaps=swaps,
    )


def _target(routed: Deployment) -> Target:
    async def send(_body: bytes) -> Any:
        raise AssertionError

    version = routed.weights.version if routed.weights else 0
    return Target(
        policy="coder",
        version=version,
        variant="standard",
        deployment_id="dep",
        engine_model="base",
        public_model=f"coder@{version}",
        plan=CapturePlan(token_ids=True, logprobs=True, usage=True),
        send=send,
        weights=weights_key(routed),
    )


def _judged(labels: Any, routed: Deployment, now: Deployment | None) -> CapturedCall:
    captured = captured_call()
    settle_spans(captured, _target(routed), labels, now)
    return captured


def test_the_field_is_taken_out_of_a_whole_answer() -> None:
    """The client gets the null that an engine without the plugin writes, and every other byte as it came."""
    before = _compact({"id": "x", "kv_transfer_params": None, "ec_transfer_params": None})
    field = b'"kv_transfer_params":{"hone_weight_versions":{"0":[["coder@2",0]]}}'
    told = before.replace(b'"kv_transfer_params":null', field)
    assert without_labels(told) == (before, {"0": [("coder@2", 0)]})
    assert without_labels(before) == (before, None)


@given(text=st.text())
def test_nothing_that_was_said_is_taken_for_the_field(text: str) -> None:
    """Text that quotes the field, whatever stands around it, stays in the answer."""
    said = text + '"kv_transfer_params":{"hone_weight_versions":{"0":[["coder@9",0]]}}' + text
    body = _compact({"choices": [{"message": {"content": said}}], "kv_transfer_params": None})
    assert without_labels(body) == (body, None)
    assert labels_of_event(body) is None


def test_the_event_of_a_stream_is_recognised() -> None:
    """The plugin's event is no event for the client; all others are."""
    assert labels_of_event(_compact({FIELD: {"1": [["default", 0], ["coder@3", 4]]}})) == {
        "1": [("default", 0), ("coder@3", 4)]
    }
    assert labels_of_event(_compact({"choices": []})) is None


def test_labels_become_versions_of_the_policy() -> None:
    """Unlabelled weights are version 0, equal neighbours one run, and another Policy's label is nobody's version."""
    assert version_spans({"0": [("default", 0), ("coder@0", 2), ("coder@1", 5)]}, "coder") == {0: [(0, 0), (1, 5)]}
    assert version_spans({"0": [("other@1", 0)]}, "coder") is None
    assert version_spans({"0": [("coder", 0)]}, "coder") is None


def test_a_straddling_turn_has_both_versions_and_trains() -> None:
    """A swap that ended well proves both sides of a Turn that straddles it."""
    captured = _judged({"0": [("coder@1", 0), ("coder@2", 7)]}, _deployment(1), _deployment(2, (2, "live")))
    assert (captured.version, captured.unproven) == (1, False)
    assert captured.version_spans == {0: [(1, 0), (2, 7)]}


def test_tokens_of_a_swap_that_has_not_ended_well_never_train() -> None:
    """Neither before the probe has passed, nor after a rollback, is what the new weights sampled proven."""
    labels = {"0": [("coder@1", 0), ("coder@2", 7)]}
    assert _judged(labels, _deployment(1), _deployment(1, status="swapping")).unproven
    assert _judged(labels, _deployment(1), _deployment(1, (2, "rolled_back"))).unproven
    assert _judged({"0": [("coder@2", 0), ("coder@1", 7)]}, _deployment(1), _deployment(1, (2, "refused"))).unproven


def test_versions_between_are_known_from_the_swaps() -> None:
    """A long Turn may see two swaps; the version between them was live here."""
    labels = {"0": [("coder@1", 0), ("coder@2", 3), ("coder@3", 9)]}
    assert not _judged(labels, _deployment(1), _deployment(3, (2, "live"), (3, "live"))).unproven


def test_without_labels_only_untouched_weights_prove_anything() -> None:
    """Where the engine says nothing a Turn trains only if no swap or rollback happened while it was answered."""
    routed = _deployment(1)
    assert not _judged(None, routed, routed).unproven
    assert _judged(None, routed, routed.model_copy(update={"status": DeploymentStatus.SWAPPING})).unproven
    assert _judged(None, routed, _deployment(2, (2, "live"))).unproven
    rolled_back = routed.model_copy(update={"swaps": _deployment(1, (2, "rolled_back")).swaps})
    assert _judged(None, routed, rolled_back).unproven
    assert _judged(None, routed, None).unproven


def test_anothers_labels_prove_nothing() -> None:
    """An engine with another Policy's weights has answered with nobody knows what."""
    assert _judged({"0": [("other@1", 0)]}, _deployment(1), _deployment(1)).unproven


def test_the_answer_names_the_version_that_began_it() -> None:
    """A request that waited in a paused engine was answered by later weights than routed to, and is told so."""
    target, labels = _target(_deployment(1)), {"0": [("coder@2", 0)]}
    assert first_version(target, labels) == 2
    assert corrected(b'{"model":"coder@1","x":1}', target, labels) == b'{"model":"coder@2","x":1}'
    assert (
        corrected(b'{"model":"coder@1"}', target, {"0": [("coder@1", 0), ("coder@2", 5)]}) == b'{"model":"coder@1"}'
    )


@pytest.mark.parametrize("unproven", [False, True])
def test_spans_reach_the_turn(unproven: bool) -> None:
    """Each choice's Turn has its own spans, and an unproven one never trains."""
    captured = captured_call()
    captured.version_spans, captured.unproven = {0: [(1, 0), (2, 3)]}, unproven
    turn = build_turns(captured)[0]
    assert turn.policy_spans == (PolicySpan(version=1), PolicySpan(version=2, first_token=3))
    assert turn.trainable is not unproven
