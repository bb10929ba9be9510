"""Plain data as TOML text, for showing a configuration in the form in which it is written."""

import json
from collections.abc import Mapping
from typing import Any


def to_toml(values: Mapping[str, Any], prefix: str = "") -> str:
    """Render nested plain data (strings, numbers, booleans, lists, dicts) as TOML."""
    lines = [f"{key} = {_value(value)}" for key, value in values.items() if not _is_table(value)]
    text = "\n".join(lines) + ("\n" if lines else "")
    for key, value in values.items():
        if _is_table(value):
            text += f"\n[{prefix}{key}]\n{to_toml(value, f'{prefix}{key}.')}"
    return text


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _value(value: Any) -> str:
    # JSON strings, numbers, booleans and flat lists are valid TOML as they stand.
    return json.dumps("" if value is None else value, ensure_ascii=False)
