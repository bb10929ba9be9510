"""Chooses the Runtime that the configuration names."""

from prometheus_client import CollectorRegistry

from core.config.sandbox import SandboxSection
from sandbox.runtimes.base import Runtime
from sandbox.runtimes.bubblewrap import BubblewrapLauncher
from sandbox.runtimes.launch import Launcher
from sandbox.runtimes.local import LocalRuntime
from sandbox.runtimes.process import ProcessLauncher


def make_runtime(section: SandboxSection, *, registry: CollectorRegistry | None = None) -> Runtime:
    """The runtime of the configuration's ``sandbox`` section, not yet started."""
    launcher: Launcher = (
        ProcessLauncher() if section.runtime == "process" else BubblewrapLauncher(bwrap=section.bwrap)
    )
    return LocalRuntime(section=section, launcher=launcher, registry=registry)
