"""RequestStats: the same text as prometheus_client's own metrics for the same observations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from gateway.metrics import GatewayMetrics
from gateway.request_stats import LATENCY_BUCKETS, RequestStats

ANSWERS = st.lists(
    st.tuples(
        st.sampled_from(["/v1/chat/completions", "/v1/messages", 'odd"\\route\n']),
        st.sampled_from(["", "coder", "base"]),
        st.sampled_from([200, 404, 499, 599]),
        st.one_of(st.sampled_from([*LATENCY_BUCKETS, 0.0, -1.0, 601.0, float("inf")]), st.floats(0, 700)),
    ),
    max_size=40,
)


class Reference:
    """The same three metrics, made of prometheus_client's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        requests, seconds, first_token = RequestStats().describe()
        self.requests = Counter(
            requests.name, requests.documentation, ("route", "model", "status"), registry=registry
        )
        self.request_seconds = Histogram(
            seconds.name, seconds.documentation, ("route",), buckets=LATENCY_BUCKETS, registry=registry
        )
        self.first_token_seconds = Histogram(
            first_token.name, first_token.documentation, ("model",), buckets=LATENCY_BUCKETS, registry=registry
        )


def without_times(text: bytes) -> list[str]:
    """Lines of an exposition, with the value cut off where it is the time at which a series began."""
    return [line.rpartition(" ")[0] if "_created{" in line else line for line in text.decode().splitlines()]


@given(answers=ANSWERS)
@pytest.mark.parametrize("generate", [generate_latest, generate_openmetrics])
def test_the_exposition_is_prometheus_clients(generate, answers) -> None:
    """Names, help, types, labels, their order and all values agree, in both text formats."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    stats, reference = RequestStats(), Reference(theirs)
    ours.register(stats)
    for route, model, status, seconds in answers:
        stats.request_done(route, model, status, seconds)
        stats.first_token(model, seconds)
        reference.requests.labels(route, model, status).inc()
        reference.request_seconds.labels(route).observe(seconds)
        reference.first_token_seconds.labels(model).observe(seconds)
    assert without_times(generate(ours)) == without_times(generate(theirs))


def test_a_series_tells_when_it_began() -> None:
    """The time of its first observation, of whatever came later."""
    seconds = iter([10.0, 20.0, 30.0])
    registry = CollectorRegistry()
    stats = RequestStats(now=lambda: next(seconds))
    registry.register(stats)
    for _ in range(2):
        stats.request_done("/r", "m", 200, 0.1)
    stats.request_done("/r", "m", 500, 0.1)
    stats.first_token("m", 0.1)
    labels = {"route": "/r", "model": "m"}
    assert registry.get_sample_value("hone_requests_created", {**labels, "status": "200"}) == 10.0
    assert registry.get_sample_value("hone_requests_created", {**labels, "status": "500"}) == 20.0
    assert registry.get_sample_value("hone_request_seconds_created", {"route": "/r"}) == 10.0
    assert registry.get_sample_value("hone_first_token_seconds_created", {"model": "m"}) == 30.0


def test_a_switched_off_start_time_is_left_out(monkeypatch) -> None:
    """What prometheus_client leaves out of its metrics is left out of these too."""
    monkeypatch.setattr("prometheus_client.metrics._use_created", False)
    registry = CollectorRegistry()
    stats = RequestStats()
    registry.register(stats)
    stats.request_done("/r", "m", 200, 0.1)
    assert b"_created" not in generate_latest(registry)


def test_names_are_taken_and_can_be_asked_for() -> None:
    """A second collector of the same names is refused, and a scrape may ask for one name alone."""
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    metrics.request_done("/r", "m", 200, 0.1)
    with pytest.raises(ValueError, match="Duplicated"):
        Counter("hone_requests", "Again", registry=registry)
    only = generate_latest(registry.restricted_registry(["hone_requests_total"])).decode()
    assert 'hone_requests_total{model="m",route="/r",status="200"} 1.0' in only
    assert "hone_request_seconds" not in only
