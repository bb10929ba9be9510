"""Keys of what is watched while training: alarms, and where metrics go."""

from typing import Literal

from pydantic import Field

from core.config.section import Section

AlarmName = Literal["mismatch_kl", "ess", "gradient_norm", "entropy", "not_finite"]


class AlarmsSection(Section):
    """When a GRPO step is alarming, and which alarms end the run (docs/training.md)."""

    mismatch_kl: float = Field(default=0.01, ge=0)
    """KL in nats a token between engine and learner above which they disagree or data are stale; 0: not watched."""
    ess: float = Field(default=0.3, ge=0, le=1)
    """Effective sample size, as a share of the tokens, below which data are too stale; 0: not watched."""
    gradient_norm: float = Field(default=10.0, ge=0)
    """Gradient norm above this many times the median of the steps before; 0: not watched."""
    entropy: float = Field(default=0.2, ge=0, lt=1)
    """Entropy below this share of the run's first steps': the policy has stopped exploring; 0: not watched."""
    patience: int = Field(default=3, ge=1)
    """Steps in a row for which an alarm must stand before it ends the run; ``not_finite`` ends it at once."""
    stop: tuple[AlarmName, ...] = ("not_finite",)
    """Alarms that end the run, in status ``stopped``, with every version so far kept; others are shown only."""


class TrackingSection(Section):
    """Where a run's metrics go beside the store and Prometheus."""

    tensorboard: bool = False
    """Write TensorBoard events below ``runs/<run>/tensorboard`` in ``data_dir``; needs the extra ``tensorboard``."""
    wandb_project: str = ""
    """Project in Weights & Biases; empty: none. Needs the extra ``wandb``; its own variables say who logs in."""
    wandb_mode: Literal["online", "offline"] = "online"
    """``offline`` writes below ``data_dir`` only; ``wandb sync`` sends it later."""
