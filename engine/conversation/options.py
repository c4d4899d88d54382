"""The options of a turn, besides its content."""

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
    """The options of a turn. None leaves an option to the model's defaults, unless its own line says otherwise.

    An option that is "as in `CanonicalRequest`" is left out with a warning if the model doesn't take it.
    """

    max_output_tokens: int | None = None
    """The largest number of tokens of each reply, reasoning included."""
    temperature: float | None = None
    """The sampling temperature, as in `CanonicalRequest`."""
    top_p: float | None = None
    """The nucleus sampling, as in `CanonicalRequest`."""
    frequency_penalty: float | None = None
    """The penalty on frequent tokens, as in `CanonicalRequest`."""
    presence_penalty: float | None = None
    """The penalty on tokens that are present, as in `CanonicalRequest`."""
    seed: int | None = None
    """The seed of the sampling, as in `CanonicalRequest`."""
    verbosity: str | None = None
    """The length of the reply, as in `CanonicalRequest`."""
    user: str | None = None
    """The end user, as in `CanonicalRequest`."""
    stop_sequences: Sequence[str] = ()
    """Texts that end the reply, as in `CanonicalRequest`."""
    output_schema: JsonObject | None = None
    """The JSON Schema of the reply, as in `CanonicalRequest`."""
    schema_mode: SchemaMode = "native"
    """The way by which the reply is held to `output_schema`. ``native``: by the model itself, or else
    CapabilityError is raised. ``auto``: a model that takes no schema is held to it through a tool call that is
    forced and comes back as text, or through an instruction, see `schema_means`. Only `generate_object` checks the
    reply."""
    tool_choice: ToolChoice | None = None
    """Whether the model may, must or must not call tools, as in `CanonicalRequest`."""
    parallel_tool_calls: bool | None = None
    """Whether the model may ask for several tool calls at once, as in `CanonicalRequest`."""
    reasoning_effort: str | None = None
    """The effort for reasoning, as in `CanonicalRequest`."""
    provider_options: Mapping[str, Json] = {}
    """Options for one provider, as in `CanonicalRequest`."""
    max_tool_rounds: int = 1
    """The number of times that tools are run before the turn ends; 0 never runs any."""
    stop_when: StopWhen | None = None
    """A condition that ends the turn earlier."""
    approve: Approve | None = None
    """A function that decides about each call of a tool before it runs; None leaves it to the session."""
    repair_tool_call: RepairToolCall | None = None
    """A function that mends arguments that don't fit."""
    max_retries: int | None = None
    """The number of retries of each call, in place of the adapter's."""
    retry: RetryPolicy | None = None
    """The retry policy of each call, in place of the adapter's."""
    timeout_seconds: float | None = None
    """Seconds for the whole turn; None is the engine's `Timeouts.turn`."""
    call_timeout_seconds: float | None = None
    """Seconds for each call with its attempts; None is the adapter's."""
    drain_for_usage: float | None = None
    """Seconds, see `AdapterConfig`."""
    fallback: Sequence[str] | None = None
    """The names of the models to try when the first one fails. None leaves it to the session or models.yaml; an
    empty sequence wants none."""
    requires: Requirements | None = None
    """The abilities that the model must have, besides those that the request shows."""
    context: ContextPolicy | None = None
    """The policy for the part of a long conversation that is sent; None is the session's policy, or the whole
    conversation."""
    signal: AbortSignal | None = None
    """A signal that ends the turn when it is aborted, from any thread. The turn then raises CancelledError."""


_ADVICE = {
    "n": "there is one reply to a call: make n calls, with asyncio.gather for example",
    "max_tokens": "it is called max_output_tokens=",
    "stop": "it is called stop_sequences=",
    "abort_signal": "it is called signal=",
}


def options_among(
    given: Mapping[str, Any], *, others: Collection[str] = (), advice: Mapping[str, str]
) -> TurnOptions:
    """The options among the arguments.

    Args:
        given: The arguments by name.
        others: The names of arguments that are no options.
        advice: Hints for names that don't exist, besides those for names of other libraries.

    Raises:
        TypeError: A name is neither an option nor one of `others`.
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
