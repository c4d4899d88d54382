"""What is sent before a request's body, as bytes; and where a URL leads.

Paths and hosts are written as httpx writes them, because a signature over a request (AWS's) is made of the same
characters. A line break in a header would begin another header or another request. So nothing is written that a
header can't hold, and nobody but this module says how long a body is.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from ..errors import unsendable
from ..header_values import check_sendable

_PORTS = {"http": 80, "https": 443}
_MOST_URL_BYTES = 65536
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HOST = re.compile(r"[!$&'()*+,;=\-._~0-9a-z%]+")
_UNSAFE = re.compile(r"[^\x21-\x7e]|[\"#<>]")  # in a query
_UNSAFE_IN_PATH = re.compile(r"[^\x21-\x7e]|[\"#<>?`{}]")
_ACCEPTED = "gzip, deflate"


class Origin(NamedTuple):
    """A server, as requests share their connections."""

    secure: bool
    """Whether it is asked over TLS."""
    host: str
    """The host's name or address, without brackets."""
    port: int
    """The port."""


class Target(NamedTuple):
    """Where a URL leads."""

    origin: Origin
    """The server."""
    path: str
    """The path and the query, as they are sent."""
    authority: str
    """Host and port, as the header `Host` has them."""


@lru_cache(maxsize=256)
def target_of(url: str) -> Target:
    """Where a URL leads. A user, a password and a fragment are left out.

    Raises:
        InvalidRequestError: It is no address of a server. The text doesn't quote it.
    """
    try:
        return _parsed(url)
    except (ValueError, KeyError) as error:  # UnicodeError is a ValueError, and idna's errors are UnicodeErrors
        said = type(error).__name__
    raise unsendable(said)  # out here, or the original, which quotes, would stay attached as its context


def write_head(method: str, target: Target, headers: Mapping[str, str], length: int) -> bytes:
    """The request line and the headers.

    Args:
        method: The method.
        target: Where the request goes.
        headers: The headers. A `Host` takes the place of the one that the URL gives.
        length: The number of bytes of the body.

    Raises:
        InvalidRequestError: A header can't be sent. The text names it and doesn't quote its value.
    """
    check_sendable(headers)
    if not _is_token(method):
        raise unsendable("the method")
    lines = [f"{method} {target.path} HTTP/1.1", f"Host: {target.authority}", f"Content-Length: {length}"]
    packed = True
    for name, value in headers.items():
        match _known(name):
            case None:
                pass
            case "host":
                lines[1] = f"Host: {value}"
                continue
            case "accept-encoding":
                packed = False
            case "content-length" if value.strip() == str(length):
                continue
            case _:  # it would contradict what is said of the body above
                raise unsendable(f"a header {name} of its own")
        lines.append(f"{name}: {value}")
    if packed:
        lines.append(f"Accept-Encoding: {_ACCEPTED}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


@lru_cache(maxsize=512)
def _known(name: str) -> str | None:
    """The lower-case name of a header that needs a look; None for all others.

    Raises:
        InvalidRequestError: No header has such a name.
    """
    if not _is_token(name):
        raise unsendable("a header's name")
    known = name.lower()
    return known if known in ("host", "content-length", "transfer-encoding", "accept-encoding") else None


@lru_cache(maxsize=32)
def _is_token(text: str) -> bool:
    return _TOKEN.fullmatch(text) is not None


def _parsed(url: str) -> Target:
    if len(url) > _MOST_URL_BYTES or any(character < " " or character == "\x7f" for character in url):
        raise ValueError("too long, or a control character")
    parts = urlsplit(url)
    host, port = _host_of(parts.hostname or ""), parts.port
    standard = _PORTS[parts.scheme]
    path = _UNSAFE_IN_PATH.sub(_encoded, parts.path) or "/"
    if "?" in url.partition("#")[0]:
        path += "?" + _UNSAFE.sub(_encoded, parts.query)
    named = f"[{host}]" if ":" in host else host
    authority = named if port in (None, standard) else f"{named}:{port}"
    return Target(Origin(parts.scheme == "https", host, standard if port is None else port), path, authority)


def _host_of(host: str) -> str:
    if ":" in host:
        return str(ipaddress.IPv6Address(host.replace("%25", "%")))
    if not host.isascii():
        import idna

        host = idna.encode(host).decode("ascii")
    if not _HOST.fullmatch(host):
        raise ValueError("no host")
    if re.fullmatch(r"[0-9]+(\.[0-9]+){3}", host):
        ipaddress.IPv4Address(host)
    return host


def _encoded(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode())
