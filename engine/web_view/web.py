"""The live view of an engine: `app.mount("/callboard", web(engine))`, or served by `callboard web`."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from callboard.bus import ConfigurationError
from callboard.tracestore import Store

from ..engine import Engine
from ..stores import TracePlace, place_of
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
    """Make the live view of an engine, an ASGI application to mount.

    It uses no resources while no page is open. It answers only requests for the listed hosts and from its own
    pages.

    Args:
        engine: The engine; None to show only a trace.
        trace: A trace that another process writes: the path of its file, its address on a server, such as
            ``postgresql://USER@HOST/DATABASE``, or a store. None uses the engine's own trace.
        authorize: The host's own authentication. It receives a `starlette.requests.Request`, and returns the
            request's scopes: ``view``, ``content``, ``change``. None or no scope refuses the request. Without this
            function, `WebView.sign_in_url` returns addresses that sign a browser in once.
        hosts: The allowed host names, without port. The names of this machine are always allowed.
        scopes: The scopes of visitors who sign in with an address from `WebView.sign_in_url`.
        show_content: Whether to show the content of messages. None shows it if the engine has
            ``capture_content=True`` and no ``redact``.
        shared: Whether other processes write to the engine's trace, so that it is checked every second.

    Raises:
        ConfigurationError: There is neither an engine nor a trace, a host is not a name, or the extra ``web`` is
            not installed.
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
        trace = place_of(trace)
    subject = Subject(engine, trace, show_content=show_content, shared=shared)
    access = Access(subject.clock, authorize, scopes)
    return WebView(subject, access, checked_hosts((*THIS_MACHINE, *hosts)))
