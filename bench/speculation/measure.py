"""One cell of the table: a method, a target, a Domain and a number of requests at a time; and comparisons of two."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.speculation.engines import Run
from core.sameness import Difference
from serving.engines.base import Generated
from serving.speculation.acceptance import acceptance
from serving.speculation.sameness import Side, first_difference

STANDARD = "standard"
_GRAM = 4


@dataclass
class Cell:
    """What one run of one engine showed."""

    method: str
    target: str
    domain: str
    together: int
    """Requests at a time."""
    tokens: int
    seconds: float
    tokens_per_second: float
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    by_position: tuple[float, ...] = ()
    repeated: int = 0
    grams: int = 0
    answers: list[tuple[int, ...]] = field(default_factory=list, repr=False)
    prompts: list[tuple[int, ...]] = field(default_factory=list, repr=False)

    @property
    def key(self) -> tuple[str, str, int]:
        """What cells of several methods have in common."""
        return self.target, self.domain, self.together

    @property
    def acceptance(self) -> float | None:
        """Accepted share of the draft tokens."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else None

    @property
    def accepted_per_draft(self) -> float | None:
        """Accepted draft tokens per draft, the bonus token not counted."""
        return self.accepted_tokens / self.drafts if self.drafts else None

    def row(self) -> dict[str, Any]:
        """For the results file: figures, no texts."""
        figures = asdict(self)
        del figures["answers"], figures["prompts"]
        return figures | {"acceptance": self.acceptance, "accepted_per_draft": self.accepted_per_draft}


@dataclass
class Comparison:
    """Greedy answers of two runs of the same prompts."""

    compared: int = 0
    tokens: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def near_ties(self) -> int:
        """Differences that rounding explains."""
        return sum(1 for one in self.differences if one.near_tie)

    @property
    def mismatches(self) -> int:
        """Differences that it does not."""
        return len(self.differences) - self.near_ties

    def row(self) -> dict[str, Any]:
        """For the results file."""
        return {
            "compared": self.compared,
            "tokens": self.tokens,
            "near_ties": self.near_ties,
            "mismatches": self.mismatches,
            "differences": [one.model_dump() for one in self.differences],
        }


def cell_of(run: Run, *, method: str, target: str, domain: str, together: int) -> Cell:
    """The figures of a run."""
    seen = acceptance(run.before, run.after)
    answers = [answer.tokens for answer in run.answers]
    repeated, grams = repeated_grams(answers)
    return Cell(
        method=method,
        target=target,
        domain=domain,
        together=together,
        tokens=run.tokens,
        seconds=run.seconds,
        tokens_per_second=run.tokens_per_second,
        drafts=seen.drafts if seen else 0,
        draft_tokens=seen.draft_tokens if seen else 0,
        accepted_tokens=seen.accepted_tokens if seen else 0,
        by_position=seen.by_position if seen else (),
        repeated=repeated,
        grams=grams,
        answers=answers,
        prompts=[answer.prompt for answer in run.answers],
    )


def repeated_grams(answers: Iterable[Sequence[int]]) -> tuple[int, int]:
    """4-grams that stood earlier in the same answer, and all 4-grams."""
    repeated, total = 0, 0
    for answer in answers:
        grams = [tuple(answer[start : start + _GRAM]) for start in range(len(answer) - _GRAM + 1)]
        repeated += len(grams) - len(set(grams))
        total += len(grams)
    return repeated, total


async def compare(standard: Side, reference: Cell, candidate: Cell, into: Comparison) -> None:
    """Add the comparison of two cells of one key; both tokens of a difference are scored by ``standard``."""
    for number, prompt in enumerate(reference.prompts):
        ours = Generated(reference.answers[number], ())
        theirs = Generated(candidate.answers[number], ())
        into.compared += 1
        into.tokens += len(ours.token_ids)
        found = await first_difference(standard, prompt, ours, theirs)
        if found is not None:
            into.differences.append(found.model_copy(update={"prompt": number}))
