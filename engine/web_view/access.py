"""Requests and answers of the live view: JSON, server-sent events, sign-in, and the checks before each request."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from typing import TypeAlias, TypeVar
from urllib.parse import urlsplit

import anyio
import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from callboard.bus import CallboardError, Clock, ConfigurationError, Log

from .subject import SCOPES, Scope

TOKENS_KEPT = 16
VISITORS_KEPT = 64
VISIT_US = 7 * 24 * 3600 * 1_000_000


class Visitor(msgspec.Struct, frozen=True):
    scopes: frozenset[Scope]
    csrf: str  # the value of a header that the visitor's change requests must have
    until_us: int = 0  # the end of the visit in microseconds since the epoch; 0 with the host's authentication


class SignIn:
    """The tokens and the visitors of one live view."""

    def __init__(self, clock: Clock, scopes: Collection[Scope]) -> None:
        self._clock = clock
        self._scopes = frozenset(scopes)
        self._tokens: OrderedDict[bytes, None] = OrderedDict()
        self._visitors: OrderedDict[bytes, Visitor] = OrderedDict()
        # Cookies ignore ports, so two live views on one machine must not have the same name.
        self.cookie = f"callboard-{secrets.token_hex(4)}"

    def new_token(self) -> str:
        """Create a token for one exchange. Only the latest 16 unused tokens are kept."""
        token = secrets.token_urlsafe(32)
        self._tokens[_hash(token)] = None
        while len(self._tokens) > TOKENS_KEPT:
            self._tokens.popitem(last=False)
        return token

    def exchange(self, token: str) -> str | None:
        """Exchange a token for the secret of a new visitor; None if the token is unknown or was used."""
        if self._tokens.pop(_hash(token), _hash) is _hash:
            return None
        secret = secrets.token_urlsafe(32)
        until = self._clock.now_us() + VISIT_US
        self._visitors[_hash(secret)] = Visitor(self._scopes, secrets.token_urlsafe(24), until)
        while len(self._visitors) > VISITORS_KEPT:
            self._visitors.popitem(last=False)
        return secret

    def visitor(self, secret: str) -> Visitor | None:
        """The visitor of a cookie; None if there is none, or the visit has ended."""
        found = self._visitors.get(_hash(secret))
        return found if found is not None and self._clock.now_us() < found.until_us else None

    def leave(self, secret: str) -> None:
        self._visitors.pop(_hash(secret), None)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()


# --- Answers ---


_log = Log("web")

HEARTBEAT_SECONDS = 15.0
"""Seconds between two heartbeats on an idle stream. They detect a lost connection."""

LONGEST_SECONDS = 3600.0
"""Seconds after which a stream ends and the page reconnects. If a visitor has lost access, the new connection is
refused.
"""

_encoder = msgspec.json.Encoder(enc_hook=str)


class Refused(Exception):
    """A request is answered with an error."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


def as_json(value: object) -> bytes:
    """Encode a value as JSON in UTF-8. A lone surrogate, which a faulty tokenizer may produce, is escaped."""
    try:
        return _encoder.encode(value)
    except UnicodeError:
        return json.dumps(msgspec.to_builtins(value, enc_hook=str)).encode("ascii")


def answer(value: object, status: int = 200) -> Response:
    """A response with a value. Browsers must not cache it."""
    return Response(as_json(value), status, {"cache-control": "no-store"}, media_type="application/json")


def frame(event: str, data: bytes, frame_id: str | None = None) -> bytes:
    """Encode a server-sent event. Callboard's JSON has no line breaks."""
    head = b"" if frame_id is None else b"id: " + frame_id.encode() + b"\n"
    return head + b"event: " + event.encode() + b"\ndata: " + data.replace(b"\n", b" ") + b"\n\n"


