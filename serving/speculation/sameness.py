"""Compares a fast replica with a standard one that holds the same version: one check, on a sample of prompts.

Greedy answers must be equal token for token. Where they part, the standard engine scores both tokens on the same
prefix: when it finds them equally likely, rounding decided. The standard engine is asked twice as well: where its own
answers part, their largest gap is added to what counts as equally likely, and fast answers speak against sameness
only when more of them differ beyond that than standard answers differed where no near-tie explains it.
Log-probs under speculation are held against the standard engine's score of the same tokens, with its own error on its
own answers allowed for, and sampled answers go through a two-sample test on their mean log-prob, which an acceptance
that is not lossless shifts.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from core.ids import SAMENESS, new_id
from core.sameness import Difference, SamenessCheck
from core.statistics.two_sample import gathered, stratified_permutation_test
from serving.engines.base import Engine, Generated

NEAR_TIE_NATS: Final = 1e-3
"""Tokens whose log-probs lie closer than this are equally likely: float32 rounding, measured on standard engines."""
_NEAR_TIES: Final[Mapping[str, float]] = {"float32": NEAR_TIE_NATS, "float16": 0.03, "bfloat16": 0.25}
"""Two steps of the dtype between logits of 16 and 32, which is what another batch size can move one by."""


def near_tie_of(dtype: str) -> float:
    """The bound (nats) for an engine's dtype; a dtype that the model decides (``auto``) is taken for the coarsest."""
    return _NEAR_TIES.get(dtype, max(_NEAR_TIES.values()))


@dataclass(frozen=True)
class Side:
    """One of the two replicas, and the name under which its engine knows the version."""

    deployment_id: str
    engine: Engine
    engine_model: str


@dataclass(frozen=True)
class Subject:
    """What is compared."""

    base: str
    policy: str
    version: int


@dataclass(frozen=True)
class SamenessRule:
    """How much is asked, and what counts as a difference."""

    tokens: int = 32
    """Of each answer."""
    samples: int = 4
    """Sampled answers per prompt and replica; fewer than 2: none."""
    logprob_error: float = 0.02
    """Largest mean |fast - standard| log-prob (nats), beyond what the standard engine's own answers have."""
    evidence: float = 1_000.0
    """Evidence against sameness of sampled answers that proves a difference: one false alarm in as many checks."""
    near_tie: float = NEAR_TIE_NATS
    """Largest gap (nats) of equally likely tokens, before the standard engine's own gap is added."""


async def compare(
    standard: Side,
    fast: Side,
    prompts: Sequence[tuple[int, ...]],
    *,
    subject: Subject,
    rule: SamenessRule,
    evidence: float = 1.0,
    seed: int = 0,
) -> SamenessCheck:
    """One check; ``evidence`` is that of the checks before. Raises EngineUnavailable or EngineError.

    Prompts are asked one after another, so that a check never takes more than one place in a batch.
    """
    differences, own, tokens = list[Difference](), list[Difference](), 0
    errors, own_errors = list[float](), list[float]()
    sampled: dict[str, list[list[float]]] = {"standard": [], "again": [], "fast": []}
    for number, prompt in enumerate(prompts):
        reference, candidate = await asyncio.gather(_greedy(standard, prompt, rule), _greedy(fast, prompt, rule))
        again = await _greedy(standard, prompt, rule)
        tokens += len(reference.token_ids)
        for answer, into in ((candidate, differences), (again, own)):
            found = await first_difference(standard, prompt, reference, answer, near_tie=rule.near_tie)
            if found is not None:
                into.append(found.model_copy(update={"prompt": number}))
        errors += await _logprob_errors(standard, prompt, candidate)
        own_errors += await _logprob_errors(standard, prompt, again)
        if rule.samples >= 2:
            seeds = random.Random(f"{seed}:{number}")
            sampled["standard"].append(await _samples(standard, prompt, rule, seeds))
            sampled["again"].append(await _samples(standard, prompt, rule, seeds))
            sampled["fast"].append(await _samples(fast, prompt, rule, seeds))
    own_gap = max((abs(one.gap) for one in own if one.gap is not None), default=0.0)
    return _judged(
        SamenessCheck(
            id=new_id(SAMENESS),
            base=subject.base,
            policy=subject.policy,
            version=subject.version,
            standard_id=standard.deployment_id,
            fast_id=fast.deployment_id,
            prompts=len(prompts),
            tokens=tokens,
            differences=tuple(_within(one, rule.near_tie + own_gap) for one in differences),
            own_differences=len(own),
            own_mismatches=sum(not one.near_tie for one in own),
            own_gap=own_gap,
            logprob_error=sum(errors) / len(errors) if errors else None,
            logprob_error_max=max(errors, default=None),
            own_logprob_error=sum(own_errors) / len(own_errors) if own_errors else None,
            samples=sum(map(len, sampled["fast"])),
            evidence=evidence,
            same=True,
        ),
        sampled,
        rule=rule,
        seed=seed,
    )


