"""How a step's groups are shared out among Domains: quotas, a floor for each, replay of earlier ones. Pure."""

from collections.abc import Mapping, Sequence


def domain_shares(
    quotas: Mapping[str, float],
    useful: Mapping[str, float],
    *,
    earlier: Sequence[str] = (),
    floor: float = 0.0,
    adapt: float = 0.0,
    replay: float = 0.0,
) -> dict[str, float]:
    """The share of groups of every Domain; they add up to 1, or are empty without any Domain.

    ``quotas`` are relative; a Domain with quota 0 gets nothing. ``useful``: of each Domain, the share of groups
    that can teach something; ``adapt`` says how far that changes its quota. No Domain of ``quotas`` gets less than
    ``floor`` of all groups, or an equal share where the floors do not fit. ``earlier`` Domains share ``replay``
    equally; where there is no other Domain they get all.
    """
    wanted = {name: quota for name, quota in quotas.items() if quota > 0}
    kept = [name for name in dict.fromkeys(earlier) if name not in wanted]
    for_earlier = (replay if wanted else 1.0) if kept else 0.0
    weights = {name: quota * (1 - adapt + adapt * useful.get(name, 1.0)) for name, quota in wanted.items()}
    own = 1.0 - for_earlier
    shares = {name: own * share for name, share in _floored(weights, floor / own if own > 0 else 0.0).items()}
    if for_earlier > 0:
        shares |= {name: for_earlier / len(kept) for name in kept}
    return shares


def next_domain(credits: Mapping[str, float], shares: Mapping[str, float]) -> tuple[str, dict[str, float]]:
    """The Domain of the next group, and every Domain's credit after it.

    Each gains its share, and the one with most credit pays for a group: with constant shares the number of groups
    of a Domain never differs from its share by as much as the number of Domains (smooth weighted round robin).
    """
    grown = {name: credits.get(name, 0.0) + share for name, share in shares.items()}
    # Sums of shares carry rounding errors, and a tie must fall alike in every run.
    chosen = min(grown, key=lambda name: (-round(grown[name], 9), name))
    return chosen, {**credits, **grown, chosen: grown[chosen] - 1.0}


def _floored(weights: Mapping[str, float], floor: float) -> dict[str, float]:
    """Shares in proportion to ``weights``, none below ``floor``."""
    if not weights:
        return {}
    total = sum(weights.values())
    if floor * len(weights) >= 1 or total <= 0:
        return dict.fromkeys(weights, 1 / len(weights))
    raised: set[str] = set()
    while True:
        rest = 1.0 - floor * len(raised)
        total = sum(weight for name, weight in weights.items() if name not in raised)
        shares = {name: floor if name in raised else rest * weight / total for name, weight in weights.items()}
        low = {name for name, share in shares.items() if share < floor} - raised
        if not low:
            return shares
        raised |= low
