"""Keys of the sandbox and of the workers that use it."""

from typing import Literal

from pydantic import Field, SecretStr

from core.config.section import Section


class SandboxSection(Section):
    """Where untrusted code runs."""

    runtime: Literal["bubblewrap", "process"] = "bubblewrap"
    """``bubblewrap`` isolates; ``process`` is weaker and only used when chosen by name."""
    bwrap: str = "bwrap"
    """The bubblewrap program."""
    pool_size: int = Field(default=2, ge=0)
    """Warm single-use boxes kept ready."""
    first_uid: int = Field(default=61_000, ge=1_000)
    """First of the private unprivileged user ids; each live box has its own."""
    max_boxes: int = Field(default=16, ge=1)
    """Boxes alive at once."""
    wall_seconds: float = Field(default=10.0, gt=0)
    """Longest run of one command, unless the Task says less."""
    cpu_seconds: int = Field(default=10, ge=1)
    """CPU time of one command."""
    memory_mib: int = Field(default=256, ge=32)
    """Memory of one box."""
    max_processes: int = Field(default=64, ge=1)
    """Processes and threads in one box."""
    disk_mib: int = Field(default=32, ge=1)
    """Size of each writable folder of one box."""
    output_bytes: int = Field(default=65_536, ge=1_024)
    """Captured bytes of stdout and of stderr; the rest is cut and said so."""


class WorkerSection(Section):
    """Rollouts, verifiers and evaluations."""

    gateway_url: str = ""
    """Where the policy is called; empty: the gateway of this configuration."""
    api_key: SecretStr = SecretStr("")
    """Key for the gateway; empty: the local key that ``hone up`` minted under ``data_dir``."""
    concurrency: int = Field(default=64, ge=1)
    """Episodes that one worker runs at once."""
    lease_seconds: float = Field(default=30.0, gt=0)
    """A killed worker's jobs are taken over after this time."""
    metrics_port: int = Field(default=8432, ge=0, le=65535)
    """Prometheus port of the worker process; 0: none."""
    tools_host: str = "127.0.0.1"
    """Address on which the tool service listens: sandbox sessions for the gateway's hosted tools."""
    tools_port: int = Field(default=8434, ge=0, le=65535)
    """Port of the tool service; 0: none."""
    tools_url: str = ""
    """Address under which gateways reach this very worker's tool service; empty: host and port above."""
    tools_key: SecretStr = SecretStr("")
    """Key between gateways and tool services; empty: derived from ``worker.api_key`` or the local key."""
    tools_sessions: int = Field(default=16, ge=1)
    """Sandbox sessions with a live box, beside the boxes of rollouts."""
    tools_sessions_per_tenant: int = Field(default=8, ge=1)
    """Of one tenant."""
    tools_idle_seconds: float = Field(default=600.0, gt=0)
    """A sandbox session, with its files and variables, is removed after so long without a call."""
