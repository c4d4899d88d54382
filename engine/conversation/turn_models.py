"""The models that a turn may use: which can serve, which have failed, and which one answers.

A turn keeps its configuration and its adapters to its end, also when a reload replaces them. If a conversation is
too long for the model, the session's context policy shortens it.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import NamedTuple, TypeVar, cast

import msgspec

from callboard.adapters import (
    AdapterError,
    CallWarning,
    CanonicalRequest,
    CapabilityError,
    ContentBlock,
    Message,
    OpaqueBlock,
    Role,
    TextBlock,
    ToolDefinition,
    ToolResultBlock,
)
from callboard.adapters.contract import ProviderAdapter, SendsClientRequests
from callboard.adapters.requests.content import current_turn
from callboard.bus import (
    ContextOverflowError,
    NoTurnRunning,
    PromptTooLongError,
    SessionMessageAppended,
    SessionTurnCompleted,
    SessionTurnStarted,
    StreamLog,
    ToolFinished,
    ToolProgress,
    ToolStarted,
)
from callboard.bus.errors import WarningCode
from callboard.bus.streams.events import TurnEvent
from callboard.bus.values.messages import as_blocks
from callboard.tracestore import OpenReply

from ..budgets.ledger import Amount, Refusal
from ..budgets.worst_case import Priced, most_output, tool_fees, worst_case_of_reply
from ..calls.events import payer_of
from ..calls.fallback import BorrowedAdapters, examined, first_that_works
from ..calls.outcome import Spending
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
from ..runtime.adapters import arrival
from ..runtime.in_flight import TurnScope
from ..runtime.runtime import Runtime
from ..sessions.state import SessionState
from ..tree import Caller, TreeNode, caller_here
from .context import ContextPolicy, Conversation, hold_to_schema
from .options import TurnOptions

# The part of a turn that its steps and tools share, its steering messages, and its history.


class FirstIds(NamedTuple):
    """The ids that a caller wants for the first call of a turn. An empty id is made up."""

    request_id: str
    message_id: str


OWN_IDS = FirstIds("", "")


class TurnContext:
    """The facts of a turn that are fixed at its start.

    Args:
        runtime: The parts of the engine.
        state: The conversation.
        options: The turn's options, all levels merged.
        streamed: Whether the replies are streamed.
        caller: The run of a tool that starts the turn; None looks for it here.
    """

    log: StreamLog[TurnEvent]
    """The turn's stream, from the moment at which the turn is queued."""
    takes_up: OpenReply | None = None
    """The background reply with which the turn starts, in place of a new reply."""
    given: CanonicalRequest | None = None
    """The request that the caller gave; None if it gave messages and options."""
    on_accepted: Callable[[bool], object] | None = None
    """Called when a provider continues a reply in the background, as in `CallEvents`.

    It must not refer to the turn.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: SessionState,
        options: TurnOptions,
        *,
        streamed: bool,
        caller: Caller | None = None,
    ) -> None:
        self.id = runtime.clock.new_id("trn")
        """The turn's id, ``trn_<ulid>``. Its stream has the same id."""
        self.runtime = runtime
        self.state = state
        self.options = options
        self.streamed = streamed
        self.order = arrival()
        """The turn's place in the order in which turns were requested."""
        self.spending = Spending()
        """The tokens and costs of the turn's calls so far."""
        self.route: Route | None = None
        """The route of the turn's last call."""
        seconds = cast("float | None", options.get("timeout", runtime.timeouts.turn))
        self.caller = caller_here() if caller is None else caller
        if self.caller is not None and self.caller.carried:
            runtime.cluster.reach(self.caller)
        """The run of a tool that has started the turn; None for a root."""
        own = {**state.tags, **(options.get("tags") or {})}
        self.tags: dict[str, str] = own if self.caller is None else {**self.caller.tags, **own}
        """The tags of the turn's calls. The turn's own override the session's, which override the calling turn's.
        """
        limits = options.get("limits")
        self.node: TreeNode | None = None
        """The turn's place in its tree; None for a root without limits that has run no tool."""
        if self.caller is not None or limits is not None:
            self.node = TreeNode(self.id, self.caller, limits)
            seconds = self.node.seconds(seconds)
        self.scope = TurnScope(seconds, options.get("signal"), runtime.in_flight)

    @property
    def of_client(self) -> bool:
        """Whether a gateway's client wrote the request, for a model whose limits it may not know."""
        return self.given is not None and self.given.wire is not None

    def in_tree(self) -> TreeNode:
        """The turn's place in its tree, made now if needed."""
        if self.node is None:
            self.node = TreeNode(self.id)
        self.node.deadline = self.scope.deadline
        return self.node

    def publish(
        self, event: SessionTurnStarted | SessionTurnCompleted | ToolStarted | ToolProgress | ToolFinished
    ) -> None:
        self.runtime.bus.publish(event, session_id=self.state.calls_as or None, turn_id=self.id)


