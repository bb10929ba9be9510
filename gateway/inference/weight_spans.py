"""Which version of full weights sampled which tokens: read from an engine's answer, and taken out of it again.

A plugin in the engine (``serving/engine_plugin/hone_weight_spans.py``) adds the field to answers once the weights
have a label. A swap can fall inside an answer, and a request can wait in a paused engine and be answered by later
weights than it was routed to: what the engine says counts.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from core.deployment import Deployment, DeploymentStatus
from gateway.capture.record import CapturedCall
from gateway.inference.target import Target
from serving.full_routing import carried_version, weights_key

_EVENT: Final = b'{"hone_weight_versions":'
_ANSWER: Final = re.compile(rb'"kv_transfer_params":\s*\{"hone_weight_versions":\s*(\{[^{}]*\})\}')
_UNLABELLED: Final = "default"

Labels = dict[str, list[tuple[str, int]]]
"""Choice index as text → label and first token of each run."""
VersionSpans = dict[int, list[tuple[int, int]]]
"""Choice index → version and first token of each run."""


class _Event(msgspec.Struct):
    hone_weight_versions: Labels


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_labels = msgspec.json.Decoder(Labels).decode


def labels_of_event(data: bytes) -> Labels | None:
    """What a stream's event says of the weights; None: it is an event for the client. Raises msgspec.DecodeError."""
    return _decode_event(data).hone_weight_versions if data.startswith(_EVENT) else None


def without_labels(body: bytes) -> tuple[bytes, Labels | None]:
    """A whole answer as it would be without the plugin, and what that said. Raises msgspec.DecodeError."""
    found = _ANSWER.search(body)
    if found is None:
        return body, None
    return b'%b"kv_transfer_params":null%b' % (body[: found.start()], body[found.end() :]), _decode_labels(found[1])


def version_spans(labels: Mapping[str, Sequence[tuple[str, int]]], policy: str) -> VersionSpans | None:
    """Labels as versions of ``policy``; None when one is another Policy's or nobody's."""
    spans: VersionSpans = {}
    for choice, runs in labels.items():
        found: list[tuple[int, int]] = []
        for label, first in runs:
            name, _, number = label.rpartition("@")
            if label != _UNLABELLED and (name != policy or not number.isdigit()):
                return None
            version = 0 if label == _UNLABELLED else int(number)
            if not found or found[-1][0] != version:
                found.append((version, first))
        spans[int(choice)] = found
    return spans


def settle_spans(captured: CapturedCall, target: Target, labels: Labels | None, now: Deployment | None) -> None:
    """Write into a record which versions sampled it, and whether those were proven.

    ``now`` is the replica as the routing table has it when the answer has ended. Tokens of weights whose swap has not
    ended well, such as those between a swap and its rollback, never train. Where the engine says nothing, an answer
    of one version is one during which the replica's weights were not touched.
    """
    spans = None if labels is None else version_spans(labels, target.policy)
    if labels is not None and spans is not None:
        captured.version_spans = spans
        captured.version = next((runs[0][0] for _, runs in sorted(spans.items()) if runs), captured.version)
        proven = _proven(target, now)
        captured.unproven = any(version not in proven for runs in spans.values() for version, _ in runs)
        return
    untouched = now is not None and now.status is not DeploymentStatus.SWAPPING
    captured.unproven = labels is not None or not (
        untouched and now is not None and weights_key(now) == target.weights
    )


def _proven(target: Target, now: Deployment | None) -> set[int]:
    """Versions that this replica has carried with a passed probe, and did not refuse later."""
    proven = {0, target.version}
    if now is not None:
        full = [swap for swap in now.swaps if swap.kind == "full"]
        proven |= {carried_version(now), *(swap.version for swap in full if swap.outcome == "live")}
        proven -= {swap.version for swap in full if swap.outcome in ("refused", "rolled_back")}
    return proven


def corrected(seen: bytes, target: Target, labels: Labels | None) -> bytes:
    """A whole answer for the client whose ``model`` names the version that sampled its first token."""
    version = first_version(target, labels)
    if version == target.version:
        return seen
    public = target.public_model.replace(f"@{target.version}", f"@{version}")
    return seen.replace(target.public_field, b'"model":' + msgspec.json.encode(public), 1)


def first_version(target: Target, labels: Labels | None) -> int:
    """The version that sampled the first token of the first choice; that of the Target where the engine says none."""
    spans = None if labels is None else version_spans(labels, target.policy)
    return target.version if not spans else next((runs[0][0] for _, runs in sorted(spans.items())), target.version)
