"""The number of web searches behind a reply whose usage is silent about it: its citations or its tools tell."""

from __future__ import annotations

import msgspec

from callboard.bus.values.json import Json
from callboard.bus.values.usage import TokenUsage

from .wire import WireMessage


class Searches:
    """Counts those of one reply. A streamed one shows the same tool more than once, under its index."""

    def __init__(self) -> None:
        self._cites = False
        self._ran: set[str] = set()

    def note(self, message: WireMessage) -> None:
        """Look at a message, or at a piece of one."""
        self._cites = self._cites or any(_kind(one) == "url_citation" for one in _list(message.annotations))
        for place, tool in enumerate(_list(message.executed_tools)):
            if isinstance(tool, dict) and _kind(tool) == "search":
                self._ran.add(str(tool.get("index", place)))

    def added_to(self, usage: TokenUsage | None) -> TokenUsage | None:
        """The usage with the searches among its details, unless it or the server's own bill has them."""
        searches = len(self._ran) or int(self._cites)
        if usage is None or not searches or usage.reported_cost_nano_usd is not None:
            return usage
        details = usage.details or {}
        if "web_search" in details:
            return usage
        return msgspec.structs.replace(usage, details={**details, "web_search": searches})


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _kind(value: Json) -> Json:
    return value.get("type") if isinstance(value, dict) else None
