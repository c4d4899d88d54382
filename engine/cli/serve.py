"""`callboard serve`, `web` and `serve-mcp`: serve the gateway, the live view, and tools or a model over MCP."""

from __future__ import annotations

import argparse
import ipaddress
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import anyio

from callboard.adapters.providers.local.child import what_to_install
from callboard.bus import ConfigurationError

from .. import Cluster, Engine, ModelRegistry, Session, load_registry
from ..models.configured import FROM_ENVIRONMENT
from ..stores import StoreAddress, TracePlace, store_to_read
from ..tools import ToolLike
from .conversation_setup import add_mcp_file, given_tools
from .options import (
    OWN_TRACE,
    add_address,
    add_models_file,
    add_port,
    add_trace,
    chosen_trace,
    flag,
    named_trace,
    repeated,
)
from .sanitize import echo, note
from .screen import make_console
from .table import exact

if TYPE_CHECKING:
    from ..gateway.application import Gateway, ServedRequest
    from ..web_view.app import WebView
    from ..web_view.subject import Scope

GATEWAY_PORT = 8375
MCP_PORT = 8374
VIEW_PORT = 8372

LOCAL_MODEL = "local-tools"
"""The model for every name if no provider is configured. Its tool calls are emulated."""

TOKEN_VARIABLE = "CALLBOARD_MCP_TOKEN"
"""The environment variable with the token that clients of `serve-mcp --http` must send."""

VIEW_PATH = "/callboard"


# --- The gateway ---


def add_serve(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serve the configured models to programs that use the APIs of OpenAI (Chat Completions and Responses), "
        "Anthropic (Messages) or Google (Gemini). The live view is at /callboard. On this machine no key is "
        "needed. Other machines need the keys of `callboard clients add`. Without a configured provider, a local "
        "model serves every request."
    )
    parser.add_argument(
        "--host",
        "--bind",
        dest="bind",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="listen on this address (default: 127.0.0.1); any address of another network needs client keys",
    )
    add_port(parser, GATEWAY_PORT)
    flag(parser, "--clients", help="require client keys on this machine, too")
    flag(parser, "--log", help="write one line to stderr for each request")
    parser.add_argument(
        "--on-disconnect",
        choices=("cancel", "finish"),
        default="cancel",
        help="cancel or finish the call of a client that leaves (default: cancel)",
    )
    flag(parser, "--private-media", help="allow clients to name images and files at addresses that are not public")
    flag(parser, "--no-web", help="serve no live view")
    flag(parser, "--capture-content", help="keep the content of messages in the trace, too")
    add_trace(parser, OWN_TRACE, file="record calls in this file", server="record calls on a server")
    add_models_file(parser)
    parser.set_defaults(run=run_serve, host=(), view_only=False)


def run_serve(arguments: argparse.Namespace) -> int:
    try:
        keyless = ipaddress.ip_address(arguments.bind).is_loopback and not arguments.clients
    except ValueError:
        raise ConfigurationError(f"--host {arguments.bind!r} is not an IP address") from None
    _require_server("the gateway")
    anyio.run(_serve_gateway, arguments, keyless)
    return 0


async def _serve_gateway(arguments: argparse.Namespace, keyless: bool) -> None:
    from ..gateway.application import gateway
    from ..gateway.server import DRAIN_SECONDS

    registry = served_models(load_registry(arguments.models_file))
    listener, address = listening(arguments)
    place = named_trace(arguments)
    store: Any = place
    cluster = None
    if isinstance(place, StoreAddress):  # gateways on one server share the budgets and rates of their clients
        from callboard.tracestore import PostgresStore

        store, cluster = PostgresStore(place.dsn), Cluster(store=place.dsn)
    content = arguments.capture_content
    async with Engine(models=registry, store=store, cluster=cluster, capture_content=content) as engine:
        app = gateway(
            engine, keyless=keyless, on_disconnect=arguments.on_disconnect, private_media=arguments.private_media
        )
        if arguments.log:
            app.on_request = lambda served: note(log_line(served))
        view = None if arguments.no_web else _view(engine, arguments)
        for line in greeting(address, registry, keyless=keyless):
            echo(line)
        if view is not None:
            _announce(view, address)
        await serve_until_interrupt(
            CombinedApplication(app, view),
            listener,
            on_shutdown=(lambda: None) if view is None else view.close,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )


def served_models(registry: ModelRegistry) -> ModelRegistry:
    """The registry to serve: the configured models, or without any, the local model for every name."""
    if registry.source != FROM_ENVIRONMENT or registry.default_provider is not None:
        return registry
    return registry.with_client_names({"*": [LOCAL_MODEL]})


def _announce(view: WebView, address: str) -> None:
    """Print an address that signs in one browser. After each use, print a new one."""
    base = f"{address.rstrip('/')}{VIEW_PATH}"

    def print_address() -> None:
        echo(f"  {'Live view':<17}{view.sign_in_url(base)}")

    view.on_sign_in(print_address)
    print_address()


