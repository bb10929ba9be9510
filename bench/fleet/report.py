"""The benchmark's section of the document."""

from typing import Any

from bench.report import checks_table, table

NAME = "bench-fleet"

_INTRODUCTION = """## Fleet with three replicas

`make bench-fleet` writes this section and `bench/results/fleet.json`; `make bench-fleet-quick` tries every part of it
in short stretches and writes neither.

- Gateway, recorder and fleet as `hone up` starts them, with two standard vLLM engines and one fast (n-gram) on one
  machine (CPU, float32, {base}). {standard} clients ask the standard name and {fast} the fast one, in conversations
  of {turns} streamed answers; each conversation is one Episode and begins with an instruction of its own of about 290
  tokens, so that nothing of it is in a cache but by itself.
- Sticky routing and routing to the least loaded replica alternate ({rounds} times {seconds:.0f} s each, with a new
  gateway each time). The hit rate is that of the engines' own counters: prompt tokens found in the prefix cache over
  prompt tokens looked up. *Later answers* are those after the first of a conversation.
- The fault: {whole} clients more ask for whole answers. A LoRA version is published, and 0.1 s later one standard
  engine's process group gets SIGKILL. A stream of which tokens had been sent when its engine died is cut: its client
  has tokens that no other engine would repeat. Any other request without a whole answer has failed. *Out* is when the
  Deployment is not ready any more, *back* when it is ready again, with all wanted versions probed.
- Turns are compared with what engines sent as in hot-swap.
"""

_ROUTING = {
    "routing": "routing",
    "spread": "Turns by replica",
    "requests": "requests",
    "failed": "failed",
    "tokens_per_second": "tokens/s",
    "hit_rate": "prefix hit rate",
    "later_first_token_p50": "later answers: first token p50 s",
    "later_first_token_p99": "p99",
    "request_p50": "request p50 s",
    "request_p99": "p99",
    "imbalance": "busiest / least busy standard",
}
_FAULT = {
    "swap": "swap",
    "spread_after": "Turns by replica once it was back",
    "requests": "requests",
    "failed": "failed",
    "cut": "streams cut",
    "out": "out after s",
    "back": "back after s",
    "swap_first_token": "swap: published to first token s",
}


def section(results: dict[str, Any]) -> str:
    """The section's text."""
    tables = results["tables"]
    parts = [_INTRODUCTION.format(**results["settings"])]
    parts += ["### Checks of the fleet\n", checks_table(results["checks"])]
    parts += ["### Routing\n", table(_ROUTING, tables["routing"], texts=2)]
    parts += ["### One replica killed under load, in a swap\n", table(_FAULT, tables["fault"], texts=2)]
    parts += [f"- {name}: {value}" for name, value in (results["machine"] | results["versions"]).items()]
    return "\n".join(parts)
