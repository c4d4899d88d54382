"""The request that a session's next turn would send to a model, as that model's provider would get it.

Nothing is sent and nothing is paid for. The way is that of a real turn: the model is routed to, the history is
fitted to it, and its adapter writes the request. What a real turn would add is missing: the context policy, which
may ask a model, and middleware, which is the host's own code. `losses` says what this model would not be told.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

from callboard.adapters import CallWarning, CanonicalRequest, Message, ProviderAdapter, TokenUsage, UsageSource
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.http.wire_call import WireCall
from callboard.bus import CallboardError

from ..conversation.options import DEFAULTS, TurnOptions, merged
from ..conversation.step import request_for
from ..conversation.turn_context import FirstIds, TurnContext
from ..conversation.turn_models import TurnModels
from ..routing.candidates import Route
from ..routing.model_choice import Model
from ..runtime.runtime import Runtime
from ..sessions.state import SessionState
from .losses import Reader, RequestLoss, report

_IDS = FirstIds("req_preview", "msg_preview")


@runtime_checkable
class WritesRequests(Protocol):
    """An adapter that can show a request without sending it."""

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        """The request as it would be sent."""
        ...


class RequestPreview(msgspec.Struct, frozen=True, kw_only=True):
    """A request that would be sent, and is not."""

    model: str
    """The model that would be asked, ``provider:name``."""
    provider: str
    """The adapter's name."""
    path: str
    """The path below the provider's address; empty if the adapter can't show its requests."""
    body: str
    """The body as the provider would get it of a streamed turn; empty if the adapter can't show its requests."""
    warnings: tuple[CallWarning, ...]
    """The warnings that the call would have, from the parts of the history that this model can't be told to an
    estimate that nears its window."""
    losses: tuple[RequestLoss, ...]
    """What this model would not see, or would see in another form, each with its place: the parts of the history
    and the settings of `warnings`, and the fields that a host or another provider attached for others."""
    input_tokens: int | None
    """An estimate of the input tokens."""
    input_nano_usd: int | None
    """The cost of that input at the prices in force, in nano-USD; None if it has no price."""
    refused: str | None = None
    """The reason why this model can't be asked; None if it can."""


def preview(
    runtime: Runtime, state: SessionState, model: Model | None, said: Message, given: TurnOptions
) -> RequestPreview:
    """The request of a session's next turn, if it said this.

    Args:
        runtime: The parts of the engine.
        state: The conversation.
        model: The model; None is the conversation's.
        said: The message that the turn would add.
        given: The options that the turn would be given.

    Raises:
        ConfigurationError: No model has that name, or its adapter can't be made.
    """
    options = merged(DEFAULTS, state.options_for(model), given, {"fallback": ()})
    turn = TurnContext(runtime, state, options, streamed=True)
    models = TurnModels(turn, model or state.model, (said,))
    named = models.plan.named[0]
    messages = (*state.messages, said)
    try:
        route = models.route_to(named.model, messages)
        request = request_for(turn, route, messages, _IDS, first=True)
        return _written(runtime, route, messages, request)
    except CallboardError as error:
        return _refused(named.model, named.entry.adapter, str(error))


def _refused(model: str, provider: str, why: str) -> RequestPreview:
    return RequestPreview(
        model=model,
        provider=provider,
        path="",
        body="",
        warnings=(),
        losses=(),
        input_tokens=None,
        input_nano_usd=None,
        refused=why,
    )


def _written(
    runtime: Runtime, route: Route, messages: tuple[Message, ...], request: CanonicalRequest
) -> RequestPreview:
    decision, option = route.decision, route.option
    adapter = runtime.adapters.consult(runtime.registry.adapter_of(option.named.entry))
    streamed = adapter.can_stream(request) if isinstance(adapter, HttpAdapter) else True
    call = adapter.write_request(request, stream=streamed) if isinstance(adapter, WritesRequests) else None
    warnings = (*option.warnings, *(call.warnings if call is not None else ()))
    losses = call.losses if call is not None else ()
    return RequestPreview(
        model=decision.model,
        provider=decision.provider,
        path=call.path if call is not None else "",
        body=call.body.decode("utf-8", "replace") if call is not None else "",
        warnings=warnings,
        losses=report(messages, request, _reader(adapter, decision.provider), losses, warnings),
        input_tokens=option.estimated_tokens,
        input_nano_usd=_input_cost(runtime, decision.model, option.estimated_tokens),
    )


def _reader(adapter: ProviderAdapter, provider: str) -> Reader:
    if not isinstance(adapter, HttpAdapter):
        return Reader(provider, (provider,))
    wire = adapter.wire
    return Reader(wire.name, (wire.name, wire.default_name), wire.media_fields)


def _input_cost(runtime: Runtime, model: str, tokens: int | None) -> int | None:
    if tokens is None:
        return None
    usage = TokenUsage(tokens, 0, source=UsageSource.ESTIMATED)
    return runtime.prices.price(model, usage, runtime.clock.now_us()).nano_usd
