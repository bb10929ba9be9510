"""The resolved configuration of this installation: what ``core.config.load`` says, with the engine found."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.config.load import environment_for_child, load_config
from core.config.schema import HoneConfig

ENGINE_ENVIRONMENT = ".venv-engine"


def load_settings(path: Path | None = None, *, overrides: Mapping[str, Any] | None = None) -> HoneConfig:
    """Load the configuration; an empty ``engine.python`` becomes the engine environment beside this one.

    ``make install`` puts vLLM into ``.venv-engine`` beside ``.venv``, because their pins differ.
    """
    config = load_config(path, overrides=overrides)
    if config.engine.python:
        return config
    beside = Path(sys.prefix).parent / ENGINE_ENVIRONMENT / "bin" / "python"
    python = str(beside) if beside.exists() else sys.executable
    return config.model_copy(update={"engine": config.engine.model_copy(update={"python": python})})


def child_environment(config: HoneConfig) -> dict[str, str]:
    """The environment of a child process: this configuration, and threads that sleep while they wait.

    Engine and learner share the processors of a small machine; OpenMP threads that spin at a barrier would take
    from the other what they do not use themselves.
    """
    return environment_for_child(config, {"OMP_WAIT_POLICY": "PASSIVE"})
