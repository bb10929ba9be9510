"""Captured calls for tests of the journal and of the recorder."""

import json
from typing import Any

import msgspec

from gateway.capture.record import CapturedCall


def captured_call(number: int = 0, **changes: Any) -> CapturedCall:
    """A whole chat answer with token ids and consent, which opens an Episode of its own."""
    answer = {
        "prompt_token_ids": [1, 2, 3],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": f"answer {number}"},
                "finish_reason": "stop",
                "token_ids": [4, 5],
                "logprobs": {"content": [{"logprob": -0.1}, {"logprob": -0.2}]},
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    request = {"model": "coder", "messages": [{"role": "user", "content": f"question {number}"}], "temperature": 0.5}
    call = CapturedCall(
        endpoint="chat.completions",
        surface="chat.completions",
        request=json.dumps(request).encode(),
        payloads=[json.dumps(answer).encode()],
        policy="coder",
        version=1,
        variant="standard",
        deployment_id="dep_a",
        episode_id=f"ep_{number:026d}",
        opens_episode=True,
        index=0,
        tenant_id="ten_a",
        key_id="key_a",
        turn_ids=[f"turn_{number:026d}"],
        request_id=f"req_{number:026d}",
        idempotency_key=None,
        consent=True,
        stored=False,
        redact=False,
        started_at=1_000.0 + number,
        total_seconds=0.5,
    )
    return msgspec.structs.replace(call, **changes)
