"""The speculation benchmark's arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.checks import met
from bench.speculation import plan, report
from bench.speculation.domains import DOMAINS
from bench.speculation.measure import STANDARD, Cell, repeated_grams
from bench.speculation.results import BASE, DRAFTER_AFTER, DRAFTER_BEFORE, POST, Findings, checks, rows, speedup

NAMES = {
    "greedy_outputs_compared",
    "greedy_near_ties",
    "greedy_mismatches",
    "acceptance_drop",
    "repeated_4gram_share_fast",
    "repeated_4gram_share_standard",
    "speedup_batch1_code",
    "speedup_batch1_tools",
    "speedup_batch16_code",
    "drafter_accepted_per_draft_k3",
    "acceptance_base",
    "acceptance_after_post_training",
    "acceptance_after_upkeep",
    "acceptance_retained",
}


def cell(method: str, target: str, domain: str, together: int, rate: float, accepted: int = 0) -> Cell:
    """A cell of 100 tokens in which 100 drafts of 3 were made by a fast method."""
    fast = method != STANDARD
    return Cell(
        method=method,
        target=target,
        domain=domain,
        together=together,
        tokens=100,
        seconds=100 / rate,
        tokens_per_second=rate,
        drafts=100 if fast else 0,
        draft_tokens=300 if fast else 0,
        accepted_tokens=accepted,
        by_position=(0.5, 0.25, 0.1) if fast else (),
        repeated=1,
        grams=10,
    )


def whole_run() -> Findings:
    """A run in which everything was measured."""
    found = Findings()
    accepted = {(DRAFTER_BEFORE, BASE): 150, (DRAFTER_BEFORE, POST): 90, (DRAFTER_AFTER, POST): 147}
    for together in plan.FULL.prompts:
        for domain in DOMAINS:
            for target in (BASE, POST):
                found.cells.append(cell(STANDARD, target, domain, together, 10.0))
                found.cells.append(cell("ngram", target, domain, together, 20.0, 100))
            for (method, target), count in accepted.items():
                found.cells.append(cell(method, target, domain, together, 12.0, count))
    found.fast.compared = 324
    return found


def test_every_check_is_made_and_met_by_a_good_run():
    """The results hold exactly the named checks, from the cells that they are about."""
    made = {one["name"]: one for one in checks(whole_run())}
    assert set(made) == NAMES
    values = {name: one["value"] for name, one in made.items()}
    assert values["speedup_batch1_code"] == 2.0
    assert (values["acceptance_base"], values["acceptance_after_post_training"]) == (0.5, 0.3)
    assert values["acceptance_drop"] == pytest.approx(0.4)
    assert values["acceptance_retained"] == pytest.approx(0.98)
    assert values["drafter_accepted_per_draft_k3"] == pytest.approx(1.47)
    assert values["repeated_4gram_share_fast"] == values["repeated_4gram_share_standard"] == 0.1
    assert all(met(one) for one in made.values())


def test_what_was_not_measured_meets_nothing():
    """An empty run has the same checks, and those with a target that needs a figure are not met."""
    made = {one["name"]: one for one in checks(Findings())}
    assert set(made) == NAMES
    for name in ("speedup_batch1_code", "acceptance_drop", "acceptance_retained", "drafter_accepted_per_draft_k3"):
        assert made[name]["value"] is None and not met(made[name])


def test_a_missing_domain_gives_no_mean():
    """Acceptance over Domains is only told when every Domain was measured."""
    found = whole_run()
    found.cells = [one for one in found.cells if (one.method, one.domain) != (DRAFTER_BEFORE, "json")]
    assert next(one for one in checks(found) if one["name"] == "acceptance_base")["value"] is None


def test_the_section_has_every_cell():
    """The document's section shows all checks and one line per cell."""
    found = whole_run()
    settings = {"max_tokens": 64, "lookup": "ngram", "lookup_tokens": 8, "draft_tokens": 3}
    text = report.section(
        {
            "checks": checks(found),
            "tables": {
                "cells": rows(found),
                "fast_against_standard": found.fast.row(),
                "standard_against_itself": found.own.row(),
                "training": {"drafter": {"acceptance": 0.5}},
                "drafter_swap_seconds": 0.25,
            },
            "machine": {"cores": "2"},
            "version": "1",
            "seconds": 60.0,
            "settings": settings,
        }
    )
    assert all(f"`{name}`" in text for name in NAMES)
    assert text.count("| ngram |") == 2 * len(DOMAINS) * len(plan.FULL.prompts)
    assert speedup(found, "ngram", BASE, "code", 1) == 2.0


def test_the_full_run_compares_enough():
    """Three hundred greedy answers are compared: two methods on both targets, and the drafter before upkeep."""
    per_domain = sum(plan.FULL.prompts.values())
    compared = len(DOMAINS) * (4 * per_domain + plan.FULL.prompts[max(plan.FULL.prompts)])
    assert compared >= 300


@given(st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=4))
def test_repeated_grams_are_counted_within_an_answer(answers):
    """Repeats are never more than all, and an answer without repeats has none."""
    repeated, total = repeated_grams(answers)
    assert 0 <= repeated <= max(0, total)
    assert repeated_grams([list(range(20))]) == (0, 17)
    assert repeated_grams([[1, 2, 3, 4, 1, 2, 3, 4]]) == (1, 5)


@pytest.mark.parametrize("domain", list(DOMAINS))
def test_domains_are_the_same_every_time_and_apart(domain):
    """Prompts repeat exactly, training prompts are no measured ones, and each has an answer to imitate."""
    train, held = DOMAINS[domain]("train", 24), DOMAINS[domain]("heldout", 24)
    assert train == DOMAINS[domain]("train", 24)
    assert not {one.messages[-1]["content"] for one in train} & {one.messages[-1]["content"] for one in held}
    assert all(one.demonstration for one in train)
