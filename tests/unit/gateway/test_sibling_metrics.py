"""Several gateway processes behind one port show their metrics together."""

import asyncio

from prometheus_client import CollectorRegistry, Counter, Histogram

from gateway.sibling_metrics import SiblingMetrics, merge


def registry(amount):
    found = CollectorRegistry()
    Counter("hone_things", "Things", ("kind",), registry=found).labels("a").inc(amount)
    Histogram("hone_seconds", "Seconds", buckets=(1.0, 2.0), registry=found).observe(1.5)
    return found


async def test_each_process_is_shown_with_its_number(tmp_path):
    """Whoever is asked shows all of them, told apart by a label, and takes its file away at its end."""
    asked = SiblingMetrics(folder=tmp_path, index=1, registry=registry(5))
    await asked.start()
    (tmp_path / "0.prom").write_bytes(b"# TYPE hone_other gauge\nhone_other 3.0\n")
    text = (await asked.text()).decode()
    assert 'hone_things_total{gateway_process="1",kind="a"} 5.0' in text
    assert 'hone_other{gateway_process="0"} 3.0' in text
    await asked.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["0.prom"]


async def test_a_process_writes_its_own_for_the_others(tmp_path):
    """What one process counts is in the folder while it runs, whole at every moment, and gone after it."""
    first = SiblingMetrics(folder=tmp_path, index=0, registry=registry(1))
    await first.start()
    while not (tmp_path / "0.prom").exists():
        await asyncio.sleep(0.01)
    assert 'hone_things_total{kind="a"} 1.0' in (tmp_path / "0.prom").read_text()
    await first.stop()
    assert list(tmp_path.iterdir()) == []


def test_merging_keeps_every_sample():
    """Buckets, sums and counts of each process stay what they are, under one description."""
    from prometheus_client import generate_latest

    texts = {"0": generate_latest(registry(1)).decode(), "recorder": generate_latest(registry(2)).decode()}
    merged = merge(texts).decode()
    assert merged.count("# TYPE hone_seconds histogram") == 1
    for process in texts:
        assert f'hone_seconds_bucket{{gateway_process="{process}",le="2.0"}} 1.0' in merged
        assert f'hone_seconds_count{{gateway_process="{process}"}} 1.0' in merged
