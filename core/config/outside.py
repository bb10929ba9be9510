"""Keys of other providers' models."""

from pydantic import Field, SecretStr

from core.config.section import Section


class OutsideProvider(Section):
    """One provider of outside models, as LiteLLM reaches it."""

    api_key: SecretStr = SecretStr("")
    """This installation's key; empty: the provider's own variable, such as ``OPENAI_API_KEY``."""
    base_url: str = ""
    """Where the provider answers; empty: where LiteLLM knows it."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Further headers of every request."""
    timeout_seconds: float = Field(default=600.0, gt=0)
    """Longest silence of the provider."""


class OutsideSection(Section):
    """Models of other providers, through the LiteLLM library."""

    providers: dict[str, OutsideProvider] = Field(default_factory=dict)
    """LiteLLM's prefix of a model name, such as ``openai`` or ``anthropic`` → that provider; others are refused."""
    preload: bool = True
    """Import LiteLLM (several seconds) when a gateway with providers starts, not at the first request for one."""
