"""The options of a turn: their types, how levels are merged, and how they are stored while a turn waits.

`TurnOptions` is a TypedDict, so editors and type checkers show each argument. `merged` combines the levels: the
defaults here, the session's options, the turn's options. If an option is None, the level below applies.

If a turn waits for an approval or a tool's result, another turn continues it later with the same options. They are
stored with the session's setup, so they survive a restart and a takeover. Keys, functions and signals are never
stored. Their names are in `StoredTurnOptions.lost`. If the turn had a key, the continuing turn must pass it again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, cast

import msgspec

from callboard.adapters import CanonicalRequest, RetryPolicy, ToolChoice
from callboard.bus import ConfigurationError, Log
from callboard.bus.log import TIME_LIMITS, with_new_names
from callboard.bus.values.base import Json, JsonObject

from ..models.catalogue import nearest
from ..routing.model_choice import Model, Requirements, model_of, stored_model
from ..runtime.in_flight import AbortSignal
from ..tools import ApprovalRequest, Approve, Pending, RepairToolCall
from ..tree import TurnLimits
from .context import ContextPolicy, SchemaMode
from .results import StepResult

StopWhen: TypeAlias = Callable[[Sequence[StepResult]], bool | Awaitable[bool]]
"""A function that is called after each round of tools with the steps so far. If it returns True, the turn ends. A
plain function must not block.
"""


class TimeoutConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits in seconds; None uses the engine's limit."""

    total: float | None = None
    """For the whole turn, with all steps and tools."""
    per_step: float | None = None
    """For each call of the model."""


class RequestOptions(TypedDict, total=False):
    """The options that each request of a turn contains unchanged.

    They have the names and meanings of the fields of `CanonicalRequest`. If a model does not support an option,
    the request is sent without it, and the reply has a warning.
    """

    temperature: float | None
    """The sampling temperature."""
    top_p: float | None
    """The probability mass for nucleus sampling."""
    frequency_penalty: float | None
    """The penalty on tokens by their frequency in the previous text."""
    presence_penalty: float | None
    """The penalty on tokens that occur in the previous text."""
    seed: int | None
    verbosity: str | None
    """The length of the reply: ``low``, ``medium`` or ``high``."""
    user: str | None
    """An opaque id of the end user."""
    output_schema: JsonObject | None
    """The JSON Schema of the reply's text."""
    tool_choice: ToolChoice | None
    """Whether the model may, must or must not call tools; None leaves it to the provider."""
    parallel_tool_calls: bool | None
    """Whether the model may call several tools in one reply."""
    reasoning_effort: str | None
    """The effort for reasoning, from ``none`` to ``max``."""
    key: str | None
    """The name of one of the adapter's keys, see `AdapterConfig.keys`. An adapter without a key of this name is
    skipped.
    """
    provider_options: Mapping[str, Json]
    """Options for one provider, by the name of a protocol or an adapter."""
    max_retries: int | None
    """The number of retries of each call. Overrides the adapter's value."""
    retry: RetryPolicy | None
    """The retry policy of each call, in place of the adapter's."""
    background: bool | None
    """Whether the provider continues the reply if the connection or the process is lost, so that the reply can be
    resumed."""
    continue_broken: bool | None
    """Whether a stream that breaks off in its text is continued by another attempt, if the model accepts the start
    of a reply. Both attempts are billed."""
    include_raw: bool | None
    """Whether the provider's raw reply is kept, in `CanonicalResponse.raw` and in the `metadata` of its message.
    """
    drain_for_usage: float | None
    """Seconds for which a cancelled stream is still read to get its usage. Overrides the adapter's value."""


class TurnOptions(RequestOptions, total=False):
    """The options of a turn, as keyword arguments or as a dict that is passed with ``**``.

    If an option is missing or None, the first of these values applies: the session's, the model's in models.yaml,
    the provider's default. Exceptions are described at each option.
    """

    max_output_tokens: int | None
    """The maximum number of tokens of each reply, including reasoning."""
    stop_sequences: Sequence[str]
    """Texts that end the reply."""
    schema_mode: SchemaMode
    """How the reply is made to follow `output_schema`. With ``native``, the default, the provider enforces the
    schema; a model without this ability raises CapabilityError. With ``auto``, such a model gets a forced tool
    call, which is returned as text, or an instruction. Only `generate_object` checks the reply.
    """
    retry_empty: int | None
    """The maximum number of times that an empty reply is requested again; by default 0. A reply is empty if it
    ended normally without text and without a tool call. Each repetition is a separate call, which is billed and
    recorded.
    """
    max_tool_rounds: int
    """The maximum number of rounds of tools in the turn; by default 1. With 0, no tool runs."""
    stop_when: StopWhen | None
    """A condition that ends the turn after a round of tools."""
    approve: Approve | None
    """A function that decides about each call of a tool before it runs."""
    repair_tool_call: RepairToolCall | None
    """A function that repairs invalid arguments of a tool call."""
    timeout: float | TimeoutConfig | None
    """Seconds for the whole turn, or a `TimeoutConfig`; None uses the engine's `Timeouts.turn`."""
    call_timeout: float | None
    """Seconds for each call with its attempts; None uses the adapter's limit. The same as
    `TimeoutConfig.per_step`.
    """
    tags: Mapping[str, str] | None
    """Tags of the turn's calls, for the trace; never sent. They are added to the session's tags, and override
    them."""
    fallback: Sequence[str] | None
    """The names of the models to try when the first one fails. None uses the session's fallbacks; if the turn has
    its own model, those of models.yaml. An empty sequence means no fallback.
    """
    requires: Requirements | None
    """The abilities that the model must have, in addition to those of the session and the request."""
    limits: TurnLimits | None
    """The limits of the turn, including all turns and calls that its tools start."""
    context: ContextPolicy | None
    """The policy that decides which part of a long conversation is sent; without one, all of it is sent."""
    signal: AbortSignal | None
    """A signal that cancels the turn, from any thread. The turn then raises CancelledError."""


