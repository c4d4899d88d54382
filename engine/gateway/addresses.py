"""The gateway's own addresses, and a check of the media addresses in clients' requests.

Callboard never fetches an address from a request, but the provider does. A provider on your own network, such as
vLLM, can reach hosts that the client can't. So images and files at addresses that are not public are refused.
"""

from __future__ import annotations

import re
import socket
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

import anyio

from callboard.adapters.transport.addresses import is_public
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ToolResultBlock,
)
from callboard.bus.values.messages import Message

from .failures import BadRequest
from .http import Incoming

Purpose: TypeAlias = Literal[
    "reply",
    "respond",
    "count_tokens",
    "embed",
    "make_images",
    "edit_images",
    "list_models",
    "show_model",
    "show_response",
    "delete_response",
    "cancel_response",
    "list_items",
    "take_spans",
]
"""The operation that a client requests."""


class Address(NamedTuple):
    wire: str
    """The name of the wire; empty if the headers determine it."""
    purpose: Purpose
    name: str = ""
    """The model or the id in the path."""
    action: str = ""
    """The method in the path of Gemini's API."""


FIXED: Mapping[tuple[str, str], Address] = {
    ("POST", "/v1/chat/completions"): Address("chat", "reply"),
    ("POST", "/v1/responses"): Address("responses", "respond"),
    ("POST", "/v1/responses/input_tokens"): Address("responses", "count_tokens"),
    ("POST", "/v1/messages"): Address("messages", "reply"),
    ("POST", "/v1/messages/count_tokens"): Address("messages", "count_tokens"),
    ("POST", "/v1/embeddings"): Address("chat", "embed"),
    ("POST", "/v1/images/generations"): Address("chat", "make_images"),
    ("POST", "/v1/images/edits"): Address("chat", "edit_images"),
    ("POST", "/v1/traces"): Address("chat", "take_spans"),
    ("GET", "/v1/models"): Address("", "list_models"),
    ("GET", "/v1beta/models"): Address("gemini", "list_models"),
    ("GET", "/v1alpha/models"): Address("gemini", "list_models"),
}

_GEMINI = re.compile(r"/(?:v1beta|v1|v1alpha)/(?:models|tunedModels)/(?P<model>.+):(?P<action>[A-Za-z]+)")
_GEMINI_PURPOSES: Mapping[str, Purpose] = {
    "generateContent": "reply",
    "streamGenerateContent": "reply",
    "countTokens": "count_tokens",
    "embedContent": "embed",
    "batchEmbedContents": "embed",
}

_RESPONSE = re.compile(
    r"/v1/responses/(?P<id>(?!(?:compact|input_tokens)$)[^/]+)(?:/(?P<action>cancel|input_items))?"
)
_RESPONSE_PURPOSES: Mapping[tuple[str, str | None], Purpose] = {
    ("GET", None): "show_response",
    ("DELETE", None): "delete_response",
    ("POST", "cancel"): "cancel_response",
    ("GET", "input_items"): "list_items",
}

_MODEL = re.compile(r"/(?P<version>v1|v1beta|v1alpha)/models/(?P<model>.+)")


def find(request: Incoming) -> Address:
    """Find the address of a request. Raises BadRequest if the gateway has no such address, or if the address does
    not allow the method.
    """
    path = request.path.rstrip("/")
    found = find_path(request, path, request.method)
    if found is not None:
        return found
    address = f"{request.method} {request.path[:200]}"
    names_action = request.method == "POST" and _GEMINI.fullmatch(path)  # an action is not the name of a model
    if not names_action and (allowed := methods_of(request, path)):
        message = f"{address} is not allowed. Use {' or '.join(allowed)}"
        raise BadRequest(message, kind="wrong_method", allow=allowed)
    raise BadRequest(f"{address} is not an address of this gateway{hint_at(request)}", kind="missing")


def methods_of(request: Incoming, path: str) -> tuple[str, ...]:
    """The methods of an address; empty if there is no such address."""
    if path in OPEN:
        return "GET", "HEAD"
    return tuple(method for method in _METHODS if find_path(request, path, method) is not None)


_METHODS = ("GET", "HEAD", "POST", "DELETE")

OPEN = frozenset({"", "/health"})
"""The addresses that belong to no wire and need no key."""


def find_path(request: Incoming, path: str, method: str) -> Address | None:
    """The address for this path and method; None if there is none."""
    if method == "HEAD":
        method = "GET"
    fixed = FIXED.get((method, path))
    if fixed is not None:
        return fixed if fixed.wire else fixed._replace(wire=wire_of(request))
    if method == "POST" and (found := _GEMINI.fullmatch(path)):
        purpose = _GEMINI_PURPOSES.get(found["action"])
        return None if purpose is None else Address("gemini", purpose, found["model"], found["action"])
    if found := _RESPONSE.fullmatch(path):
        purpose = _RESPONSE_PURPOSES.get((method, found["action"]))
        return None if purpose is None else Address("responses", purpose, found["id"])
    if method == "GET" and (found := _MODEL.fullmatch(path)):
        wire = wire_of(request) if found["version"] == "v1" else "gemini"
        return Address(wire, "show_model", found["model"])
    return None


