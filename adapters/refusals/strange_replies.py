"""Replies that come from something else than the provider: a page at a wrong address, a gateway, a redirect."""

from __future__ import annotations

import re
from collections.abc import Mapping

from callboard.bus.errors import StreamError

from ..transport.addresses import host_of, place

EXCERPT_BYTES = 2000
_EXCERPT_CHARACTERS = 160

_ADVICE = "is base_url right?"


def not_of_protocol(
    name: str, body: bytes, headers: Mapping[str, str], url: str, why: object, *, found: str = "the reply"
) -> StreamError:
    """The error for a reply that can't be read. A reply that calls itself something other than JSON, or that is a
    page, comes from a wrong address, so it is not retried.

    Args:
        name: The adapter's name.
        body: The body of the reply.
        headers: The headers of the reply, with lower-case names.
        url: The URL of the server.
        why: The reader's complaint.
        found: The name of the thing that can't be read.
    """
    kind = content_type(headers)
    said = f"{name}: {found} of {host_of(url)} is none of its protocol ({kind or 'no content type'}): {why}"
    said += f"; it begins {excerpt(body)!r}" if body.strip() else "; it is empty"
    if is_foreign(body, kind):
        return StreamError(f"{said}; {_ADVICE}", retryable=False)
    return StreamError(said)


def is_page(headers: Mapping[str, str]) -> bool:
    """Whether a reply says that it is for people, or no text at all."""
    return content_type(headers).startswith(
        ("text/html", "application/xhtml", "text/xml", "application/xml", "image/")
    )


def is_foreign(body: bytes, kind: str) -> bool:
    """Whether a body that can't be read was never meant to be of a protocol in JSON."""
    if body.lstrip()[:1] == b"<":
        return True
    return bool(kind and body.strip()) and not any(
        word in kind for word in ("json", "event-stream", "octet-stream")
    )


def origin(status: int, headers: Mapping[str, str], body: bytes, url: str) -> str:
    """The words of an error's text about its origin. Empty if the origin is plainly the provider.

    Args:
        status: The HTTP status.
        headers: The headers of the reply, with lower-case names.
        body: The body of the reply.
        url: The URL that was asked.
    """
    if 300 <= status < 400:
        target = headers.get("location", "")
        where = f"to {place(target)}" if target else "without saying where to"
        return f" ({host_of(url)} redirects {where}, which is never followed: correct base_url)"
    if body.lstrip()[:1] in (b"{", b"[") or body.startswith((b"data:", b"event:")):
        return ""
    return f" ({content_type(headers) or 'no content type'}, from {host_of(url)})"


def content_type(headers: Mapping[str, str]) -> str:
    """The media type in lower case, without parameters. Empty if there is none."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def excerpt(body: bytes) -> str:
    """The first words of a body, without the marks of HTML."""
    text = re.sub(rb"<[^>]*>|\s+", b" ", body[:EXCERPT_BYTES]).decode("utf-8", "replace")
    return " ".join(text.split())[:_EXCERPT_CHARACTERS]
