"""A thin client of the admin API, for the CLI and the demo."""

import os
from pathlib import Path
from typing import Any

import httpx

from core.config.schema import HoneConfig
from core.errors import EngineUnavailable, RequestError
from hone.local_keys import read_local_keys


class AdminClient:
    """Calls ``/admin/v1``; errors come back as RequestError with the server's own words."""

    def __init__(self, *, gateway_url: str, api_key: str, timeout_seconds: float = 30.0) -> None:
        self._client = httpx.Client(
            base_url=f"{gateway_url}/admin/v1",
            headers={"authorization": f"Bearer {api_key}"},
            timeout=timeout_seconds,
            trust_env=False,
        )
        self._gateway_url = gateway_url

    def __enter__(self) -> "AdminClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str, **parameters: Any) -> Any:
        """GET a path below ``/admin/v1``; parameters that are None are left out."""
        given = {key: value for key, value in parameters.items() if value is not None}
        return self._send("GET", path, params=given)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """POST a JSON body to a path below ``/admin/v1``."""
        return self._send("POST", path, json=body or {})

    def put(self, path: str, body: dict[str, Any]) -> Any:
        """PUT a JSON body to a path below ``/admin/v1``."""
        return self._send("PUT", path, json=body)

    def patch(self, path: str, body: dict[str, Any]) -> Any:
        """PATCH a path below ``/admin/v1`` with a JSON body."""
        return self._send("PATCH", path, json=body)

    def delete(self, path: str, **parameters: Any) -> Any:
        """DELETE a path below ``/admin/v1``."""
        return self._send("DELETE", path, params=parameters)

    def download(self, path: str, target: Path) -> int:
        """GET a file below ``/admin/v1`` into ``target``, which only its owner can read; bytes written."""
        # Put together on the other side first: however long that takes.
        with self._client.stream("GET", path, timeout=None) as answer:
            if answer.is_error:
                answer.read()
                raise _explained(answer)
            file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(file, "wb") as opened:
                for piece in answer.iter_raw():
                    opened.write(piece)
                return opened.tell()

    def text(self, path: str, **parameters: Any) -> str:
        """GET a page below ``/admin/v1`` as it stands; parameters that are None are left out."""
        given = {key: value for key, value in parameters.items() if value is not None}
        return self._answer("GET", path, params=given).text

    def _send(self, method: str, path: str, **arguments: Any) -> Any:
        answer = self._answer(method, path, **arguments)
        return answer.json() if answer.content else None

    def _answer(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            answer = self._client.request(method, path, **arguments)
        except httpx.HTTPError as error:
            raise EngineUnavailable(
                f"the gateway at {self._gateway_url} does not answer: {error}",
                hint="start it with 'hone up', or set gateway.host and gateway.port",
            ) from error
        if answer.is_error:
            raise _explained(answer)
        return answer


def local_admin(config: HoneConfig) -> AdminClient:
    """The admin client of this machine's gateway with the local admin key."""
    return AdminClient(gateway_url=config.gateway_url, api_key=read_local_keys(config).admin)


def _explained(answer: httpx.Response) -> RequestError:
    try:
        body = answer.json()["error"]
        error = RequestError(str(body["message"]), param=body.get("param"))
        error.code = str(body.get("code"))
    except (ValueError, KeyError, TypeError):
        error = RequestError(f"HTTP {answer.status_code}: {answer.text[:200]}")
    error.status = answer.status_code
    return error
