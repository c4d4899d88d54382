"""The address of a trace on a database server, which is shown without its password."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit, urlunsplit

from callboard.bus import ConfigurationError

SCHEMES = ("postgresql://", "postgres://")

_SECRET = ("password", "secret", "scram_client_key", "scram_server_key")
"""Parts of the names of parameters whose values are not shown."""

_UNREADABLE = (
    "the address of the store can't be read (it is not shown, because it may hold a password): it is to be as "
    "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with each of / : @ ? # % in a name or a password written as "
    "%2F %3A %40 %3F %23 %25"
)


@dataclass(frozen=True)
class StoreAddress:
    """A PostgreSQL database, as a URL that libpq reads. As text it has no password."""

    dsn: str = field(repr=False)
    """The URL as it was given."""

    def __post_init__(self) -> None:
        """Refuse what libpq would read otherwise than it was meant.

        libpq's own words on such an address quote parts of it, and a part may be that of a password.

        Raises:
            ConfigurationError: It is no such URL.
        """
        parts = _parts(self.dsn)
        access, _, hosts = parts.netloc.rpartition("@")
        port_wrong = any(port and not port.isdecimal() for port in map(_port, hosts.split(",")))
        rest = f"{parts.path}?{parts.query}"
        query_wrong = any("=" not in word for word in parts.query.split("&") if word)
        if "@" in access or "@" in rest or "#" in self.dsn or port_wrong or query_wrong:
            raise ConfigurationError(_UNREADABLE)

    def __str__(self) -> str:
        parts = _parts(self.dsn)
        access, at, hosts = parts.netloc.rpartition("@")
        user = access.partition(":")[0]
        query = "&".join(word for word in parts.query.split("&") if not _is_secret(word))
        shown = SplitResult("postgresql", f"{user}{at if user else ''}{hosts}", parts.path, query, "")
        text = urlunsplit(shown)
        return text if "://" in text else text.replace("postgresql:", "postgresql://", 1)

    @property
    def name(self) -> str:
        """The address without its password, where a page names a trace."""
        return str(self)


TracePlace: TypeAlias = Path | StoreAddress
"""Where a trace is: a file, or a database on a server."""


def is_address(text: str) -> bool:
    """Whether a text is meant as an address and not as a path."""
    return text.startswith(SCHEMES)


def _parts(dsn: str) -> SplitResult:
    try:
        parts = urlsplit(dsn)
    except ValueError:
        raise ConfigurationError(_UNREADABLE) from None
    if not is_address(dsn) or not dsn.isprintable() or " " in dsn:
        raise ConfigurationError(_UNREADABLE)
    return parts


def _port(host: str) -> str:
    """The port behind one of the hosts, of which an IPv6 one is in brackets."""
    return host.rpartition("]")[2].partition(":")[2]


def _is_secret(parameter: str) -> bool:
    name = parameter.partition("=")[0].lower()
    return "%" in name or any(part in name for part in _SECRET)
