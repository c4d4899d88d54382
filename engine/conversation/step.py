"""One reply of the model within a turn: its request, its call, and its fallbacks.

A fallback is tried if the call fails before any content arrived. It is a separate call for the same message, and
its `caused_by` is the failed call.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial

import msgspec

from callboard.adapters import (
    AdapterCapabilities,
    AdapterError,
    CanonicalRequest,
    CanonicalResponse,
    Message,
    MessageMetadata,
    Role,
    StopReason,
    ToolChoice,
)
from callboard.adapters.replies.usage import NOTHING_USED
from callboard.adapters.replies.whole import whole_events
from callboard.adapters.requests.content import of_provider
from callboard.bus import CallboardError, ContextOverflowError, PromptTooLongError
from callboard.bus.errors import CancelledError
from callboard.bus.log import Log
from callboard.bus.values.messages import is_empty, with_whole_calls

from ..calls.call import Call
from ..calls.outcome import NOT_KNOWN, CallOutcome
from ..calls.preparation import CallContext
from ..middleware.chain import Chain
from ..models.entries import ModelEntry, first_choice, parallel_calls
from ..routing.candidates import Option, Route, asks_for_length, may_fall_back
from ..runtime.adapters import RunningAdapter
from .context import answer_as_text
from .models_and_tools import TurnModels
from .options import TurnOptions, for_requests
from .results import Reply
from .turn_context import OWN_IDS, FirstIds, TurnContext


def request_for(
    turn: TurnContext, route: Route, messages: tuple[Message, ...], ids: FirstIds, *, first: bool
) -> CanonicalRequest:
    options, option, entry = turn.options, route.option, route.option.named.entry
    capabilities, model_input = option.capabilities, option.input
    assert capabilities is not None  # a model that may be chosen always has capabilities
    assert model_input is not None
    choice = model_input.forced
    if first and choice is None:
        choice = first_choice(
            entry.tools,
            options.get("tool_choice"),
            tools=model_input.tools,
            messages=messages,
            capabilities=capabilities,
        )
    request_options = for_requests(_options_of(entry, capabilities), options)
    request_options["output_schema"] = model_input.schema
    request_options["tool_choice"] = choice
    request_options["parallel_tool_calls"] = parallel_calls(
        entry.tools, options.get("parallel_tool_calls"), tools=model_input.tools, capabilities=capabilities
    )
    caller, provider = turn.client_request, route.decision.provider
    if option.speaks_client and caller is not None and caller.wire is not None:
        messages = of_provider(messages, caller.wire.protocol, provider)
    return CanonicalRequest(
        request_id=ids.request_id,
        messages=turn.state.refused_reasoning.without(provider, messages),
        model=route.decision.model,
        capabilities=capabilities,
        max_output_tokens=option.max_output_tokens,
        default_output_limit=options.get("max_output_tokens") is None and not asks_for_length(entry),
        tools=model_input.tools,
        system_prompt=model_input.system_prompt,
        stop_sequences=tuple(options.get("stop_sequences", ())),
        message_id=ids.message_id,
        session_id=turn.state.calls_as,
        has_beginning=caller is not None and caller.has_beginning,
        wire=None if caller is None or _is_refitted(turn, option, choice) else caller.wire,
        timeout_seconds=options.get("call_timeout"),
        stream=turn.streamed,
        **request_options,
    )


def _is_refitted(turn: TurnContext, option: Option, choice: ToolChoice | None) -> bool:
    """Whether the configuration or a budget changes the request for this model.

    The model's default settings are ignored: if a client leaves a setting out, the provider's default applies.
    """
    model_input, options = option.input, turn.options
    assert model_input is not None
    limit = options.get("max_output_tokens")
    return (
        (model_input.tools, model_input.system_prompt)
        != (turn.state.definitions, turn.state.system_prompt or None)
        or (model_input.schema, choice) != (options.get("output_schema"), options.get("tool_choice"))
        or (option.max_output_tokens < limit if limit is not None else asks_for_length(option.named.entry))
    )


def _options_of(entry: ModelEntry, capabilities: AdapterCapabilities) -> TurnOptions:
    """The options of a model in the configuration. Options of the session and the turn replace them."""
    return {
        "temperature": entry.defaults.temperature,
        "reasoning_effort": entry.defaults.effort if capabilities.supports_thinking else None,
        "max_retries": entry.max_retries,
        "retry": entry.retry,
    }


def carried_over(
    original: CanonicalRequest, changed: CanonicalRequest, fitted: CanonicalRequest
) -> CanonicalRequest:
    """A request fitted to another model, with the other changes of middleware applied again."""
    changes = {
        name: getattr(changed, name)
        for name in CanonicalRequest.__struct_fields__
        if name not in ("model", "request_id") and getattr(changed, name) != getattr(original, name)
    }
    return msgspec.structs.replace(fitted, **changes)


_SAID_BY_WIRE = frozenset(
    {"messages", "max_output_tokens", "tools", "system_prompt", "stop_sequences", "temperature", "top_p"}
    | {"frequency_penalty", "presence_penalty", "seed", "verbosity", "user", "output_schema", "tool_choice"}
    | {"parallel_tool_calls", "reasoning_effort", "provider_options"}
)
"""The fields of a request that a client's own body also contains, in the client's form."""


def _asks_otherwise(original: CanonicalRequest, changed: CanonicalRequest) -> bool:
    """Whether middleware changed a field that the client's own body contains. Then the body is outdated."""
    return changed is not original and any(
        getattr(changed, name) != getattr(original, name) for name in _SAID_BY_WIRE
    )


