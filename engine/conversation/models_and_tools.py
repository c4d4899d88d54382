"""The models and the tools that a turn may use.

`TurnModels` has the models that can serve, the failed ones, and the model that answers. `TurnTools` runs the tool
calls of a reply.

A turn keeps its configuration and its adapters until its end, even if a reload replaces them. If a conversation is
too long for the model, the session's context policy shortens it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import msgspec

from callboard.adapters import (
    AdapterError,
    CallWarning,
    CanonicalRequest,
    CanonicalResponse,
    CapabilityError,
    Message,
    Role,
    StopReason,
    ToolDefinition,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.adapters.contract import AdapterCapabilities, ProviderAdapter, SendsClientRequests
from callboard.adapters.requests.content import current_turn
from callboard.bus import (
    CallboardError,
    ContextOverflowError,
    PromptTooLongError,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    TurnStatus,
)
from callboard.bus.errors import WarningCode
from callboard.bus.values.messages import ended_well

from ..budgets.ledger import Amount, Refusal
from ..budgets.worst_case import Priced, most_output, tiers_of, tool_fees, worst_case_of_reply
from ..calls.preparation import BorrowedAdapters, Fallbacks, examined, payer_of
from ..models.entries import ModelInput, model_input
from ..models.registry import published_name
from ..routing.availability import Readiness
from ..routing.candidates import (
    NOMINAL_USAGE,
    Named,
    Option,
    Plan,
    Route,
    choose,
    default_max_output,
    deployment_of_last_reply,
    expand,
)
from ..routing.model_choice import Model, Requirements, TurnRequirements, check, check_tool_choice, overridden
from ..tools import Answer, ToolRound, ToolRoundContext, answers_to, last_reply, open_calls
from ..tools.calls import handoff_in, not_executed, results_in
from ..tools.context import idempotency_key
from ..tools.definitions import Handoff
from ..tree import Caller, ChildTurn
from .context import ContextPolicy, Conversation, hold_to_schema
from .results import Reply, StepResult
from .turn_context import TurnContext

T = TypeVar("T")

# --- Models ---


class TurnModels:
    """The models of one turn.

    Args:
        turn: The turn.
        model: The model or models of the turn.
        added: The messages that the turn adds.
        adapters: The adapters that the turn uses until its end.

    Raises:
        ConfigurationError: The model does not exist.
        UnsupportedToolChoiceError: The tool choice does not match the turn's tools.
    """

    def __init__(
        self,
        turn: TurnContext,
        model: Model,
        added: Sequence[Message],
        adapters: BorrowedAdapters,
    ) -> None:
        self.registry = turn.runtime.registry
        """The configuration at the start of the turn."""
        self.plan = expand(self.registry, model, turn.options.get("fallback"))
        """The models that may serve, in order."""
        self.adapters = adapters
        self.failed: dict[str, str] = {}
        """The models that have failed in this turn or can't be used, each with the reason."""
        self.answered_by: str | None = None
        """The model that has answered in this turn. It is tried before all other models."""
        self._turn = turn
        self._cached_at = deployment_of_last_reply(turn.state.messages, self.plan)
        self._requirements = _requirements_of(turn, self.plan, added)
        check_tool_choice(self._requirements)

    def also_asks(self, messages: Sequence[Message]) -> None:
        """Add steering messages, so that the models are also checked for the content of these messages."""
        self._requirements = msgspec.structs.replace(self._requirements, new=(*self._requirements.new, *messages))

    def use_tools(self, tools: tuple[ToolDefinition, ...]) -> None:
        """Offer these tools from the next step on."""
        self._requirements = msgspec.structs.replace(self._requirements, tools=tools)

    def fallbacks(
        self, messages: tuple[Message, ...], may_retry_elsewhere: Callable[[AdapterError], bool]
    ) -> Fallbacks:
        """The models for a call with these messages, in order."""
        return Fallbacks(
            self._turn.runtime,
            self.plan,
            partial(self._examine, messages=messages),
            may_retry_elsewhere,
            failed=self.failed,
            stay_with=self.answered_by,
            cached_at=self._cached_at,
        )

    def route_to(self, model: str, messages: tuple[Message, ...]) -> Route:
        """The route to a model that middleware requested. Raises CallboardError."""
        plan = expand(self.registry, model, ())
        return choose(plan, [self._examine(named, messages) for named in plan.named])

    def measure(self) -> tuple[int | None, Callable[[Sequence[Message]], int]]:
        """The largest prompt in tokens, or None, and a function that estimates the tokens of messages.

        Both are for the model that has answered in this turn, or else for the first model.
        """
        named = next((each for each in self.plan.named if each.model == self.answered_by), self.plan.named[0])
        entry, requirements = named.entry, self._requirements
        adapter = self._turn.runtime.adapters.consult(self.registry.adapter_of(entry))
        capabilities = overridden(adapter.get_capabilities(entry.wire_name), entry.capabilities)
        output = requirements.max_output_tokens or default_max_output(entry, capabilities, listed=named.listed)
        window = capabilities.max_context_tokens
        prompt = self._turn.state.system_prompt

        def estimate(messages: Sequence[Message]) -> int:
            return adapter.estimate_input_tokens(messages, requirements.tools, prompt, model=entry.wire_name)

        return (window - min(output, window // 2) if named.listed else None), estimate

    def _examine(self, named: Named, messages: tuple[Message, ...]) -> Option:
        judge = partial(self._judged, named, messages)
        return examined(self._turn.runtime, self.registry, named, judge, self._turn.options.get("key"))

    def _judged(
        self, named: Named, messages: tuple[Message, ...], adapter: ProviderAdapter, readiness: Readiness
    ) -> Option:
        """Check whether a model can answer these messages."""
        entry, requirements = named.entry, self._requirements
        capabilities = overridden(adapter.get_capabilities(entry.wire_name), entry.capabilities)
        reasons = capabilities.supports_thinking and (requirements.reasoning_effort or entry.defaults.effort)
        fitted: ModelInput = hold_to_schema(
            model_input(
                entry.tools,
                entry.prompt_addendum,
                tools=requirements.tools,
                system_prompt=self._turn.state.system_prompt,
                messages=messages,
                choice=requirements.tool_choice,
            ),
            requirements.output_schema,
            requirements.schema_mode,
            capabilities,
            choice=requirements.tool_choice,
            reasons=reasons not in (None, False, "none"),
        )
        estimate = adapter.estimate_input_tokens(
            messages, fitted.tools, fitted.system_prompt, model=entry.wire_name
        )
        limit = requirements.max_output_tokens or default_max_output(
            entry, capabilities, listed=named.listed, prompt_tokens=estimate
        )
        most = limit
        speaks_client = _speaks_as_client(adapter, self._turn.client_request)
        lowered: tuple[CallWarning, ...] = ()
        if named.listed and limit > capabilities.max_output_tokens and self._turn.of_client:
            most = capabilities.max_output_tokens
            if not speaks_client:
                lowered = (_lowered(limit, most, named.model),)
                limit = most
        too_dear: Refusal | None = None
        if self._turn.runtime.budgets.may_change_calls:
            limit, too_dear = self._afforded(named, estimate, limit)
        warnings, obstacle = self._checked(
            named, capabilities, estimate, min(limit, most), speaks_client=speaks_client
        )
        return Option(
            named=named,
            capabilities=capabilities,
            input=fitted,
            estimated_tokens=estimate,
            max_output_tokens=limit,
            warnings=() if warnings is None else (*fitted.warnings, *lowered, *warnings),
            obstacle=obstacle,
            readiness=readiness,
            nominal_cost=self._nominal_cost(named) if self.plan.cheapest else None,
            too_dear=too_dear,
            speaks_client=speaks_client,
        )

    def _checked(
        self, named: Named, capabilities: AdapterCapabilities, estimate: int, limit: int, *, speaks_client: bool
    ) -> tuple[Sequence[CallWarning] | None, CapabilityError | None]:
        """The warnings about a model (None if it lacks an ability), and the reason why it can't serve."""
        warnings: Sequence[CallWarning] | None = None
        obstacle: CapabilityError | None = None
        try:
            warnings = check(
                self._requirements,
                capabilities,
                model=named.model,
                provider=named.entry.adapter,
                listed=named.listed,
                estimated_tokens=estimate,
                max_output_tokens=limit,
            )
        except CapabilityError as error:
            # A client's own body may use abilities that the tables don't list, and there is no other model to
            # choose.
            if not speaks_client or len(self.plan.named) > 1 or self.plan.requires != Requirements():
                obstacle = error
        wire = self._turn.client_request and self._turn.client_request.wire
        if not speaks_client and wire and wire.refers_to:
            obstacle = CapabilityError(
                f"{named.model} can't serve the request: {wire.refers_to!r} names data of another provider"
            )
        return warnings, obstacle

    def _afforded(self, named: Named, estimate: int, limit: int) -> tuple[int, Refusal | None]:
        """The maximum output that fits into the budgets, and the refusal if only a cheaper model fits."""
        turn = self._turn
        budgets = turn.runtime.budgets
        payer = payer_of(named.model, turn.state.calls_as, turn.tags, turn.id, turn.node)
        adapter = self.registry.adapters[named.entry.adapter]
        priced_as = published_name(adapter, named.entry)
        options = turn.options.get("provider_options", {})
        tiers = tiers_of(options, adapter=adapter.name, adapter_type=adapter.type)
        priced = Priced(turn.runtime.prices, named.model, turn.runtime.clock.now_us(), priced_as, tiers)
        fees = tool_fees(options, adapter=adapter.name, adapter_type=adapter.type)

        def with_output(output: int) -> Amount:
            output = most_output(output, options, adapter=adapter.name, adapter_type=adapter.type)
            return worst_case_of_reply(priced, estimate, output, fees)

        limit = budgets.shortened(payer, with_output, limit)
        return limit, budgets.too_dear(payer, with_output(limit))

    def _nominal_cost(self, named: Named) -> int | None:
        runtime = self._turn.runtime
        priced_as = published_name(self.registry.adapters[named.entry.adapter], named.entry)
        now_us = runtime.clock.now_us()
        return runtime.prices.price(named.model, NOMINAL_USAGE, now_us, priced_as=priced_as).nano_usd


def _speaks_as_client(adapter: ProviderAdapter, client_request: CanonicalRequest | None) -> bool:
    """Whether the client's own body is sent, so that the provider itself checks it."""
    return (
        client_request is not None
        and isinstance(adapter, SendsClientRequests)
        and adapter.sends_client_request(client_request)
    )


def _lowered(limit: int, most: int, model: str) -> CallWarning:
    return CallWarning(
        WarningCode.PARAMETER_CHANGED,
        f"max_output_tokens was lowered from {limit} to {most}, the maximum of {model}",
    )


def _requirements_of(turn: TurnContext, plan: Plan, added: Sequence[Message]) -> TurnRequirements:
    """The requirements of a turn on any model."""
    state, options = turn.state, turn.options
    return TurnRequirements(
        new=current_turn(tuple(added)),
        tools=state.definitions,
        tool_choice=options.get("tool_choice"),
        parallel_tool_calls=options.get("parallel_tool_calls"),
        output_schema=options.get("output_schema"),
        schema_mode=options["schema_mode"],
        reasoning_effort=options.get("reasoning_effort"),
        max_output_tokens=options.get("max_output_tokens"),
        requires=tuple(
            [each for each in (state.requires, options.get("requires"), plan.requires) if each is not None]
        ),
    )


# --- Prompts that are too long ---

MAX_TRIES = 4
"""The maximum number of times that a policy may shorten a prompt."""

ADVICE = (
    "Let the session shorten the history with engine.session(..., context=Truncate()), or with LastTurns "
    "or Summarise of engine.context. Or choose a model with a larger window"
)
"""The advice if a prompt is too long and there is no policy."""


async def within_window(
    policy: ContextPolicy,
    turn: TurnContext,
    models: TurnModels,
    history: Sequence[Message],
    ask: Callable[[str], Awaitable[str]],
    call: Callable[[tuple[Message, ...]], Awaitable[T]],
) -> T:
    """Make a call with the part of the history that the policy selects.

    If that part is too long for the model, the policy is called again.

    Raises PromptTooLongError or ContextOverflowError.
    """
    state, failure = turn.state, None
    limit, estimate = models.measure()
    failed = dict(models.failed)
    for _ in range(MAX_TRIES):
        conversation = Conversation(
            messages=tuple(history),
            context=state.context,
            too_long=failure is not None,
            limit=limit,
            estimate=estimate,
            ask=ask,
        )
        before, state.context = state.context, await policy.assemble(conversation)
        if failure is not None and state.context == before:
            break
        try:
            return await call(state.context.of(history))
        except (PromptTooLongError, ContextOverflowError) as error:
            if error.content:
                raise
            failure = error
            models.failed = dict(failed)  # models that rejected the longer prompt may be tried again
    assert failure is not None
    failure.add_note(f"{type(policy).__name__} could not make the prompt short enough")
    raise failure


# --- Tools ---

Keep: TypeAlias = Callable[[tuple[ToolResultBlock, ...]], None]
"""Receives the results of tools, for the history."""


class TurnTools:
    """The tools of one turn.

    Args:
        turn: The turn. Each tool is published on its stream and on the bus.
        keep: A function that receives the results, even those of a cancelled round.
    """

    def __init__(self, turn: TurnContext, keep: Keep) -> None:
        self._turn = turn
        self._keep = keep
        self._rounds = 0
        self.handed_to: Handoff | None = None
        """The agent that takes over the conversation, after a call of `handoff` has run."""

    def ends_before(self, reply: Message, stop_reason: StopReason) -> TurnStatus | None:
        """The status with which the turn ends instead of running the reply's calls; None if they are run.

        If a reply did not end normally, its calls are not run. If the reply used all its tokens, the turn
        continues: the model gets a result that explains this, and may call again.
        """
        calls = reply.tool_uses
        if not calls:
            return "completed"
        if not ended_well(stop_reason) and stop_reason is not StopReason.MAX_TOKENS:
            return "completed"
        passive = {tool.name for tool in self._turn.state.tools if tool.handler is None}
        if all(call.name in passive and not call.incomplete for call in calls):
            return "awaiting_tools"  # the host runs the calls itself
        return "max_tool_rounds" if self._rounds >= self._turn.options["max_tool_rounds"] else None

    def warned_of_limit(self, reply: Reply, response: CanonicalResponse) -> tuple[Reply, CanonicalResponse]:
        """Add a warning to the reply that its calls were not run, unless the caller allowed no rounds of tools."""
        limit = self._turn.options["max_tool_rounds"]
        if not limit:
            return reply, response
        text = (
            f"its tool calls were not run: the limit of {limit} tool rounds was reached. Set "
            f"max_tool_rounds= to allow more"
        )
        warnings = (*response.warnings, CallWarning(WarningCode.MAX_TOOL_ROUNDS, text))
        metadata = msgspec.structs.replace(reply.metadata, warnings=warnings)
        return (
            msgspec.structs.replace(reply, metadata=metadata),
            msgspec.structs.replace(response, warnings=warnings),
        )

    async def run(self, reply: Message, stop_reason: StopReason, history: tuple[Message, ...]) -> ToolRound:
        self._rounds += 1
        made = await self._round(reply.tool_uses, history, self._keep, cut_off=not ended_well(stop_reason))
        self.handed_to = None if made.waiting else self._handoff(history, made.results)
        return made

    def _handoff(self, history: tuple[Message, ...], results: Iterable[ToolResultBlock]) -> Handoff | None:
        """The handoff among the calls of the last reply, if one has run."""
        if not any(isinstance(tool, Handoff) for tool in self._turn.state.tools):
            return None
        ran = {result.tool_use_id for result in results if not result.is_error}
        return handoff_in(last_reply(history), self._turn.state.tools, ran | results_in(history).keys())

    def leave(self, calls: Sequence[ToolUseBlock]) -> None:
        """Add a result to each of these calls: the call was not run, because the turn has ended."""
        self._keep(tuple(not_executed(call) for call in calls))

    async def stops(self, steps: Sequence[StepResult]) -> bool:
        """Whether `stop_when` ends the turn. Raises CallboardError."""
        stop_when = self._turn.options.get("stop_when")
        if stop_when is None:
            return False
        try:
            stops = stop_when(tuple(steps))
            return bool(await stops if inspect.isawaitable(stops) else stops)
        except Exception as error:
            raise CallboardError(f"stop_when failed: {type(error).__name__}: {error}") from error

    async def take(self, answers: Mapping[str, Answer], history: tuple[Message, ...]) -> ToolRound:
        """Process the host's answers to open calls, and run the approved calls. Raises CallboardError."""
        calls = open_calls(history)
        sorted_out = answers_to(history, answers, self._turn.state.tools)
        results = dict(sorted_out.results)

        def keep(ran: tuple[ToolResultBlock, ...]) -> None:
            results.update((result.tool_use_id, result) for result in ran)
            self._keep(tuple(results[call.id] for call in calls if call.id in results))

        approved = frozenset(call.id for call in sorted_out.to_run)
        made = await self._round(sorted_out.to_run, history, keep, approved=approved)
        waiting = tuple(call for call in calls if call.id not in results)
        self.handed_to = None if waiting else self._handoff(history, results.values())
        return ToolRound(made.results, waiting)

    async def _round(
        self,
        calls: Sequence[ToolUseBlock],
        history: tuple[Message, ...],
        keep: Keep,
        *,
        cut_off: bool = False,
        approved: frozenset[str] = frozenset(),
    ) -> ToolRound:
        from ..tools import run_tools  # lazy, because many turns have no tools

        shared = ToolRoundContext(
            clock=self._turn.runtime.clock,
            tell=self._report,
            messages=history,
            session_id=self._turn.state.id or None,
            turn_id=self._turn.id,
            timeout_seconds=self._turn.runtime.timeouts.tool,
            approve=self._turn.options.get("approve"),
            repair=self._turn.options.get("repair_tool_call"),
            cut_off=cut_off,
            approved=approved,
            caller=partial(self._caller, history),
        )
        made = await run_tools(calls, self._turn.state.tools, shared, interrupted=keep)
        keep(made.results)
        return made

    def _caller(self, history: tuple[Message, ...], call: ToolUseBlock) -> Caller:
        """The context of a tool run, for turns and calls that the tool starts."""
        turn = self._turn
        question = next((message for message in reversed(history) if message.role is Role.ASSISTANT), None)
        return Caller(
            turn.in_tree(),
            call_id=None if question is None or question.metadata is None else question.metadata.request_id,
            tool_use_id=call.id,
            tool_name=call.name,
            runtime=turn.runtime,
            session_id=turn.state.id or None,
            tags=turn.tags,
            streamed=turn.streamed,
            key=lambda: idempotency_key(turn.state.id or None, history, call.id),
            tell=self._report_child,
            carry=turn.runtime.cluster.carry,
        )

    def _report_child(self, child: ChildTurn) -> None:
        if not self._turn.log.closed:
            self._report(
                ToolProgress(tool_use_id=child.tool_use_id, tool_name=child.tool_name, stream_id=child.turn_id)
            )

    def _report(self, event: ToolStarted | ToolProgress | ToolFinished) -> None:
        self._turn.log.append(event)
        self._turn.publish(event)
