"""What is counted between readings of a fast engine, and where a launched engine finds its draft model."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.config.schema import HoneConfig
from core.deployment import Deployment, EngineLoad
from core.errors import StoreError
from core.variant import Speculation, Variant
from serving.engines.base import EngineMetrics
from serving.replica import Replica
from serving.speculation.draft_window import DraftWindows, counted
from serving.speculation.drafter_link import draft_folder, drafter_link, linked_folder, point, unlink


def reading(drafts: int, accepted: int, *, tokens: int = 0, running: int = 0) -> EngineMetrics:
    """Counters with three draft tokens a draft."""
    return EngineMetrics(
        drafts=drafts, draft_tokens=3 * drafts, accepted_tokens=accepted, output_tokens=tokens, running=running
    )


def replica() -> Replica:
    """A fast replica that nobody reads yet."""
    deployment = Deployment(id="dep_a", base="b", variant=Variant.FAST, engine="fake", url="http://127.0.0.1:1")
    return Replica(deployment=deployment, engine=None)  # type: ignore[arg-type]


def see(windows: DraftWindows, one: Replica, counters: EngineMetrics, at: float) -> None:
    """The fleet has read the engine's metrics."""
    one.counters = counters
    one.update(load=EngineLoad(running=counters.running, waiting=0, kv_use=0.0, read_at=at))
    windows.read(one)


def test_speed_is_counted_while_requests_are_decoded():
    """A span with requests at both ends counts its seconds; others count drafts alone."""
    busy = counted(reading(0, 0, tokens=0, running=2), reading(10, 15, tokens=25, running=4), seconds=5.0)
    assert (busy.output_tokens, busy.busy_seconds, busy.request_seconds) == (25, 5.0, 15.0)
    assert (busy.tokens_per_second, busy.requests) == (5.0, 3.0)
    idle = counted(reading(0, 0), reading(10, 15, tokens=25), seconds=5.0)
    assert (idle.drafts, idle.accepted_tokens, idle.busy_seconds) == (10, 15, 0.0)


def test_a_restarted_engine_is_not_counted_backwards():
    """A fall of the counters counts nothing, and the next reading goes on from there."""
    windows, one = DraftWindows(least_drafts=100), replica()
    for at, (drafts, accepted) in enumerate([(50, 60), (80, 90), (5, 6), (15, 16)]):
        see(windows, one, reading(drafts, accepted), float(at))
    assert windows.lately("dep_a", "key").drafts == 0, "a first key begins anew"
    see(windows, one, reading(25, 30), 9.0)
    assert windows.lately("dep_a", "key").drafts == 10
    assert windows.take("dep_a").drafts == 30 + 10 + 10


def test_another_target_or_drafter_begins_anew():
    """Counts from before a promotion say nothing about the time after it."""
    windows, one = DraftWindows(least_drafts=100), replica()
    windows.lately("dep_a", "v1")
    see(windows, one, reading(0, 0), 0.0)
    windows.lately("dep_a", "v1")
    see(windows, one, reading(40, 80), 1.0)
    assert windows.lately("dep_a", "v1").acceptance == pytest.approx(80 / 120)
    assert windows.lately("dep_a", "v2").drafts == 0
    one.counters = reading(50, 85)
    windows.begin(one, reading(60, 90), at=2.0)
    see(windows, one, reading(70, 120), 3.0)
    assert windows.present("dep_a").drafts == 10
    assert windows.present("dep_a").acceptance == 1.0


@given(steps=st.lists(st.integers(0, 60), min_size=1, max_size=40), least=st.integers(1, 100))
@settings(deadline=None)
def test_lately_is_enough_and_hardly_more(steps: list[int], least: int):
    """The window holds the newest drafts: at least the wanted number once so many were drafted, and no whole
    reading more than that needs."""
    windows, one = DraftWindows(least_drafts=least), replica()
    total = 0
    see(windows, one, reading(0, 0), 0.0)
    windows.lately("dep_a", "key")
    for at, step in enumerate(steps, start=1):
        total += step
        see(windows, one, reading(total, total), float(at))
    found = windows.lately("dep_a", "key").drafts
    assert found >= min(total, least)
    assert found < least + max(steps) + 1


def test_an_engines_link_is_moved_in_one_step(tmp_path: Path):
    """It points at the last folder, also where there was none; without a folder to write to: StoreError."""
    link = tmp_path / "drafters" / "of-engine-1"
    assert linked_folder(link) is None
    for name in ("one", "two"):
        point(link, tmp_path / name)
        assert linked_folder(link) == tmp_path / name
    assert [path.name for path in link.parent.iterdir()] == [link.name]
    unlink(link)
    unlink(link)
    assert linked_folder(link) is None
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        point(tmp_path / "file" / "link", tmp_path)


def test_the_command_names_the_link_or_what_is_no_folder(tmp_path: Path):
    """The link for a configured folder and for Drafters of the store; a hub id as it stands; nothing for ngram."""
    drafting = Speculation(method="draft_model")

    def configured(draft_model: str) -> HoneConfig:
        fleet = {"draft_model": draft_model, "fast_method": "draft_model"}
        return HoneConfig.model_validate({"data_dir": tmp_path / "data", "fleet": fleet})

    assert draft_folder(configured("some/hub-id"), drafting, 7) == "some/hub-id"
    assert draft_folder(configured(""), drafting, 7) == ""
    with_folder = configured(str(tmp_path))
    assert draft_folder(with_folder, drafting, 7) == str(drafter_link(with_folder, 7))
    assert draft_folder(with_folder, Speculation(method="ngram"), 7) == ""
    point(drafter_link(with_folder, 7), tmp_path)
    assert draft_folder(configured(""), drafting, 7) == str(drafter_link(with_folder, 7))