class CombinedApplication:
    """The gateway, and the live view below its own path, as one application."""

    def __init__(self, gateway: Gateway, view: WebView | None) -> None:
        self._gateway = gateway
        self._view = view

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if self._view is not None and path == VIEW_PATH:
            location = (b"location", f"{VIEW_PATH}/".encode())
            await send({"type": "http.response.start", "status": 307, "headers": [location]})
            await send({"type": "http.response.body", "body": b""})
        elif self._view is not None and path.startswith(f"{VIEW_PATH}/"):
            await self._view({**scope, "root_path": f"{scope.get('root_path', '')}{VIEW_PATH}"}, receive, send)
        else:
            await self._gateway(scope, receive, send)


def greeting(address: str, registry: ModelRegistry, *, keyless: bool) -> Iterator[str]:
    """Instructions to use the gateway from each client."""
    base = address.rstrip("/")
    key = "any" if keyless else "KEY"
    yield f"Serving the gateway until Ctrl-C: {base}"
    if registry.client_names.get("*") == (LOCAL_MODEL,):
        yield "No provider is configured, so the local model serves every request. Set a key to use a provider,"
        yield "for example with: callboard keys set ANTHROPIC_API_KEY"
        if (command := what_to_install()) is not None:
            yield f"The local model is not installed, so all requests fail. Install it with: {command}"
    if not keyless:
        yield "Clients need a key. Make one with: callboard clients add NAME"
    yield ""
    for name, text in client_lines(base, key):
        yield f"  {name:<17}{text}"


def client_lines(base: str, key: str) -> Iterator[tuple[str, str]]:
    """Each client with its settings for an address and key."""
    yield "Claude Code", f"ANTHROPIC_BASE_URL={base} ANTHROPIC_API_KEY={key} claude"
    provider = f'{{name="Callboard",base_url="{base}/v1",wire_api="responses",env_key="CALLBOARD_KEY"}}'
    yield (
        "Codex",
        f"CALLBOARD_KEY={key} codex -c model_provider=callboard -c 'model_providers.callboard={provider}'",
    )
    yield "Gemini CLI", f"GOOGLE_GEMINI_BASE_URL={base} GEMINI_API_KEY={key} gemini"
    yield (
        "opencode",
        f'in opencode.json: "npm": "@ai-sdk/openai-compatible", "options": {{"baseURL": "{base}/v1", '
        f'"apiKey": "{key}"}}',
    )
    yield "OpenAI SDKs", f"OPENAI_BASE_URL={base}/v1 OPENAI_API_KEY={key}"
    yield "Anthropic SDKs", f"ANTHROPIC_BASE_URL={base} ANTHROPIC_API_KEY={key}"
    yield "Google SDKs", f"GOOGLE_GEMINI_BASE_URL={base} GEMINI_API_KEY={key}"


def log_line(served: ServedRequest) -> str:
    """A request in one line."""
    model, server = served.model, served.served_by
    served_model = model if server in ("", model) else f"{model} -> {server}"
    cost = "" if served.nano_usd is None else exact(served.nano_usd)
    request = f"{served.method} {served.path}"
    parts = (served.client, request, served.status, served_model, f"{served.seconds:.2f} s", cost)
    return "  ".join(str(part) for part in parts if part)


# --- The live view ---


def add_web(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serve the live view on this machine, and print an address that signs in one browser. By default "
        "it runs an engine on the default trace. With --db or --store it shows that trace, which another "
        "process may write."
    )
    add_trace(parser)
    add_models_file(parser)
    add_address(
        parser,
        VIEW_PORT,
        network="allow other machines to connect: --bind may be any address of this machine",
        hosts="allow this host name in the address (repeatable)",
    )
    flag(parser, "--view-only", help="do not allow cancelling, repricing or undoing")
    parser.set_defaults(run=run_web, draws=True)


def run_web(arguments: argparse.Namespace) -> int:
    refuse_open_binds(arguments)
    _require_server("the live view")
    anyio.run(_serve_web, arguments)
    return 0


async def _serve_web(arguments: argparse.Namespace) -> None:
    if named_trace(arguments) is not None:
        place = chosen_trace(arguments)
        async with store_to_read(place):  # check that the trace exists and can be read
            pass
        await _serve_view(_view(None, arguments, place), arguments)
        return
    async with Engine(models=load_registry(arguments.models_file)) as engine:
        await _serve_view(_view(engine, arguments), arguments)


def _view(engine: Engine | None, arguments: argparse.Namespace, place: TracePlace | None = None) -> WebView:
    from ..web_view.web import web

    hosts = [*arguments.host, *([] if arguments.bind in ("0.0.0.0", "::") else [arguments.bind])]
    scopes: Sequence[Scope] = ("view", "content") if arguments.view_only else ("view", "content", "change")
    return web(engine, trace=place, hosts=hosts, scopes=scopes, shared=True)


async def _serve_view(view: WebView, arguments: argparse.Namespace) -> None:
    listener, address = listening(arguments)
    console = make_console()

    def print_address() -> None:
        console.print(view.sign_in_url(address), soft_wrap=True, markup=False, highlight=False)

    def used() -> None:
        console.print("That address was used. For another browser:", style="dim")
        print_address()

    view.on_sign_in(used)
    console.print("Serving the live view until Ctrl-C. This address signs in one browser:", style="dim")
    print_address()
    await serve_until_interrupt(view, listener, on_shutdown=view.close)


