"""`callboard web`: serve the live view for a new engine or for an existing trace."""

from __future__ import annotations

import argparse
import ipaddress
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import anyio

from callboard.bus import ConfigurationError

from .. import Engine, load_registry
from ..stores import TracePlace, store_to_read
from .options import add_address, add_models_file, add_trace, chosen_trace, named_trace
from .screen import make_console

if TYPE_CHECKING:
    from ..web_view.app import WebView


PORT = 8372


def add_command(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serve the live view on this machine, and print an address that signs in one browser. By default "
        "it runs an engine on the default trace. With --db or --store it shows that trace, which another "
        "process may write."
    )
    add_trace(parser)
    add_models_file(parser)
    add_address(
        parser,
        PORT,
        network="allow other machines to connect: --bind may be any address of this machine",
        hosts="allow this host name in the address (repeatable)",
    )
    parser.add_argument("--view-only", action="store_true", help="do not allow cancelling, repricing or undoing")
    parser.set_defaults(run=run, draws=True)


def run(arguments: argparse.Namespace) -> int:
    refuse_open_binds(arguments)
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(f'the live view needs {error.name}: pip install "callboard[web]"') from None
    anyio.run(_serve, arguments)
    return 0


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


async def _serve(arguments: argparse.Namespace) -> None:
    if named_trace(arguments) is not None:
        place = chosen_trace(arguments)
        async with store_to_read(place):  # check that the trace exists and can be read
            pass
        await _serve_view(_view(None, place, arguments), arguments)
        return
    async with Engine(models=load_registry(arguments.models_file)) as engine:
        await _serve_view(_view(engine, None, arguments), arguments)


def _view(engine: Engine | None, place: TracePlace | None, arguments: argparse.Namespace) -> WebView:
    from ..web_view.web import web

    hosts = [*arguments.host, *([] if arguments.bind in ("0.0.0.0", "::") else [arguments.bind])]
    return web(
        engine,
        trace=place,
        hosts=hosts,
        scopes=("view", "content") if arguments.view_only else ("view", "content", "change"),
        shared=True,
    )


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
