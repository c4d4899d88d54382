"""Builds the request of one call, fitted to the model that it goes to."""

from __future__ import annotations

import msgspec

from callboard.adapters import AdapterCapabilities, CanonicalRequest, Message

from ...models.entries import ModelEntry
from ...models.tool_settings import first_choice, parallel_calls
from ...routing.candidates import Route, asks_for_length
from ..options import TurnOptions, for_requests
from ..turn_context import FirstIds, TurnContext


def request_for(
    turn: TurnContext, route: Route, messages: tuple[Message, ...], ids: FirstIds, *, first: bool
) -> CanonicalRequest:
    """The request of a call.

    Args:
        turn: The turn.
        route: The model, and what is known of it.
        messages: The messages that are sent.
        ids: The ids of the call and of its message.
        first: Whether no reply has come in this turn yet. A tool call is forced only then, because forcing it
            after each reply would never end.
    """
    options, option, entry = turn.options, route.option, route.option.named.entry
    capabilities, given = option.capabilities, option.input
    assert capabilities is not None  # an option without them is never taken
    assert given is not None
    choice = given.forced
    if first and choice is None:
        choice = first_choice(
            entry.tools,
            options.get("tool_choice"),
            tools=given.tools,
            messages=messages,
            capabilities=capabilities,
        )
    asked = for_requests(_options_of(entry, capabilities), options)
    asked["output_schema"] = given.schema
    asked["tool_choice"] = choice
    asked["parallel_tool_calls"] = parallel_calls(
        entry.tools, options.get("parallel_tool_calls"), tools=given.tools, capabilities=capabilities
    )
    return CanonicalRequest(
        request_id=ids.request_id,
        messages=turn.state.refused_reasoning.without(route.decision.provider, messages),
        model=route.decision.model,
        capabilities=capabilities,
        max_output_tokens=option.max_output_tokens,
        default_output_limit=options.get("max_output_tokens") is None and not asks_for_length(entry),
        tools=given.tools,
        system_prompt=given.system_prompt,
        stop_sequences=tuple(options.get("stop_sequences", ())),
        message_id=ids.message_id,
        session_id=turn.state.id,
        timeout_seconds=options.get("call_timeout"),
        stream=turn.streamed,
        **asked,
    )


def _options_of(entry: ModelEntry, capabilities: AdapterCapabilities) -> TurnOptions:
    """The options that the configuration of a model has, below those of session and turn."""
    return {
        "temperature": entry.defaults.temperature,
        "reasoning_effort": entry.defaults.effort if capabilities.supports_thinking else None,
        "max_retries": entry.max_retries,
        "retry": entry.retry,
    }


def carried_over(
    original: CanonicalRequest, changed: CanonicalRequest, fitted: CanonicalRequest
) -> CanonicalRequest:
    """A request fitted to another model, with everything that middleware has changed besides the model."""
    changes = {
        name: getattr(changed, name)
        for name in CanonicalRequest.__struct_fields__
        if name not in ("model", "request_id") and getattr(changed, name) != getattr(original, name)
    }
    return msgspec.structs.replace(fitted, **changes)
