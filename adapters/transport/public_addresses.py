"""Connections to the public internet only: for addresses that a reply names, and not the configuration.

A name is resolved, every address that it has must be public, and the connection goes to one of those: so no second
answer of a name server can lead elsewhere.
"""

from __future__ import annotations

import ipaddress
from typing import TypeAlias

import anyio

from callboard.bus.errors import StreamError

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


async def public_addresses(host: str, port: int) -> list[str]:
    """The addresses of a host, in the resolver's order.

    Args:
        host: A name, or an address.
        port: The port.

    Raises:
        StreamError: One of them is not public.
        OSError: The name has none.
    """
    found = await anyio.getaddrinfo(host, port)
    addresses = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
    for address in addresses:
        check_public(address, host)
    return addresses


def check_public(address: str, host: str) -> None:
    """Require a public address.

    Args:
        address: The address.
        host: The name under which it was asked for.

    Raises:
        StreamError: The address isn't public.
    """
    if not is_public(address):
        named = host if host == address else f"{host} ({address})"
        said = f"the address {named} is not public, and what a reply names may lead to public ones only"
        raise StreamError(f"{said}; options.download_hosts allows it", retryable=False)


def check_literal(host: str) -> None:
    """As `check_public`, for a host that is itself an address. A name is checked when it is resolved.

    Raises:
        StreamError: The address isn't public.
    """
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return
    check_public(host, host)


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the public internet, also where it stands within an IPv6 one."""
    try:
        ip = _innermost(ipaddress.ip_address(address.partition("%")[0]))
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.is_site_local:
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)


def _innermost(ip: IPAddress) -> IPAddress:
    """The IPv4 address that an IPv6 one stands for: mapped, 6to4, Teredo or NAT64."""
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    if ip.sixtofour is not None:
        return ip.sixtofour
    if ip.teredo is not None:
        return ip.teredo[1]
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip
