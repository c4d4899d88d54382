"""What a turn may ask of the model besides what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import msgspec

from adapters import RetryPolicy, ToolChoice
from bus.json_types import Json, JsonObject

from .choice import Requirements
from .context import ContextPolicy


class TurnOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn may ask of the model; None leaves it to the model's defaults.

    max_tool_rounds: how often tools are run before the turn ends; 0 never runs any. timeout_seconds: of the whole
    turn, None is the engine's `Timeouts.turn`. call_timeout_seconds: of each call with its attempts, None is the
    adapter's. drain_for_usage: see AdapterConfig.
    context: what of a long conversation is sent; None is the session's policy, or all of it.
    fallback: names of the models to try when the first one fails; None leaves it to the session or models.yaml,
    an empty one wants none. requires: what the model must be able to do, besides what the request shows.
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
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    provider_options: Mapping[str, Json] = {}
    max_tool_rounds: int = 1
    max_retries: int | None = None
    retry: RetryPolicy | None = None
    timeout_seconds: float | None = None
    call_timeout_seconds: float | None = None
    drain_for_usage: float | None = None
    fallback: Sequence[str] | None = None
    requires: Requirements | None = None
    context: ContextPolicy | None = None


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
    tool_choice: ToolChoice | None
    parallel_tool_calls: bool | None
    reasoning_effort: str | None
    provider_options: Mapping[str, Json]
    max_tool_rounds: int
    max_retries: int | None
    retry: RetryPolicy | None
    timeout_seconds: float | None
    call_timeout_seconds: float | None
    drain_for_usage: float | None
    fallback: Sequence[str] | None
    requires: Requirements | None
    context: ContextPolicy | None
