"""The uses of the Responses API's own tools. They are billed apart from the tokens of the model that called them.

A reply tells them in `tool_usage`. If it has none, its items tell them. The names are those of the rates in a
price table. The model that drew an image is another one, and is counted apart; see `images`.
"""

from __future__ import annotations

import msgspec

from callboard.adapters.protocols.openai_images import read_usage as read_image_usage
from callboard.adapters.usage.counts import reported_count
from callboard.bus.values.json import Json
from callboard.bus.values.usage import details_of

from .wire import Item, is_present, read_value


class ToolFees:
    """Counts the items of one reply that are billed."""

    def __init__(self) -> None:
        self._searches = 0
        self._file_searches = 0
        self._images = 0
        self._containers: set[str | None] = set()

    def note(self, kind: str, item: Item) -> None:
        """An item is whole. Opening a page, or looking for something in it, is no search."""
        match kind:
            case "web_search_call":
                action = read_value(item.action)
                what = action.get("type") if isinstance(action, dict) else None
                self._searches += what in (None, "search")
            case "file_search_call":
                self._file_searches += 1
            case "code_interpreter_call":
                self._containers.add(item.container_id)
            case "image_generation_call":
                self._images += 1
            case _:
                pass

    def counts(self, tool_usage: msgspec.Raw, usage: msgspec.Raw) -> dict[str, int]:
        """The counts by the names of the rates.

        Args:
            tool_usage: The reply's `tool_usage`.
            usage: The reply's `usage`, in which xAI names its tools.
        """
        searches, drawn = 0, None
        if is_present(tool_usage):
            told = _object(read_value(tool_usage))
            searches = reported_count(_object(told.get("web_search")).get("num_requests")) or 0
            drawn = drawn_with(tool_usage)
        counts = details_of(
            web_search=max(searches, self._searches),
            file_search=self._file_searches,
            code_interpreter=len(self._containers),
            image_tool=0 if drawn else self._images,
        )
        return {**(counts or {}), **(drawn or {}), **_named(usage)}


_NAMED = b"server_side_tool_usage_details"
_FREE = frozenset({"mcp_calls"})


def _named(usage: msgspec.Raw) -> dict[str, int]:
    """What xAI counts of its own tools."""
    if _NAMED not in bytes(usage):
        return {}
    own = _object(_object(read_value(usage)).get(_NAMED.decode()))
    counts = {
        name.removesuffix("_calls"): reported_count(count) for name, count in own.items() if name not in _FREE
    }
    return {name: count for name, count in counts.items() if count and name.isidentifier()}


def drawn_with(tool_usage: msgspec.Raw) -> dict[str, int] | None:
    """The tokens of the model that drew images, as pieces; None where the reply tells none."""
    if not is_present(tool_usage):
        return None
    drawn = read_image_usage(msgspec.json.encode(_object(read_value(tool_usage)).get("image_gen")))
    if drawn is None:
        return None
    pictured = (drawn.details or {}).get("image_input", 0)
    return details_of(
        image_tool_input=drawn.input_tokens - pictured,
        image_tool_image_input=pictured,
        image_tool_cached=drawn.cached_input_tokens,
        image_tool_output=drawn.output_tokens,
    )


def with_tool_usage(usage: msgspec.Raw, tool_usage: msgspec.Raw) -> msgspec.Raw:
    """The usage as it came, with the tools' beside it if they used anything."""
    if not is_present(tool_usage) or not _used(read_value(tool_usage)):
        return msgspec.Raw(bytes(usage))
    fields = msgspec.json.decode(usage, type=dict[str, msgspec.Raw])
    return msgspec.Raw(msgspec.json.encode({**fields, "tool_usage": tool_usage}))


def _used(value: Json) -> bool:
    return any(map(_used, value.values())) if isinstance(value, dict) else bool(value)


def _object(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}
