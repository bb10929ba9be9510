"""Reading a Messages request: values of the wanted kind, or an InvalidRequest that names the place."""

from collections.abc import Sequence
from typing import Any

from core.errors import InvalidRequest

Json = dict[str, Any]


def text_of(value: Any, place: str) -> str:
    """``value`` if it is text."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{place}: must be a string", param=place)
    return value


def name_of(value: Any, place: str) -> str:
    """``value`` if it is text with at least one character."""
    if not text_of(value, place):
        raise InvalidRequest(f"{place}: must not be empty", param=place)
    return str(value)


def object_of(value: Any, place: str) -> Json:
    """``value`` if it is a JSON object."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{place}: must be an object", param=place)
    return value


def list_of(value: Any, place: str) -> list[Any]:
    """``value`` if it is a JSON array."""
    if not isinstance(value, list):
        raise InvalidRequest(f"{place}: must be an array", param=place)
    return value


def flag_of(value: Any, place: str) -> bool:
    """``value`` if it is true or false; false for null."""
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(f"{place}: must be true or false", param=place)
    return bool(value)


def count_of(value: Any, place: str) -> int:
    """``value`` if it is an integer of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"{place}: must be an integer", param=place)
    if value < 1:
        raise InvalidRequest(f"{place}: must be at least 1, not {value}", param=place)
    return value


def required(body: Json, name: str, place: str = "") -> Any:
    """The value of a field that must be there."""
    where = f"{place}.{name}" if place else name
    if body.get(name) is None:
        raise InvalidRequest(f"{where}: Field required", param=where)
    return body[name]


def one_of(value: Any, allowed: Sequence[str], place: str) -> str:
    """``value`` if it is one of these words."""
    if value not in allowed:
        raise InvalidRequest(f"{place}: must be one of {', '.join(allowed)}", param=place)
    return str(value)
