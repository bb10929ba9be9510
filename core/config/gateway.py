"""Keys of the gateway: the public API, routing, limits, and what is recorded."""

from typing import Literal

from pydantic import Field

from core.config.section import Section


class ModelPrice(Section):
    """What a model costs, in US dollars per million tokens."""

    prompt: float = Field(default=0.0, ge=0)
    """Tokens of the prompt."""
    completion: float = Field(default=0.0, ge=0)
    """Tokens of the answer."""


class AutoSection(Section):
    """When NAME-auto is answered by the fast Variant; in every other case the standard one answers."""

    latency: Literal["interactive", "batch"] = "interactive"
    """What a request wants that does not say ``x-hone-latency``: ``batch`` is always answered by standard."""
    busy_requests: int = Field(default=8, ge=1)
    """Requests on a fast replica from which speculation gains nothing; standard is taken if it has no more."""
    accepted_per_draft: float = Field(default=0.5, ge=0)
    """Fewer accepted draft tokens per draft than this, lately, cost more than they save."""
    short_answer_tokens: int = Field(default=8, ge=0)
    """Answers whose limit is at most this gain nothing."""
    prompt_ratio: float = Field(default=100.0, gt=0)
    """A prompt this many times longer than the answer's limit takes most of the time, which fast does not shorten."""
    many_choices: int = Field(default=4, ge=2)
    """With so many answers to one prompt a request is a batch of its own."""
    high_temperature: float = Field(default=1.3, gt=0)
    """From here on drafts are seldom accepted, except in tool calls and answers of a given format."""


class GatewaySection(Section):
    """The public API and the admin API."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8400, ge=1, le=65535)
    """Port to listen on."""
    workers: int = Field(default=1, ge=1, le=256)
    """Gateway processes that share the port, at most one per core; the system spreads connections over them."""
    request_timeout_seconds: float = Field(default=600.0, gt=0)
    """Longest time that an engine may take for one answer."""
    request_read_seconds: float = Field(default=60.0, gt=0)
    """Longest time that a client may take to send a request; also for the first byte on a new connection."""
    recorder: Literal["process", "inline", "external"] = "process"
    """Who moves Turns from the journal into the store: a child process of the gateway, the gateway process itself, or
    a ``hone recorder`` that somebody else runs on this machine."""
    recorder_flush_seconds: float = Field(default=0.05, gt=0)
    """How often the recorder looks for new Turns."""
    journal_dir: str = ""
    """Folder of the journals, best on a local disk; empty: ``journal`` under ``data_dir``."""
    journal_max_mib: int = Field(default=1024, ge=1)
    """Undrained journal of one gateway process while the store is away; Turns beyond it are counted as lost."""
    journal_sync: Literal["os", "disk"] = "os"
    """``os``: Turns survive the end of the process; ``disk``: also a power failure, but for the last interval."""
    journal_sync_seconds: float = Field(default=0.1, gt=0)
    """How often the journal is forced to the disk, for ``disk``."""
    routing_refresh_seconds: float = Field(default=0.2, gt=0)
    """How often the routing table is read again when no event announces a change."""
    swap_wait_seconds: float = Field(default=120.0, ge=0)
    """Longest time that a request waits while the only replica that could answer it has its weights replaced."""
    sticky_episodes: bool = True
    """Requests of one Episode stay on the replica that has its conversation in the prefix cache."""
    sticky_bound: int = Field(default=4, ge=0)
    """Requests by which that replica may be busier than the least loaded one before the latter is taken."""
    auto: AutoSection = AutoSection()
    """The rule behind NAME-auto."""
    usage_flush_seconds: float = Field(default=5.0, gt=0)
    """How often what keys used is added to the store; a killed gateway loses at most this much of it."""
    token_exact: Literal["off", "episodes", "all"] = "episodes"  # noqa: S105 - no secret
    """Where earlier answers go back to the model as the ids that were sampled: nowhere, in the Episodes of this
    side's own workers, or in every conversation whose content is kept."""
    token_exact_cache_tokens: int = Field(default=4_000_000, ge=1_000)
    """Token ids of answers that one gateway process remembers, four bytes each; others are read from the store."""
    prices: dict[str, ModelPrice] = Field(default_factory=dict)
    """Model → US dollars per million tokens of ``prompt`` and ``completion``, for budgets in dollars."""
    retries: int = Field(default=2, ge=0, le=10)
    """Further attempts on the same model while nothing of an answer has been sent."""
    fallbacks: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Model → models, own or outside, that are asked in this order when it cannot answer."""
    tools_url: str = ""
    """Tool services for ``code_interpreter`` and ``shell``, comma-separated; empty: this machine's worker."""
    mcp_allowed_hosts: tuple[str, ...] = ()
    """MCP servers that requests may name (``host`` or ``host:port``); ``*``: any public one; empty: no MCP."""
    mcp_timeout_seconds: float = Field(default=60.0, gt=0)
    """Longest time that an MCP server may take to list its tools, or for one call."""
    hosted_tool_calls: int = Field(default=16, ge=0)
    """Most calls of hosted tools in one response, where the request does not say ``max_tool_calls``."""
    hosted_tool_seconds: float = Field(default=600.0, gt=0)
    """Longest time in one response until no further hosted tool runs; the model then answers without."""


class ContextBudget(Section):
    """How long a tool loop of one Policy may grow, and what goes when it does."""

    tokens: int = Field(ge=64)
    """Once the next prompt would be longer, older tool results are taken out."""
    keep_results: int = Field(default=2, ge=0)
    """The newest tool results that stay as they are."""
    least_characters: int = Field(default=200, ge=0)
    """Shorter results stay too: they would gain nothing."""
    excerpt_characters: int = Field(default=0, ge=0)
    """What stays of each older result, half of it from its beginning and half from its end; 0: only a line that says
    that it was there."""


class ContextSection(Section):
    """Context budgets of tool loops that run on this side: hosted tools of the Responses API, and rollouts."""

    budgets: dict[str, ContextBudget] = Field(default_factory=dict)
    """Policy or Base → its budget, ``*`` for all others; where there is none nothing is ever taken out."""

    def budget_of(self, name: str) -> ContextBudget | None:
        """The budget of a Policy or Base."""
        return self.budgets.get(name) or self.budgets.get("*")