class _HeldReply:
    """Holds back the provider's raw bytes until it is certain that middleware does not change the reply."""

    def __init__(self, request: CanonicalRequest) -> None:
        assert request.wire is not None
        self._receiver = request.wire.on_event
        self._body: bytes | None = None
        wire = request.wire
        if self._receiver is not None:
            wire = msgspec.structs.replace(wire, on_event=self._hold)
        self.request = msgspec.structs.replace(request, wire=wire)

    def _hold(self, name: str, body: bytes) -> None:
        self._body = body

    def release(self, sent: CallOutcome, outcome: CallOutcome) -> None:
        if self._receiver is not None and self._body is not None and outcome.response is sent.response:
            self._receiver("", self._body)


_log = Log("engine.step")


class Step:
    """The part of a turn that gets one reply. Run it once.

    Args:
        turn: The turn.
        models: The models that may serve.
        messages: The messages that are sent.
        first_ids: The ids for the first call, if the caller chose them.
        first: Whether this is the turn's first reply.
        caused_by: The id of the call that led to this step.
        advice: A note for the error if the prompt is too long.
    """

    def __init__(
        self,
        turn: TurnContext,
        models: TurnModels,
        messages: tuple[Message, ...],
        *,
        first_ids: FirstIds = OWN_IDS,
        first: bool,
        caused_by: str | None,
        advice: str = "",
    ) -> None:
        self.call: Call | None = None
        self.partial: Reply | None = None
        """The part of a reply that had arrived when its call failed."""
        self.continues_in_background = False
        """Whether the call has ended here while the provider continues the reply in the background."""
        self._turn = turn
        self._models = models
        self._messages = messages
        self._first = first
        self._caused_by = caused_by
        self._advice = advice
        self._message_id = first_ids.message_id or turn.runtime.clock.new_id("msg")
        self._request_id = first_ids.request_id  # until the first call
        # Make the ids of call and message share their ULID.
        if not first_ids.request_id and not first_ids.message_id:
            self._request_id = "req" + self._message_id.removeprefix("msg")
        self._sent: list[Route] = []  # the routes of the calls of one attempt
        self._outcome: CallOutcome | None = None  # the outcome of the last call
        self._first_seq = turn.log.next_seq

    async def run(self, on_end: Callable[[Step], None]) -> tuple[Reply, CallOutcome]:
        """Run the step. Returns the assistant's message and the outcome of its call. Raises CallboardError.

        An empty reply is requested again, up to `retry_empty` times. Each request is a separate call with its own
        message. `on_end` is called on every outcome.
        """
        turn, empty_retries = self._turn, 0
        fallbacks = self._models.fallbacks(self._messages, self._may_retry_elsewhere)
        route: Route | None = None
        try:
            while True:
                if route is None:
                    route = await fallbacks.next()
                    empty_retries = turn.options.get("retry_empty", route.option.named.entry.retry_empty) or 0
                try:
                    request = self._request(route)
                    outcome = _settled(await self._answer(request, route))
                except CallboardError as error:
                    if not fallbacks.go_on_after(error):
                        raise
                    route = None
                    continue
                if not self._delivered:
                    turn.log.extend(whole_events(outcome.response, self._message_id))
                self._models.answered_by = route.decision.model
                if empty_retries <= 0 or not self._may_ask_again(outcome.response):
                    return _reply(request, self._sent[-1] if self._sent else route, outcome), outcome
                empty_retries -= 1
                _log.warning(
                    "empty_reply", request_id=outcome.response.request_id, asked_again=True, left=empty_retries
                )
                self._message_id = turn.runtime.clock.new_id("msg")
                self._request_id = "req" + self._message_id.removeprefix("msg")
                self._first_seq = turn.log.next_seq
        except (PromptTooLongError, ContextOverflowError) as error:
            if self._advice:
                error.add_note(self._advice)
            raise
        finally:
            on_end(self)

    def _may_retry_elsewhere(self, error: AdapterError) -> bool:
        silent = not self._delivered and not error.content
        return silent and not self._turn.scope.cancelled and may_fall_back(error)

    @property
    def _delivered(self) -> bool:
        """Whether a part of the reply has been streamed."""
        return self._turn.log.next_seq != self._first_seq

    def _answer(self, request: CanonicalRequest, route: Route) -> Coroutine[object, object, CallOutcome]:
        self._sent.clear()
        chain = self._turn.runtime.middleware
        return self._answer_through(chain, request, route) if chain else self._send(request, route)

    async def _answer_through(self, chain: Chain, request: CanonicalRequest, route: Route) -> CallOutcome:
        """The answer that middleware returns. It may change the request, the reply, or answer itself."""
        held_reply = _HeldReply(request) if request.wire is not None and not self._turn.streamed else None
        request = request if held_reply is None else held_reply.request
        outcome = await chain.around(request, partial(self._send_for, request, route))
        if held_reply is not None and self._outcome is not None:
            held_reply.release(self._outcome, outcome)
        if self._sent:
            return outcome
        # Middleware answered without a call, so the reply's ids are not ids of a call.
        response = msgspec.structs.replace(outcome.response, request_id=request.request_id)
        return CallOutcome(response=response, cost=outcome.cost)

    def _may_ask_again(self, response: CanonicalResponse) -> bool:
        """Whether the reply is empty, and the turn may ask for another."""
        turn = self._turn
        empty = is_empty(response.content, response.stop_reason)
        if turn.of_client:  # the client may already have the provider's reply, and can retry itself
            return False
        return empty and turn.takes_up is None and not turn.scope.cancelled

    def _request(self, route: Route) -> CanonicalRequest:
        ids = FirstIds(self._request_id or self._turn.runtime.clock.new_id("req"), self._message_id)
        request = request_for(self._turn, route, self._messages, ids, first=self._first)
        if self._first and (reply := self._turn.takes_up) is not None:
            return msgspec.structs.replace(request, response_id=reply.response_id, key=reply.key)
        return request

    async def _send_for(self, original: CanonicalRequest, route: Route, request: CanonicalRequest) -> CallOutcome:
        """Make the call that middleware requested instead of the original one."""
        if self._delivered:
            raise CallboardError(
                "a part of the reply has already been delivered, so middleware can't request another one"
            )
        if request.model != original.model:
            route = self._models.route_to(request.model, self._messages)
            request = carried_over(original, request, self._request(route))
        if request.wire is not None and request.wire is original.wire and _asks_otherwise(original, request):
            request = msgspec.structs.replace(request, wire=None)
        if self._sent:
            request = msgspec.structs.replace(request, request_id=self._turn.runtime.clock.new_id("req"))
        return await self._send(request, route)

    async def _send(self, request: CanonicalRequest, route: Route) -> CallOutcome:
        turn, warnings = self._turn, route.option.warnings
        self._sent.append(route)
        turn.route = route
        self.partial = None
        running = await self._models.adapters.ready(route.decision, request.request_id)
        call = self.call = self._new_call(request, route, running)
        self._caused_by, self._request_id = request.request_id, ""
        turn.spending.calls += 1
        for warning in warnings:
            _log.warning(str(warning.code), request_id=request.request_id, what=warning.message)
        if turn.scope.cancelled:
            call.cancel()
        turn.scope.hold_time(True)
        try:
            outcome = await call.run()
        except AdapterError as error:
            self.continues_in_background = call.abandoned
            if error.content and not call.abandoned:
                self.partial = _partial_reply(request, route, error)
            raise
        finally:
            turn.scope.hold_time(False)
            self.call = None
        if route.option.input is not None and route.option.input.forced is not None:
            outcome = CallOutcome(response=answer_as_text(outcome.response), cost=outcome.cost)
        self._outcome = outcome
        if outcome.response.warnings:
            refused = turn.state.refused_reasoning
            refused.note(route.decision.provider, request.messages, outcome.response.warnings)
        return outcome

    def _new_call(self, request: CanonicalRequest, route: Route, running: RunningAdapter) -> Call:
        turn = self._turn
        context = CallContext(
            runtime=turn.runtime,
            request_id=request.request_id,
            routing=route.decision,
            priced_as=running.published_name(route.option.named.entry),
            running=running,
            session_id=turn.state.calls_as or None,
            turn_id=turn.id,
            message_id=request.message_id,
            caused_by=self._caused_by,
            tags=turn.tags or None,
            order=turn.order,
            estimated_input_tokens=route.option.estimated_tokens,
            key=request.key,
            spills_to=route.others,
            spending=turn.spending,
            caller=turn.caller,
            node=turn.node,
        )
        call = Call(
            request,
            context,
            turn.log,
            streamed=turn.streamed,
            warnings=route.option.warnings,
            deadline=turn.scope.deadline,
            drain_seconds=turn.options.get("drain_for_usage", running.entry.config.drain_for_usage) or 0.0,
        )
        call.on_accepted = turn.on_accepted
        if request.response_id and turn.takes_up is not None:
            call.began_us = turn.takes_up.started_us
            call.attempts_before = turn.takes_up.attempt - 1
        return call


