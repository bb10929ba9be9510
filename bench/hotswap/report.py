"""The benchmark's section of the document."""

from typing import Any

from bench.report import checks_table, table

NAME = "bench-hotswap"

_INTRODUCTION = """## Hot-swap

`make bench-hotswap` writes this section and `bench/results/hotswap.json`; `make bench-hotswap-quick` tries every part
with a few swaps and writes neither.

- Gateway, recorder, fleet and one vLLM engine (CPU, float32, {base}) run as processes of their own, on SQLite, as
  `hone up` starts them. {streams} clients stream without a pause: conversations of two answers of up to {max_tokens}
  tokens at temperature 1. Nothing else runs.
- Versions are random adapters that differ by about half a nat a token, so that the wrong one shows; each has a Probe
  of eight prompts, computed with torch. A LoRA swap: publish, wait until the fleet serves it, promote, and ask at
  once for its first token. A full-weight swap: such an adapter merged into a whole model; publish, promote, ask.
  One begins every {lora_every:.0f} s (LoRA) or {full_every:.0f} s (full weights), or when the one before has ended.
- Blocks with swaps and blocks without alternate in the same run, equally long, with {settle:.0f} s between them that
  do not count. *added_p99_ratio* is the p99 of whole requests sent in blocks with swaps over that in blocks without,
  the larger one of both phases. A gap is the time between two events with tokens in one stream.
- Inside the engine's server a few lines write down the ids of every answer as it is handed to the socket. Every whole
  answer is compared with that record: what the client received, and what the Turn in the store holds. The engine's
  record also says which adapter was asked for; that, the answer's header and the Turn must name one version. Full
  weights have no name in a request: there the Turn must say what the engine used, whatever the header had said.
- A sample of Turns of every version is scored anew with torch, teacher-forced under the version that they name and
  under its neighbour: a Turn is wrong when the mean difference to the recorded log-probs is above 0.02 nats, or when
  the neighbour is nearer. Turns that a full-weight swap cut in two are scored piece by piece, by their PolicySpans.
"""

_SWAPS = {
    "phase": "swaps of",
    "swaps": "swaps",
    "failed_swaps": "failed",
    "engine_p50": "load to probe passed p50 s",
    "engine_p95": "p95",
    "live_p50": "published to live p50 s",
    "live_p95": "p95",
    "first_token_p50": "published to first token p50 s",
    "first_token_p95": "p95",
    "first_token_max": "longest",
}
_LATENCY = {
    "phase": "phase",
    "blocks": "blocks",
    "requests": "requests",
    "tokens_per_second": "tokens/s",
    "request_p50": "request p50 s",
    "request_p99": "p99",
    "first_token_p50": "first token p50 s",
    "first_token_p99": "p99",
    "gap_p50": "gap p50 s",
    "gap_p99": "p99",
    "gap_max": "longest",
}
_TURNS = {
    "phase": "phase",
    "answers": "requests",
    "failed": "failed",
    "checked": "Turns compared",
    "tokens": "tokens",
    "lost_to_client": "lost to client",
    "lost_to_turn": "lost to Turn",
    "versions_seen": "versions that answered",
    "straddling": "Turns of two versions",
    "header_differs": "header behind the Turn",
    "moved_episodes": "Episodes that changed version",
    "scored": "scored anew",
    "scored_wrong": "wrong",
    "worst_error": "largest error, nats",
    "least_neighbour": "nearest neighbour, nats",
}


def section(results: dict[str, Any]) -> str:
    """The section's text."""
    tables = results["tables"]
    parts = [_INTRODUCTION.format(**results["settings"])]
    parts += ["### Checks of hot-swap\n", checks_table(results["checks"])]
    parts += ["### Swaps\n", table(_SWAPS, tables["swaps"])]
    parts += ["### Latency with and without swaps\n", table(_LATENCY, tables["latency"], texts=2)]
    parts += ["### Turns\n", table(_TURNS, tables["turns"])]
    parts += [f"- {name}: {value}" for name, value in (results["machine"] | results["versions"]).items()]
    return "\n".join(parts)
