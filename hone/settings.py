"""The resolved configuration of this installation: what ``core.config.load`` says, with the engine found."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.config.load import load_config
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
