"""PreparedCall: what one journal record becomes in the store, with personal data taken out where its tenant asks."""

from collections import Counter
from dataclasses import dataclass, field

import msgspec
import structlog

from core.episode import Episode
from core.turn import Turn
from gateway.capture.record import CapturedCall
from gateway.capture.redaction import Redactor, redact_request, redact_turn, without_content
from gateway.capture.turns import build_episode, build_turns

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class PreparedCall:
    """One record on its way into the store."""

    call: CapturedCall
    """With a redacted request; payloads are the engine's own, so what was said is to be taken from ``turns``."""
    episode: Episode | None
    turns: list[Turn]
    failures: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)


def prepare_call(call: CapturedCall, redactor: Redactor | None) -> PreparedCall:
    """Redact and build; never raises: what an engine or a client sent is not to be trusted.

    A call that is to be redacted and cannot be keeps no content at all.
    """
    failures: Counter[str] = Counter()
    changed = False
    if call.redact and call.keeps_content:
        call, changed = _redacted_request(call, redactor, failures)
    try:
        turns = build_turns(call)
        if call.redact and call.keeps_content and redactor is not None:
            turns = [redact_turn(turn, redactor, prompt_changed=changed) for turn in turns]
    except Exception as error:  # noqa: BLE001 - counted; one unreadable answer must not hold up the others
        log.error("turn_malformed", turn_ids=call.turn_ids, error=f"{type(error).__name__}: {error}")
        return PreparedCall(
            call,
            build_episode(call),
            [],
            failures + Counter(malformed=1),
            Counter(malformed=max(1, len(call.turn_ids))),
        )
    inexact = sum(not (turn.exact or turn.redacted) for turn in turns if turn.content_kept and call.broken is None)
    if inexact:
        failures["inexact"] += inexact
    return PreparedCall(call, build_episode(call), turns, failures)


def _redacted_request(
    call: CapturedCall, redactor: Redactor | None, failures: Counter[str]
) -> tuple[CapturedCall, bool]:
    if redactor is None:
        failures["redaction_unavailable"] += 1
        return without_content(call), False
    try:
        return redact_request(call, redactor)
    except Exception as error:  # noqa: BLE001 - counted; unredacted text must not be stored whatever it is
        log.error("redaction_failed", turn_ids=call.turn_ids, error=type(error).__name__)
        failures["redaction_failed"] += 1
        return without_content(call), False


def set_aside_form(call: CapturedCall) -> CapturedCall:
    """What may be kept of a record that the store refuses: no content of a tenant whose calls are redacted."""
    return msgspec.structs.replace(call, request=b"", payloads=[]) if call.redact else call
