"""Configuration of the release controller."""

from pydantic import Field

from core.config.section import Section


class ReleaseSection(Section):
    """Who takes candidates to traffic."""

    lease_seconds: float = Field(default=10.0, gt=0)
    """One release process leads; a killed leader is followed by a waiting one after this time."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Prometheus port of the release process; 0: none."""
