"""TrainingSample: flat tokens with everything a token-level loss needs."""

from pydantic import model_validator

from core.noun import Noun


class TrainingSample(Noun):
    """One Branch as flat arrays of one length T.

    ``loss_mask[t]`` is 1 where token t was sampled by the policy and enters the loss; ``behaviour_logprobs[t]``
    is the engine's log-prob of token t (0 where not sampled); ``advantages[t]`` is 0 where not sampled;
    ``versions[t]`` is the PolicyVersion that sampled token t (-1 where not sampled).
    """

    episode_id: str
    group_id: str | None
    domain: str | None
    tokens: tuple[int, ...]
    loss_mask: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    versions: tuple[int, ...]

    @model_validator(mode="after")
    def _one_length(self) -> "TrainingSample":
        lengths = {
            len(self.tokens),
            len(self.loss_mask),
            len(self.behaviour_logprobs),
            len(self.advantages),
            len(self.versions),
        }
        if len(lengths) != 1:
            raise ValueError(f"a TrainingSample's arrays have one length, not {sorted(lengths)}")
        return self
