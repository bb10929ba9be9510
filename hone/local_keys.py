"""The plaintext keys that ``hone up`` mints for this machine, in a file that only its owner can read."""

import json
import os
import secrets
from pathlib import Path

from pydantic import ValidationError

from core.config.schema import HoneConfig
from core.errors import ConfigurationError
from core.noun import Noun


class LocalKeys(Noun):
    """One key per role; the store holds only their hashes."""

    admin: str
    """All scopes: for the operator's CLI."""
    worker: str
    """Inference with training granted: for rollouts."""


def keys_path(config: HoneConfig) -> Path:
    """Where the local keys are kept."""
    return config.data_dir.expanduser() / "keys.json"


def read_local_keys(config: HoneConfig) -> LocalKeys:
    """The keys of this machine; raises ConfigurationError when there are none yet, or their file is damaged."""
    path = keys_path(config)
    if not path.exists():
        raise ConfigurationError(
            f"there are no local keys under {config.data_dir}", hint="start Hone once with 'hone up'"
        )
    try:
        return LocalKeys.model_validate_json(path.read_bytes())
    except (ValidationError, OSError) as error:
        # The validator's own words would quote the file, keys included.
        why = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise ConfigurationError(
            f"the local keys in {path} cannot be read: {why}",
            hint="delete the file and mint new keys with 'hone prepare'",
        ) from None


def write_local_keys(config: HoneConfig, keys: LocalKeys) -> None:
    """Write the keys with mode 0600 in one step: never readable by others, never half written."""
    path = keys_path(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(keys.model_dump(), file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def worker_key(config: HoneConfig) -> str:
    """The configured key for rollouts, else the local one."""
    return config.worker.api_key.get_secret_value() or read_local_keys(config).worker
