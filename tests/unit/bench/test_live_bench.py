"""The live-learning benchmark's users and what is made of their scores."""

from bench.checks import met
from bench.live.results import USERS, newest_version, summary
from bench.live.run import section
from bench.live.users import questions, taste
from core.run import StepMetrics, TrainingRun


def run(name: str) -> TrainingRun:
    step = StepMetrics(step=1, version=1, reward_mean=0.5, loss=0.0, gradient_norm=0.1)
    return TrainingRun(
        id=name, policy="live", algorithm="live", start_version=0, domains=(), planned_steps=1, seed=0, steps=(step,)
    )


def test_nobody_asks_what_is_held_out() -> None:
    """There are enough questions for all users and the held-out ones, each once."""
    asked = questions()
    assert len(asked) == len(set(asked)) >= USERS + 30


def test_users_like_few_words() -> None:
    """An empty answer is worth nothing, a word everything, and more words less."""
    worth = [taste(text) for text in ("Paris", "It is Paris, of course, as it is known", "word " * 50, "")]
    assert worth[0] == 1.0
    assert 0.0 < worth[1] < 1.0
    assert worth[2:] == [0.0, 0.0]


def test_a_gain_over_base_and_control_meets_the_targets() -> None:
    """Scores that rise meet them, scores that rise with the control as well do not."""
    base = [0.2, 0.3, 0.4] * 10
    risen = [score + 0.2 for score in base]
    good = summary(
        {"base": base, "live": risen, "control": base}, run=run("a"), control=run("b"), rated=[0.3] * USERS
    )
    assert all(met(check) for check in good["checks"])
    assert "live" in section(good)
    bad = summary({"base": base, "live": risen, "control": risen}, run=run("a"), control=run("b"), rated=[0.3] * 9)
    assert [met(check) for check in bad["checks"]] == [False, True, False, False]


def test_a_gain_over_the_control_must_be_sure() -> None:
    """A difference that a few questions make up is not enough, whatever its mean."""
    base = [0.2] * 30
    lucky = [*base[:29], 1.0]
    found = summary(
        {"base": base, "live": lucky, "control": base}, run=run("a"), control=run("b"), rated=[0.3] * USERS
    )
    checks = {check["name"]: check for check in found["checks"]}
    assert met(checks["gain_over_control"])
    assert not met(checks["gain_over_control_low"])


def test_a_run_without_a_step_ended_with_the_base() -> None:
    """Nothing to learn from is a result, not a crash."""
    assert newest_version(run("a")) == 1
    assert newest_version(run("a").model_copy(update={"steps": ()})) == 0