class SessionOptions(TypedDict, total=False):
    """The options of a session's turns. An option that a turn sets itself replaces the session's."""

    fallback: Sequence[str] | None
    """The models to try when the first one fails; None uses those of models.yaml."""
    approve: Approve | None
    """A function that decides about each call of a tool before it runs. It is not stored."""
    context: ContextPolicy | None
    """The policy that decides which part of a long history is sent, see `engine.conversation.context`; None always
    sends all of it. It is not stored.
    """
    key: str | None
    """The name of the adapter's key for the calls, see `AdapterConfig.keys`; None leaves the choice to the
    adapter. It is not stored.
    """
    temperature: float | None
    """The sampling temperature."""
    max_output_tokens: int | None
    """The maximum number of tokens of each reply."""
    max_tool_rounds: int | None
    """The maximum number of rounds of tools in a turn; by default 1."""


DEFAULTS: TurnOptions = {"schema_mode": "native", "max_tool_rounds": 1}
"""The lowest level of every turn. All other options are absent by default."""

_ALL = frozenset(TurnOptions.__annotations__)

_OF_REQUESTS = frozenset(RequestOptions.__annotations__)

_OF_SESSIONS = frozenset(SessionOptions.__annotations__)

_ADVICE = {
    "n": "a call has one reply. Make n calls, for example with asyncio.gather",
    "max_tokens": "use max_output_tokens=",
    "stop": "use stop_sequences=",
    "abort_signal": "use signal=",
}


def merged(*levels: TurnOptions) -> TurnOptions:
    merged_options = {name: value for level in levels for name, value in level.items() if value is not None}
    return cast("TurnOptions", merged_options)


def for_requests(*levels: TurnOptions) -> RequestOptions:
    """Merge several levels, and return only the options that each request contains unchanged."""
    request_options = {
        name: value
        for level in levels
        for name, value in level.items()
        if value is not None and name in _OF_REQUESTS
    }
    return cast("RequestOptions", request_options)


def options_of_request(request: CanonicalRequest) -> TurnOptions:
    """The options of a turn that has the same effect as a request."""
    request_settings: TurnOptions = {
        "max_output_tokens": None if request.default_output_limit else request.max_output_tokens,
        "stop_sequences": request.stop_sequences,
        "call_timeout": request.timeout_seconds,
        "max_tool_rounds": 0,
    }
    as_they_are = {name: getattr(request, name) for name in _OF_REQUESTS}
    return merged(request_settings, cast("TurnOptions", as_they_are))


def options_among(
    arguments: Mapping[str, Any], *, others: Collection[str] = (), advice: Mapping[str, str]
) -> TurnOptions:
    """Split the options of a turn from the arguments of a call. Raises TypeError for an unknown argument."""
    if not TIME_LIMITS.keys().isdisjoint(arguments):
        arguments = with_new_names(arguments, TIME_LIMITS)
    for name in arguments:
        if name in advice or not (name in _ALL or name in others):
            raise TypeError(f"{name}= is not an argument: {_hint(name, {*_ALL, *others} - advice.keys(), advice)}")
    options = {name: value for name, value in arguments.items() if name in _ALL}
    require_in_range(options)
    if isinstance(limit := options.get("timeout"), TimeoutConfig):
        options["timeout"] = limit.total
        if options.get("call_timeout") is None:
            options["call_timeout"] = limit.per_step
    return cast("TurnOptions", options)


def session_options(options: SessionOptions) -> TurnOptions:
    """Merge the options of a session's turns. Raises TypeError or ValueError."""
    if not options:
        return {}
    for name in options.keys() - _OF_SESSIONS:
        hint = "pass it with each turn" if name in _ALL else _hint(name, _OF_SESSIONS, {})
        raise TypeError(f"{name}= is not an argument of a session: {hint}")
    require_in_range(options)
    return merged(cast("TurnOptions", options))


_LEAST = {"max_output_tokens": 1, "max_tool_rounds": 0, "retry_empty": 0, "max_retries": 0}


