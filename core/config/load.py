"""Reads ``hone.toml`` and ``HONE_…`` variables into a HoneConfig: the only reader of the environment.

``HONE_GATEWAY__PORT=9000`` sets ``gateway.port``; ``HONE_CONFIG`` names another file. A variable wins over the
file. Values are read as TOML where they parse as such (numbers, booleans, lists) and as text otherwise.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from core.config.schema import HoneConfig
from core.errors import ConfigurationError

PREFIX = "HONE_"
FILE_VARIABLE = "HONE_CONFIG"
DEFAULT_FILE = Path("hone.toml")
NOT_KEYS = frozenset(
    {
        "HONE_PYTHON",
        "HONE_TEST_POSTGRES_URL",
        "HONE_TEST_REDIS_URL",
        "HONE_POSTGRES_PASSWORD",
        "HONE_IMAGE_TARGET",
    }
)
"""Variables of the installer, the tests and the compose file: they share the prefix, and any other is a key."""

_WHOLE = frozenset({"fleet.attach", "gateway.fallbacks", "outside.providers"})
"""Tables whose keys are the user's own: one variable holds all of such a table."""
_URL_PASSWORD = re.compile(r"(://[^\s/@:]*:)\S+(@)")
_QUERY_PASSWORD = re.compile(r"([?&]password=)[^&\s]+", re.IGNORECASE)
_MASK = "**********"


def load_config(
    path: Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> HoneConfig:
    """The resolved configuration: defaults, then the file, then variables, then ``overrides``.

    ``overrides`` maps dotted keys to values. Raises ConfigurationError that names the key at fault.
    """
    variables = os.environ if environment is None else environment
    values = _read_file(path, variables)
    for dotted, text in _variables(variables).items():
        _put(values, dotted, _parse(text))
    for dotted, value in (overrides or {}).items():
        _put(values, dotted, value)
    try:
        return HoneConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(_explain(error), hint="see docs/configuration.md") from error


def masked(config: HoneConfig) -> dict[str, Any]:
    """The configuration as plain data with every secret, and every password inside a URL, masked, for printing."""
    dumped: dict[str, Any] = _without_passwords(config.model_dump(mode="json"))
    return dumped


def environment_for_child(config: HoneConfig, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child process that shall resolve the same configuration.

    Every key is handed over as a variable, so that the child needs no file; secrets travel with it.
    """
    child = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
    child[FILE_VARIABLE] = os.devnull
    for dotted, value in _flatten(config.model_dump(mode="python")).items():
        child[PREFIX + dotted.replace(".", "__").upper()] = value
    child.update(extra or {})
    return child


def launcher_variables() -> dict[str, int]:
    """RANK, WORLD_SIZE and LOCAL_RANK as ``torchrun`` or ``deepspeed`` set them; empty without a launcher."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    return {name: int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()}


def announce_local_rank(local_rank: int) -> None:
    """Set LOCAL_RANK for this process: DeepSpeed takes it from the environment and from nowhere else."""
    os.environ["LOCAL_RANK"] = str(local_rank)


def keep_litellm_offline() -> None:
    """Set what LiteLLM reads when it is imported: its own price list, no downloads, and no ``.env`` file.

    It takes these from the environment and from nowhere else.
    """
    os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_OFFLINE_MODE="true", LITELLM_MODE="PRODUCTION")


def _read_file(path: Path | None, variables: Mapping[str, str]) -> dict[str, Any]:
    named = path or (Path(variables[FILE_VARIABLE]) if FILE_VARIABLE in variables else None)
    chosen = named or DEFAULT_FILE
    if not chosen.exists():
        if named is not None:
            raise ConfigurationError(f"configuration file {chosen} does not exist")
        return {}
    try:
        return tomllib.loads(chosen.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{chosen} is not valid TOML: {error}") from error


def _without_passwords(value: Any) -> Any:
    if isinstance(value, str):
        return _QUERY_PASSWORD.sub(rf"\g<1>{_MASK}", _URL_PASSWORD.sub(rf"\g<1>{_MASK}\g<2>", value))
    if isinstance(value, dict):
        return {key: _without_passwords(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_passwords(item) for item in value]
    return value


def _variables(variables: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for key, value in variables.items():
        if key.startswith(PREFIX) and key != FILE_VARIABLE and key not in NOT_KEYS:
            found[key.removeprefix(PREFIX).replace("__", ".").lower()] = value
    return found


def _put(values: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, leaf = dotted.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise ConfigurationError(f"'{parent}' in '{dotted}' is a value, not a section")
    values[leaf] = value


def _parse(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat = {}
    for key, value in values.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, dict) and dotted not in _WHOLE:
            flat.update(_flatten(value, f"{dotted}."))
        elif value is not None:
            # TOML has no word for nothing: a key that is left out has it as its default.
            flat[dotted] = _render(value)
    return flat


def _render(value: Any) -> str:
    if isinstance(value, SecretStr):
        return _quote(value.get_secret_value())
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(_render(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_quote(key)} = {_render(item)}' for key, item in value.items())}}}"
    return _quote(str(value))


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _explain(error: ValidationError) -> str:
    problems = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"])
        message = "unknown key" if item["type"] == "extra_forbidden" else item["msg"].removeprefix("Value error, ")
        problems.append(f"{key}: {message}" if key else message)
    return "; ".join(problems)
