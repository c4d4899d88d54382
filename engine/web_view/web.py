"""The live view of an engine: `app.mount("/callboard", web(engine))`, or served by `callboard web`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from callboard.bus import ConfigurationError
from callboard.tracestore import Store

from ..engine import Engine
from ..stores import StoreAddress, TracePlace, is_address
from .subject import SCOPES, Scope, Subject

if TYPE_CHECKING:
    from .access import Authorize
    from .app import WebView


def web(
    engine: Engine | None = None,
    *,
    trace: TracePlace | Store | str | None = None,
    authorize: Authorize | None = None,
    hosts: Collection[str] = (),
    scopes: Collection[Scope] = SCOPES,
    show_content: bool | None = None,
    shared: bool = False,
) -> WebView:
    """The live view of an engine, as an ASGI application for a host to mount.

    It reads everything that it shows, and costs nothing while no page is open. It answers only browsers that reach
    it by the listed hosts, for its own pages.

    Args:
        engine: The engine; None for a trace alone.
        trace: A trace that another process writes: the path of its file, its address on a server as
            ``postgresql://USER@HOST/DATABASE``, or a store. None means the engine's own.
        authorize: The host's own authentication: gets the request (a `starlette.requests.Request`), and returns
            the scopes that it has, of ``view``, ``content`` and ``change``; None or nothing refuses it. Without
            it, `WebView.sign_in_url` gives addresses that sign a browser in once.
        hosts: The names, without a port, by which browsers reach it, besides those of this machine itself.
        scopes: The scopes of a sign-in by such an address.
        show_content: Whether to show the content of messages. None shows it if the engine has
            ``capture_content=True`` and no ``redact``.
        shared: Whether other processes write to the engine's trace, so that it is checked every second.

    Raises:
        ConfigurationError: There is nothing to show, a host is not a name, or the extra ``web`` is not installed.
    """
    try:
        from .access import THIS_MACHINE, Access, checked_hosts
        from .app import WebView
    except ModuleNotFoundError as error:
        if error.name != "starlette":
            raise
        raise ConfigurationError('the live view needs starlette: pip install "callboard[web]"') from None
    if engine is None and trace is None:
        raise ConfigurationError("web() needs an engine or a trace")
    unknown = set(scopes) - SCOPES
    if unknown:
        raise ConfigurationError(
            f"scopes: unknown {', '.join(sorted(unknown))}. Expected {', '.join(sorted(SCOPES))}"
        )
    if isinstance(trace, str):
        trace = StoreAddress(trace) if is_address(trace) else Path(trace)
    subject = Subject(engine, trace, show_content=show_content, shared=shared)
    access = Access(subject.clock, authorize, scopes)
    return WebView(subject, access, checked_hosts((*THIS_MACHINE, *hosts)))