# --- Steering messages ---


class SteeringQueue:
    """The messages that wait for the next step of one turn, in the order of `steer`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Message] = []
        self._closed: str | None = None

    @property
    def waiting(self) -> tuple[Message, ...]:
        """The messages that no step has taken yet."""
        return tuple(self._waiting)

    def add(self, message: Message) -> None:
        """Add a message. Raises NoTurnRunning."""
        with self._lock:
            if self._closed is not None:
                raise NoTurnRunning(self._closed)
            self._waiting.append(message)

    def take(self) -> tuple[Message, ...]:
        """Remove and return all waiting messages."""
        if not self._waiting:  # nearly always: without the lock
            return ()
        with self._lock:
            taken, self._waiting = tuple(self._waiting), []
            return taken

    def close(self, why: str) -> None:
        """Take no more messages."""
        with self._lock:
            self._closed = self._closed or why

    def close_if_empty(self, why: str) -> bool:
        """Close the queue if it is empty: further messages are refused. Returns whether it is closed."""
        with self._lock:
            if not self._waiting:
                self._closed = self._closed or why
            return not self._waiting


def steering_message(content: str | Sequence[ContentBlock], message_id: str) -> Message:
    """A message of the user that steers a turn. Raises ValueError."""
    blocks = as_blocks(content)
    if all(isinstance(block, TextBlock) and not block.text.strip() for block in blocks):
        raise ValueError("a steering message can't be empty")
    return Message(Role.USER, blocks, id=message_id, steers=True)


def provider_waits(reply: Message) -> bool:
    """Whether a tool of the provider has started in a reply and has no result yet.

    The provider continues when it gets the results of the host's tools. Before that it accepts no other message.
    """
    kinds = [block.kind for block in reply.content if isinstance(block, OpaqueBlock)]
    started = sum(kind.endswith("tool_use") for kind in kinds)
    return started > sum(kind.endswith("tool_result") for kind in kinds)


# --- The turn's history ---


class TurnHistory:
    """The conversation as one turn sees it and adds to it.

    It must not refer to the turn, because the turn refers to it. A session without references must be freed
    immediately, not by the garbage collector.
    """

    def __init__(self, runtime: Runtime, state: SessionState, turn_id: str) -> None:
        self.pending: list[Message] = []
        """The messages of the turn that have not entered the session's history yet."""
        self._kept_ahead = 0  # The number of pending messages that are stored for a reply that is taken up later.
        self._runtime = runtime
        self._state = state
        self._turn_id = turn_id

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages, including pending ones."""
        return (*self._state.messages, *self.pending)

    def begin(self, new: Sequence[Message]) -> None:
        """Add the messages of the turn, each with an id. The first one has the turn's ULID."""
        own = _own_id(self._turn_id)
        self.pending = [
            message if message.id else msgspec.structs.replace(message, id=self._new_id() if place else own)
            for place, message in enumerate(new)
        ]

    def await_reply(self, messages: Sequence[Message]) -> None:
        """Add messages that enter the history with the next reply."""
        self.pending.extend(messages)

    def add(self, message: Message) -> None:
        """Add a message. The first message with content moves all pending messages into the history."""
        self.pending.append(message)
        if message.content:
            pending, self.pending = self.pending, []
            kept, self._kept_ahead = self._kept_ahead, 0
            for place, entry in enumerate(pending):
                self._commit(entry, stored=place < kept)

    def add_results(self, results: tuple[ToolResultBlock, ...]) -> None:
        """Add the answers of tools as one message."""
        if results:
            self.add(Message(Role.TOOL, results, id=self._new_id()))

    def keep_ahead(self, accepted: bool) -> None:
        """Store the pending messages early, for a reply that is resumed later.

        If the provider didn't accept the reply, they are removed again.
        """
        if not self._state.id:
            return
        if not accepted:
            self.forget_ahead()
            return
        for place in range(self._kept_ahead, len(self.pending)):
            self._publish(len(self._state.messages) + place, self.pending[place])
        self._kept_ahead = len(self.pending)

    def forget_ahead(self) -> None:
        """Remove stored messages that did not become history."""
        if self._kept_ahead:
            self._kept_ahead = 0
            self._runtime.sessions.publish_setup(self._state)

    def forget_question(self, turn_id: str) -> None:
        """Remove messages that an earlier turn stored early, because its continued reply failed."""
        messages = self._state.messages
        own = _own_id(turn_id)
        start = next((place for place, message in enumerate(messages) if message.id == own), len(messages))
        if start < len(messages) and all(message.role is Role.USER for message in messages[start:]):
            del messages[start:]
            self._runtime.sessions.publish_setup(self._state)

    def _new_id(self) -> str:
        return self._runtime.clock.new_id("msg")

    def _commit(self, message: Message, *, stored: bool) -> None:
        state = self._state
        state.messages.append(message)
        if state.id:
            if not stored:
                self._publish(len(state.messages) - 1, message)
            self._runtime.cluster.streams.appended(self._turn_id, len(state.messages) - 1, message)

    def _publish(self, position: int, message: Message) -> None:
        self._runtime.bus.publish(
            SessionMessageAppended(position=position, message=message, epoch=self._state.epoch),
            session_id=self._state.id,
            turn_id=self._turn_id,
            message_id=message.id,
        )


