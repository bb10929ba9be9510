"""What a webhook is told about a decision, and a sender for it."""

import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
import structlog

from core.release_run import ReleaseDecision, ReleaseRun
from gateway.experiments.webhooks import sign

log = structlog.get_logger(__name__)


def notice_of(run: ReleaseRun, decision: ReleaseDecision) -> dict[str, Any]:
    """One decision as JSON, without its evidence: that stays behind the admin API."""
    return {
        "event": f"release.{decision.verdict}",
        "release": run.id,
        "policy": run.policy,
        "version": run.version,
        "baseline": run.baseline,
        "decision": decision.number,
        "step": decision.step,
        "reasons": list(decision.reasons),
        "by": decision.by,
        "at": decision.at,
        "page": f"/admin/v1/releases/{run.id}/page?decision={decision.number}",
    }


class WebhookNotifier:
    """Posts JSON, signed as every webhook of Hone where there is a secret; a status from 200 to 299 is a yes."""

    def __init__(self, *, secret: str = "", timeout_seconds: float = 5.0) -> None:
        self._secret = secret
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)

    async def send(self, url: str, message: Mapping[str, Any]) -> bool:
        """Whether it was taken; a failure is logged and tried again with the next round."""
        body, timestamp = msgspec.json.encode(dict(message)), str(int(time.time()))
        headers = {"content-type": "application/json", "x-hone-timestamp": timestamp}
        if self._secret:
            headers["x-hone-signature"] = sign(self._secret, timestamp, body)
        try:
            # A redirect would carry the signed body to whoever the first receiver names.
            async with (
                aiohttp.ClientSession(timeout=self._timeout) as session,
                session.post(url, data=body, headers=headers, allow_redirects=False) as answer,
            ):
                taken = 200 <= answer.status < 300
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.warning("release_notice_not_sent", release=message.get("release"), error=type(error).__name__)
            return False
        if not taken:
            log.warning("release_notice_refused", release=message.get("release"), status=answer.status)
        return taken
