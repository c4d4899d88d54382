"""Who may open the live view: addresses, sign-in with a token, and the guard before each request."""

from __future__ import annotations

import hashlib
import inspect
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Literal, TypeAlias, TypeVar, get_args
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from callboard.bus import Clock, ConfigurationError

from .subject import Refused, answer

# -- Who is asking, and whether they may: by the host's own authentication, or by the cookie of a sign-in


Authorize: TypeAlias = Callable[[Request], "Collection[Scope] | Awaitable[Collection[Scope] | None] | None"]
"""A host's own decision about a request: the scopes that it has, and nothing for a refusal."""

CSRF_HEADER = "x-callboard-csrf"
MOST_BYTES = 1_000_000

T = TypeVar("T")


class _Token(msgspec.Struct, forbid_unknown_fields=True):
    token: str


class Access:
    """Tells who is asking.

    Args:
        clock: The clock of visits.
        authorize: The host's own decision; None for the sign-in by a token.
        scopes: The things that whoever signs in may do.
    """

    def __init__(self, clock: Clock, authorize: Authorize | None, scopes: Collection[Scope]) -> None:
        self.sign_in = SignIn(clock, scopes)
        self.authorize = authorize
        self.on_sign_in: Callable[[], object] | None = None
        """Is called after each sign-in by a token."""
        self._csrf = secrets.token_urlsafe(24)

    async def visitor(self, request: Request, needs: Scope) -> Visitor:
        """Whoever asks, if they may.

        Raises:
            Refused: They may not.
        """
        found = await self._asking(request)
        if found is None or "view" not in found.scopes:
            raise Refused(401, "sign in first: open the address that was printed")
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
        """The answer to a token: a cookie.

        Raises:
            Refused: The token is not good, or a host decides by itself.
        """
        if self.authorize is not None:
            raise Refused(404, "here the host decides who may look")
        asked = await body_of(request, _Token)
        secret = self.sign_in.exchange(asked.token)
        if secret is None:
            raise Refused(401, "this address was used already, or is too old: take the one that was printed last")
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
        raise Refused(403, f"a change needs the header {CSRF_HEADER}, as `api/me` gives it")


async def body_of(request: Request, kind: type[T]) -> T:
    """The JSON of a request.

    Raises:
        Refused: It is no JSON, too long, or not as it should be.
    """
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


# -- Who may look, where no host says so: a one-time token in the printed address, exchanged for a cookie
#
#     token      32 random bytes, in the address's fragment, which a browser sends to nobody; good once
#     visitor    a browser that has shown one: a random secret in an HttpOnly, SameSite=Strict cookie, and a second
#                one for the header of whatever changes something
#
# Only hashes are kept. Tokens and visitors live in memory, so they end with the process.


Scope: TypeAlias = Literal["view", "content", "change"]
"""``view``: everything but what was said. ``content``: what was said, where the engine captures it. ``change``:
cancel, reprice, undo."""

SCOPES: frozenset[Scope] = frozenset(get_args(Scope))

TOKENS_KEPT = 16
VISITORS_KEPT = 64
VISIT_US = 7 * 24 * 3600 * 1_000_000


class Visitor(msgspec.Struct, frozen=True):
    """Somebody who may look."""

    scopes: frozenset[Scope]
    """The things that they may do."""
    csrf: str
    """The value of the header that their changes must have."""
    until_us: int = 0
    """The end of the visit, in microseconds since the epoch; 0 if somebody else decides."""


class SignIn:
    """The tokens and the visitors of one live view.

    Args:
        clock: The clock by which visits end.
        scopes: The things that a visitor may do.
    """

    def __init__(self, clock: Clock, scopes: Collection[Scope]) -> None:
        self._clock = clock
        self._scopes = frozenset(scopes)
        self._tokens: OrderedDict[bytes, None] = OrderedDict()
        self._visitors: OrderedDict[bytes, Visitor] = OrderedDict()
        self.cookie = f"callboard-{secrets.token_hex(4)}"
        """The cookie's name. Cookies know no ports, so two live views of a machine must not share one."""

    def new_token(self) -> str:
        """A token that is good for one exchange. Of those that nobody has used, the latest 16 are kept."""
        token = secrets.token_urlsafe(32)
        self._tokens[_hash(token)] = None
        while len(self._tokens) > TOKENS_KEPT:
            self._tokens.popitem(last=False)
        return token

    def exchange(self, token: str) -> str | None:
        """The secret of a new visitor; None if the token is unknown or was used."""
        if self._tokens.pop(_hash(token), _hash) is _hash:
            return None
        secret = secrets.token_urlsafe(32)
        until = self._clock.now_us() + VISIT_US
        self._visitors[_hash(secret)] = Visitor(self._scopes, secrets.token_urlsafe(24), until)
        while len(self._visitors) > VISITORS_KEPT:
            self._visitors.popitem(last=False)
        return secret

    def visitor(self, secret: str) -> Visitor | None:
        """The visitor of a cookie; None if there is none, or the visit is over."""
        found = self._visitors.get(_hash(secret))
        return found if found is not None and self._clock.now_us() < found.until_us else None

    def leave(self, secret: str) -> None:
        """End a visit."""
        self._visitors.pop(_hash(secret), None)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()


# -- What is refused before anything is looked at, and the headers that every answer has
#
# A page of another origin may send requests here, and with DNS rebinding even under our own name as it sees it. So
# every request must name a host from a list, and whatever a browser says of the request's origin must be this
# page. The headers let the page load nothing from elsewhere, run no code in line, and stand in no frame.


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
    """The name or address of a Host header, without its port and in lower case; empty if it is none."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # which is checked when it is asked for
    except ValueError:
        return ""
    return (parts.hostname or "") if parts.netloc == host and "@" not in host else ""


def checked_hosts(hosts: Iterable[str]) -> frozenset[str]:
    """The names in a list of hosts.

    Raises:
        ConfigurationError: One of them is no plain name or address.
    """
    for host in hosts:
        plain = f"[{host}]" if ":" in host else host
        if not host or host_name(plain) != host.lower() or "*" in host:
            raise ConfigurationError(f"hosts: {host!r} is no name or address of a host, without a port")
    return frozenset(host.lower() for host in hosts)


def refusal(headers: Headers, hosts: frozenset[str]) -> str | None:
    """The reason why a request is refused; None if it may go on."""
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
    """An ASGI application around another one.

    Args:
        app: The application behind it.
        hosts: The names under which it may be asked.
    """

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
