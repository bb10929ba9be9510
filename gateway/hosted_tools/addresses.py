"""Which servers a request may name, and which addresses they may resolve to: the guard against request forgery."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from core.errors import InvalidRequest, PermissionDenied

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_ANY = "*"
_KEY = "gateway.mcp_allowed_hosts"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_LONGEST_URL = 2_048
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?\.?")


@dataclass(frozen=True, slots=True)
class Server:
    """A server that may be called."""

    url: str
    scheme: str
    host: str
    port: int
    listed: bool
    """The operator named it: it may have a private address. Otherwise only public ones are called."""


def allowed_server(url: object, allowed: Sequence[str], *, param: str) -> Server:
    """The server of a request's URL. Raises InvalidRequest, and PermissionDenied where it is not allowed."""
    scheme, host, port = _parts(url, param)
    if not allowed:
        raise InvalidRequest(
            "MCP servers are switched off here", hint=f"the operator can allow hosts in {_KEY}", param=param
        )
    listed = any(_is(entry, host, port) for entry in allowed)
    if not listed and _ANY not in allowed:
        raise PermissionDenied(f"the MCP server '{host}:{port}' is not allowed; see {_KEY}", param=param)
    if not listed and scheme != "https":
        raise PermissionDenied("an MCP server must be called by https unless the operator lists it", param=param)
    return Server(url=str(url), scheme=scheme, host=host, port=port, listed=listed)


def is_public(address: Address) -> bool:
    """Whether an address is one of the public internet, also where an IPv4 address hides in an IPv6 one."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.sixtofour is not None or address.teredo is not None or address.scope_id is not None:
            return False
        hidden = address.ipv4_mapped
        if hidden is None and address in _NAT64:
            hidden = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if hidden is not None:
            return is_public(hidden)
    special = (address.is_private, address.is_multicast, address.is_reserved, address.is_unspecified)
    return address.is_global and not any(special)


def _parts(url: object, param: str) -> tuple[str, str, int]:
    if not isinstance(url, str) or not 0 < len(url) <= _LONGEST_URL or not url.isascii() or not url.isprintable():
        raise InvalidRequest("'server_url' must be a URL in plain ASCII", param=param)
    try:
        split = urlsplit(url)
        host, port = split.hostname or "", split.port
    except ValueError as error:
        raise InvalidRequest(f"'server_url' is no URL: {error}", param=param) from error
    if split.scheme not in _DEFAULT_PORTS or not host or " " in url or "\\" in url:
        raise InvalidRequest("'server_url' must be an http or https URL", param=param)
    if split.username is not None or split.password is not None:
        raise InvalidRequest("'server_url' must hold no credentials", hint="use 'authorization'", param=param)
    if ":" not in host and not _NAME.fullmatch(host):
        raise InvalidRequest("'server_url' names no host", param=param)
    return split.scheme, host.rstrip("."), port or _DEFAULT_PORTS[split.scheme]


def _is(entry: str, host: str, port: int) -> bool:
    entry = entry.strip().lower()
    name = f"[{host}]" if ":" in host else host
    return entry in (host, name, f"{name}:{port}")
