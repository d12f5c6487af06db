"""Which addresses a URL may lead to: the public ones, and this machine where the URL itself says so.

A URL may come from a list somebody else wrote, and a redirect always does: neither may be a way to the
services of the network around this machine (metadata, consoles). Names are looked up here, every
address is judged, and the connection goes to the address that was judged: what a name means a moment
later does not matter. Hosts named in NO_PROXY are one's own and may be private; link-local never.
"""

import contextlib
import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies, proxy_bypass

if TYPE_CHECKING:
    from urllib3 import PoolManager

Resolve = Callable[[str, int], list[str]]
"""(host, port) → its addresses."""
_LAST_FOUR = tuple(map(IPv6Network, ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")))
"""An IPv4 address at the end of an IPv6 one: NAT64, and the oldest ways."""
_LAST_SPECIAL = 1
"""`::` and `::1` are what they are."""
_6TO4 = IPv6Network("2002::/16")
_INSIDE = (IPv6Network("64:ff9b:1::/48"), IPv6Network("fec0::/10"), IPv6Network("2001::/32"))
"""NAT64 of a network's own, site-local, Teredo: not every Python calls them private."""


class RefusedAddressError(Exception):
    """A host has an address that is not connected to; no OSError, which would be tried again."""

    def __init__(self, host: str, address: str) -> None:
        super().__init__(f"{host} is {address}" if host != address else host)


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host, in the system's order.

    Raises:
        OSError: it has none.
    """
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def may_connect(address: str, host: str, typed_host: str) -> bool:
    """Say whether `host`, found to be `address`, may be connected to for a URL that named `typed_host`."""
    there = _plain(address)
    if there.is_link_local or there.is_multicast or there.is_unspecified:
        return False
    if there.is_global and not any(there in network for network in _INSIDE):
        return True
    if there.is_loopback and host.lower() == typed_host.lower() and names_loopback(host):
        return True
    return bool(getproxies().get("no")) and bool(proxy_bypass(host))


def _plain(address: str) -> IPv4Address | IPv6Address:
    """Return an address, or the IPv4 one that it stands for."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv4Address):
        return found
    if found.ipv4_mapped is not None:
        return found.ipv4_mapped
    if any(found in network for network in _LAST_FOUR) and int(found) > _LAST_SPECIAL:
        return IPv4Address(int(found) & 0xFFFFFFFF)
    if found in _6TO4:
        return IPv4Address(int(found) >> 80 & 0xFFFFFFFF)
    return found


def names_loopback(host: str) -> bool:
    """Tell whether a URL's host says that it is this machine."""
    name = host.strip("[]").lower().rstrip(".")
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def literal(host: str) -> str | None:
    """Return the address that a host is, in any form that connects: `2130706433`, `0x7f.1`; None: a name."""
    text = host.strip("[]").rstrip(".")
    with contextlib.suppress(ValueError):
        return str(ip_address(text.partition("%")[0]))
    with contextlib.suppress(OSError, ValueError):  # ValueError: a NUL in it
        return str(ip_address(socket.inet_aton(text)))
    return None


def refuse_literal(host: str, typed_host: str) -> None:
    """Refuse an address that stands in a URL itself, whoever connects to it.

    Raises:
        RefusedAddressError: it is one that a URL which named `typed_host` may not lead to.
    """
    address = literal(host)
    named = address or ("127.0.0.1" if names_loopback(host) else None)
    if named is not None and not may_connect(named, host, typed_host):
        raise RefusedAddressError(host, named)


def guard_proxied(pool: "PoolManager", typed_host: str) -> "PoolManager":
    """Make a pool that asks a proxy refuse such addresses, those in redirects too.

    What a name means, the proxy looks up, and where it may connect to is for who runs it.
    """
    from urllib3.util import parse_url

    ask = pool.urlopen

    def urlopen(method: str, url: str, *args: Any, **options: Any) -> Any:
        refuse_literal(parse_url(url).host or "", typed_host)
        return ask(method, url, *args, **options)

    pool.urlopen = urlopen  # type: ignore[method-assign] # redirects are asked for through it too
    return pool


def guard(pool: "PoolManager", typed_host: str, find: Resolve = resolve) -> "PoolManager":
    """Make a pool judge every address before it connects, also those that redirects lead to."""
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
    from urllib3.exceptions import NameResolutionError, NewConnectionError

    def connected(connection: Any, connect: Callable[[], Any]) -> Any:
        host = connection.host
        try:
            addresses = find(host, connection.port)
        except OSError as error:
            raise NameResolutionError(host, connection, error) from error  # type: ignore[arg-type]  # what urllib3 itself gives
        refused = [a for a in addresses if not may_connect(a, host.strip("[]"), typed_host)]
        if refused:
            raise RefusedAddressError(host, refused[0])
        named = connection._dns_host  # noqa: SLF001 - the one place where urllib3 takes an address
        for number, address in enumerate(addresses, 1):
            connection._dns_host = address  # noqa: SLF001 - as above
            try:
                return connect()
            except NewConnectionError:
                if number == len(addresses):
                    raise
            finally:
                connection._dns_host = named  # noqa: SLF001 - as above
        raise NewConnectionError(connection, f"{host} has no address")

    class Plain(HTTPConnection):
        def _new_conn(self) -> Any:
            return connected(self, super()._new_conn)

    class Secure(HTTPSConnection):
        def _new_conn(self) -> Any:
            return connected(self, super()._new_conn)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    pool.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}
    return pool
