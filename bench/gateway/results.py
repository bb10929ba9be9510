"""What the measured windows amount to: one row per target and workload, and the checks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.checks import Check, check
from bench.gateway import plan
from bench.gateway.load import Window
from bench.gateway.ours import TurnCount

ON, OFF = "hone, capture on", "hone, capture off"
DIRECT, ROUTER, NGINX, LITELLM_LOGGED = "direct", "vllm-router", "nginx", "litellm-logged"


@dataclass
class Findings:
    """Everything that one run measured."""

    windows: list[Window] = field(default_factory=list)
    turns: TurnCount = field(default_factory=TurnCount)
    """In the journal, after every window."""
    stored: TurnCount = field(default_factory=TurnCount)
    """In the store, after the recorder had drained."""
    recording: dict[str, float] = field(default_factory=dict)
    drain_us_per_turn: float = 0.0
    drained_turns: int = 0
    memory_mb: list[float] = field(default_factory=list)
    """Of the gateway, at equal distances over the growth run."""
    growth_requests: int = 0
    idle: dict[str, dict[str, float]] = field(default_factory=dict)
    """Target → memory before and with idle streams."""

    def of(self, target: str, workload: str) -> list[Window]:
        """The windows of a target under a workload."""
        return [window for window in self.windows if (window.target, window.workload) == (target, workload)]


def row(findings: Findings, target: str, workload: str) -> dict[str, Any] | None:
    """Medians over the windows; None: nothing was measured."""
    windows = findings.of(target, workload)
    if not windows:
        return None
    streams = windows[0].detail["stream"]
    direct = findings.of(DIRECT, workload)
    rates = [window.requests_per_second for window in windows]
    found: dict[str, Any] = {
        "target": target,
        "workload": workload,
        "windows": len(windows),
        "requests_per_second": round(median(rates), 1),
        "lowest": round(min(rates), 1),
        "highest": round(max(rates), 1),
        "cpu_us_per_request": round(median(window.cpu_us_per_request for window in windows), 1),
        "p50_ms": _percentile(windows, "latency", "p50"),
        "p99_ms": _percentile(windows, "latency", "p99"),
        "added_p50_ms": _added(windows, direct, "p50"),
        "added_p99_ms": _added(windows, direct, "p99"),
        "errors": sum(window.detail["errors"] for window in windows),
        "mismatched": sum(window.detail["mismatched"] for window in windows),
        "core_share": round(median(window.cpu_share for window in windows), 2),
        "load_core_share": round(median(window.load_core_share for window in windows), 2),
        "foreign_share": round(max(window.noise for window in windows), 2),
        "quiet": all(window.quiet for window in windows),
    }
    if streams:
        found |= {
            "events_per_second": round(median(window.events_per_second for window in windows), 1),
            "cpu_us_per_event": round(median(window.cpu_us_per_event for window in windows), 1),
            "first_event_p50_ms": _percentile(windows, "first_event", "p50"),
            "first_event_p99_ms": _percentile(windows, "first_event", "p99"),
            "latest_event_ms": _latest(windows),
            "events_lost": sum(window.detail["events_missing"] for window in windows),
        }
    return found


def rows(findings: Findings) -> list[dict[str, Any]]:
    """All rows, in the order of the first measurement."""
    keys = dict.fromkeys((window.workload, window.target) for window in findings.windows)
    order = list(dict.fromkeys(workload for workload, _ in keys))
    found = [
        row(findings, target, workload) for workload, target in sorted(keys, key=lambda key: order.index(key[0]))
    ]
    return [one for one in found if one is not None]


def checks(findings: Findings) -> list[Check]:
    """The targets, each with what was measured; a value of None was not measured, and meets no target."""
    busy = plan.JSON_BUSY.name
    paced, unpaced = plan.STREAM_PACED.name, plan.STREAM_BUSY.name
    on = row(findings, ON, paced)
    growth = findings.memory_mb[-1] - findings.memory_mb[0] if len(findings.memory_mb) > 1 else None
    streamed = [
        value
        for value in (_ratio(findings, ON, ROUTER, paced, _events), _ratio(findings, ON, ROUTER, unpaced, _events))
        if value is not None
    ]
    wrong = findings.turns.wrong + findings.stored.wrong
    checked = findings.turns.checked + findings.stored.checked
    return [
        check("json_c64_vs_vllm_router_capture_on", _ratio(findings, ON, ROUTER, busy, _requests), "x", ">= 1.0"),
        check("json_c64_vs_vllm_router_capture_off", _ratio(findings, OFF, ROUTER, busy, _requests), "x", ">= 1.5"),
        check("json_c64_vs_litellm_logged", _ratio(findings, ON, LITELLM_LOGGED, busy, _requests), "x", ">= 100"),
        check("json_c64_vs_nginx_capture_on", _ratio(findings, ON, NGINX, busy, _requests), "x", ">= 0.2"),
        check("added_p50_vs_vllm_router", _added_ratio(findings), "x", "<= 1.2"),
        # The smaller one of 256 streams at 5 ms, where the pace is a ceiling, and 256 streams without a pause.
        check("stream_chunks_vs_vllm_router_capture_on", min(streamed, default=None), "x", ">= 1.0"),
        check("stream_events_lost", on["events_lost"] if on else None, "events", "== 0"),
        check("stream_latest_event_ms", on["latest_event_ms"] if on else None, "ms", "<= 50"),
        check("answers_changed_by_capture", _changed(findings), "answers or events", "== 0"),
        check("record_us_per_turn", findings.recording.get("median"), "us", "<= 30"),
        check("memory_growth_mb_100k", growth, "MB", "<= 20"),
        check("turns_checked", checked, "Turns", ">= 5000"),
        check("turns_lost", findings.turns.lost + findings.stored.lost, "Turns", "== 0"),
        check("turns_wrong", wrong, "Turns", "== 0"),
    ]


def _percentile(windows: Sequence[Window], name: str, which: str) -> float | None:
    values = [value for window in windows if (value := window.percentile(name, which)) is not None]
    return round(median(values), 3) if values else None


def _latest(windows: Sequence[Window]) -> float | None:
    """The latest event of all windows, of the quiet ones where there are some."""
    chosen = [window for window in windows if window.quiet] or list(windows)
    values = [value for window in chosen if (value := window.percentile("event_delay", "max")) is not None]
    return max(values, default=None)


def _added(windows: Sequence[Window], direct: Sequence[Window], which: str) -> float | None:
    through, without = _percentile(windows, "latency", which), _percentile(direct, "latency", which)
    return None if through is None or without is None else round(through - without, 3)


def _requests(window: Window) -> float:
    return window.requests_per_second


def _events(window: Window) -> float:
    return window.events_per_second


def _ratio(
    findings: Findings, ours: str, theirs: str, workload: str, rate: Callable[[Window], float]
) -> float | None:
    over, under = findings.of(ours, workload), findings.of(theirs, workload)
    if not over or not under:
        return None
    base = median(rate(window) for window in under)
    return median(rate(window) for window in over) / base if base > 0 else None


def _added_ratio(findings: Findings) -> float | None:
    ours, theirs = row(findings, ON, plan.JSON_ADDED.name), row(findings, ROUTER, plan.JSON_ADDED.name)
    if ours is None or theirs is None or not theirs["added_p50_ms"] or ours["added_p50_ms"] is None:
        return None
    return float(ours["added_p50_ms"] / theirs["added_p50_ms"])


def _changed(findings: Findings) -> int:
    return sum(window.detail["mismatched"] for window in findings.windows if window.target == ON)


def ratios_on_large_answer(findings: Findings) -> dict[str, float | None]:
    """Ours with capture on against vllm-router whose client asks for the large answer itself."""
    found: dict[str, float | None] = {}
    pairs: list[tuple[str, str, str, Callable[[Window], float]]] = [
        ("json c=64", plan.JSON_BUSY.name, plan.LARGE.name, _requests),
        ("stream 5 ms c=256", plan.STREAM_PACED.name, plan.LARGE_STREAM.name, _events),
    ]
    for label, ours, theirs, rate in pairs:
        over, under = findings.of(ON, ours), findings.of(ROUTER, theirs)
        ready = over and under
        found[label] = (
            round(median(rate(window) for window in over) / median(rate(window) for window in under), 3)
            if ready
            else None
        )
    return found
