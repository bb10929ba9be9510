"""The guard of callers' servers, sealed container ids and the names of MCP tools, without any network."""

import ipaddress
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidRequest, NotFound, RequestError
from gateway.hosted_tools.addresses import allowed_server, is_public
from gateway.hosted_tools.containers import Container, seal, unseal
from gateway.hosted_tools.mcp_client import function_name, read_declaration
from gateway.hosted_tools.sandbox_client import media_type

PRIVATE = """
127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 240.0.0.1
:: ::1 fe80::1 fc00::1 ff02::1 ::ffff:127.0.0.1 64:ff9b::a00:1 2002:a00:1::
""".split()  # noqa: SIM905 - a list would take twenty lines


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_not_public(address):
    """Loopback, private, link-local, shared, multicast, reserved and hidden IPv4 addresses are never public."""
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34"])
def test_public_addresses_are_public(address):
    """Addresses of the internet are."""
    assert is_public(ipaddress.ip_address(address))


@given(st.integers(0, 2**32 - 1))
def test_an_ipv4_address_means_the_same_inside_ipv6(number):
    """Mapping an address into IPv6 never makes it public."""
    plain = ipaddress.IPv4Address(number)
    mapped = ipaddress.IPv6Address(f"::ffff:{plain}")
    assert is_public(mapped) == is_public(plain)


@pytest.mark.parametrize(
    "url",
    [
        *(
            None,
            5,
            "",
            "ftp://a.example/",
            "file:///etc/passwd",
            "a.example/mcp",
            "https://",
            "https://u:p@a.example/",
        ),
        *(
            "https://a.example\\@evil.example/",
            "https://a.example:99999/",
            "https://a b/",
            "https://a.example/\n",
            "//a",
        ),
        *("https://é.example/", "stdio:python", "https://[::1/"),
    ],
)
def test_what_is_no_plain_http_url_is_refused(url):
    """Other schemes, credentials, confusing characters and non-texts are refused even where any host is allowed."""
    with pytest.raises(InvalidRequest):
        allowed_server(url, ["*"], param="p")


@pytest.mark.parametrize(
    ("url", "allowed", "listed"),
    [
        ("https://a.example/mcp", ["a.example"], True),
        ("https://A.Example:8443/mcp", ["a.example:8443"], True),
        ("http://10.0.0.5:8000/mcp", ["10.0.0.5:8000"], True),
        ("http://[::1]:8000/mcp", ["[::1]:8000"], True),
        ("https://b.example/mcp", ["a.example", "*"], False),
    ],
)
def test_allowed_servers(url, allowed, listed):
    """A host is allowed by name, by name and port, or by ``*``, which does not list it."""
    assert allowed_server(url, allowed, param="p").listed is listed


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://a.example/mcp", []),
        ("https://a.example/mcp", ["b.example"]),
        ("https://a.example:444/mcp", ["a.example:443"]),
        ("https://xa.example/mcp", ["a.example"]),
        ("http://a.example/mcp", ["*"]),
    ],
)
def test_other_servers_are_refused(url, allowed):
    """Other hosts and ports, and plain http to a host that is not listed, are refused."""
    with pytest.raises(RequestError):
        allowed_server(url, allowed, param="p")


@given(st.text(max_size=200), st.text(max_size=40))
def test_only_sealed_ids_are_followed(text, tenant):
    """No text that was not sealed for this tenant opens a container."""
    with pytest.raises(NotFound):
        unseal(text, tenant=tenant, key="k")


@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40), st.text(max_size=40))
def test_an_id_belongs_to_one_tenant_and_installation(session_id, tenant, other):
    """An id opens again for its tenant, and for nobody else and no other key."""
    container = Container(session_id, "http://worker:8434")
    sealed = seal(container, tenant=tenant, key="k")
    assert re.fullmatch(r"cntr_[A-Za-z0-9_-]+", sealed)
    assert unseal(sealed, tenant=tenant, key="k") == container
    for who, key in ((other, "k"), (tenant, "other")):
        if (who, key) != (tenant, "k"):
            with pytest.raises(NotFound):
                unseal(sealed, tenant=who, key=key)


@given(st.lists(st.tuples(st.text(max_size=80), st.text(max_size=80)), max_size=20))
def test_function_names_are_callable_and_unique(tools):
    """Whatever servers call their tools, models get names of 1 to 64 plain characters, all different."""
    taken: set[str] = set()
    names = [function_name(label, tool, taken) for label, tool in tools]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)


@pytest.mark.parametrize(
    "change",
    [
        *({"server_label": ""}, {"server_label": "9"}, {"server_label": None}, {"connector_id": "c"}),
        *({"server_url": None}, {"allowed_tools": "add"}, {"allowed_tools": {"read_only": "yes"}}, {"headers": "x"}),
        *(
            {"headers": {"Host": "x"}},
            {"headers": {"a b": "x"}},
            {"headers": {"a": "x\r\nb: c"}},
            {"headers": {"a": 1}},
        ),
        *({"authorization": "a\nb"}, {"authorization": "t", "headers": {"Authorization": "t"}}),
    ],
)
def test_malformed_declarations_are_refused(change):
    """Labels, filters and headers that cannot be sent are errors that name what is wrong."""
    declaration = {"type": "mcp", "server_label": "a", "server_url": "https://a.example/mcp"} | change
    with pytest.raises(InvalidRequest) as caught:
        read_declaration(declaration, ["a.example"], "tools[0]")
    assert (caught.value.param or "").startswith("tools[0].")


def test_headers_are_not_shown():
    """A declaration does not show its secrets when it is printed."""
    declaration = {"server_label": "a", "server_url": "https://a.example/mcp", "authorization": "hush"}
    read = read_declaration(declaration, ["a.example"], "tools[0]")
    assert read.headers == {"authorization": "Bearer hush"}
    assert "hush" not in repr(read)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.PNG", "image/png"),
        ("a.svg", "text/plain"),
        ("a.html", "text/plain"),
        ("a.json", "application/json"),
        ("a", "application/octet-stream"),
    ],
)
def test_media_types(name, kind):
    """Only pixel images are images; what could carry scripts is plain text."""
    assert media_type(name) == kind