def _own_id(turn_id: str) -> str:
    """The id of a turn's first message."""
    return "msg" + turn_id.removeprefix("trn")


T = TypeVar("T")

MAX_TRIES = 4
"""The number of times that a policy may try to make a prompt short enough."""

ADVICE = (
    "Let the session shorten the history with engine.session(..., context=Truncate()), or with LastTurns "
    "or Summarise of engine.context. Or choose a model with a larger window"
)
"""The advice for a prompt that is too long, if there is no policy."""


async def within_window(
    policy: ContextPolicy,
    turn: TurnContext,
    models: TurnModels,
    history: Sequence[Message],
    ask: Callable[[str], Awaitable[str]],
    call: Callable[[tuple[Message, ...]], Awaitable[T]],
) -> T:
    """The result of a call with the part of the history that the policy selects.

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
            models.failed = dict(failed)  # a model for which it was too long gets another chance
    assert failure is not None
    failure.add_note(f"{type(policy).__name__} could not make the prompt short enough")
    raise failure


class TurnModels:
    """The models of one turn.

    Args:
        turn: The turn.
        model: The model, or the models, that the turn asks for.
        said: The messages that the turn adds.

    Raises:
        ConfigurationError: The model does not exist.
        UnsupportedToolChoiceError: The choice of tools makes no sense for any model.
    """

    def __init__(self, turn: TurnContext, model: Model, said: Sequence[Message]) -> None:
        self.registry = turn.runtime.registry
        """The configuration at the start of the turn."""
        self.plan = expand(self.registry, model, turn.options.get("fallback"))
        """The models that may serve, in order."""
        self.adapters = BorrowedAdapters(turn.runtime)
        """The adapters, until the turn's end."""
        self.failed: dict[str, str] = {}
        """The models that can't serve this turn, each with the reason."""
        self.answered_by: str | None = None
        """The model that has answered in this turn. It is tried before all others."""
        self._turn = turn
        self._cached_at = deployment_of_last_reply(turn.state.messages, self.plan)
        self._asked = _requirements_of(turn, self.plan, said)
        check_tool_choice(self._asked)

    def also_asks(self, messages: Sequence[Message]) -> None:
        """Add messages that steer the turn: its models must be able to take them, too."""
        self._asked = msgspec.structs.replace(self._asked, new=(*self._asked.new, *messages))

    def use_tools(self, tools: tuple[ToolDefinition, ...]) -> None:
        """Offer other tools from the next step on."""
        self._asked = msgspec.structs.replace(self._asked, tools=tools)

    def first_that_works(
        self,
        messages: tuple[Message, ...],
        attempt: Callable[[Route], Awaitable[T]],
        may_retry_elsewhere: Callable[[AdapterError], bool],
    ) -> Coroutine[object, object, T]:
        """The result of the first model that can and does answer, see `calls.fallback`."""
        return first_that_works(
            self.plan,
            partial(self._examine, messages=messages),
            attempt,
            may_retry_elsewhere=may_retry_elsewhere,
            failed=self.failed,
            stay_with=self.answered_by,
            cached_at=self._cached_at,
            may_go=self._turn.runtime.cluster.may_go,
        )

    def route_to(self, model: str, messages: tuple[Message, ...]) -> Route:
        """The route to a model that middleware asks for. Raises CallboardError."""
        plan = expand(self.registry, model, ())
        return choose(plan, [self._examine(named, messages) for named in plan.named])

    def measure(self) -> tuple[int | None, Callable[[Sequence[Message]], int]]:
        """The largest prompt in tokens, or None, and a function that estimates the tokens of messages.

        Both are those of the model that has answered in this turn, or else of the first model.
        """
        named = next((each for each in self.plan.named if each.model == self.answered_by), self.plan.named[0])
        entry, asked = named.entry, self._asked
        adapter = self._turn.runtime.adapters.consult(self.registry.adapter_of(entry))
        capabilities = overridden(adapter.get_capabilities(entry.wire_name), entry.capabilities)
        output = asked.max_output_tokens or default_max_output(entry, capabilities, listed=named.listed)
        window = capabilities.max_context_tokens
        prompt = self._turn.state.system_prompt

        def estimate(messages: Sequence[Message]) -> int:
            return adapter.estimate_input_tokens(messages, asked.tools, prompt, model=entry.wire_name)

        return (window - min(output, window // 2) if named.listed else None), estimate

    def _examine(self, named: Named, messages: tuple[Message, ...]) -> Option:
        judge = partial(self._judged, named, messages)
        return examined(self._turn.runtime, self.registry, named, judge, self._turn.options.get("key"))

    def _judged(
        self, named: Named, messages: tuple[Message, ...], adapter: ProviderAdapter, readiness: Readiness
    ) -> Option:
        """A model and whether it can answer these messages."""
        entry, asked = named.entry, self._asked
        capabilities = overridden(adapter.get_capabilities(entry.wire_name), entry.capabilities)
        reasons = capabilities.supports_thinking and (asked.reasoning_effort or entry.defaults.effort)
        given: ModelInput = hold_to_schema(
            model_input(
                entry.tools,
                entry.prompt_addendum,
                tools=asked.tools,
                system_prompt=self._turn.state.system_prompt,
                messages=messages,
                choice=asked.tool_choice,
            ),
            asked.output_schema,
            asked.schema_mode,
            capabilities,
            choice=asked.tool_choice,
            reasons=reasons not in (None, False, "none"),
        )
        estimate = adapter.estimate_input_tokens(messages, given.tools, given.system_prompt, model=entry.wire_name)
        limit = asked.max_output_tokens or default_max_output(
            entry, capabilities, listed=named.listed, prompt_tokens=estimate
        )
        most = limit
        speaks_client = _speaks_as_client(adapter, self._turn.given)
        lowered: tuple[CallWarning, ...] = ()
        if named.listed and limit > capabilities.max_output_tokens and self._turn.of_client:
            most = capabilities.max_output_tokens
            if not speaks_client:
                lowered = (_lowered(limit, most, named.model),)
                limit = most
        too_dear: Refusal | None = None
        if self._turn.runtime.budgets.may_change_calls:
            limit, too_dear = self._afforded(named, estimate, limit)
        warnings: tuple[CallWarning, ...] = ()
        obstacle: CapabilityError | None = None
        try:
            warnings = (
                given.warnings
                + lowered
                + check(
                    asked,
                    capabilities,
                    model=named.model,
                    provider=entry.adapter,
                    listed=named.listed,
                    estimated_tokens=estimate,
                    max_output_tokens=min(limit, most),
                )
            )
        except CapabilityError as error:
            # A client's own body may say more than our tables know, and there is no other model to choose.
            if not speaks_client or len(self.plan.named) > 1 or self.plan.requires != Requirements():
                obstacle = error
        if not speaks_client and (wire := self._turn.given and self._turn.given.wire) and wire.refers_to:
            obstacle = CapabilityError(
                f"{named.model} can't serve the request: {wire.refers_to!r} names data of another provider"
            )
        return Option(
            named=named,
            capabilities=capabilities,
            input=given,
            estimated_tokens=estimate,
            max_output_tokens=limit,
            warnings=warnings,
            obstacle=obstacle,
            readiness=readiness,
            nominal_cost=self._nominal_cost(named) if self.plan.cheapest else None,
            too_dear=too_dear,
            speaks_client=speaks_client,
        )

    def _afforded(self, named: Named, estimate: int, limit: int) -> tuple[int, Refusal | None]:
        """The output that fits into the budgets, and the refusal that asks for a cheaper model."""
        turn = self._turn
        budgets = turn.runtime.budgets
        payer = payer_of(named.model, turn.state.calls_as, turn.tags, turn.id, turn.node)
        adapter = self.registry.adapters[named.entry.adapter]
        priced_as = published_name(adapter, named.entry)
        priced = Priced(turn.runtime.prices, named.model, turn.runtime.clock.now_us(), priced_as)
        options = turn.options.get("provider_options", {})
        fees = tool_fees(options, adapter=adapter.name, adapter_type=adapter.type)

        def asked(output: int) -> Amount:
            output = most_output(output, options, adapter=adapter.name, adapter_type=adapter.type)
            return worst_case_of_reply(priced, estimate, output, fees)

        limit = budgets.shortened(payer, asked, limit)
        return limit, budgets.too_dear(payer, asked(limit))

    def _nominal_cost(self, named: Named) -> int | None:
        runtime = self._turn.runtime
        priced_as = published_name(self.registry.adapters[named.entry.adapter], named.entry)
        now_us = runtime.clock.now_us()
        return runtime.prices.price(named.model, NOMINAL_USAGE, now_us, priced_as=priced_as).nano_usd


def _speaks_as_client(adapter: ProviderAdapter, given: CanonicalRequest | None) -> bool:
    """Whether a client's own body may be sent, which the provider judges by itself."""
    return given is not None and isinstance(adapter, SendsClientRequests) and adapter.sends_client_request(given)


def _lowered(limit: int, most: int, model: str) -> CallWarning:
    return CallWarning(
        WarningCode.PARAMETER_CHANGED,
        f"max_output_tokens was lowered from {limit} to {most}, the maximum of {model}",
    )


def _requirements_of(turn: TurnContext, plan: Plan, said: Sequence[Message]) -> TurnRequirements:
    """The requirements of a turn on any model."""
    state, options = turn.state, turn.options
    return TurnRequirements(
        new=current_turn(tuple(said)),
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
