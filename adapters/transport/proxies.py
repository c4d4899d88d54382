"""Which requests may have to go through a proxy."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit


class UrlKind(NamedTuple):
    """What of a URL decides over which client its requests go."""

    secure: bool
    """Whether it is asked over TLS."""
    loopback: bool
    """Whether it leads to this machine, which no proxy can reach."""


@lru_cache(maxsize=256)
def kind_of(url: str) -> UrlKind:
    """The kind of a URL, also of one that can't be asked."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return UrlKind(secure=False, loopback=False)
    return UrlKind(parts.scheme == "https", host in ("localhost", "::1") or host.startswith("127."))


def has_proxy(kind: UrlKind) -> bool:
    """Whether the environment, or the system where it has such settings, names a proxy for URLs of this kind.

    A host may be exempt from it. That httpx knows.
    """
    if kind.loopback:
        return False
    if sys.platform not in ("darwin", "win32") and not any(name.lower().endswith("_proxy") for name in os.environ):
        return False  # and the import of what knows better is saved
    from urllib.request import getproxies

    named = getproxies()
    return ("https" if kind.secure else "http") in named or "all" in named
