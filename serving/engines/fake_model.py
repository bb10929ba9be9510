"""A toy language model over bytes: deterministic, instant, different for every adapter.

Its tokenizer gives one token per UTF-8 byte and two control tokens, so that prompts rendered from messages
continue each other token by token as ChatML prompts do. Its log-probs are hashes of (weights, context,
token): not a distribution, but stable, finite and unlike for unlike weights, which is all that tests need.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from core.policy import Probe, ProbePrompt

IM_START = 256
IM_END = 257
"""Also the end-of-sequence token."""
TWIN = 512
"""Distance of a byte's second token: it has the same text, is sampled on request, and is never rendered."""
_LETTERS = b"abcdefghijklmnopqrstuvwxyz      "
_CONTROL_TEXT = {IM_START: "<|im_start|>", IM_END: "<|im_end|>"}


def encode(text: str) -> list[int]:
    """One token per UTF-8 byte."""
    return list(text.encode())


def decode(token_ids: Iterable[int]) -> str:
    """The text of byte tokens; control tokens are skipped and other ids shown as ``<id>``."""
    parts = bytearray()
    for token in token_ids:
        if token < 256:
            parts.append(token)
        elif TWIN <= token < TWIN + 256:
            parts.append(token - TWIN)
        elif token not in _CONTROL_TEXT:
            parts += f"<{token}>".encode()
    return parts.decode(errors="replace")


def token_text(token: int) -> str:
    """One token as it shows in log-prob entries, control tokens included."""
    return _CONTROL_TEXT.get(token) or decode([token])


def render_chat(messages: Sequence[dict[str, Any]], *, opening: bool = True) -> list[int]:
    """ChatML: every message between control tokens, then the opening of the assistant's answer."""
    tokens: list[int] = []
    for message in messages:
        tokens += [
            IM_START,
            *encode(f"{message.get('role', 'user')}\n{_content(message)}"),
            IM_END,
            *encode("\n"),
        ]
    return [*tokens, IM_START, *encode("assistant\n")] if opening else tokens


def twinned(generation: "Generation") -> "Generation":
    """The same answer, every other token of it sampled as its twin: a new rendering has other ids."""
    token_ids = [
        token + TWIN if index % 2 == 0 and token < 256 else token for index, token in enumerate(generation.token_ids)
    ]
    return replace(generation, token_ids=token_ids)


def _content(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content)
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    said = "".join(f"{call['name']}{call['arguments']}" for call in calls)
    return f"{message.get('reasoning') or ''}{content}{said}"


def base_identity(name: str) -> str:
    """What stands for the weights of the Base ``name``."""
    return f"base:{name}"


def adapter_identity(path: Path) -> str:
    """What stands for the weights of an adapter: a hash of its weights file. OSError: no such file."""
    return f"adapter:{hashlib.sha256((path / 'adapter_model.safetensors').read_bytes()).hexdigest()}"


def weights_identity(path: Path) -> str:
    """What stands for the full weights of a folder: a hash of its weights files. OSError: it has none."""
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{path} has no *.safetensors")
    return f"weights:{hashlib.sha256(b''.join(file.read_bytes() for file in files)).hexdigest()}"


def prompt_logprobs(identity: str, token_ids: Sequence[int]) -> list[float | None]:
    """Log-prob of each token given those before it under the weights ``identity``; the first is None."""
    state = _Context(identity)
    logprobs: list[float | None] = []
    for index, token in enumerate(token_ids):
        logprobs.append(None if index == 0 else state.logprob(token))
        state.push(token)
    return logprobs


def probe_for(*, version: str, parent: str, base: str, prompts: int = 8, length: int = 12) -> Probe:
    """The Probe that a learner would write for weights ``version`` with this parent and Base."""
    built = []
    for number in range(prompts):
        token_ids = tuple(encode(f"probe {number:03d} of the fake"[:length]))
        positions = tuple(range(1, len(token_ids)))
        built.append(
            ProbePrompt(
                token_ids=token_ids,
                positions=positions,
                version_logprobs=_at(version, token_ids, positions),
                parent_logprobs=_at(parent, token_ids, positions),
                base_logprobs=_at(base, token_ids, positions),
            )
        )
    return Probe(prompts=tuple(built))


def _at(identity: str, token_ids: Sequence[int], positions: Sequence[int]) -> tuple[float, ...]:
    logprobs = prompt_logprobs(identity, token_ids)
    return tuple(value for value in (logprobs[position] for position in positions) if value is not None)


@dataclass(frozen=True)
class Sampling:
    """The request fields that change what the toy model says."""

    max_tokens: int
    seed: int
    greedy: bool
    stop: tuple[str, ...]
    ignore_eos: bool


@dataclass(frozen=True)
class Generation:
    """One sampled answer: token by token, the text that each token adds, and why it ended."""

    token_ids: list[int]
    logprobs: list[float]
    pieces: list[str]
    finish_reason: str
    stop_reason: str | None
    deltas: list[dict[str, Any]] | None = None
    """What each token adds to a streamed message, where that is more than its piece of text."""
    message: dict[str, Any] | None = None
    """Fields of the whole message beside its role, likewise."""

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(self.pieces)


def generate(
    identity: str,
    prompt_ids: Sequence[int],
    sampling: Sampling,
    choice: int = 0,
    *,
    begun: Generation | None = None,
    steps: int = 0,
) -> Generation:
    """Sample an answer of up to 24 letters; the same arguments always give the same answer.

    With ``begun`` its first ``steps`` tokens are kept, and the rest is sampled after them.
    """
    state = _Context(identity)
    for token in prompt_ids:
        state.push(token)
    salt = "greedy" if sampling.greedy else f"{sampling.seed}/{choice}"
    natural_length = None if sampling.ignore_eos else 4 + state.number(f"length/{salt}") % 21
    token_ids = [] if begun is None else begun.token_ids[:steps]
    logprobs = [] if begun is None else begun.logprobs[:steps]
    for token in token_ids:
        state.push(token)
    text, finish, stop_reason = decode(token_ids), "length", None
    while len(token_ids) < sampling.max_tokens:
        ended = natural_length is not None and len(token_ids) >= natural_length
        token = IM_END if ended else _LETTERS[state.number(f"token/{salt}") % len(_LETTERS)]
        token_ids.append(token)
        logprobs.append(state.logprob(token))
        state.push(token)
        if ended:
            finish = "stop"
            break
        text += chr(token)
        hit = next((stop for stop in sampling.stop if text.endswith(stop)), None)
        if hit is not None:
            text, finish, stop_reason = text.removesuffix(hit), "stop", hit
            break
    pieces = [text[index : index + 1] for index in range(len(token_ids))]
    return Generation(token_ids, logprobs, pieces, finish, stop_reason)


class _Context:
    """A running hash of the weights and the tokens so far."""

    def __init__(self, identity: str) -> None:
        self._hash = hashlib.blake2b(identity.encode(), digest_size=8)

    def push(self, token: int) -> None:
        self._hash.update(struct.pack("<q", token))

    def number(self, salt: str) -> int:
        hashed = self._hash.copy()
        hashed.update(salt.encode())
        return int.from_bytes(hashed.digest(), "little")

    def logprob(self, token: int) -> float:
        return -0.05 - 4.95 * (self.number(f"logprob/{token}") / 2**64)
