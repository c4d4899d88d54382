"""What a turn may ask of the model besides what it says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

import msgspec

from adapters import RetryPolicy, ToolChoice
from bus.values.json import Json, JsonObject

from ..abort import AbortSignal
from ..models.nearest import nearest
from ..routing.choice import Requirements
from ..tools import Approve, RepairToolCall
from .context import ContextPolicy
from .results import StepResult
from .schema_means import SchemaMode

StopWhen: TypeAlias = Callable[[Sequence[StepResult]], bool | Awaitable[bool]]
"""Gets the steps so far, after each round of tools; True ends the turn there. A plain function must not block."""


class TurnOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn may ask of the model; None leaves it to the model's defaults.

    max_output_tokens: of each reply, reasoning included. temperature, top_p, frequency_penalty, presence_penalty,
    seed, verbosity, user, stop_sequences, output_schema, tool_choice, parallel_tool_calls, reasoning_effort,
    provider_options: as in `CanonicalRequest`; what a model doesn't take is left out with a warning. max_retries,
    retry: of each call, instead of the adapter's.
    max_tool_rounds: how often tools are run before the turn ends; 0 never runs any. stop_when: ends it earlier.
    approve: decides about each call of a tool before it runs; None leaves it to the session. repair_tool_call:
    mends arguments that don't fit. timeout_seconds: of the whole turn, None is the engine's `Timeouts.turn`.
    call_timeout_seconds: of each call with its attempts, None is the adapter's. drain_for_usage: seconds, see
    `AdapterConfig`.
    schema_mode: how the reply is held to `output_schema`: by the model itself, or else CapabilityError
    (``native``), or, by a model that takes no schema, through a tool call that is forced and comes back as text,
    or an instruction (``auto``, see `schema_means`). Only `generate_object` checks the reply.
    context: what of a long conversation is sent; None is the session's policy, or all of it.
    fallback: names of the models to try when the first one fails; None leaves it to the session or models.yaml,
    an empty one wants none. requires: what the model must be able to do, besides what the request shows.
    signal: ends the turn when it is aborted, from whatever thread; the turn then raises CancelledError.
    """

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    verbosity: str | None = None
    user: str | None = None
    stop_sequences: Sequence[str] = ()
    output_schema: JsonObject | None = None
    schema_mode: SchemaMode = "native"
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    provider_options: Mapping[str, Json] = {}
    max_tool_rounds: int = 1
    stop_when: StopWhen | None = None
    approve: Approve | None = None
    repair_tool_call: RepairToolCall | None = None
    max_retries: int | None = None
    retry: RetryPolicy | None = None
    timeout_seconds: float | None = None
    call_timeout_seconds: float | None = None
    drain_for_usage: float | None = None
    fallback: Sequence[str] | None = None
    requires: Requirements | None = None
    context: ContextPolicy | None = None
    signal: AbortSignal | None = None


_ADVICE = {
    "n": "there is one reply to a call: make n calls, with asyncio.gather for example",
    "max_tokens": "it is called max_output_tokens=",
    "stop": "it is called stop_sequences=",
    "abort_signal": "it is called signal=",
}


def options_among(
    given: Mapping[str, Any], *, others: Collection[str] = (), advice: Mapping[str, str]
) -> TurnOptions:
    """The options among the arguments. others: names of arguments that are none. advice: on names that there
    aren't, besides those of other libraries. Raises TypeError for such a name.
    """
    fields = TurnOptions.__struct_fields__
    known = {*fields, *others} - advice.keys()
    for name in given:
        if name not in known:
            raise TypeError(f"{name}= is not an argument: {_hint(name, known, advice)}")
    return TurnOptions(**{name: value for name, value in given.items() if name in fields})


def _hint(name: str, known: Collection[str], advice: Mapping[str, str]) -> str:
    if said := advice.get(name) or _ADVICE.get(name):
        return said
    near = nearest(name, known)
    return f"did you mean {near[0]}=?" if near else "see the fields of TurnOptions"


class TurnArguments(TypedDict, total=False):
    """The fields of `TurnOptions` as keyword arguments, for type checkers."""

    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    seed: int | None
    verbosity: str | None
    user: str | None
    stop_sequences: Sequence[str]
    output_schema: JsonObject | None
    schema_mode: SchemaMode
    tool_choice: ToolChoice | None
    parallel_tool_calls: bool | None
    reasoning_effort: str | None
    provider_options: Mapping[str, Json]
    max_tool_rounds: int
    stop_when: StopWhen | None
    approve: Approve | None
    repair_tool_call: RepairToolCall | None
    max_retries: int | None
    retry: RetryPolicy | None
    timeout_seconds: float | None
    call_timeout_seconds: float | None
    drain_for_usage: float | None
    fallback: Sequence[str] | None
    requires: Requirements | None
    context: ContextPolicy | None
    signal: AbortSignal | None
