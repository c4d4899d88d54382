"""One reply of the model within a turn: a call, and if it fails before it said anything, its fallbacks.

A fallback is a call of its own: caused by the failed one, and for the same message.
"""

from __future__ import annotations

from functools import partial

import msgspec

from adapters import (
    AdapterCapabilities,
    AdapterError,
    CallWarning,
    CanonicalRequest,
    CapabilityError,
    Message,
    MessageMetadata,
    Role,
    StopReason,
    TokenUsage,
)
from adapters.usage.unfinished import NOTHING_USED
from bus import CallboardError, ConfigurationError, Cost
from bus.errors import CancelledError
from bus.log import Log
from bus.values.cost_sum import CostSum
from bus.values.whole_calls import with_whole_calls

from ..calls.accumulator import whole_reply_events
from ..calls.call import Call, CallOutcome, CallScene
from ..calls.events import NOT_KNOWN
from ..calls.settings import server_of
from ..models.entries import ModelEntry
from ..models.habits import first_choice, model_input, parallel_calls
from ..models.published_prices import published_name
from ..routing.candidates import (
    NOMINAL_USAGE,
    Named,
    Option,
    Route,
    asks_for_length,
    choose,
    default_max_output,
    expand,
    failures_after,
    may_fall_back,
)
from ..routing.capabilities import check
from ..routing.choice import overridden
from ..runtime.running_adapter import RunningAdapter
from .options import TurnOptions, for_requests, merged
from .reply import Reply
from .schema_mode import answer_as_text, hold_to_schema
from .turn_context import OWN_IDS, TurnContext

_log = Log("engine.step")