def _settled(outcome: CallOutcome) -> CallOutcome:
    """The outcome. If the reply did not end normally, its tool calls are marked as incomplete."""
    response = outcome.response
    content = with_whole_calls(response.content, response.stop_reason)
    if content is response.content:
        return outcome
    return CallOutcome(response=msgspec.structs.replace(response, content=content), cost=outcome.cost)


def _reply(request: CanonicalRequest, route: Route, outcome: CallOutcome) -> Reply:
    response = outcome.response
    metadata = MessageMetadata(
        provider=response.provider,
        model=response.model,
        usage=response.usage,
        cost=outcome.cost,
        stop_reason=response.stop_reason,
        raw_stop_reason=response.raw_stop_reason,
        routing=route.decision,
        request_id=response.request_id,
        latency_ms=response.latency_ms,
        warnings=response.warnings,
        raw=response.raw,
        provider_details=response.provider_details or None,
    )
    return Reply(Role.ASSISTANT, response.content, id=request.message_id, metadata=metadata)


def _partial_reply(request: CanonicalRequest, route: Route, error: AdapterError) -> Reply:
    """The part of a reply that had arrived, with the stop reason ``error`` or ``cancelled``."""
    cancelled = isinstance(error, CancelledError)
    metadata = MessageMetadata(
        provider=route.decision.provider,
        model=route.decision.model,
        usage=error.usage or NOTHING_USED,
        cost=error.cost or NOT_KNOWN,
        stop_reason=StopReason.CANCELLED if cancelled else StopReason.ERROR,
        routing=route.decision,
        request_id=request.request_id,
    )
    reply = Reply(Role.ASSISTANT, error.content, id=request.message_id, metadata=metadata)
    reply.ended("cancelled" if cancelled else "failed")
    return reply
