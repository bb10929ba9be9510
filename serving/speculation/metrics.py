"""What the fleet shows to Prometheus about speculation: on or off, gain, sameness, and acceptance by Domain."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from core.sameness import SamenessCheck
from core.speculation import SpeculationRow


class SpeculationMetrics:
    """Gauges and counters in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._on = Gauge("hone_speculation_on", "1 while a fast replica speculates.", ["url"], registry=registry)
        self._speedup = Gauge(
            "hone_speculation_speedup",
            "Decoding speed against standard at the present load.",
            ["url"],
            registry=registry,
        )
        self._switches = Counter(
            "hone_speculation_switches", "Times that speculation was switched.", ["url", "to"], registry=registry
        )
        self._checks = Counter(
            "hone_sameness_checks",
            "Comparisons of a fast replica with a standard one.",
            ["url", "outcome"],
            registry=registry,
        )
        self._outputs = Counter(
            "hone_sameness_outputs",
            "Greedy answers compared: equal, near_tie, mismatch; own: standard differed from itself.",
            ["url", "outcome"],
            registry=registry,
        )
        self._error = Gauge(
            "hone_sameness_logprob_error_nats",
            "Mean |fast - standard| log-prob of the last comparison.",
            ["url"],
            registry=registry,
        )
        self._evidence = Gauge(
            "hone_sameness_evidence",
            "Evidence against sameness of sampled answers; see core/statistics/two_sample.py.",
            ["url"],
            registry=registry,
        )
        self._alarm = Gauge(
            "hone_sameness_alarm",
            "1 while a fast replica is known to answer otherwise than standard.",
            ["url"],
            registry=registry,
        )
        self._acceptance = Gauge(
            "hone_speculation_acceptance",
            "Accepted share of draft tokens in recorded Turns, lately.",
            ["policy", "version", "domain"],
            registry=registry,
        )
        self._accepted_length = Gauge(
            "hone_speculation_tokens_per_step",
            "Tokens per step of the target model in recorded Turns, lately.",
            ["policy", "version", "domain"],
            registry=registry,
        )

    def state(self, url: str, *, on: bool, speedup: float | None) -> None:
        """Show whether a replica speculates and what it gains."""
        self._on.labels(url).set(1.0 if on else 0.0)
        if speedup is not None:
            self._speedup.labels(url).set(speedup)

    def switched(self, url: str, *, on: bool) -> None:
        """Count a switch."""
        self._switches.labels(url, "on" if on else "off").inc()

    def checked(self, url: str, check: SamenessCheck) -> None:
        """Count a comparison."""
        self._checks.labels(url, "same" if check.same else "different").inc()
        near_ties = len(check.differences) - check.mismatches
        equal = check.prompts - len(check.differences)
        counts = (("equal", equal), ("near_tie", near_ties), ("mismatch", check.mismatches))
        for outcome, count in (*counts, ("own", check.own_differences)):
            self._outputs.labels(url, outcome).inc(count)
        if check.logprob_error is not None:
            self._error.labels(url).set(check.logprob_error)
        self._evidence.labels(url).set(check.evidence)

    def alarm(self, url: str, *, raised: bool) -> None:
        """Show whether a replica is known to differ."""
        self._alarm.labels(url).set(1.0 if raised else 0.0)

    def reported(self, rows: Iterable[SpeculationRow]) -> None:
        """Show acceptance by Policy version and Domain, in place of what was shown before."""
        self._acceptance.clear()
        self._accepted_length.clear()
        for row in rows:
            if row.acceptance is None or row.tokens_per_step is None:
                continue
            labels = (row.policy, str(row.version), row.domain or "")
            self._acceptance.labels(*labels).set(row.acceptance)
            self._accepted_length.labels(*labels).set(row.tokens_per_step)
