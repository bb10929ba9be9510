"""From cells to the results file's checks and tables. Pure."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from bench.checks import Check, check, ratio
from bench.speculation.domains import DOMAINS
from bench.speculation.measure import STANDARD, Cell, Comparison

DRAFTER_BEFORE = "drafter"
"""The drafter that was distilled for the Base."""
DRAFTER_AFTER = "drafter-upkept"
"""The one that upkeep distilled for the post-trained target."""
BASE, POST = "base", "post-trained"


@dataclass
class Findings:
    """What a run found; grows while it goes on."""

    cells: list[Cell] = field(default_factory=list)
    fast: Comparison = field(default_factory=Comparison)
    """Fast against standard."""
    own: Comparison = field(default_factory=Comparison)
    """Standard at one number of requests at a time against standard at another."""
    training: dict[str, Any] = field(default_factory=dict)
    """What post-training and the distillations said."""
    swap_seconds: float | None = None
    """To replace the drafter on the running engine."""

    def cell(self, method: str, target: str, domain: str, together: int) -> Cell | None:
        """One cell, if it was measured."""
        for one in self.cells:
            if (one.method, one.target, one.domain, one.together) == (method, target, domain, together):
                return one
        return None


def speedup(found: Findings, method: str, target: str, domain: str, together: int) -> float | None:
    """Output tokens/s of a method over the standard Variant's."""
    fast = found.cell(method, target, domain, together)
    standard = found.cell(STANDARD, target, domain, together)
    return ratio(fast.tokens_per_second if fast else None, standard.tokens_per_second if standard else None)


def best_speedup(found: Findings, target: str, domain: str, together: int) -> float | None:
    """That of the best method."""
    methods = {one.method for one in found.cells} - {STANDARD}
    values = [speedup(found, method, target, domain, together) for method in methods]
    return max((value for value in values if value is not None), default=None)


def over_domains(found: Findings, method: str, target: str, figure: Callable[[Cell], float | None]) -> float | None:
    """The mean over Domains of a figure of the cells with most requests at a time; None: a Domain is missing."""
    chosen = [one for one in found.cells if (one.method, one.target) == (method, target)]
    if not chosen:
        return None
    most = max(one.together for one in chosen)
    values = [figure(one) for one in chosen if one.together == most]
    present = [value for value in values if value is not None]
    return statistics.fmean(present) if len(present) == len(DOMAINS) else None


def repeated_share(cells: Iterable[Cell]) -> float | None:
    """Share of 4-grams that stood earlier in the same answer."""
    chosen = list(cells)
    return ratio(float(sum(one.repeated for one in chosen)), float(sum(one.grams for one in chosen)))


def checks(found: Findings) -> list[Check]:
    """The checks of the results file."""
    before = over_domains(found, DRAFTER_BEFORE, BASE, lambda cell: cell.acceptance)
    after_training = over_domains(found, DRAFTER_BEFORE, POST, lambda cell: cell.acceptance)
    after_upkeep = over_domains(found, DRAFTER_AFTER, POST, lambda cell: cell.acceptance)
    lost = ratio(after_training, before)
    accepted = [
        over_domains(found, DRAFTER_BEFORE, BASE, lambda cell: cell.accepted_per_draft),
        over_domains(found, DRAFTER_AFTER, POST, lambda cell: cell.accepted_per_draft),
    ]
    fast = [one for one in found.cells if one.method != STANDARD]
    # Each with the standard cell beside it, so that both sides count the same prompts as often.
    standard = [one for one in (found.cell(STANDARD, *cell.key) for cell in fast) if one is not None]
    fast_share, standard_share = repeated_share(fast), repeated_share(standard)
    compared = found.fast
    return [
        check("greedy_outputs_compared", compared.compared, "outputs", ">= 300"),
        check("greedy_near_ties", compared.near_ties, "outputs", ">= 0"),
        check("greedy_mismatches", compared.mismatches, "outputs", "== 0"),
        check("speedup_batch1_code", best_speedup(found, POST, "code", 1), "x", ">= 1.5"),
        check("speedup_batch1_tools", best_speedup(found, POST, "tools", 1), "x", ">= 1.5"),
        check("speedup_batch16_code", best_speedup(found, POST, "code", 16), "x", ">= 0"),
        check(
            "drafter_accepted_per_draft_k3",
            None if None in accepted else min(value for value in accepted if value is not None),
            "tokens",
            ">= 1.2",
        ),
        check("acceptance_base", before, "", ">= 0"),
        check("acceptance_after_post_training", after_training, "", ">= 0"),
        check("acceptance_drop", None if lost is None else 1.0 - lost, "", ">= 0.1"),
        check("acceptance_after_upkeep", after_upkeep, "", ">= 0"),
        check("acceptance_retained", ratio(after_upkeep, before), "x", ">= 0.95"),
        check("repeated_4gram_share_fast", fast_share, "", ">= 0"),
        check("repeated_4gram_share_standard", standard_share, "", ">= 0"),
    ]


def rows(found: Findings) -> list[dict[str, Any]]:
    """One row per cell, with the speed-up against standard and the share of repeated 4-grams."""
    return [
        one.row()
        | {
            "speedup": None if one.method == STANDARD else speedup(found, one.method, *one.key),
            "repeated_share": repeated_share([one]),
            "positions": " ".join(f"{share:.2f}" for share in one.by_position) or None,
        }
        for one in sorted(found.cells, key=lambda cell: (cell.target, cell.domain, cell.together, cell.method))
    ]
