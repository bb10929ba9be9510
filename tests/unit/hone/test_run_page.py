"""A run as a page and as lines: everything that was measured is there, and nothing unescaped gets in."""

import re
import xml.etree.ElementTree as ElementTree

from hypothesis import given
from hypothesis import strategies as st

from core.alarm import Alarm
from core.run import DomainMetrics, RunStatus, StepMetrics, TrainingRun
from hone.pictures import lines
from hone.run_page import run_page
from hone.run_progress import step_line

SVG = "{http://www.w3.org/2000/svg}"
EVIL = "<script>alert('x')</script>&\""
VALUES = {
    "entropy": 1.0,
    "mismatch_kl": 0.002,
    "approx_kl": 0.001,
    "ess": 0.9,
    "clip_share": 0.01,
    "staleness_mean": 0.5,
    "staleness_max": 1.0,
    "groups": 4.0,
    "zero_variance_groups": 1.0,
    "generate_seconds": 3.0,
    "train_seconds": 2.0,
    "refused_stale": 2.0,
}


def run(steps: int = 3, domain: str = "sums") -> TrainingRun:
    """A run that an alarm stopped."""
    metrics = DomainMetrics(groups=2, attempts=8, zero_variance_groups=1, reward_mean=0.4, success_rate=0.25)
    return TrainingRun(
        id="run_1",
        policy="coder",
        algorithm="grpo",
        start_version=0,
        domains=(domain,),
        planned_steps=9,
        seed=1,
        status=RunStatus.STOPPED,
        error=f"alarm {EVIL}",
        config={"lora": {"rank": 4}, "note": EVIL},
        steps=tuple(
            StepMetrics(
                step=number,
                version=number,
                reward_mean=0.4,
                loss=0.1,
                gradient_norm=1.0,
                values=VALUES,
                domains={domain: metrics},
                alarms=(Alarm(name="ess", value=0.1, limit=0.3),),
            )
            for number in range(1, steps + 1)
        ),
    )


def test_the_page_shows_every_picture_alarm_and_version() -> None:
    """Pictures for all that was measured, alarms by step, causes of what did not train, lineage, configuration."""
    lineage = [{"step": 1, "version": 1, "checkpoint_id": "ckpt_1", "episode_ids": ["ep_1", "ep_2"]}]
    page = run_page(run(), lineage)
    for title in (
        "Reward by Domain",
        "Success by Domain",
        "Length by Domain",
        "Entropy",
        "KL",
        "Effective sample size and clip share",
        "Staleness",
        "Groups",
        "Seconds",
    ):
        assert f'aria-label="{title}"' in page
    assert "ess 0.1 beyond 0.3" in page
    assert "refused stale" in page
    assert "ep_1, ep_2" in page
    assert "&quot;rank&quot;: 4" in page


def test_the_page_needs_nothing_from_outside_and_escapes_what_it_shows() -> None:
    """No script, no link, no markup from names, reasons or configuration."""
    page = run_page(run(domain=EVIL))
    assert "<script" not in page
    assert not re.search(r"(src|href)=", page)


def test_a_run_without_steps_has_a_page_too() -> None:
    """It says how it stands, without pictures."""
    page = run_page(run(steps=0))
    assert "stopped" in page
    assert "<svg" not in page


@given(
    values=st.lists(st.none() | st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=30),
    name=st.text(alphabet="<&\"'ab", max_size=8),
)
def test_lines_are_well_formed_whatever_the_values(values, name) -> None:
    """Gaps, infinities and odd names still give an SVG whose points lie inside the picture."""
    root = ElementTree.fromstring(lines([(name, values)], x_label=name, title=name))
    for line in root.findall(f"{SVG}polyline"):
        for point in line.get("points").split():
            x, y = (float(part) for part in point.split(","))
            assert 0 <= x <= 640
            assert 0 <= y <= 280


def test_a_step_is_one_line() -> None:
    """What is known of a step, and plainly when it taught nothing."""
    step = run().steps[0]
    line = step_line(step)
    assert "step 1: @1 reward 0.400 loss 0.1000" in line
    assert "ESS 0.90" in line
    assert "trained 2.0 s" in line
    idle = step.model_copy(update={"values": {"groups": 2.0}})
    assert "nothing to learn" in step_line(idle)
