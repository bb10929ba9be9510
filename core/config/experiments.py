"""Keys of live Experiments: how soon gateways follow them, and who hears of a rollback."""

from pydantic import Field, SecretStr

from core.config.section import Section


class ExperimentsSection(Section):
    """A/B Experiments and ramps on live traffic."""

    refresh_seconds: float = Field(default=0.25, gt=0)
    """How often running Experiments are read again when no event announces a change."""
    watch_seconds: float = Field(default=2.0, ge=0)
    """How often one of the gateways looks at the guardrails of running Experiments; 0: this one never does."""
    lease_seconds: float = Field(default=10.0, gt=0)
    """How long another gateway waits before it takes over from a watcher that has gone."""
    outcome_days: float = Field(default=14.0, gt=0)
    """How long an Episode without a reward is looked at again for Verdicts; feedback counts however late it is."""
    key_secret: SecretStr = SecretStr("")
    """Keys the digests of users in outcomes and Assignments, the same on all gateways; empty: who knows a user's name
    can compute its digest. A change makes every key a new one."""
    webhook_url: str = ""
    """Gets a JSON POST when an Experiment is ended by a guardrail; empty: nobody is told."""
    webhook_secret: SecretStr = SecretStr("")
    """Signs these POSTs (``x-hone-signature``: HMAC-SHA256 of ``x-hone-timestamp``, a dot and the body)."""
    webhook_attempts: int = Field(default=6, ge=1, le=20)
    """How often a POST is tried, each time after a longer wait."""
    webhook_timeout_seconds: float = Field(default=5.0, gt=0)
    """Longest time of one try."""
