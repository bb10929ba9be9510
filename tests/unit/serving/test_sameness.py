"""What a comparison of two replicas finds, with engines that sample from a small model."""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from serving.engines.base import Generated
from serving.speculation.sameness import SamenessRule, Side, Subject, compare, first_difference, near_tie_of

SUBJECT = Subject("smol", "coder", 3)
PROMPTS = [(1, 2, 3), (4, 5), (2, 4, 1)]
VOCABULARY = 6
END = 0


@dataclass
class Toy:
    """An engine over six tokens whose next token depends on the last one."""

    url: str = "http://toy"
    temperature_bend: float = 1.0
    """Not 1: sampled answers are of another temperature, as under an acceptance that is not lossless."""
    greedy_bend: float = 0.0
    """Added to the log-prob of token 3 where it decides what is greedy, not in what is said of it."""
    every_other: bool = False
    """Bends only every second greedy answer: it differs from itself, as batches of other sizes do."""
    greedy_asked: int = 0
    said_bend: float = 0.0
    """Added to every log-prob that it says."""

    def logprobs(self, last: int) -> list[float]:
        scores = [math.sin(1.0 + 2.3 * last + 1.7 * token) for token in range(VOCABULARY)]
        total = math.log(sum(map(math.exp, scores)))
        return [score - total for score in scores]

    async def generate(
        self, model: str, token_ids: Sequence[int], *, max_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> Generated:
        randomness = random.Random(f"{seed}:{tuple(token_ids)}:{self.temperature_bend}")
        last, tokens, logprobs = token_ids[-1], list[int](), list[float]()
        self.greedy_asked += temperature == 0.0
        bend = 0.0 if self.every_other and self.greedy_asked % 2 else self.greedy_bend
        while len(tokens) < max_tokens:
            scores = self.logprobs(last)
            if temperature == 0.0:
                bent = [score + bend * (token == 3) for token, score in enumerate(scores)]
                last = bent.index(max(bent))
            else:
                weights = [math.exp(score * self.temperature_bend) for score in scores]
                [last] = randomness.choices(range(VOCABULARY), weights)
            tokens.append(last)
            logprobs.append(scores[last] + self.said_bend)
            if last == END:
                break
        return Generated(tuple(tokens), tuple(logprobs))

    async def prompt_logprobs(self, model: str, token_ids: Sequence[int]) -> list[float | None]:
        pairs = itertools.pairwise(token_ids)
        return [None, *(self.logprobs(last)[token] for last, token in pairs)]


def side(toy: Toy, name: str) -> Side:
    return Side(name, toy, "coder.v3")  # type: ignore[arg-type]


async def checked(
    fast: Toy,
    *,
    standard: Toy | None = None,
    evidence: float = 1.0,
    samples: int = 0,
    seed: int = 0,
    **rule: float,
):
    return await compare(
        side(standard or Toy(), "dep_standard"),
        side(fast, "dep_fast"),
        PROMPTS,
        subject=SUBJECT,
        rule=SamenessRule(samples=samples, **rule),
        evidence=evidence,
        seed=seed,
    )


async def test_equal_engines_are_the_same() -> None:
    """Two engines with one model agree in every token and log-prob."""
    check = await checked(Toy(), samples=4)
    assert check.same and check.reason is None
    assert (check.prompts, check.differences, check.own_differences, check.samples) == (3, (), 0, 12)
    assert check.logprob_error == pytest.approx(0.0) and check.p_value is not None
    assert (check.policy, check.version, check.standard_id, check.fast_id) == (
        "coder",
        3,
        "dep_standard",
        "dep_fast",
    )


async def test_a_greedy_answer_that_leaves_the_standard_one_is_a_mismatch() -> None:
    """A token that standard finds clearly less likely proves a difference, and the check says where."""
    check = await checked(Toy(greedy_bend=2.0))
    assert not check.same and check.mismatches >= 1
    assert "greedy answers differ" in (check.reason or "")
    found = check.differences[0]
    assert found.fast_token == 3 and found.gap is not None and found.gap > 1e-3


async def test_near_ties_are_no_mismatch() -> None:
    """Where both tokens are as likely within the bound, the difference is told and proves nothing."""
    check = await checked(Toy(greedy_bend=2.0), near_tie=5.0)
    assert check.same and check.differences and check.mismatches == 0


async def test_wrong_logprobs_are_found() -> None:
    """Log-probs that are not those of the target fail the check though the tokens are right."""
    check = await checked(Toy(said_bend=0.1))
    assert not check.same and check.differences == ()
    assert check.logprob_error == pytest.approx(0.1)


async def test_another_distribution_is_found_over_several_checks() -> None:
    """A sharpened distribution passes every greedy comparison, and is found by its samples after a few checks."""
    fast, evidence, checks = Toy(temperature_bend=3.0), 1.0, 0
    while evidence < 1_000.0 and checks < 20:
        check = await checked(fast, evidence=evidence, samples=16, seed=checks)
        evidence, checks = check.evidence, checks + 1
    assert not check.same and "another distribution" in (check.reason or "")
    assert check.mismatches == 0 and checks > 1


async def test_the_same_distribution_gathers_no_evidence() -> None:
    """Over many checks of equal engines the evidence stays low."""
    evidence = 1.0
    for seed in range(20):
        check = await checked(Toy(temperature_bend=1.0 + 1e-9), evidence=evidence, samples=4, seed=seed)
        evidence = check.evidence
        assert check.same
    assert evidence < 1_000.0


async def test_an_answer_that_ends_early_differs() -> None:
    """One answer that stops where the other goes on is a mismatch without a gap."""
    long, short = Generated((1, 2, 3), ()), Generated((1, 2), ())
    found = await first_difference(side(Toy(), "dep"), (5,), long, short)
    assert found is not None and not found.near_tie
    assert (found.position, found.standard_token, found.fast_token, found.gap) == (2, 3, None, None)
    assert await first_difference(side(Toy(), "dep"), (5,), long, long) is None


async def test_differences_that_the_standard_engine_has_with_itself_prove_nothing() -> None:
    """A fast engine that differs as often and as far as the standard one from itself is the same; a worse one not."""
    noisy = {"greedy_bend": 2.0, "every_other": True}
    check = await checked(Toy(greedy_bend=2.0), standard=Toy(**noisy))
    assert check.own_differences >= 1 and check.own_gap > 1e-3 and check.differences
    assert check.same and check.mismatches == 0
    worse = await checked(Toy(greedy_bend=2.0), standard=Toy(greedy_bend=0.8, every_other=True), near_tie=1.0)
    assert not worse.same and worse.mismatches > worse.own_mismatches and worse.own_gap < 1.0


async def test_no_more_mismatches_than_own_differences_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer that ends early, where the standard engine's second one does so too, is what that engine does."""
    standard, fast = Toy(), Toy()
    answers = {"again": Generated((1,), (0.0,)), "whole": Generated((1, 2), (0.0, 0.0))}
    turns = itertools.cycle(["whole", "again"])

    async def said(*_: object, **__: object) -> Generated:
        return answers[next(turns)]

    async def cut(*_: object, **__: object) -> Generated:
        return answers["again"]

    monkeypatch.setattr(standard, "generate", said)
    monkeypatch.setattr(fast, "generate", cut)
    check = await checked(fast, standard=standard, logprob_error=100.0)
    assert check.mismatches == check.own_mismatches == 3 and check.same


@pytest.mark.parametrize(
    ("dtype", "bound"), [("float32", 1e-3), ("float16", 0.03), ("bfloat16", 0.25), ("auto", 0.25)]
)
def test_near_ties_are_those_of_the_dtype(dtype: str, bound: float) -> None:
    """A coarser dtype has wider near-ties, and one that is not known the widest."""
    assert near_tie_of(dtype) == bound


async def test_logprobs_may_err_as_the_standard_engines_own_do() -> None:
    """What decoding differs from scoring in the standard engine itself is not held against the fast one."""
    check = await checked(Toy(said_bend=0.1), standard=Toy(said_bend=0.1))
    assert check.same and check.own_logprob_error == pytest.approx(0.1)
