"""SamenessCheck: whether a fast replica answered as a standard one does, on a sample of prompts."""

from pydantic import Field

from core.noun import Noun, now


class Difference(Noun):
    """A greedy answer of the fast replica that left the standard one's."""

    prompt: int
    """Which of the check's prompts."""
    position: int
    """Of the first token that differs, from the answer's beginning."""
    standard_token: int | None
    """None: the answer had ended."""
    fast_token: int | None
    gap: float | None
    """Log-prob of the standard token minus that of the fast one (nats), scored by the standard engine on the same
    prefix. Near zero: both were as likely, and rounding decided. None: one answer had ended."""
    near_tie: bool


class SamenessCheck(Noun):
    """One comparison of a fast replica with a standard one that holds the same PolicyVersion."""

    id: str
    base: str
    policy: str
    """The Policy, or the Base's own name."""
    version: int
    standard_id: str
    """Deployment that was the measure."""
    fast_id: str
    """Deployment that was judged."""
    prompts: int
    tokens: int = 0
    """Greedy tokens compared."""
    differences: tuple[Difference, ...] = ()
    """Greedy answers that differed, fast against standard."""
    own_differences: int = 0
    """Greedy answers in which the standard replica differed from its own first answer: what rounding does alone."""
    own_mismatches: int = 0
    """Those of them that are no near-ties: as many mismatches of the fast replica prove nothing."""
    own_gap: float = 0.0
    """Largest gap (nats) where it did; what was a near-tie is wider by that much."""
    logprob_error: float | None = None
    """Mean |fast - standard| log-prob (nats) on the fast replica's answers; None: not compared."""
    logprob_error_max: float | None = None
    own_logprob_error: float | None = None
    """The same of the standard replica's own answers: how far its decoding is from its scoring."""
    samples: int = 0
    """Sampled answers compared, on each side."""
    p_value: float | None = None
    """Of the two-sample test on the sampled answers of this check."""
    own_p_value: float | None = None
    """The same test between two halves of the standard replica's own samples."""
    evidence: float = 1.0
    """Evidence against sameness of sampled answers over the checks so far; see ``core.statistics.two_sample``."""
    same: bool
    reason: str | None = None
    """What speaks against sameness."""
    created_at: float = Field(default_factory=now)

    @property
    def mismatches(self) -> int:
        """Differences that no near-tie explains."""
        return sum(1 for difference in self.differences if not difference.near_tie)
