"""Writes ``docs/configuration.md`` from the schema, so that every key is documented by construction."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from core.config.schema import HoneConfig
from core.config.section import Section

_HEAD = """# Configuration

One file, `hone.toml` in the working folder (or the one that `HONE_CONFIG` names), plus environment variables
that win over it: `HONE_GATEWAY__PORT=9000` sets `gateway.port`. Unknown keys and combinations that cannot work
are refused at start, by name. `hone config show` prints the resolved configuration with secrets masked.

This page is written by `make docs` from `core/config/schema.py`.
"""


def configuration_reference() -> str:
    """The whole page as Markdown."""
    lines = [_HEAD]
    plain = [row for row in _rows(HoneConfig) if row is not None]
    lines += ["## Top level", "", *_table(plain)]
    for name, field in HoneConfig.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, Section):
            lines += [f"## `[{name}]`", "", field.description or "", "", *_table(_rows(section))]
            for inner_name, inner in section.model_fields.items():
                nested, place = inner.annotation, f"{name}.{inner_name}"
                if get_origin(nested) is dict:
                    nested, place = get_args(nested)[1], f"{place}.NAME"
                if isinstance(nested, type) and issubclass(nested, Section):
                    lines += [f"### `[{place}]`", "", inner.description or "", ""]
                    lines += _table(_rows(nested))
    return "\n".join(lines).rstrip() + "\n"


def _rows(section: type[Section]) -> Iterator[tuple[str, str, str]]:
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            continue
        yield f"`{name}`", _default(field), " ".join((field.description or "").split())


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    value: Any = field.get_default(call_default_factory=True)
    return "unset" if value is None else f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    if hasattr(value, "get_secret_value"):
        return '""'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    if isinstance(value, dict):
        return "{}"
    return f'"{value}"'


def _table(rows: Any) -> list[str]:
    body = [f"| {key} | {default} | {text} |" for key, default, text in rows]
    return ["| key | default | meaning |", "|---|---|---|", *body, ""]
