"""Base URLs, their checks, owners of keys, public addresses, and proxies."""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from functools import lru_cache
from typing import NamedTuple, TypeAlias
from urllib.parse import SplitResult, urlsplit

import anyio

from callboard.bus.errors import ConfigurationError, StreamError

from ..provider import providers

_HOST = re.compile(r"[^\s/?#\[\]@:<>\"\\^`{|}\x00-\x20\x7f]+")


def checked_base_url(url: str, name: str) -> str:
    """A base URL without its trailing slash and version suffix."""
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
    """The host and port of an address. Other parts may contain a key."""
    try:
        parts = urlsplit(url)
        found = parts.hostname or ""
        return f"{found}:{parts.port}" if found and parts.port else found or "the provider"
    except ValueError:
        return "the provider"


def place(url: str) -> str:
    """Scheme, host and path of a URL: the parts that may be shown, without a password or a key."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an invalid address"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if parts.scheme or host else parts.path


def _what_is_wrong(url: str) -> str | None:
    if re.search(r"[\s\x00-\x1f\x7f]", url):
        return "has white space or a control character"
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return "is not an address: its host is invalid"
    try:
        port = parts.port
    except ValueError:
        return "is not an address: its port must be a number from 1 to 65535"
    if parts.scheme not in ("http", "https"):
        return "does not start with http:// or https://"
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
        return "has an invalid host"
    return None


def _too_much(parts: SplitResult) -> str | None:
    if "@" in parts.netloc:
        return "has a user or a password. Put a key into api_key, and other credentials into extra_headers"
    if parts.query or parts.fragment:
        excess = "a query, which can't be followed by paths" if parts.query else "a fragment, which is never sent"
        return f"has {excess}. Put parameters into provider_options or options, and a key into api_key"
    return None


OTHER_WORDS = frozenset({
    "ai21", "amazon", "aws", "azure", "bedrock", "cerebras", "dashscope", "deepinfra", "deepseek", "fireworks",
    "grok", "groq", "hf", "huggingface", "hyperbolic", "jina", "kimi", "litellm", "minimax", "mistral", "moonshot",
    "nebius", "novita", "nvidia", "openrouter", "perplexity", "qwen", "replicate", "sambanova", "together", "xai",
    "zai", "zhipu",
})  # fmt: skip
"""Words in the names of key variables, for vendors without a provider type."""


def check_key_goes_home(name: str, variable: str | None, address: str, *, of_many: bool) -> None:
    """Raise ConfigurationError if a key may belong to another vendor than the address."""
    host = host_of(address)
    words_of = _words()
    own_words = words_of.get(host)
    if own_words is None:
        return
    words = {word for word in re.split(r"[^a-z0-9]+", (variable or "").lower()) if word}
    others = OTHER_WORDS.union(
        *(other for other_host, other in words_of.items() if other_host != host)
    ).difference(own_words)
    if not words & others and (words & set(own_words) or not of_many):
        return
    key_text = f"the key of {variable}" if variable else "the key"
    raise ConfigurationError(
        f"{name}: without base_url, {key_text} would be sent to {host}. Set base_url, or set api_key_env to "
        f"a variable of that vendor, such as {own_words[0].upper()}_API_KEY"
    )


def _words() -> dict[str, tuple[str, ...]]:
    """The words for each vendor with a provider type, by its host."""
    return {provider.home: provider.key_words for provider in providers() if provider.home}


# --- Public addresses only ---

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


async def public_addresses(host: str, port: int) -> list[str]:
    """The addresses of a host, in the resolver's order."""
    found = await anyio.getaddrinfo(host, port)
    addresses = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
    for address in addresses:
        check_public(address, host)
    return addresses


def check_public(address: str, host: str) -> None:
    if not is_public(address):
        named = host if host == address else f"{host} ({address})"
        message = f"the address {named} is not public, and addresses in replies must be public"
        raise StreamError(f"{message}; options.download_hosts allows it", retryable=False)


def check_literal(host: str) -> None:
    """Check a host that is an IP address, like `check_public`. A host name is checked when it is resolved."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return
    check_public(host, host)


def is_public(address: str) -> bool:
    """Whether an IP address is public. An IPv4 address inside an IPv6 address is checked, too."""
    try:
        ip = _innermost(ipaddress.ip_address(address.partition("%")[0]))
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.is_site_local:
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)


def _innermost(ip: IPAddress) -> IPAddress:
    """Return the IPv4 address inside an IPv6 address: mapped, 6to4, Teredo or NAT64. Any other address is
    unchanged.
    """
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


class UrlKind(NamedTuple):
    """The parts of a URL that determine which client sends its requests."""

    secure: bool
    loopback: bool
    """Whether the host is this machine, which no proxy can reach."""


@lru_cache(maxsize=256)
def kind_of(url: str) -> UrlKind:
    """The kind of a URL, even of an invalid one."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return UrlKind(secure=False, loopback=False)
    return UrlKind(parts.scheme == "https", host in ("localhost", "::1") or host.startswith("127."))


def has_proxy(kind: UrlKind) -> bool:
    """Whether the environment or the system has a proxy for URLs of this kind.

    Some hosts may be exempt from the proxy. httpx checks this.
    """
    if kind.loopback:
        return False
    if sys.platform not in ("darwin", "win32") and not any(name.lower().endswith("_proxy") for name in os.environ):
        return False  # saves the import of httpx
    from urllib.request import getproxies

    named = getproxies()
    return ("https" if kind.secure else "http") in named or "all" in named
