"""The rule promotes what is better, rejects what is not, and survives being stored between looks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.release_rule import Family, Outcome, ReleaseRule, Trial, open_trial
from core.statistics.betting import BettingTest
from core.statistics.sequences import capital

RULE = ReleaseRule(
    targets=("code",),
    families={"work": Family(domains=("code", "tools", "text"))},
    guardrails={"errors": 0.02},
)


def run(
    gains: dict[str, float], *, errors: float = 0.0, seed: int = 0, rule: ReleaseRule = RULE
) -> tuple[Trial, int]:
    """Look after every 250 prompts until the rule decides; mean differences as given."""
    generator = np.random.default_rng(seed)
    trial, prompts = open_trial(RULE), 0
    while trial.decide().outcome is Outcome.CONTINUE:
        for domain, gain in gains.items():
            shares = [0.25 - gain / 2, 0.5, 0.25 + gain / 2]
            trial = trial.compared(domain, generator.choice([-1.0, 0.0, 1.0], size=250, p=shares))
        trial = trial.guarded("errors", (generator.random(250) < errors).astype(float))
        prompts += 250
    return trial, prompts


def test_a_better_candidate_is_promoted() -> None:
    """A clear gain in the target Domain and no loss elsewhere is proven before the budget is spent."""
    trial, prompts = run({"code": 0.1, "tools": 0.0, "text": 0.0})
    assert trial.decide().outcome is Outcome.PROMOTE
    assert prompts < RULE.prompts


@pytest.mark.parametrize(
    ("gains", "errors", "reason"),
    [
        ({"code": 0.1, "tools": -0.2, "text": 0.0}, 0.0, "Domain tools loses"),
        ({"code": -0.1, "tools": -0.1, "text": -0.1}, 0.0, "family work loses"),
        ({"code": 0.1, "tools": 0.0, "text": 0.0}, 0.2, "guardrail errors is broken"),
        ({"code": 0.0, "tools": 0.0, "text": 0.0}, 0.0, "a gain in code"),
    ],
)
def test_what_is_not_better_is_rejected_with_the_reason(gains, errors, reason) -> None:
    """A loss, a broken guardrail or an unproven gain rejects, and the decision says which it was."""
    decision = run(gains, errors=errors)[0].decide()
    assert decision.outcome is Outcome.REJECT
    assert any(reason in one for one in decision.reasons)


def test_a_loss_within_the_margins_does_not_reject() -> None:
    """A Domain may lose a little when the family as a whole does not, and the target gains."""
    trial, _ = run({"code": 0.12, "tools": -0.01, "text": 0.01}, seed=3)
    assert trial.decide().outcome is Outcome.PROMOTE


def test_a_target_outside_all_families_is_an_error() -> None:
    """A rule that could never be met is refused when it is read."""
    with pytest.raises(ValueError, match="in no family"):
        ReleaseRule(targets=("maths",), families=RULE.families)


def test_the_order_of_domains_proves_nothing() -> None:
    """A family that loses is not let through because the Domain that gains was shown first."""
    rule = ReleaseRule(targets=("code",), families={"work": Family(domains=("code", "text"), hard_margin=0.2)})
    generator = np.random.default_rng(7)

    def shown(gain: float, count: int) -> np.ndarray:
        return generator.choice([-1.0, 0.0, 1.0], size=count, p=[0.25 - gain / 2, 0.5, 0.25 + gain / 2])

    trial = open_trial(rule).compared("code", shown(0.06, 5_000))
    assert not trial.families["work"].proof.rejects(0.05), "nothing is known of the other Domain"
    trial = trial.compared("text", shown(-0.15, 5_000))
    assert trial.families["work"].harm.count == 5_000
    assert trial.decide().outcome is Outcome.REJECT


def test_a_guardrail_that_could_never_hold_is_an_error() -> None:
    """Shares of 0 and 1 are refused when the rule is read, not at the first event."""
    for share in (0.0, 1.0):
        with pytest.raises(ValueError, match="guardrails"):
            ReleaseRule(targets=("code",), families=RULE.families, guardrails={"errors": share})


def test_evidence_goes_on_after_a_restart() -> None:
    """A Trial that was stored and read again decides as the one that stayed in memory."""
    trial, _ = run({"code": 0.1, "tools": 0.0, "text": 0.0}, seed=5)
    again = Trial.model_validate_json(trial.model_dump_json())
    assert again == trial and again.decide() == trial.decide()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=100), st.integers(0, 100), st.booleans())
def test_a_test_fed_in_parts_is_the_test_of_the_whole(values, cut, above) -> None:
    """However observations are cut into batches, the evidence is that of the whole path."""
    test = BettingTest(null=0.4, above=above).after(values[:cut]).after(values[cut:])
    path = capital(values, 0.4, above=above)
    assert test.count == len(values)
    assert test.peak == pytest.approx(max(0.0, float(path.max())), abs=1e-9)