class EventStream(Response):
    """Server-sent events, until the page disconnects.

    After that, the response ends immediately, even if no event is being sent. A slow page delays only its own
    events.
    """

    def __init__(self, frames: AsyncGenerator[bytes]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(None, 200, headers, media_type="text/event-stream")
        del self.headers["content-length"]
        self._frames = frames
        self._sending = anyio.Lock()
        self.open: set[anyio.CancelScope] = set()  # the cancel scopes of the view's open streams

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        with anyio.move_on_after(LONGEST_SECONDS):
            async with anyio.create_task_group() as group:
                self.open.add(group.cancel_scope)
                group.start_soon(self._until_gone, receive, group.cancel_scope)
                group.start_soon(self._heartbeat, send)
                try:
                    async for each in self._frames:
                        await self._send(send, each)
                except OSError:
                    pass  # the connection was closed
                except CallboardError as error:  # the page reconnects automatically
                    _log.warning("frames_ended", path=scope["path"], error=str(error))
                finally:
                    self.open.discard(group.cancel_scope)
                    with anyio.CancelScope(shield=True):  # the clean-up does not wait for anything
                        await self._frames.aclose()
                    group.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        async with self._sending:
            await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _heartbeat(self, send: Send) -> None:
        with contextlib.suppress(OSError):
            await self._send(send, b"retry: 1000\n\n")
            while True:
                await anyio.sleep(HEARTBEAT_SECONDS)
                await self._send(send, b": here\n\n")

    async def _until_gone(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()


# --- Visitors and their scopes ---


Authorize: TypeAlias = Callable[[Request], "Collection[Scope] | Awaitable[Collection[Scope] | None] | None"]
"""A host's own function that returns the scopes of a request. If there are none, the request is refused."""

CSRF_HEADER = "x-callboard-csrf"
MOST_BYTES = 1_000_000

T = TypeVar("T")


class _Token(msgspec.Struct, forbid_unknown_fields=True):
    token: str


class Access:
    """Authenticates visitors, by the host's own function or by the cookie of a sign-in."""

    def __init__(self, clock: Clock, authorize: Authorize | None, scopes: Collection[Scope]) -> None:
        self.sign_in = SignIn(clock, scopes)
        self.authorize = authorize
        self.on_sign_in: Callable[[], object] | None = None  # called after each sign-in by a token
        self._csrf = secrets.token_urlsafe(24)

    async def visitor(self, request: Request, needs: Scope) -> Visitor:
        found = await self._asking(request)
        if found is None or "view" not in found.scopes:
            raise Refused(401, "sign in first: open the printed address")
        if needs not in found.scopes:
            raise Refused(403, f"this needs the scope {needs!r}")
        if request.method == "POST":
            _check_csrf(request, found)
        return found

    async def _asking(self, request: Request) -> Visitor | None:
        if self.authorize is None:
            secret = request.cookies.get(self.sign_in.cookie)
            return self.sign_in.visitor(secret) if secret else None
        decided = self.authorize(request)
        scopes = await decided if inspect.isawaitable(decided) else decided
        return Visitor(frozenset(scopes) & SCOPES, self._csrf) if scopes else None

    async def exchange(self, request: Request) -> Response:
        """The answer to a token: a cookie."""
        if self.authorize is not None:
            raise Refused(404, "the host application controls access here")
        token_request = await body_of(request, _Token)
        secret = self.sign_in.exchange(token_request.token)
        if secret is None:
            raise Refused(401, "this address was already used or has expired: open the latest printed address")
        response = answer({"signed_in": True})
        response.set_cookie(
            self.sign_in.cookie,
            secret,
            path=f"{request.scope.get('root_path', '')}/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        if self.on_sign_in is not None:
            self.on_sign_in()
        return response


def _check_csrf(request: Request, visitor: Visitor) -> None:
    sent = request.headers.get(CSRF_HEADER, "")
    if not secrets.compare_digest(sent.encode(), visitor.csrf.encode()):
        raise Refused(403, f"a change needs the header {CSRF_HEADER}, as returned by `api/me`")


async def body_of(request: Request, kind: type[T]) -> T:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "the content type must be application/json")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise Refused(413, "the body is too long")
    try:
        return msgspec.json.decode(bytes(body), type=kind)
    except (msgspec.DecodeError, ValueError) as error:
        raise Refused(400, str(error)) from None


# --- Guard before each request ---
# A page of another origin may send requests here. With DNS rebinding, it may even use this host's name. So every
# request must name an allowed host, and its origin, if the browser sends one, must be this page. The headers
# prevent the page from loading other sites' resources, running inline code, and being framed.

THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
"""The hosts that are always allowed."""

POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""The headers of every answer."""


def host_name(host: str) -> str:
    """The name or address of a Host header, without its port and in lower case; empty if the header has none."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # reading the port also checks it
    except ValueError:
        return ""
    return (parts.hostname or "") if parts.netloc == host and "@" not in host else ""


def checked_hosts(hosts: Iterable[str]) -> frozenset[str]:
    """Normalize the names in a list of hosts. Raises ConfigurationError."""
    for host in hosts:
        plain = f"[{host}]" if ":" in host else host
        if not host or host_name(plain) != host.lower() or "*" in host:
            raise ConfigurationError(f"hosts: {host!r} is not the name or address of a host without a port")
    return frozenset(host.lower() for host in hosts)


def refusal(headers: Headers, hosts: frozenset[str]) -> str | None:
    """The reason why a request is refused; None if it may continue."""
    named = headers.getlist("host")
    if len(named) != 1 or host_name(named[0]) not in hosts:
        return "this host is not on the list of hosts"
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != named[0].lower():
        return "the request comes from a page of another origin"
    site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
    if site not in (None, "same-origin", "none") and mode != "navigate":
        return "the request comes from a page of another origin"
    return None


class Guard:
    """An ASGI application that checks each request before another application."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        why = refusal(Headers(scope=scope), self._hosts)
        if why is None:
            await self._app(scope, receive, with_headers)
        else:
            await JSONResponse({"error": why}, status_code=403)(scope, receive, with_headers)
