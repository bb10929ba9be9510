"""The benchmark's section of the document."""

from collections.abc import Sequence
from typing import Any

from bench.report import cell, checks_table

NAME = "bench-gateway"

_INTRODUCTION = """## Gateway

`make bench-gateway` measures the gateway beside others in one run and writes this section and
`bench/results/gateway.json`. `make bench-gateway-quick` tries every part of it in short windows and writes neither.

### What is compared, and how

- The gateway has one core (core 0) for itself; the mock engine and the load generator share core 1. All candidates
  run at once, and all but the measured one are stopped (SIGSTOP). Rounds are interleaved; figures are medians.
- The mock engine answers in vLLM's shape: {small} bytes of JSON, or 62 events. Asked for log-probs and token ids it
  answers with {large} bytes of JSON. The request has {request} bytes: four messages and a tool.
- **hone, capture on**: the key grants training, so the gateway asks for ids and log-probs by itself, hides them from
  the client and writes the call to its journal; every answer and every event is compared, byte by byte, with what the
  engine answers without log-probs. **capture off**: the same gateway with a key that grants nothing. Both with keys,
  allow-lists, limits, routing, timeouts, disconnect handling, metrics and journal on. The recorder, which moves the
  journal into the store, runs on core 1 between the windows; its cost is a row of its own.
- **vllm-router** (`--policy round_robin`) and **nginx** (one worker, keep-alive, no buffering) forward the plain
  answer. **litellm**: the proxy with one worker and no database; **litellm-logged**: with a success callback that
  writes batches to SQLite. **fastapi-httpx**: the pass-through that people write first.
- A window counts as quiet when others take at most 12% of either core; noisy ones are repeated, and a row
  that has only noisy ones is marked with `*`. *Added* is over asking the engine directly.
- An event's delay is the time from the engine's `send` to the client's `recv`, for every event. In the rows without a
  pause it is mostly time in the queues of a saturated machine.
"""


def section(results: dict[str, Any]) -> str:
    """The section's text."""
    tables = results["tables"]
    parts = [_INTRODUCTION.format(**results["sizes"]), "### Checks of the gateway\n", checks_table(results["checks"])]
    parts += ["### Whole answers\n", _table(_JSON, [one for one in tables["rows"] if "events_per_second" not in one])]
    parts += ["### Streams\n", _table(_STREAM, [one for one in tables["rows"] if "events_per_second" in one])]
    parts += ["### Further figures\n", *(f"- {line}" for line in further(results)), ""]
    parts += ["### Machine and versions\n"]
    parts += [f"- {name}: {value}" for name, value in (results["machine"] | results["versions"]).items()]
    return "\n".join(parts) + "\n"


def further(results: dict[str, Any]) -> list[str]:
    """What has no table, one line each."""
    tables = results["tables"]
    recording, drain, memory = tables["recording"], tables["drain"], tables["memory"]
    lines = [
        f"vllm-router on the large answer: hone with capture on has {value} times its rate ({name})"
        for name, value in tables["large_answer"].items()
    ]
    if recording:
        lines.append(
            f"recording: {recording['median']:.1f} µs of CPU time a Turn ({recording['low']:.1f} to "
            f"{recording['high']:.1f}), measured as `Journal.append` and `Journal.write` of {recording['records']} "
            "real calls, each written by itself"
        )
    lines += [
        f"CPU time of a request at c=64: {one['cpu_us_per_request']:.0f} µs ({one['target']})"
        for one in tables["rows"]
        if one["workload"] == "json c=64" and one["target"].startswith("hone")
    ]
    if drain["turns"]:
        lines.append(f"recorder: {drain['us_per_turn']:.0f} µs of CPU time a Turn on the other core")
    if memory["mb"]:
        series = ", ".join(f"{value:.1f}" for value in memory["mb"])
        lines.append(f"memory over {memory['requests']} requests, in MB: {series}")
    lines += [
        f"{name}: {value['streams']:.0f} idle streams take {value['kb_per_stream']:.1f} KB each "
        f"({value['before_mb']:.1f} → {value['with_mb']:.1f} MB)"
        for name, value in tables["idle_streams"].items()
    ]
    lines.append(f"two workers against one: {tables['two_workers']}")
    turns = tables["turns"]
    lines.append(
        f"Turns compared with what the engine sent: {turns['journal']} in the journal, {turns['store']} in the "
        f"store; {turns['wrong']} wrong, {turns['lost']} lost, {turns['content_without_consent']} with content but "
        "no consent"
    )
    return lines


_JSON = {
    "workload": "workload",
    "target": "target",
    "requests_per_second": "requests/s",
    "range": "range (windows)",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "added_p50_ms": "added p50",
    "added_p99_ms": "added p99",
    "cpu_us_per_request": "CPU µs/request",
    "core_share": "core",
    "errors": "errors",
    "mismatched": "changed",
}
_STREAM = {
    "workload": "workload",
    "target": "target",
    "events_per_second": "events/s",
    "windows": "windows",
    "cpu_us_per_event": "CPU µs/event",
    "first_event_p50_ms": "first event p50 ms",
    "first_event_p99_ms": "p99 ms",
    "latest_event_ms": "latest event ms",
    "events_lost": "lost",
    "core_share": "core",
    "errors": "errors",
    "mismatched": "changed",
}


def _table(columns: dict[str, str], rows: Sequence[dict[str, Any]]) -> str:
    lines = ["| " + " | ".join(columns.values()) + " |", "|---|---|" + "--:|" * (len(columns) - 2)]
    for one in rows:
        shown = one | {"range": f"{one['lowest']:.0f}-{one['highest']:.0f} ({one['windows']})"}
        shown["target"] += "" if one["quiet"] or one["target"] == "direct" else " \\*"
        lines.append("| " + " | ".join(cell(shown.get(name)) for name in columns) + " |")
    return "\n".join(lines) + "\n"
