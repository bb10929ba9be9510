"""What is to be done about Drafters: try a candidate, keep it or go back, ask for a successor. Pure.

A Drafter cannot change an answer, so its gate is acceptance and speed alone. A candidate runs on one ``fast``
replica until enough was drafted, held against what that replica drafted with before; the other replicas follow
once it is live. All state is in the Drafters and Deployments: after a restart the same is decided.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from core.drafter import DraftCounts, Drafter

COMPARABLE_SECONDS = 30.0
"""Of busy time on both sides, below which speeds are noise."""
COMPARABLE_LOAD = 1.5
"""Up to this ratio of requests decoded together, speeds are compared."""
SLOWER = 0.9
"""A candidate below this share of the speed before is too dear, whatever it guesses."""


@dataclass(frozen=True)
class FastReplica:
    """A ``fast`` replica whose engine drafts with a model."""

    deployment_id: str
    ready: bool
    restarting: bool
    """A restart was asked for, and has not ended."""
    failed: bool
    """Its engine did not start."""
    drafter_id: str | None
    """What it drafts with; None: the configured folder, or nothing at all."""
    speculating: bool
    lately: DraftCounts
    """How draft tokens fared since the present drafter and the present target versions are there."""


@dataclass(frozen=True)
class Target:
    """What clients of a Policy are answered by now."""

    policy: str
    version: int
    since: float
    """When that version was made; the newest one is drafted for when nothing else says for which."""


@dataclass(frozen=True)
class Rules:
    """The configured numbers."""

    trial_drafts: int
    """Drafts from which on acceptance says something."""
    retrain_drop: float
    """Share of its acceptance that a live Drafter may lose until a successor is asked for."""
    retrain_on_promotion: bool


@dataclass(frozen=True)
class Load:
    """Have a replica draft with ``drafter``; None: with the configured folder."""

    deployment_id: str
    drafter: Drafter | None


@dataclass(frozen=True)
class Begin:
    """Start the candidate's trial on a replica."""

    deployment_id: str
    drafter: Drafter


@dataclass(frozen=True)
class Abandon:
    """Forget a trial whose replica is gone; the candidate begins anew elsewhere."""

    drafter: Drafter


@dataclass(frozen=True)
class Keep:
    """The candidate becomes live and the one before retires."""

    drafter: Drafter
    reason: str


@dataclass(frozen=True)
class Reject:
    """The candidate is rejected."""

    drafter: Drafter
    reason: str


@dataclass(frozen=True)
class Retrain:
    """Ask the learner for a successor."""

    policy: str | None
    version: int
    after: str | None
    reason: str


Decision = Load | Begin | Abandon | Keep | Reject | Retrain


def decide(
    *,
    live: Drafter | None,
    candidates: Sequence[Drafter],
    replicas: Sequence[FastReplica],
    targets: Sequence[Target],
    rules: Rules,
    has_configured: bool,
) -> Decision | None:
    """The next thing to do; None: wait. Do it, read the state again, and ask again.

    ``candidates`` in order of number. ``has_configured``: there is a configured folder to go back to
    where no Drafter is live.
    """
    trying = next((one for one in candidates if one.trial is not None), None)
    if trying is not None:
        return _go_on(trying, replicas, rules)
    any_before = live is not None or has_configured
    # With nothing to go back to, a replica keeps what it has, unless it does not start with that.
    behind = _behind(live, replicas if any_before else [replica for replica in replicas if replica.failed])
    if behind is not None:
        return behind
    if candidates:
        return _begin(candidates, replicas, rules, any_before=any_before)
    return _retrain(live, replicas, targets, rules) if replicas else None


def judge(trial_counts: DraftCounts, before: DraftCounts) -> tuple[bool, str]:
    """Whether a candidate stays, and why, in plain words. ``before`` without drafts: nothing is known of it."""
    found = trial_counts.acceptance
    if before.drafts == 0:
        return True, f"accepted {found:.1%} of its draft tokens; nothing before to compare with"
    said = f"accepted {found:.1%} of its draft tokens, the one before {before.acceptance:.1%}"
    if found < before.acceptance:
        return False, said
    if _comparable(trial_counts, before) and trial_counts.tokens_per_second < SLOWER * before.tokens_per_second:
        speeds = f"{trial_counts.tokens_per_second:.0f} against {before.tokens_per_second:.0f} tokens/s"
        return False, f"{said}, but it is slower: {speeds}"
    return True, said


