"""`callboard serve`: serve the gateway, and the live view next to it."""

from __future__ import annotations

import argparse
import ipaddress
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import anyio

from callboard.adapters.providers.local.child import what_to_install
from callboard.bus import ConfigurationError

from .. import Cluster, Engine, ModelRegistry, load_registry
from ..models.configured import FROM_ENVIRONMENT
from ..stores import StoreAddress, TracePlace
from .options import STORE_VARIABLE, add_models_file, named_trace, store_address, trace_file
from .sanitize import echo, note
from .table import exact
from .web import listening, serve_until_interrupt

if TYPE_CHECKING:
    from ..gateway.application import Gateway, ServedRequest
    from ..web_view.app import WebView

PORT = 8375

LOCAL_MODEL = "local-tools"
"""The model for every name if no provider is configured. Its tool calls are emulated."""

VIEW_PATH = "/callboard"
_VIEW = b"/callboard/"


def add_command(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument(
        "--port",
        type=int,
        default=PORT,
        metavar="N",
        help=f"listen on this port (default: {PORT}; 0: any free port)",
    )
    parser.add_argument("--clients", action="store_true", help="require client keys on this machine, too")
    parser.add_argument("--log", action="store_true", help="write one line to stderr for each request")
    parser.add_argument(
        "--on-disconnect",
        choices=("cancel", "finish"),
        default="cancel",
        help="cancel or finish the call of a client that leaves (default: cancel)",
    )
    parser.add_argument(
        "--private-media",
        action="store_true",
        help="allow clients to name images and files at addresses that are not public",
    )
    parser.add_argument("--no-web", action="store_true", help="serve no live view")
    parser.add_argument(
        "--capture-content", action="store_true", help="keep the content of messages in the trace, too"
    )
    trace = parser.add_mutually_exclusive_group()
    trace.add_argument(
        "--db",
        type=trace_file,
        metavar="PATH",
        help="record calls in this file (default: $CALLBOARD_HOME/trace.db)",
    )
    trace.add_argument(
        "--store",
        type=store_address,
        metavar="URL",
        help=f"record calls on a server, as postgresql://USER@HOST/DATABASE (default: ${STORE_VARIABLE}, if set)",
    )
    add_models_file(parser)
    parser.set_defaults(run=run, host=())


def run(arguments: argparse.Namespace) -> int:
    try:
        keyless = ipaddress.ip_address(arguments.bind).is_loopback and not arguments.clients
    except ValueError:
        raise ConfigurationError(f"--host {arguments.bind!r} is not an IP address") from None
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise ConfigurationError(f'the gateway needs {package}: pip install "callboard[web]"')
    anyio.run(_serve, arguments, keyless)
    return 0


async def _serve(arguments: argparse.Namespace, keyless: bool) -> None:
    from ..gateway.application import gateway
    from ..gateway.server import DRAIN_SECONDS

    registry = served_models(load_registry(arguments.models_file))
    listener, address = listening(arguments)
    place = named_trace(arguments)
    store, cluster = _store(place), None
    if isinstance(place, StoreAddress):  # gateways on one server share the budgets and rates of their clients
        cluster = Cluster(store=place.dsn)
    content = arguments.capture_content
    async with Engine(models=registry, store=store, cluster=cluster, capture_content=content) as engine:
        app = gateway(
            engine,
            keyless=keyless,
            on_disconnect=arguments.on_disconnect,
            private_media=arguments.private_media,
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


def _store(place: TracePlace | None) -> Any:
    if isinstance(place, StoreAddress):
        from callboard.tracestore import PostgresStore

        return PostgresStore(place.dsn)
    return place


def served_models(registry: ModelRegistry) -> ModelRegistry:
    """The registry to serve: the configured models, or without any, the local model for every name."""
    if registry.source != FROM_ENVIRONMENT or registry.default_provider is not None:
        return registry
    return registry.with_client_names({"*": [LOCAL_MODEL]})


def _view(engine: Engine, arguments: argparse.Namespace) -> WebView:
    from ..web_view.web import web

    hosts = [] if arguments.bind in ("0.0.0.0", "::") else [arguments.bind]
    return web(engine, hosts=hosts, shared=True)


def _announce(view: WebView, address: str) -> None:
    """Print an address that signs in one browser. After each use, print a new one."""
    base = f"{address.rstrip('/')}{VIEW_PATH}"

    def say_address() -> None:
        echo(f"  {'Live view':<17}{view.sign_in_url(base)}")

    view.on_sign_in(say_address)
    say_address()


class CombinedApplication:
    """The gateway, and the live view below its own path, as one application."""

    def __init__(self, gateway: Gateway, view: WebView | None) -> None:
        self._gateway = gateway
        self._view = view

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if self._view is not None and path == VIEW_PATH:
            await send({"type": "http.response.start", "status": 307, "headers": [(b"location", _VIEW)]})
            await send({"type": "http.response.body", "body": b""})
        elif self._view is not None and path.startswith(f"{VIEW_PATH}/"):
            await self._view({**scope, "root_path": f"{scope.get('root_path', '')}{VIEW_PATH}"}, receive, send)
        else:
            await self._gateway(scope, receive, send)


# --- What is printed ---


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
    model = served.model
    if served.served_by not in ("", model):
        model = f"{model} -> {served.served_by}"
    cost = "" if served.nano_usd is None else exact(served.nano_usd)
    parts = (
        served.client,
        f"{served.method} {served.path}",
        served.status,
        model,
        f"{served.seconds:.2f} s",
        cost,
    )
    return "  ".join(str(part) for part in parts if part)
