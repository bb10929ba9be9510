"""The plaintext keys that ``hone up`` mints for this machine, in a file that only its owner can read."""

import hmac
import json
import os
import secrets
from pathlib import Path

import structlog
from pydantic import SecretStr, ValidationError

from core.config.schema import HoneConfig
from core.errors import ConfigurationError
from core.noun import Noun

log = structlog.get_logger(__name__)


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


def with_tools_key(config: HoneConfig) -> HoneConfig:
    """The configuration with its ``worker.tools_key`` found: what is set, else derived from the key for rollouts.

    Without any key it stays empty, and hosted tools say so.
    """
    if config.worker.tools_key.get_secret_value():
        return config
    try:
        root = worker_key(config)
    except ConfigurationError as error:
        log.warning("no_tools_key", error=error.message)
        return config
    derived = hmac.new(root.encode(), b"hone tool service", "sha256").hexdigest()
    return config.model_copy(update={"worker": config.worker.model_copy(update={"tools_key": SecretStr(derived)})})


def worker_key(config: HoneConfig) -> str:
    """The configured key for rollouts, else the local one."""
    return config.worker.api_key.get_secret_value() or read_local_keys(config).worker