def require_in_range(options: Mapping[str, Any]) -> None:
    """Raise ValueError for a negative limit, which some servers would treat as no limit."""
    for name, least in _LEAST.items():
        value = options.get(name)
        if value is not None and value < least:
            raise ValueError(f"{name}={value}: must be at least {least}")


def _hint(name: str, names: Collection[str], advice: Mapping[str, str]) -> str:
    if advised := advice.get(name) or _ADVICE.get(name):
        return advised
    near = nearest(name, names)
    return f"did you mean {near[0]}=?" if near else "see the fields of TurnOptions"


_log = Log("engine.sessions")

# --- Options of a waiting turn ---


_IN_MEMORY = frozenset({"key", "approve", "repair_tool_call", "stop_when", "context", "signal"})
"""Options that are never stored: a key, because it gives access to an account, and live objects."""

_STRUCTS: dict[str, Any] = {
    "tool_choice": ToolChoice,
    "retry": RetryPolicy,
    "requires": Requirements,
    "limits": TurnLimits,
}
"""Options that are decoded to a Struct when they are read. All other options are JSON values."""


class StoredTurnOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a turn that waits for an answer, as they are stored."""

    model: Model | None = None
    """The model of this turn; None uses the session's."""
    options: TurnOptions = msgspec.field(default_factory=lambda: TurnOptions())
    """The options that the turn itself set."""
    lost: frozenset[str] = frozenset()
    """The names of the turn's own options that were not stored."""
    lost_of_session: frozenset[str] = frozenset()
    """The names of the session's options that applied and were not stored."""

    def continued(
        self, session_id: str, of_session: TurnOptions, model: Model | None, turn_options: TurnOptions
    ) -> StoredTurnOptions:
        """The options of the turn that continues.

        A forced tool choice is left out, because it applies only to a turn's first reply.
        """
        changes = merged(turn_options)
        self._require_key(session_id, of_session, changes)
        stored_options = cast(
            "TurnOptions",
            {
                name: value
                for name, value in self.options.items()
                if name != "tool_choice" and not (name == "fallback" and model is not None)
            },
        )
        options = merged(stored_options, changes)
        lost = self.lost - changes.keys()
        if "approve" in self.lost | self.lost_of_session and "approve" not in {*options, *merged(of_session)}:
            options["approve"] = _waits
        if silent := sorted(lost - {"approve", "key"}):
            _log.warning("options_lost", session_id=session_id, options=silent)
        return StoredTurnOptions(
            model=self.model if model is None else model,
            options=options,
            lost=lost,
            lost_of_session=self.lost_of_session - changes.keys(),
        )

    def _require_key(self, session_id: str, of_session: TurnOptions, options: TurnOptions) -> None:
        if "key" in options:
            return
        if "key" in self.lost or ("key" in self.lost_of_session and of_session.get("key") is None):
            raise ConfigurationError(
                f"the waiting turn of session {session_id!r} was sent with key=, and keys are never "
                f"stored. Pass key= again"
            )

    def stored(self, of_session: TurnOptions) -> JsonObject | None:
        """The options as JSON; None if there is nothing to store."""
        json_options: JsonObject = {}
        lost = set(self.lost)
        for name, value in merged(self.options).items():
            if value is _waits or name in _IN_MEMORY or (plain := _as_json(value)) is msgspec.UNSET:
                lost.add(name)
            else:
                json_options[name] = plain
        inherited = {*self.lost_of_session, *(_IN_MEMORY & merged(of_session).keys())} - lost
        stored: JsonObject = {}
        if self.model is not None:
            stored["model"] = stored_model(self.model)
        if json_options:
            stored["options"] = json_options
        if lost:
            stored["lost"] = list[Json](sorted(lost))
        if inherited:
            stored["lost_of_session"] = list[Json](sorted(inherited))
        return stored or None


NOTHING = StoredTurnOptions()


def stored_turn_options(stored: JsonObject | None) -> StoredTurnOptions:
    """The options of a waiting turn, as `StoredTurnOptions.stored` wrote them."""
    if not stored:
        return NOTHING
    form = msgspec.convert(stored, _Stored)
    options = {
        name: msgspec.convert(value, _STRUCTS[name]) if name in _STRUCTS else value
        for name, value in form.options.items()
    }
    return StoredTurnOptions(
        model=None if form.model is None else model_of(form.model),
        options=cast("TurnOptions", options),
        lost=form.lost,
        lost_of_session=form.lost_of_session,
    )


class _Stored(msgspec.Struct):
    model: Json = None
    options: dict[str, Json] = {}
    lost: frozenset[str] = frozenset()
    lost_of_session: frozenset[str] = frozenset()


def _as_json(value: object) -> Json | msgspec.UnsetType:
    try:
        plain: Json = msgspec.json.decode(
            msgspec.json.encode(dict(value) if isinstance(value, Mapping) else value)
        )
    except (TypeError, ValueError, OverflowError, RecursionError):
        return msgspec.UNSET
    return plain


def _waits(request: ApprovalRequest) -> Pending:
    """An approve hook that makes every call wait. A continued turn uses it instead of its own hook, which can't be
    stored.
    """
    return Pending()
