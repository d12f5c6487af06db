"""Which addresses a URL may lead to: the public ones, and this machine where the URL itself says so.

A URL may come from a list somebody else wrote, and a redirect always does: neither may be a way to the
services of the network around this machine (metadata, consoles). Names are looked up here, every
address is judged, and the connection goes to the address that was judged: what a name means a moment
later does not matter. Hosts named in NO_PROXY are one's own and may be private; link-local never.
"""

import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies, proxy_bypass

if TYPE_CHECKING:
    from urllib3 import PoolManager

Resolve = Callable[[str, int], list[str]]
"""(host, port) → its addresses."""
_NAT64, _6TO4 = IPv6Network("64:ff9b::/96"), IPv6Network("2002::/16")


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
    if there.is_global:
        return True
    if there.is_loopback and host.lower() == typed_host.lower() and _names_loopback(host):
        return True
    return bool(getproxies().get("no")) and bool(proxy_bypass(host))


def _plain(address: str) -> IPv4Address | IPv6Address:
    """Return an address, or the IPv4 one that it stands for."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv4Address):
        return found
    if found.ipv4_mapped is not None:
        return found.ipv4_mapped
    if found in _NAT64:
        return IPv4Address(int(found) & 0xFFFFFFFF)
    if found in _6TO4:
        return IPv4Address(int(found) >> 80 & 0xFFFFFFFF)
    return found


def _names_loopback(host: str) -> bool:
    name = host.strip("[]").lower().rstrip(".")
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


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