# --- MCP ---


def add_mcp(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serve tools to other programs as an MCP server, over stdin and stdout. With -m, serve a model instead: "
        "the tool `ask` sends a message to a session that has the tools."
    )
    repeated(
        parser,
        "-T",
        "--tool",
        dest="tools",
        metavar="TOOL",
        help="serve these tools: FILE.py, FILE.py:function, a module, a plugin, or an MCP server (repeatable)",
    )
    add_mcp_file(parser)
    parser.add_argument("-m", "--model", metavar="NAME", help="serve sessions of this model, by the tool `ask`")
    parser.add_argument("-s", "--system", metavar="TEXT", help="set the system prompt of the sessions")
    parser.add_argument(
        "--name", default="callboard", metavar="NAME", help="set the name of the server (default: callboard)"
    )
    flag(parser, "--http", help="serve streamable HTTP at /mcp instead")
    add_address(
        parser,
        MCP_PORT,
        network=f"serve other machines; clients send the token in ${TOKEN_VARIABLE}",
        hosts="accept requests for this host name (repeatable)",
    )
    add_models_file(parser)
    parser.set_defaults(run=run_mcp)


def run_mcp(arguments: argparse.Namespace) -> int:
    if not arguments.tools and arguments.model is None:
        raise ConfigurationError("serve-mcp needs tools (-T, --mcp) or a model (-m) to serve")
    if arguments.http:
        refuse_open_binds(arguments)
        if arguments.allow_network and not os.environ.get(TOKEN_VARIABLE):
            raise ConfigurationError(f"--allow-network needs a token for clients: set ${TOKEN_VARIABLE}")
    anyio.run(_serve_mcp, arguments)
    return 0


async def _serve_mcp(arguments: argparse.Namespace) -> None:
    from ..mcp.ask import unknown_conversation
    from ..mcp.serve import mcp_service

    async with AsyncExitStack() as life:
        tools: Sequence[ToolLike] = await given_tools(arguments.tools, life)
        if arguments.model is None:
            service = mcp_service(tools, name=arguments.name)
        else:
            engine = await life.enter_async_context(Engine(models=load_registry(arguments.models_file)))

            def session(conversation: str | None) -> Session:
                if conversation is not None:
                    raise unknown_conversation(conversation)
                return engine.session(arguments.model, system_prompt=arguments.system, tools=tools)

            session(None)  # so that a wrong name is reported at the start
            service = mcp_service(session=session, name=arguments.name)
        if not arguments.http:
            await service.serve_stdio()
            return
        app = service.http_app(hosts=arguments.host, token=os.environ.get(TOKEN_VARIABLE) or None)
        listener, address = listening(arguments)
        note(f"An MCP server, until Ctrl-C: {address}mcp")
        await serve_until_interrupt(app, listener, lifespan="auto")


# --- The server ---


def _require_server(what: str) -> None:
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise ConfigurationError(f'{what} needs {package}: pip install "callboard[web]"')


def refuse_open_binds(arguments: argparse.Namespace) -> None:
    """Raise ConfigurationError for an address that other machines can reach, unless the user allowed it."""
    try:
        local = ipaddress.ip_address(arguments.bind).is_loopback
    except ValueError:
        raise ConfigurationError(f"--bind {arguments.bind!r} is not an IP address") from None
    if local or arguments.allow_network:
        return
    raise ConfigurationError(
        f"--bind {arguments.bind} would allow other machines to connect. To allow this, add "
        f"--allow-network, and name the hosts with --host. The connection is not encrypted"
    )


def listening(arguments: argparse.Namespace) -> tuple[socket.socket, str]:
    """A socket that listens on the requested address, and its URL. Raises ConfigurationError."""
    family = socket.AF_INET6 if ":" in arguments.bind else socket.AF_INET
    try:
        listener = socket.create_server((arguments.bind, arguments.port), family=family)
    except OSError as error:
        raise ConfigurationError(f"port {arguments.port} of {arguments.bind}: {error.strerror or error}") from None
    return listener, f"http://{_in_url(arguments)}:{listener.getsockname()[1]}/"


async def serve_until_interrupt(
    app: Any,
    listener: socket.socket,
    *,
    lifespan: Literal["auto", "off"] = "off",
    on_shutdown: Callable[[], object] = lambda: None,
    **options: Any,
) -> None:
    """Serve an ASGI application until Ctrl-C.

    `on_shutdown` is called first when the server stops. It must end streams that would not end by themselves.
    `options` are passed to uvicorn.
    """
    import uvicorn

    from ..gateway.server import server_options

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            on_shutdown()
            await super().shutdown(sockets)

    config = uvicorn.Config(app, lifespan=lifespan, **(server_options() | options))
    await Server(config).serve(sockets=[listener])


def _in_url(arguments: argparse.Namespace) -> str:
    name: str = arguments.host[0] if arguments.host else arguments.bind
    if name in ("0.0.0.0", "::"):
        name = "127.0.0.1"
    return f"[{name}]" if ":" in name else name