class Step:
    """Run it once. messages: the history with this turn's part. first: no reply has come in this turn yet.

    Afterwards, also when it failed: calls, their number; costs and usages, of all their attempts; cost_sum, what
    those add up to; partial, what had arrived.
    """

    def __init__(
        self, turn: TurnContext, messages: tuple[Message, ...], *, first: bool, caused_by: str | None
    ) -> None:
        self.calls = 0
        self.costs: list[Cost] = []
        self.usages: list[TokenUsage] = []
        self.cost_sum = CostSum()
        self.partial: Reply | None = None
        self._turn = turn
        self._messages = messages
        self._first = first
        self._caused_by = caused_by
        self._request_id, message_id = turn.first_ids if first else OWN_IDS
        self._message_id = message_id or turn.runtime.clock.new_id("msg")
        self._call: Call | None = None
        self._cancelled = False
        self._sent: Route | None = None
        self._first_seq = turn.log.next_seq

    @property
    def call(self) -> Call | None:
        """The call under way."""
        return self._call

    def cancel(self) -> bool:
        """Ask the call under way to end. False if there is none."""
        self._cancelled = True
        if self._call is None:
            return False
        self._call.cancel()
        return True

    async def run(self) -> tuple[Reply, CallOutcome]:
        """The assistant's message. Raises what the last call raised, or why there was none."""
        turn = self._turn
        failure: CallboardError | None = None
        while True:
            options = [self._examine(named) for named in turn.plan.named]
            try:
                route = choose(turn.plan, options, failed=turn.failed, stay_with=turn.answered_by)
            except CallboardError as refusal:
                raise failure or refusal from None
            before, self._sent = turn.log.next_seq, None
            try:
                message, outcome = await self._attempt(route)
            except AdapterError as error:
                silent = turn.log.next_seq == before and not error.content
                if self._cancelled or not silent or not may_fall_back(error):
                    raise
                turn.failed.update(failures_after(error, route.option, options))
                failure = error
            except ConfigurationError as error:
                turn.failed[route.decision.model] = str(error)
                failure = failure or error
            else:
                turn.answered_by = route.decision.model
                return message, outcome

    # -- what is known of a model before a call

    def _examine(self, named: Named) -> Option:
        runtime, entry = self._turn.runtime, named.entry
        try:
            adapter = runtime.adapters.consult(self._turn.registry.adapter_of(entry))
        except ConfigurationError as error:
            return Option(named=named, obstacle=error)
        capabilities = overridden(adapter.get_capabilities(entry.wire_name), entry.capabilities)
        asked = self._turn.asked
        given = model_input(
            entry.tools,
            entry.prompt_addendum,
            tools=asked.tools,
            system_prompt=self._turn.state.system_prompt,
            messages=self._messages,
            choice=asked.tool_choice,
        )
        given = hold_to_schema(
            given,
            asked.output_schema,
            asked.schema_mode,
            capabilities,
            choice=asked.tool_choice,
            reasons=capabilities.supports_thinking
            and (asked.reasoning_effort or entry.defaults.effort) not in (None, "none"),
        )
        estimate = adapter.estimate_input_tokens(
            self._messages, given.tools, given.system_prompt, model=entry.wire_name
        )
        limit = asked.max_output_tokens or default_max_output(
            entry, capabilities, listed=named.listed, prompt_tokens=estimate
        )
        warnings: tuple[CallWarning, ...] = ()
        obstacle: CapabilityError | None = None
        try:
            warnings = given.warnings + check(
                asked,
                capabilities,
                model=named.model,
                provider=entry.adapter,
                listed=named.listed,
                estimated_tokens=estimate,
                max_output_tokens=limit,
            )
        except CapabilityError as error:
            obstacle = error
        return Option(
            named=named,
            capabilities=capabilities,
            input=given,
            estimated_tokens=estimate,
            warnings=warnings,
            obstacle=obstacle,
            standing=runtime.availability.standing(entry.adapter, named.model, runtime.clock.now_us()),
            nominal_cost=self._nominal_cost(named) if self._turn.plan.cheapest else None,
        )

    def _nominal_cost(self, named: Named) -> int | None:
        runtime = self._turn.runtime
        priced_as = published_name(self._turn.registry.adapters[named.entry.adapter], named.entry)
        now_us = runtime.clock.now_us()
        return runtime.prices.price(named.model, NOMINAL_USAGE, now_us, priced_as=priced_as).nano_usd

    # -- one call

    async def _attempt(self, route: Route) -> tuple[Reply, CallOutcome]:
        request = self._request(route)
        chain = self._turn.runtime.middleware
        if chain:
            outcome = await chain.around(request, partial(self._send_for, request, route))
            if self._sent is None:  # answered without a call: the ids of who answered mean nothing here
                response = msgspec.structs.replace(outcome.response, request_id=request.request_id)
                outcome = CallOutcome(response=response, cost=outcome.cost)
        else:
            outcome = await self._send(request, route)
        outcome = _settled(outcome)
        if self._turn.log.next_seq == self._first_seq:  # nothing has been streamed
            self._turn.log.extend(whole_reply_events(self._message_id, outcome.response))
        return self._assemble(request, self._sent or route, outcome), outcome

    async def _send_for(self, original: CanonicalRequest, route: Route, request: CanonicalRequest) -> CallOutcome:
        """Make the call that middleware asks for in the place of the original one."""
        if self._turn.log.next_seq != self._first_seq:
            raise CallboardError("a part of the reply has been delivered, so middleware can't ask for another one")
        if request.model != original.model:
            route = self._route_to(request.model)
            request = carried_over(original, request, self._request(route))
        if self._sent is not None:
            request = msgspec.structs.replace(request, request_id=self._turn.runtime.clock.new_id("req"))
        return await self._send(request, route)

    def _route_to(self, model: str) -> Route:
        plan = expand(self._turn.registry, model, ())
        return choose(plan, [self._examine(named) for named in plan.named], failed={}, stay_with=None)

    async def _send(self, request: CanonicalRequest, route: Route) -> CallOutcome:
        self._sent, self.partial = route, None
        running = await self._turn.adapters.ready(route.decision, request.request_id)
        scene = self._scene(request, route, running)
        call = self._call = Call(request, scene, self._turn.streamed)
        self._caused_by = request.request_id
        self.calls += 1
        for warning in route.option.warnings:
            _log.warning(str(warning.code), request_id=request.request_id, what=warning.message)
        if self._cancelled:
            call.cancel()
        self._turn.hold_time(True)
        try:
            outcome = await call.run()
        except AdapterError as error:
            self._keep(request, route, error)
            raise
        finally:
            self._turn.hold_time(False)
            self._call = None
            self.costs += call.costs
            self.usages += call.usages
            self.cost_sum += call.sum
        if route.option.input is not None and route.option.input.forced is not None:
            outcome = CallOutcome(response=answer_as_text(outcome.response), cost=outcome.cost)
        if outcome.response.warnings:
            refused = self._turn.state.refused_reasoning
            refused.note(route.decision.provider, request.messages, outcome.response.warnings)
        return outcome

    def _request(self, route: Route) -> CanonicalRequest:
        turn, options, named = self._turn, self._turn.options, route.option.named
        capabilities, entry, given = route.option.capabilities, named.entry, route.option.input
        assert capabilities is not None  # an option without them is never taken
        assert given is not None
        choice = given.forced  # of the caller's, forcing again after the first reply would never end
        if self._first and choice is None:
            choice = first_choice(
                entry.tools,
                options.get("tool_choice"),
                tools=given.tools,
                messages=self._messages,
                capabilities=capabilities,
            )
        limit = options.get("max_output_tokens")
        asked = for_requests(merged(_options_of(entry, capabilities), options))
        asked["output_schema"] = given.schema
        asked["tool_choice"] = choice
        asked["parallel_tool_calls"] = parallel_calls(
            entry.tools, options.get("parallel_tool_calls"), tools=given.tools, capabilities=capabilities
        )
        return CanonicalRequest(
            request_id=(not self.calls and self._request_id) or turn.runtime.clock.new_id("req"),
            messages=turn.state.refused_reasoning.without(route.decision.provider, self._messages),
            model=route.decision.model,
            capabilities=capabilities,
            max_output_tokens=limit
            or default_max_output(
                entry, capabilities, listed=named.listed, prompt_tokens=route.option.estimated_tokens or 0
            ),
            default_output_limit=limit is None and not asks_for_length(entry),
            tools=given.tools,
            system_prompt=given.system_prompt,
            stop_sequences=tuple(options.get("stop_sequences", ())),
            message_id=self._message_id,
            session_id=turn.state.id,
            timeout_seconds=options.get("call_timeout_seconds"),
            stream=turn.streamed,
            **asked,
        )

    def _scene(self, request: CanonicalRequest, route: Route, running: RunningAdapter) -> CallScene:
        turn, runtime = self._turn, self._turn.runtime
        return CallScene(
            bus=runtime.bus,
            clock=runtime.clock,
            adapter=running.ref,
            slots=running.slots,
            prices=lambda: runtime.prices,
            routing=route.decision,
            log=turn.log,
            session_id=turn.state.id or None,
            turn_id=turn.turn_id,
            caused_by=self._caused_by,
            tags=turn.state.tags or None,
            order=turn.order,
            deadline=turn.deadline,
            drain_seconds=turn.options.get("drain_for_usage", running.entry.config.drain_for_usage) or 0.0,
            estimated_input_tokens=route.option.estimated_tokens,
            warnings=route.option.warnings,
            filter=runtime.middleware.filter(request) if runtime.middleware else None,
            settle=runtime.middleware.settling,
            secure=runtime.host.secure,
            priced_as=published_name(running.entry, route.option.named.entry),
            server=server_of(running),
        )

    # -- what comes of it

    def _assemble(self, request: CanonicalRequest, route: Route, outcome: CallOutcome) -> Reply:
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
        )
        return Reply(Role.ASSISTANT, response.content, id=request.message_id, metadata=metadata)

    def _keep(self, request: CanonicalRequest, route: Route, error: AdapterError) -> None:
        """What had arrived of a reply is kept, marked with how it ended."""
        if not error.content:
            return
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
        self.partial = Reply(Role.ASSISTANT, error.content, id=request.message_id, metadata=metadata)
        self.partial.ended("cancelled" if cancelled else "failed")


def _options_of(entry: ModelEntry, capabilities: AdapterCapabilities) -> TurnOptions:
    """The options that the configuration of a model has where nobody says them."""
    effort = entry.defaults.effort if capabilities.supports_thinking else None
    return {
        "temperature": entry.defaults.temperature,
        "reasoning_effort": effort,
        "max_retries": entry.max_retries,
        "retry": entry.retry,
    }


def _settled(outcome: CallOutcome) -> CallOutcome:
    """The same, where no call can be run whose reply did not end well; whoever made it: adapter or middleware."""
    response = outcome.response
    content = with_whole_calls(response.content, response.stop_reason)
    if content is response.content:
        return outcome
    return CallOutcome(response=msgspec.structs.replace(response, content=content), cost=outcome.cost)


def carried_over(
    original: CanonicalRequest, changed: CanonicalRequest, fitted: CanonicalRequest
) -> CanonicalRequest:
    """A request fitted to another model, with what middleware has changed besides the model."""
    changes = {
        name: getattr(changed, name)
        for name in CanonicalRequest.__struct_fields__
        if name not in ("model", "request_id") and getattr(changed, name) != getattr(original, name)
    }
    return msgspec.structs.replace(fitted, **changes)
