"""Who is asking, and whether they may: by the host's own authentication, or by the cookie of a sign-in."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Awaitable, Callable, Collection
from typing import TypeAlias, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from callboard.bus import Clock

from .answers import Refused, answer
from .sign_in import SCOPES, Scope, SignIn, Visitor

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
