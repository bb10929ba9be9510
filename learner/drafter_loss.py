"""What a drafter is trained on, and what it is measured by.

The loss is the cross-entropy to the target's likeliest tokens. A head over the whole vocabulary would cost more
than the student's layers: logits are made for the tokens that the target thinks of anywhere in the text, and the
rest of the partition sum is estimated from a fresh random sample of the other tokens at each step (sampled
softmax, Jean et al. 2015, arXiv 1412.2007), so that the student does not learn to waste mass there.

Acceptance of speculative sampling (Leviathan et al. 2023, arXiv 2211.17192): a draft token that was sampled from q
is accepted with probability sum(min(p, q)); one that is always q's likeliest with p(argmax q).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from learner.drafter_target import TopLogprobs

_CHUNK_TOKENS = 512
_SAMPLED_TOKENS = 2048
DRAFT_TOKENS = 3
"""Length of the drafts that ``accepted_per_draft`` is measured for."""


class DistilLoss:
    """Mean cross-entropy (nats) from the target's top tokens to the student, on a cut vocabulary.

    With a ``feature_weight`` the squared distance between both models' hidden states before the head, relative to
    the target's mean square, is added (EAGLE, arXiv 2401.15077). On SmolLM2-135M and eight thousand positions it
    changed nothing that could be told from noise.
    """

    def __init__(
        self,
        targets: TopLogprobs,
        head_weight: Tensor,
        *,
        seed: int,
        features: Tensor | None = None,
        feature_weight: float = 0.0,
    ) -> None:
        """``targets`` and ``features`` of the whole training text; ``head_weight`` is the student's frozen head."""
        kept = targets.logprobs > -torch.inf
        vocabulary = int(head_weight.shape[0])
        self._tokens = torch.unique(targets.ids[kept]).long()
        known = torch.zeros(vocabulary, dtype=torch.bool, device=head_weight.device)
        known[self._tokens] = True
        self._others = torch.nonzero(~known).flatten()
        self._place = torch.zeros(vocabulary, dtype=torch.long, device=head_weight.device)
        self._place[self._tokens] = torch.arange(len(self._tokens), device=head_weight.device)
        self._head = head_weight.detach()
        self._own_head = self._head[self._tokens].float()
        self._generator = torch.Generator().manual_seed(seed)
        self._targets = targets
        self._features = features if feature_weight else None
        self._feature_weight = feature_weight
        self._scale = 1.0 if self._features is None else float(self._features.float().pow(2).mean())

    def __call__(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Loss of the student's hidden states at these positions (indices into the targets)."""
        ids = self._targets.ids[positions].long()
        chances = self._targets.logprobs[positions].exp()
        chances = chances / chances.sum(dim=-1, keepdim=True)
        states = hidden.float()
        logits = states @ self._own_head.t()
        normaliser = logits.logsumexp(dim=-1)
        if len(self._others):
            normaliser = torch.logaddexp(normaliser, self._rest(states))
        chosen = logits.gather(1, self._place[ids])
        loss = (chances * (normaliser.unsqueeze(1) - chosen)).sum(dim=-1).mean()
        if self._features is None:
            return loss
        distance = mse_loss(states, self._features[positions].float()) / self._scale
        return loss + self._feature_weight * distance

    def _rest(self, states: Tensor) -> Tensor:
        """log of the estimated partition sum of all tokens outside the cut vocabulary."""
        count = min(_SAMPLED_TOKENS, len(self._others))
        drawn = torch.randint(len(self._others), (count,), generator=self._generator)
        head = self._head[self._others[drawn.to(self._others.device)]].float()
        return (states @ head.t()).logsumexp(dim=-1) + math.log(len(self._others) / count)


@dataclass(frozen=True)
class Acceptance:
    """How a drafter's guesses fare, as means over positions."""

    sampled: float
    """sum(min(p, q)): a draft token that is sampled from q."""
    greedy: float
    """p(argmax q): a draft token that is q's likeliest."""
    agreement: float
    """argmax p is argmax q: what a target that decodes greedily accepts."""
    accepted_per_draft: float
    """Of drafts of three likeliest tokens along what was said, each draft beginning where the one before ended."""
    positions: int

    def metrics(self, suffix: str = "") -> dict[str, float]:
        """By the names of ``DistilledDrafter.metrics``."""
        return {
            f"acceptance{suffix}": self.sampled,
            f"acceptance_greedy{suffix}": self.greedy,
            f"agreement{suffix}": self.agreement,
            f"accepted_per_draft{suffix}": self.accepted_per_draft,
        }


def replay(guesses: Sequence[int], said: Sequence[int], *, tokens: int) -> tuple[int, int]:
    """(drafts, accepted tokens) of an engine that had said ``said`` with drafts of ``tokens``.

    ``guesses[i]`` is the drafter's token for place i given what was said before. Inside a draft its own guesses
    stand there instead, which are the same as long as they are accepted: so this is exact. Each draft is followed
    by one token of the target's own.
    """
    drafts = accepted = place = 0
    while place < len(said):
        run = 0
        while run < tokens and place + run < len(said) and guesses[place + run] == said[place + run]:
            run += 1
        drafts, accepted, place = drafts + 1, accepted + run, place + run + 1
    return drafts, accepted


@torch.no_grad()
def acceptance(
    target: Sequence[Tensor],
    target_head: Tensor,
    student: Sequence[Tensor],
    student_head: Tensor,
    *,
    said: Sequence[Sequence[int]],
) -> Acceptance:
    """Exact acceptance from both models' hidden states at the same positions, over the whole vocabulary.

    ``said``: the tokens at those positions, one sequence after the other.
    """
    sampled = greedy = agreed = 0.0
    guesses: list[int] = []
    theirs, ours = torch.cat(list(target)), torch.cat(list(student))
    for start in range(0, len(theirs), _CHUNK_TOKENS):
        part = slice(start, start + _CHUNK_TOKENS)
        p = (theirs[part].float() @ target_head.float().t()).softmax(dim=-1)
        q = (ours[part].float() @ student_head.float().t()).softmax(dim=-1)
        guess = q.argmax(dim=-1, keepdim=True)
        sampled += float(torch.minimum(p, q).sum())
        greedy += float(p.gather(1, guess).sum())
        agreed += float((p.argmax(dim=-1, keepdim=True) == guess).sum())
        guesses += guess.flatten().tolist()
    count, place, drafts, accepted = len(theirs), 0, 0, 0
    for tokens in said:
        made, taken = replay(guesses[place : place + len(tokens)], tokens, tokens=DRAFT_TOKENS)
        drafts, accepted, place = drafts + made, accepted + taken, place + len(tokens)
    return Acceptance(sampled / count, greedy / count, agreed / count, accepted / drafts, positions=count)
