"""What stays of an event when its content is erased: figures, ids, and the names of models and providers.

A name, a tag, the text of an error and the name of a tool may each quote what was said. So no text stays unless it
is listed here. A field that a later version adds is erased as long as nobody lists it.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

import msgspec

from callboard.bus.events.calls import LlmCallGuarded
from callboard.bus.events.envelope import Event, UnknownEvent
from callboard.bus.events.sessions import SessionConfigured, SessionMessageAppended, SessionTurnCompleted

KEPT = frozenset(
    (
        # models and providers
        *("provider", "model", "requested_model", "served_model", "priced_as", "requested", "resolved_by"),
        *(
            "previous",
            "current",
            "fallback_of",
            "service_tier",
            "server_address",
            "reasoning_effort",
            "output_type",
        ),
        # ids
        *("forked_from", "batch_id", "call_id", "job_id", "response_id", "provider_request_id", "tool_use_id"),
        *("trace_parent", "node", "digest", "message_id", "id"),
        # words of a fixed list
        *("operation", "reason", "stop_reason", "raw_stop_reason", "status", "error_class", "error_type", "code"),
        *("provider_code", "warnings", "action", "scope", "why", "how", "kind", "size", "role", "type", "source"),
        # configuration
        *("pricing_version", "key", "guardrail"),
    )
)
"""The fields whose text stays, wherever they stand."""

_ERASED_HERE = frozenset(((LlmCallGuarded, "reason"),))
"""Fields of a kept name that hold other words in one event: a guardrail's reason is the host's own."""

StructT = TypeVar("StructT", bound=msgspec.Struct)

_BARE = (SessionMessageAppended, SessionConfigured)
"""They are stored without content from the start."""


def figures_of(event: Event, *, keeps_tags: bool = False) -> Event:
    """An event without anything that may quote what was said.

    Args:
        event: The event. Of a topic that Callboard doesn't know, the topic alone stays.
        keeps_tags: Whether tags stay, and the accounts of budgets that are named after them.
    """
    if isinstance(event, UnknownEvent):
        return UnknownEvent(topic=event.topic, raw=msgspec.Raw(msgspec.json.encode({"type": event.topic})))
    if isinstance(event, _BARE):
        return event
    bare = _without_text(event, ("tags", "value") if keeps_tags else ())
    if isinstance(event, SessionTurnCompleted) and event.error is not None:
        kind = event.error.partition(":")[0]
        return msgspec.structs.replace(bare, error=kind if kind.isidentifier() else "")
    return bare


def _without_text(thing: StructT, more: tuple[str, ...] = ()) -> StructT:
    erased: dict[str, object] = {}
    for field in msgspec.structs.fields(type(thing)):
        value = getattr(thing, field.name)
        is_kept = field.name in more or (field.name in KEPT and (type(thing), field.name) not in _ERASED_HERE)
        if is_kept and isinstance(value, str | tuple | dict):
            continue
        bare = _bare_value(value, field)
        if bare is not value:
            erased[field.name] = bare
    return msgspec.structs.replace(thing, **erased) if erased else thing


def _bare_value(value: object, field: msgspec.structs.FieldInfo) -> object:
    match value:
        case None | bool() | int() | float() | Enum():
            return value
        case msgspec.Struct():
            return _without_text(value)
        case tuple() if value and all(isinstance(each, msgspec.Struct) for each in value):
            return tuple(_without_text(each) for each in value)
        case tuple() | dict() if all(isinstance(each, int | float) for each in _values(value)):
            return value
        case _:
            return _nothing(value, field)


def _values(value: tuple[object, ...] | dict[object, object]) -> tuple[object, ...]:
    return tuple(value.values()) if isinstance(value, dict) else value


def _nothing(value: object, field: msgspec.structs.FieldInfo) -> object:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return type(value)() if isinstance(value, str | tuple | dict) else None
