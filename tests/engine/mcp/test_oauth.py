"""Logins at HTTP servers, with a small authorization server in the same process."""

from __future__ import annotations

import json
import socket
import stat
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from callboard.bus import ConfigurationError, RestartPolicy
from callboard.engine import McpOAuth, McpTokenFile, mcp_servers
from tests.engine.tools.rounds import result_of

pytest.importorskip("mcp", reason="needs callboard[mcp]")

pytestmark = pytest.mark.anyio
NO_RESTART = RestartPolicy(max_failures=1)


class Guarded(ThreadingHTTPServer):
    """An MCP server that requires a login, and its authorization server."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.token = "token-1"
        self.expires_in = 3600
        self.grants: list[str] = []
        self.refuses = False


class Handler(BaseHTTPRequestHandler):
    server: Guarded

    def log_message(self, format: str, *args: object) -> None:
        pass

    def reply(self, body: Any, status: int = 200, **headers: str) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {
            "content-type": "application/json",
            "content-length": str(len(data)),
            **headers,
        }.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        url, parts = self.server.url, urlsplit(self.path)
        if parts.path.startswith("/.well-known/oauth-protected-resource"):
            self.reply({"resource": f"{url}/mcp", "authorization_servers": [url]})
        elif parts.path == "/.well-known/oauth-authorization-server":
            places = {f"{name}_endpoint": f"{url}/{name}" for name in ("authorization", "token", "registration")}
            kinds = {"response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"]}
            self.reply({"issuer": url, **places, **kinds})
        elif parts.path == "/authorization":
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            outcome = "error=access_denied" if self.server.refuses else "code=abc"
            self.reply({}, 302, location=f"{query['redirect_uri']}?{outcome}&state={query['state']}")
        else:
            self.reply({}, 405)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        match self.path:
            case "/registration":
                self.reply({**json.loads(body), "client_id": "me", "token_endpoint_auth_method": "none"}, 201)
            case "/token":
                self.server.grants.append(parse_qs(body.decode())["grant_type"][0])
                self.server.token = f"token-{len(self.server.grants) + 1}"
                lasts = {"expires_in": self.server.expires_in, "refresh_token": "again"}
                self.reply({"access_token": self.server.token, "token_type": "Bearer", **lasts})
            case "/mcp" if self.headers.get("authorization") != f"Bearer {self.server.token}":
                place = f'{self.server.url}/.well-known/oauth-protected-resource/mcp"'
                self.reply({}, 401, www_authenticate=f'Bearer resource_metadata="{place}')
            case "/mcp":
                self.answer(json.loads(body))

    def answer(self, message: dict[str, Any]) -> None:
        match message["method"]:
            case "initialize":
                info = {"serverInfo": {"name": "guarded", "version": "1"}, "capabilities": {"tools": {}}}
                result: dict[str, Any] = {"protocolVersion": "2025-06-18", **info}
            case "tools/list":
                result = {"tools": [{"name": "secret", "inputSchema": {"type": "object"}}]}
            case "tools/call":
                result = {"content": [{"type": "text", "text": "the secret"}]}
            case _ if "id" in message:
                self.reply({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no"}})
                return
            case _:
                self.reply({}, 202)
                return
        self.reply({"jsonrpc": "2.0", "id": message["id"], "result": result})


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def redirect() -> str:
    """The address to which the browser returns, at a free port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}/callback"


def browse(url: str) -> None:
    """A browser, with a user who accepts immediately."""
    with urllib.request.urlopen(url) as page:
        assert "You are logged in" in page.read().decode()


async def tools_of(guarded: Guarded, auth: McpOAuth) -> tuple[list[str], str | None]:
    async with mcp_servers({"far": {"url": f"{guarded.url}/mcp"}}, auth=auth, restarts=NO_RESTART) as servers:
        return [tool.name for tool in servers], servers.status()[0].error


async def test_a_login_is_stored_and_used_again(guarded: Guarded, tmp_path: Path, redirect: str) -> None:
    """Only the owner can read the file. A second object for the file needs no browser."""
    path = tmp_path / "inner" / "logins.json"
    login = McpOAuth(McpTokenFile(path), open_url=browse, redirect_uri=redirect)
    assert await tools_of(guarded, login) == (["secret"], None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = McpOAuth(McpTokenFile(path), open_url=pytest.fail, redirect_uri=redirect)
    assert await tools_of(guarded, again) == (["secret"], None)
    assert guarded.grants == ["authorization_code"]


async def test_a_stored_login_that_has_expired_is_renewed(guarded: Guarded, tmp_path: Path, redirect: str) -> None:
    guarded.expires_in = -1
    path = tmp_path / "logins.json"
    await tools_of(guarded, McpOAuth(McpTokenFile(path), open_url=browse, redirect_uri=redirect))
    guarded.grants.clear()
    guarded.expires_in = 3600
    again = McpOAuth(McpTokenFile(path), open_url=pytest.fail, redirect_uri=redirect)
    assert await tools_of(guarded, again) == (["secret"], None)
    assert guarded.grants == ["refresh_token"]


async def test_a_login_that_expires_during_use_is_repeated(guarded: Guarded, redirect: str) -> None:
    opened: list[str] = []
    auth = McpOAuth(open_url=lambda url: (opened.append(url), browse(url)), redirect_uri=redirect)
    async with mcp_servers({"far": {"url": f"{guarded.url}/mcp"}}, auth=auth, restarts=NO_RESTART) as servers:
        guarded.token = "another"
        assert (await result_of(servers.tools[0])).text == "the secret"
    assert len(opened) == 2


async def test_a_refused_login_is_the_servers_error(guarded: Guarded, redirect: str) -> None:
    guarded.refuses = True
    tools, error = await tools_of(guarded, McpOAuth(open_url=browse, redirect_uri=redirect))
    assert tools == []
    assert "the login was refused: access_denied" in str(error)


async def test_without_a_login_the_error_has_the_status_of_the_server(guarded: Guarded) -> None:
    async with mcp_servers({"far": {"url": f"{guarded.url}/mcp"}}, restarts=NO_RESTART) as servers:
        assert "(HTTP 401)" in str(servers.status()[0].error)


async def test_the_error_of_a_port_in_use_names_the_option_for_another(guarded: Guarded) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener:
        taken = f"http://127.0.0.1:{listener.getsockname()[1]}/callback"
        _, error = await tools_of(guarded, McpOAuth(open_url=browse, redirect_uri=taken))
    assert "redirect_uri" in str(error)


def test_wrong_combinations_are_refused() -> None:
    async def nothing() -> str:
        return ""

    with pytest.raises(ConfigurationError, match="client_secret"):
        McpOAuth(client_secret="x")
    with pytest.raises(ConfigurationError, match="wait_for_redirect"):
        McpOAuth(wait_for_redirect=nothing)
    with pytest.raises(ConfigurationError, match="'other'"):
        mcp_servers({"far": {"url": "http://x/"}}, auth={"other": McpOAuth()})
