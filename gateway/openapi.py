"""The OpenAPI document as the gateway behaves: what FastAPI writes by default and never happens here is put right."""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI

from gateway.dependencies import errors
from gateway.openai_api.documents import ErrorBody

_Json = dict[str, Any]
_METHODS = frozenset({"get", "put", "post", "delete", "patch"})
_ERROR_SCHEMA = {"$ref": f"#/components/schemas/{ErrorBody.__name__}"}
_UNUSED = ("HTTPValidationError", "ValidationError")


class DocumentedApp(FastAPI):
    """FastAPI whose document says that malformed requests get 400, and which routes take how long a body and wait."""

    def openapi(self) -> _Json:
        """The OpenAPI document; made once."""
        if self.openapi_schema is None:
            document = super().openapi()
            for operation in operations(document):
                _correct(operation)
            for name in _UNUSED:
                document.get("components", {}).get("schemas", {}).pop(name, None)
        return super().openapi()


def operations(document: _Json) -> Iterator[_Json]:
    """Every operation of a document."""
    for methods in document["paths"].values():
        for method, operation in methods.items():
            if method in _METHODS:
                yield operation


def _correct(operation: _Json) -> None:
    responses: _Json = operation["responses"]
    if responses.pop("422", None) is not None:
        _add(operation, 400)
    if "requestBody" in operation:
        _add(operation, 413)
    if "502" in responses:
        _add(operation, 504)


def _add(operation: _Json, status: int) -> None:
    """An error like the operation's others: each API has its own error body."""
    responses = operation["responses"]
    if str(status) in responses:
        return
    like = responses.get("401", {}).get("content") or {"application/json": {"schema": _ERROR_SCHEMA}}
    responses[str(status)] = {"description": errors(status)[status]["description"], "content": like}