def hint_at(request: Incoming) -> str:
    """A hint for a client with a wrong base URL; empty if the path is similar to no address."""
    path = request.path.rstrip("/")
    once = re.sub("//+", "/", path)
    for meant in (once, f"/v1{once}", once.removeprefix("/v1"), f"/v1beta{once}"):
        if meant != path and find_path(request, meant, request.method) is not None:
            return f". Did you mean {meant}? Check the base URL"
    return ""


def wire_of(request: Incoming) -> str:
    """The name of a client's wire, from the path and the headers."""
    if request.path.startswith("/v1/messages") or "anthropic-version" in request.headers:
        return "messages"
    if request.path.startswith(("/v1beta/", "/v1alpha/")) or "x-goog-api-key" in request.headers:
        return "gemini"
    return "responses" if request.path.startswith("/v1/responses") else "chat"


def key_of(request: Incoming) -> str | None:
    """The client's key, from any header or field that an SDK uses; None if there is none."""
    headers = request.headers
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key") or headers.get("x-goog-api-key") or request.query.get("key") or None


# --- Media addresses in requests ---

RESOLVE_SECONDS = 1.0
"""Seconds for resolving the names of all addresses in a request."""

_LOCAL_NAME = re.compile(r"[^.]*|(?:.*\.)?(?:localhost|local|localdomain|internal|intranet|lan|home\.arpa)")
"""Names of this machine or of a private network: names without a dot, and names below these domains."""

_NUMBERS = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+)){0,3}")
"""IPv4 addresses in all forms that resolvers accept, such as ``0x7f.1`` and ``2130706433``."""


def named_media(messages: Sequence[Message]) -> Iterator[str]:
    """The addresses of images and files in a request, except data URLs."""
    for message in messages:
        if isinstance(message.content, str):
            continue
        yield from _addresses(message.content)


def _addresses(blocks: Iterable[ContentBlock]) -> Iterator[str]:
    for block in blocks:
        match block:
            case ImageBlock(url=str(url)) | AudioBlock(url=str(url)) | DocumentBlock(url=str(url)):
                if url[:5].lower() != "data:":
                    yield url
            case ToolResultBlock(content=tuple(inner)):
                yield from _addresses(inner)
            case OpaqueBlock():  # for example ``video_url``
                match block.provider_raw.data.get(block.kind):
                    case str(url) | {"url": str(url)}:
                        yield url


async def check_media(addresses: Iterable[str], *, resolve: bool) -> None:
    """Raise BadRequest if an address is not public.

    A name that can't be resolved is allowed, because a gateway behind a proxy often resolves no public names. A
    name may resolve to another address at the provider, and a public address may redirect. Only the provider
    itself can prevent that.
    """
    names: dict[str, str] = {}
    for url in addresses:
        if (name := _name_in(url)) is not None:
            names[name] = url
    if not resolve or not names:
        return
    with anyio.move_on_after(RESOLVE_SECONDS):
        for host, url in names.items():
            try:
                found = await anyio.getaddrinfo(host, None)
            except (OSError, UnicodeError):
                continue
            if not all(is_public(str(address[0])) for *_, address in found):
                raise _refused(url, "it is not public")


def _name_in(url: str) -> str | None:
    """The host's name; None for an IP address or an address in the provider's own form.

    Raises BadRequest if the text shows that the address is not public.
    """
    try:
        parts: SplitResult = urlsplit(url)
        host = unicodedata.normalize("NFKC", unquote(parts.hostname or "")).lower().rstrip(".")
    except ValueError:
        raise _refused(url, "it is not a valid address") from None
    if parts.scheme == "file":
        raise _refused(url, "files of the server can't be named")
    if parts.scheme not in ("http", "https"):
        return None
    if not host or re.search(r"[\\\x00-\x20]", url):  # URL parsers interpret such addresses differently
        raise _refused(url, "it is not a valid address")
    if ":" in host or _NUMBERS.fullmatch(host):
        if not is_public(_plain(host)):
            raise _refused(url, "it is not public")
        return None
    if _LOCAL_NAME.fullmatch(host):
        raise _refused(url, "it is not public")
    return host


def _plain(host: str) -> str:
    """An IP address in its usual form. An invalid address is returned unchanged."""
    try:
        return host if ":" in host else socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return host


def _refused(url: str, why: str) -> BadRequest:
    return BadRequest(f"the address {url[:200]!r} is refused: {why}. Send the data instead", code="invalid_url")
