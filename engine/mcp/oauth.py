"""OAuth for HTTP servers, using the client library. A person logs in with a browser, and the host stores the
tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import webbrowser
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import msgspec

from callboard.bus.errors import CallboardError, ConfigurationError
from callboard.bus.files import write_private

from .hooks import answer_of

REDIRECT_URI = "http://127.0.0.1:8373/callback"
"""The URL to which the browser returns after a login. The port is fixed, because some servers compare the URL
exactly.
"""

_PAGE = "<!doctype html><title>Callboard</title><p>You are logged in. You can close this page."


class McpTokenStorage(Protocol):
    """A host's storage for logins. A key identifies a server, and the data is secret."""

    async def load(self, key: str) -> bytes | None:
        """The data that was saved under a key; None if there is none."""

    async def save(self, key: str, data: bytes) -> None:
        """Save the data under a key. It replaces older data."""


class McpTokenFile:
    """A storage in one file that only its owner can read.

    Args:
        path: The file. Its folder is created if needed.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).expanduser()

    async def load(self, key: str) -> bytes | None:
        """The data of a key. A file that can't be read is treated as empty."""
        found = self._all().get(key)
        return None if found is None else bytes(found)

    async def save(self, key: str, data: bytes) -> None:
        """Save the data of a key. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_private(self._path, msgspec.json.encode({**self._all(), key: msgspec.Raw(data)}))

    def _all(self) -> dict[str, msgspec.Raw]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, msgspec.Raw])
        except (OSError, msgspec.DecodeError):
            return {}


class McpMemoryTokens:
    """A storage that lasts as long as the process."""

    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}

    async def load(self, key: str) -> bytes | None:
        """The data of a key."""
        return self._data.get(key)

    async def save(self, key: str, data: bytes) -> None:
        """Save the data of a key."""
        self._data[key] = data


class McpOAuth:
    """A person's login at HTTP servers. One object may serve several servers.

    By default, a browser opens on this machine and returns to a local port. A web application passes `open_url`
    and `wait_for_redirect` instead. For other flows of the client library, such as client credentials, pass its
    own object as `auth`.

    Args:
        storage: The storage for logins; by default, they are kept in memory until the process ends.
        open_url: Shows the login page to the person. A plain function runs in a thread.
        wait_for_redirect: Returns the URL to which the person's browser returned, with its query.
        redirect_uri: That URL without its query.
        scope: The requested scopes, separated by spaces; None lets the server decide.
        client_id: The id of a client that was registered by hand; None registers a new client.
        client_secret: The secret of that client, if it has one.
        client_metadata_url: The URL of a document that describes the client, for servers that accept one.
        client_name: The name that the login page shows.

    Raises:
        ConfigurationError: Only one of two arguments that need each other was passed.
    """

    def __init__(
        self,
        storage: McpTokenStorage | None = None,
        *,
        open_url: Callable[[str], object | Awaitable[object]] | None = None,
        wait_for_redirect: Callable[[], Awaitable[str]] | None = None,
        redirect_uri: str = REDIRECT_URI,
        scope: str | None = None,
        client_id: str | None = None,
        client_secret: str | None = None,
        client_metadata_url: str | None = None,
        client_name: str = "Callboard",
    ) -> None:
        if wait_for_redirect is not None and open_url is None:
            raise ConfigurationError("McpOAuth takes wait_for_redirect together with open_url")
        if client_secret is not None and client_id is None:
            raise ConfigurationError("McpOAuth takes client_secret together with client_id")
        self._storage = storage if storage is not None else McpMemoryTokens()
        self._open_url = open_url if open_url is not None else webbrowser.open
        self._wait = wait_for_redirect
        self._redirect_uri = redirect_uri
        self._scope = scope
        self._client_id = client_id
        self._client_secret = client_secret
        self._client_metadata_url = client_metadata_url
        self._client_name = client_name

    def for_server(self, url: str) -> Any:
        """The authentication of requests to one server, for the client library's HTTP library."""
        from mcp.client.auth import OAuthClientProvider
        from mcp.shared.auth import OAuthClientMetadata

        metadata: dict[str, Any] = {
            "client_name": self._client_name,
            "redirect_uris": [self._redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
        }
        if self._scope is not None:
            metadata["scope"] = self._scope
        storage = _LibraryStorage(self._storage, url, self._registered())

        class Provider(OAuthClientProvider):
            """The library's client, extended: it also finds the URL for renewing a login that an earlier process
            stored.
            """

            on_login: Callable[[], object] | None = None
            """Called when a person must log in."""

            async def _initialize(self) -> None:
                await super()._initialize()
                await storage.restore(self.context)

        browser = _Browser(self._redirect_uri, self._open_url, self._wait)

        async def open_page(url: str) -> None:
            if provider.on_login is not None:
                provider.on_login()
            await browser.open(url)

        provider = Provider(
            server_url=url,
            client_metadata=OAuthClientMetadata.model_validate(metadata),
            storage=storage,
            redirect_handler=open_page,
            callback_handler=browser.result,
            client_metadata_url=self._client_metadata_url,
        )
        storage.context = provider.context
        return provider

    def _registered(self) -> dict[str, Any] | None:
        if self._client_id is None:
            return None
        return {
            "client_id": self._client_id,
            "client_secret": self._client_secret,
            "redirect_uris": [self._redirect_uri],
            "token_endpoint_auth_method": "none" if self._client_secret is None else "client_secret_basic",
        }


class _Stored(msgspec.Struct, omit_defaults=True):
    """The stored data of one server."""

    tokens: dict[str, Any] | None = None
    expires_at: float | None = None
    client: dict[str, Any] | None = None
    server: dict[str, Any] | None = None  # the metadata of the authorization server, for renewals
    resource: dict[str, Any] | None = None


class _LibraryStorage:
    """A host's storage, with the interface of the client library.

    The time of expiry is also stored, because the library's tokens have only their duration in seconds.
    """

    def __init__(self, storage: McpTokenStorage, key: str, registered: dict[str, Any] | None) -> None:
        self._storage = storage
        self._key = key
        self._registered = registered
        self.context: Any = None

    async def restore(self, context: Any) -> None:
        """Restore the library's client: the server's metadata from the login, and the time when the tokens
        expire.
        """
        from mcp.shared.auth import OAuthMetadata, ProtectedResourceMetadata

        stored = await self._read()
        if context.current_tokens is None or stored.server is None:
            return
        context.oauth_metadata = OAuthMetadata.model_validate(stored.server)
        if stored.resource is not None:
            context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(stored.resource)
        context.update_token_expiry(context.current_tokens)

    async def _read(self) -> _Stored:
        data = await self._storage.load(self._key)
        try:
            return _Stored() if data is None else msgspec.json.decode(data, type=_Stored)
        except msgspec.DecodeError:
            return _Stored()

    async def get_tokens(self) -> Any:
        from mcp.shared.auth import OAuthToken

        stored = await self._read()
        if stored.tokens is None:
            return None
        tokens = dict(stored.tokens)
        if stored.expires_at is not None:
            tokens["expires_in"] = int(stored.expires_at - time.time())
        return OAuthToken.model_validate(tokens)

    async def set_tokens(self, tokens: Any) -> None:
        stored = await self._read()
        stored.tokens = tokens.model_dump(mode="json", exclude_none=True)
        if self.context is not None:
            stored.server = _plain(self.context.oauth_metadata)
            stored.resource = _plain(self.context.protected_resource_metadata)
        stored.expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        await self._storage.save(self._key, msgspec.json.encode(stored))

    async def get_client_info(self) -> Any:
        from mcp.shared.auth import OAuthClientInformationFull

        client = self._registered or (await self._read()).client
        return None if client is None else OAuthClientInformationFull.model_validate(client)

    async def set_client_info(self, client_info: Any) -> None:
        if self._registered is not None:
            return
        stored = await self._read()
        stored.client = client_info.model_dump(mode="json", exclude_none=True)
        await self._storage.save(self._key, msgspec.json.encode(stored))


def _plain(model: Any) -> dict[str, Any] | None:
    if model is None:
        return None
    plain: dict[str, Any] = model.model_dump(mode="json", exclude_none=True)
    return plain


class _Browser:
    """Opens the login page in a person's browser, and receives the URL to which the browser returns."""

    def __init__(
        self,
        redirect_uri: str,
        open_url: Callable[[str], object | Awaitable[object]],
        wait: Callable[[], Awaitable[str]] | None,
    ) -> None:
        self._redirect = urlsplit(redirect_uri)
        self._open_url = open_url
        self._wait = wait
        self._server: asyncio.Server | None = None
        self._came: asyncio.Future[str] | None = None

    async def open(self, url: str) -> None:
        if self._wait is None:
            await self._listen()
        await answer_of(self._open_url, url)

    async def result(self) -> Any:
        from mcp.shared.auth import AuthorizationCodeResult

        if self._wait is not None:
            returned = await self._wait()
        else:
            assert self._came is not None
            try:
                returned = await self._came
            finally:
                self._close()
        query = parse_qs(urlsplit(returned).query)
        if error := query.get("error"):
            why = query.get("error_description", error)[0]
            raise CallboardError(f"the login was refused: {why}")
        code, state, issuer = (query.get(name, [None])[0] for name in ("code", "state", "iss"))
        return AuthorizationCodeResult(code=code or "", state=state, iss=issuer)

    async def _listen(self) -> None:
        self._close()
        self._came = asyncio.get_running_loop().create_future()
        host, port = self._redirect.hostname or "127.0.0.1", self._redirect.port or 80
        try:
            self._server = await asyncio.start_server(self._serve, host, port)
        except OSError as error:
            raise CallboardError(
                f"the login can't come back to {self._redirect.geturl()}: {error.strerror or error}; "
                "McpOAuth(redirect_uri=...) takes another port"
            ) from error

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await reader.readuntil(b"\r\n\r\n")
            target = head.split(b" ", 2)[1].decode("ascii", "replace")
            is_redirect = urlsplit(target).path == (self._redirect.path or "/")
            page = _PAGE.encode() if is_redirect else b""
            status = b"200 OK" if is_redirect else b"404 Not Found"
            writer.write(
                b"HTTP/1.1 " + status + b"\r\ncontent-type: text/html; charset=utf-8\r\nconnection: close\r\n"
                b"content-length: " + str(len(page)).encode() + b"\r\n\r\n" + page
            )
            await writer.drain()
            if is_redirect and self._came is not None and not self._came.done():
                self._came.set_result(target)
        writer.close()

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
