"""The live view as an ASGI application: its screens, its files, and access to them."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
from anyio import CancelScope
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from callboard.bus import CallboardError, ConfigurationError, Log

from . import calls, costs, operation, sessions
from .access import Access, EventStream, Guard, Refused, Visitor, answer
from .costs import Repricings
from .subject import Scope, Subject

# --- Files of the page ---
# The files are read once and served by name. No path from a request is used on the disk.


FOLDER = Path(__file__).parent / "static"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".json": "application/json",
}


class Asset(msgspec.Struct, frozen=True):
    body: bytes
    media_type: str
    tag: str  # the entity tag, with quotes


class Assets:
    """All files of the page, by their paths below its folder."""

    def __init__(self) -> None:
        self._files = {
            path.relative_to(FOLDER).as_posix(): _asset(path)
            for path in sorted(FOLDER.rglob("*"))
            if path.suffix in _TYPES
        }

    def __iter__(self) -> object:
        return iter(self._files)

    def give(self, request: Request, name: str) -> Response:
        asset = self._files.get(name)
        if asset is None:
            raise Refused(404, "nothing here")
        headers = {"etag": asset.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == asset.tag:
            return Response(status_code=304, headers=headers)
        return Response(asset.body, headers=headers, media_type=asset.media_type)


def _asset(path: Path) -> Asset:
    body = path.read_bytes()
    return Asset(body, _TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:24]}"')


# --- The application ---


_log = Log("web")

Screen = Callable[[Subject, Request], Awaitable[Response]]

SCREENS: Sequence[tuple[str, str, Scope, Screen]] = (
    ("GET", "/api/now", "view", operation.now),
    ("POST", "/api/cancel", "change", operation.cancel),
    ("GET", "/api/streams", "view", sessions.streams),
    ("GET", "/api/streams/{id}", "view", sessions.stream),
    ("GET", "/api/events", "view", operation.events),
    ("GET", "/api/events/history", "view", operation.history),
    ("GET", "/api/dead-letters", "view", operation.dead_letters),
    ("GET", "/api/calls", "view", calls.calls),
    ("GET", "/api/calls/{id}", "view", calls.call),
    ("GET", "/api/costs", "view", costs.costs),
    ("GET", "/api/clients", "view", costs.clients),
    ("GET", "/api/prices", "view", costs.prices),
    ("GET", "/api/repricing", "view", costs.progress),
    ("POST", "/api/reprice", "change", costs.reprice),
    ("POST", "/api/undo", "change", costs.undo),
    ("GET", "/api/sessions", "view", sessions.sessions),
    ("GET", "/api/sessions/{id}", "view", sessions.session),
    ("GET", "/api/models", "view", sessions.models),
    ("POST", "/api/preview", "content", sessions.preview),
    ("GET", "/api/supervision", "view", operation.supervision),
    ("GET", "/api/providers", "view", operation.providers),
)
"""The requests of each screen: method, path, required scope, and handler."""


class WebView:
    """The live view, made by `web`: an ASGI application."""

    def __init__(self, subject: Subject, access: Access, hosts: frozenset[str]) -> None:
        self._subject = subject
        self._access = access
        self._assets = Assets()
        self._repricings = Repricings(subject)
        self._open: set[CancelScope] = set()
        routes = [Route(path, self._screen(screen, needs), methods=[how]) for how, path, needs, screen in SCREENS]
        fixed = [
            Route("/", self._answered(self._page)),
            Route("/static/{name:path}", self._answered(self._asset)),
            Route("/api/me", self._answered(self._me)),
            Route("/api/sign-in", self._answered(access.exchange), methods=["POST"]),
            Route("/api/sign-out", self._answered(self._sign_out), methods=["POST"]),
        ]
        app = Starlette(routes=[*fixed, *routes], exception_handlers={404: _nothing, 405: _nothing, 500: _broken})
        app.router.redirect_slashes = False
        self._app = Guard(app, hosts)

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def sign_in_url(self, address: str) -> str:
        """An address that signs a browser in. It works once."""
        if self._access.authorize is not None:
            raise ConfigurationError("authorize= controls access, so there is no sign-in token")
        return f"{address.rstrip('/')}/#token={self._access.sign_in.new_token()}"

    def close(self) -> None:
        """End the streams of open pages, because a server that shuts down waits for them.

        Pages reconnect automatically.
        """
        for scope in tuple(self._open):
            scope.cancel()

    def on_sign_in(self, call: Callable[[], object]) -> None:
        """Call a function after each sign-in by a one-time address."""
        self._access.on_sign_in = call

    async def _page(self, request: Request) -> Response:
        if not request.url.path.endswith("/"):  # the page's links are relative to this path
            return RedirectResponse(f"{request.url.path}/")
        return self._assets.give(request, "index.html")

    async def _asset(self, request: Request) -> Response:
        return self._assets.give(request, request.path_params["name"])

    async def _me(self, request: Request) -> Response:
        visitor = await self._access.visitor(request, "view")
        subject = self._subject
        return answer(
            {
                "scopes": sorted(visitor.scopes),
                "csrf": visitor.csrf,
                "engine": subject.engine is not None,
                "trace": subject.name if subject.has_trace else None,
                "run_id": None if subject.engine is None else subject.engine.bus.run_id,
                "content": subject.shows_live_content and "content" in visitor.scopes,
                "signs_in": self._access.authorize is None,
            }
        )

    async def _sign_out(self, request: Request) -> Response:
        await self._access.visitor(request, "view")
        sign_in = self._access.sign_in
        sign_in.leave(request.cookies.get(sign_in.cookie, ""))
        response = answer({"signed_in": False})
        response.delete_cookie(sign_in.cookie, path=f"{request.scope.get('root_path', '')}/")
        return response

    def _screen(self, screen: Screen, needs: Scope) -> Callable[[Request], Awaitable[Response]]:
        async def admitted(request: Request) -> Response:
            visitor: Visitor = await self._access.visitor(request, needs)
            request.state.visitor = visitor
            request.state.repricings = self._repricings
            response = await screen(self._subject, request)
            if isinstance(response, EventStream):
                response.open = self._open
            return response

        return self._answered(admitted)

    def _answered(
        self, handler: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """The handler, with its exceptions converted to error responses."""

        async def handled(request: Request) -> Response:
            try:
                return await handler(request)
            except Refused as refused:
                return answer({"error": refused.why}, refused.status)
            except CallboardError as error:
                return answer({"error": str(error)}, 409)

        return handled


async def _nothing(request: Request, error: Exception) -> Response:
    return answer({"error": "nothing here"}, getattr(error, "status_code", 404))


async def _broken(request: Request, error: Exception) -> Response:
    _log.error("request_failed", error, path=request.url.path, error=repr(error))
    return answer({"error": "internal error. See the log"}, 500)