async def first_difference(
    standard: Side,
    prompt: Sequence[int],
    reference: Generated,
    candidate: Generated,
    *,
    near_tie: float = NEAR_TIE_NATS,
) -> Difference | None:
    """Where a greedy answer leaves the standard one, with both tokens scored by the standard engine there.

    An answer that ends earlier differs in its next token only if the other one did not end: with one token limit
    for both, its end token is part of it.
    """
    ours, theirs = reference.token_ids, candidate.token_ids
    shared = next((at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    if shared is None:
        if len(ours) == len(theirs):
            return None
        # One stopped where the other went on after the same tokens: no tie explains that.
        shared = min(len(ours), len(theirs))
        return Difference(
            prompt=0,
            position=shared,
            standard_token=ours[shared] if len(ours) > shared else None,
            fast_token=theirs[shared] if len(theirs) > shared else None,
            gap=None,
            near_tie=False,
        )
    prefix = [*prompt, *ours[:shared]]
    scores = [
        (await standard.engine.prompt_logprobs(standard.engine_model, [*prefix, token]))[-1]
        for token in (ours[shared], theirs[shared])
    ]
    gap = (scores[0] or 0.0) - (scores[1] or 0.0)
    return Difference(
        prompt=0,
        position=shared,
        standard_token=ours[shared],
        fast_token=theirs[shared],
        gap=gap,
        near_tie=abs(gap) <= near_tie,
    )


def _within(difference: Difference, near_tie: float) -> Difference:
    gap = difference.gap
    return difference.model_copy(update={"near_tie": gap is not None and abs(gap) <= near_tie})


def _judged(
    check: SamenessCheck, sampled: dict[str, list[list[float]]], *, rule: SamenessRule, seed: int
) -> SamenessCheck:
    fields: dict[str, object] = {}
    evidence = check.evidence
    if sampled["fast"]:
        p_value = stratified_permutation_test(sampled["standard"], sampled["fast"], seed=seed)
        own = stratified_permutation_test(sampled["standard"], sampled["again"], seed=seed)
        evidence = gathered(evidence, p_value)
        fields |= {"p_value": p_value, "own_p_value": own, "evidence": evidence}
    against = []
    # Equal replicas differ as often as the standard one differs from itself, and by as much.
    if check.mismatches > check.own_mismatches:
        gaps = [abs(one.gap) for one in check.differences if one.gap is not None and not one.near_tie]
        worst = f" (gap up to {max(gaps):.3g} nats)" if gaps else ""
        against.append(f"{check.mismatches} of {check.prompts} greedy answers differ{worst}")
    allowed = rule.logprob_error + (check.own_logprob_error or 0.0)
    if check.logprob_error is not None and check.logprob_error > allowed:
        against.append(f"its log-probs differ by {check.logprob_error:.3g} nats on average")
    if evidence >= rule.evidence:
        against.append(f"its sampled answers have another distribution (evidence {evidence:.3g})")
    return check.model_copy(update=fields | {"same": not against, "reason": "; ".join(against) or None})


async def _greedy(side: Side, prompt: tuple[int, ...], rule: SamenessRule) -> Generated:
    return await side.engine.generate(side.engine_model, prompt, max_tokens=rule.tokens)


async def _samples(side: Side, prompt: tuple[int, ...], rule: SamenessRule, seeds: random.Random) -> list[float]:
    """Mean log-prob of each of several answers at temperature 1, each under a seed of its own."""
    found = []
    for _ in range(rule.samples):
        answer = await side.engine.generate(
            side.engine_model, prompt, max_tokens=rule.tokens, temperature=1.0, seed=seeds.randrange(2**31)
        )
        found.append(sum(answer.logprobs) / max(1, len(answer.logprobs)))
    return found


async def _logprob_errors(standard: Side, prompt: tuple[int, ...], answer: Generated) -> list[float]:
    """How far the log-prob of every token of an answer is from the standard replica's score of it."""
    if not answer.token_ids:
        return []
    scored = await standard.engine.prompt_logprobs(standard.engine_model, [*prompt, *answer.token_ids])
    pairs = zip(answer.logprobs, scored[len(prompt) :], strict=True)
    return [abs(said - score) for said, score in pairs if score is not None]