def has_fallen(live: Drafter, lately: DraftCounts, rules: Rules) -> bool:
    """Whether a live Drafter's acceptance lies more than the configured share below its value when it went live."""
    if live.acceptance is None or lately.drafts < rules.trial_drafts:
        return False
    return lately.acceptance < (1.0 - rules.retrain_drop) * live.acceptance


def _go_on(candidate: Drafter, replicas: Sequence[FastReplica], rules: Rules) -> Decision | None:
    trial = candidate.trial
    assert trial is not None
    replica = next((one for one in replicas if one.deployment_id == trial.deployment_id), None)
    if replica is None:
        return Abandon(candidate)
    if replica.drafter_id != candidate.id:
        # Its engine was restarted or never took it: what was counted stays.
        return Load(replica.deployment_id, candidate) if _open(replica) else None
    if replica.failed:
        return Reject(candidate, "the engine did not start with it")
    if trial.counts.drafts < rules.trial_drafts:
        return None
    keep, reason = judge(trial.counts, trial.before)
    return Keep(candidate, reason) if keep else Reject(candidate, reason)


def _behind(live: Drafter | None, replicas: Sequence[FastReplica]) -> Load | None:
    """The next replica that drafts with another one than it should; one after the other."""
    wanted = None if live is None else live.id
    others = [replica for replica in replicas if replica.drafter_id != wanted]
    failed = next((replica for replica in others if replica.failed), None)
    if failed is not None:
        return Load(failed.deployment_id, live)
    if any(replica.restarting for replica in replicas):
        return None
    return next((Load(replica.deployment_id, live) for replica in others if replica.ready), None)


def _begin(
    candidates: Sequence[Drafter], replicas: Sequence[FastReplica], rules: Rules, *, any_before: bool
) -> Decision | None:
    *older, newest = candidates
    if older:
        return Reject(older[0], f"number {newest.number} came before its trial")
    open_ones = [replica for replica in replicas if _open(replica)]
    if not open_ones:
        return None
    chosen = max(open_ones, key=lambda one: (one.lately.drafts, one.deployment_id))
    known = chosen.lately.drafts >= rules.trial_drafts
    # Nothing is drafted where speculation is off or no draft model is there: then there is nothing to wait for.
    if known or not chosen.speculating or not any_before:
        return Begin(chosen.deployment_id, newest)
    return None


def _retrain(
    live: Drafter | None, replicas: Sequence[FastReplica], targets: Sequence[Target], rules: Rules
) -> Retrain | None:
    target = _target_of(live, targets)
    after = None if live is None else live.id
    if live is not None:
        lately = sum((one.lately for one in replicas if one.drafter_id == live.id), DraftCounts())
        if has_fallen(live, lately, rules):
            reason = (
                f"Drafter {live.number} accepted {lately.acceptance:.1%} of its draft tokens lately, and "
                f"{live.acceptance:.1%} when it went live"
            )
            return Retrain(target.policy if target else live.policy, target.version if target else 0, after, reason)
    if not rules.retrain_on_promotion or target is None or target.version == 0:
        return None
    trained_for = (None, -1) if live is None else (live.policy, live.target_version)
    if trained_for != (target.policy, target.version):
        return Retrain(target.policy, target.version, after, f"{target.policy}@{target.version} was promoted")
    return None


def _target_of(live: Drafter | None, targets: Sequence[Target]) -> Target | None:
    """The Policy that the live Drafter is for; without one, that of the newest promoted version."""
    if live is not None and live.policy is not None:
        own = next((target for target in targets if target.policy == live.policy), None)
        if own is not None:
            return own
    promoted = [target for target in targets if target.version > 0]
    return max(promoted, key=lambda target: (target.since, target.policy), default=None)


def _open(replica: FastReplica) -> bool:
    return replica.ready and not replica.restarting


def _comparable(one: DraftCounts, other: DraftCounts) -> bool:
    if min(one.busy_seconds, other.busy_seconds) < COMPARABLE_SECONDS:
        return False
    return max(one.requests, other.requests) <= COMPARABLE_LOAD * min(one.requests, other.requests)
