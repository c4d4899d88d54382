"""Base URLs: what can be known to be wrong with one is said when an adapter is made, not when it calls."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

from callboard.bus.errors import ConfigurationError

_HOST = re.compile(r"[^\s/?#\[\]@:<>\"\\^`{|}\x00-\x20\x7f]+")


def checked_base_url(url: str, name: str) -> str:
    """A base URL without its trailing slash and version suffix.

    Args:
        url: The URL.
        name: The adapter's name.

    Raises:
        ConfigurationError: No request can be sent to the URL. The text quotes nothing that may be secret.
    """
    url = url.strip()
    wrong = _what_is_wrong(url)
    if wrong is not None:
        raise ConfigurationError(f"{name}: base_url {wrong}")
    return normalise_base_url(url)


def normalise_base_url(url: str) -> str:
    """A base URL without its trailing slash and version suffix. Adapters add the version themselves."""
    url = url.rstrip("/")
    for suffix in ("/v1", "/v1beta"):
        url = url.removesuffix(suffix)
    return url.rstrip("/")


def host_of(url: str) -> str:
    """Host and port, without what else an address may hold, such as a key."""
    try:
        parts = urlsplit(url)
        found = parts.hostname or ""
        return f"{found}:{parts.port}" if found and parts.port else found or "the provider"
    except ValueError:
        return "the provider"


def place(url: str) -> str:
    """Scheme, host and path of a URL: what may be shown, without a password or a key in it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address that is none"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if parts.scheme or host else parts.path


def _what_is_wrong(url: str) -> str | None:
    if re.search(r"[\s\x00-\x1f\x7f]", url):
        return "holds white space or a control character"
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = parts.port
    except ValueError as error:
        return f"is no address: {_without_quotation(error)}"
    if parts.scheme not in ("http", "https"):
        return "begins with neither http:// nor https://"
    if port == 0:
        return "has the port 0"
    return _wrong_host(parts, host) or _too_much(parts)


def _wrong_host(parts: SplitResult, host: str) -> str | None:
    if not host:
        return "has no host"
    if "[" in parts.netloc:
        try:
            ipaddress.IPv6Address(host.partition("%")[0])
        except ValueError:
            return "has no IPv6 address between its brackets"
    elif not _HOST.fullmatch(host):
        return "has a host that is none"
    return None


def _too_much(parts: SplitResult) -> str | None:
    if "@" in parts.netloc:
        return "holds a user or a password: a key belongs into api_key, other credentials into extra_headers"
    if parts.query or parts.fragment:
        said = "a query, which paths can't follow" if parts.query else "a fragment, which is never sent"
        return f"holds {said}: what is not secret may stand in provider_options or options, a key in api_key"
    return None


def _without_quotation(error: ValueError) -> str:
    """What urllib says, up to where it quotes the address."""
    return re.split(r"[:'\"]", str(error))[0].strip().lower()
