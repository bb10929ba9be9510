"""Usage: what an ApiKey used in a calendar month, and the months themselves."""

from datetime import UTC, datetime

from pydantic import Field

from core.noun import Noun


class Usage(Noun):
    """What one key of a Tenant used in one calendar month (UTC)."""

    tenant_id: str
    key_id: str
    month: str
    """Such as ``2026-11``."""
    requests: int = Field(default=0, ge=0)
    """Requests that got an answer."""
    prompt_tokens: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)
    cost_microdollars: int = Field(default=0, ge=0)
    """Millionths of a US dollar, by the configured prices at the time of use."""

    @property
    def tokens(self) -> int:
        """Prompt and answer together."""
        return self.prompt_tokens + self.completion_tokens


def month_of(seconds: float) -> str:
    """The month, in UTC, of Unix seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m")


def month_end(seconds: float) -> float:
    """Unix seconds at which the month, in UTC, of ``seconds`` ends."""
    moment = datetime.fromtimestamp(seconds, UTC)
    year, month = (moment.year + 1, 1) if moment.month == 12 else (moment.year, moment.month + 1)
    return datetime(year, month, 1, tzinfo=UTC).timestamp()
