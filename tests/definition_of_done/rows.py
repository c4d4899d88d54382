"""The rows of the unified client's definition of done (seed 2, section 8), and the mark that names a row.

Only this module has the rows. A test of any folder proves a row if its mark has the row's number:

    @row("8.4.3")
    @row("8.5.1", of="openai")

`proofs` lists these tests. If a row names providers, it must be proved for each of them. A test proves it for the
providers in its parameters (names or wires), or for those in `of`.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

PROVIDERS = ("openai", "anthropic", "gemini")


class Row(NamedTuple):
    """A row of the definition of done."""

    number: str
    text: str
    """The text of the specification."""
    decided: str = ""
    """How Callboard implements the row, and why, if this differs from the text."""
    providers: tuple[str, ...] = ()
    """The providers for which the row must be proved. Empty if the row is not about providers."""


SECTIONS = {
    "8.1": "Core infrastructure", "8.2": "Provider adapters", "8.3": "Messages and content", "8.4": "Generation",
    "8.5": "Reasoning tokens", "8.6": "Prompt caching", "8.7": "Tool calling", "8.8": "Errors and retries",
    "8.9": "Parity of the providers", "8.10": "Smoke test",
}  # fmt: skip

_OPENAI, _ANTHROPIC, _GEMINI = (("openai",), ("anthropic",), ("gemini",))

_TABLE: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {
    "8.1": [("The client can be made from the environment", "`Engine.from_env()`", ()),
        ("The client can be made of adapters", "`Engine(providers={...})`, or `engine.register`", ()),
        ("Requests go to the adapter that `provider` names", "also `provider:model` as the model's name", ()),
        ("Without `provider` the default one is taken", "", ()), (
        "ConfigurationError where no provider is configured and there is no default", "", ()),
        ("Middleware runs in its order, and backwards for the response", "", ()),
        ("A default client for the module, set or made when first needed", "`set_default_engine`", ()),
        ("The catalogue of models is filled; `get_model_info` and `list_models` are right", "", ())],
    "8.2": [("The provider's native API, no compatibility shim", "", PROVIDERS),
        ("Authentication: key from the environment or given", "", PROVIDERS),
        ("`complete()` gives a correctly filled response", "", PROVIDERS),
        ("`stream()` gives correctly typed events", "", PROVIDERS),
        ("System messages as the provider wants them", "", PROVIDERS),
        ("All five roles are translated", "", PROVIDERS), (
        "`provider_options` passes provider-specific parameters through", "", PROVIDERS),
        ("Beta headers, above all `anthropic-beta`",
        '`provider_options={"anthropic": {"beta_headers": [...]}}`; any header: `AdapterConfig.extra_headers`',
        PROVIDERS), ("HTTP errors become the right exceptions", "", PROVIDERS),
        ("`Retry-After` is read and stands on the error", "`retry_after_seconds`", PROVIDERS)],
    "8.3": [("Messages of text alone", "", PROVIDERS), ("Images by address, as base64 and from a local file",
        "a file is read where the host names it, by `ImageBlock.from_path()`; an address never opens one",
        PROVIDERS), ("Audio and documents are sent, or refused where the provider can't take them", "",
        PROVIDERS), ("Tool calls go there and back", "", PROVIDERS),
        ("Thinking comes back with its signature intact", "", _ANTHROPIC),
        ("Redacted thinking comes back as it was", "", _ANTHROPIC),
        ("Text and images in one message", "", PROVIDERS)],
    "8.4": [("`generate()` with a prompt", "", ()), ("`generate()` with messages", "", ()),
        ("`generate()` refuses both at once", "", ()), ("The text deltas of `stream()` add up to the text", "",
        ()), ("`stream()` has its start and its end, with what they should say", "`message.start`, `finish`", ()),
        ("Text is started, grows and is ended", "`text.start`, `text.delta`, `text.end`", ()),
        ("`generate_object()` gives a parsed, validated object", "", ()),
        ("`generate_object()` raises NoObjectGeneratedError", "", ()),
        ("An abort signal ends `generate()` and `stream()`", "CancelledError, with what had arrived", ()),
        ("Timeouts, of the whole and of each step", "RequestTimeoutError", ())],
    "8.5": [("Reasoning models report `reasoning_tokens`", "", _OPENAI),
        ("`reasoning_effort` is sent", "", _OPENAI), ("Thinking comes as content", "", _ANTHROPIC),
        ("Its signature is kept", "", _ANTHROPIC), ("`thoughtsTokenCount` becomes `reasoning_tokens`", "",
        _GEMINI), ("`reasoning_tokens` is told apart from `output_tokens`",
        "a number of its own, and a part of `output_tokens`, as it is billed; None is never 0 made up",
        PROVIDERS)],
    "8.6": [("Caching needs nothing from the client", "", _OPENAI),
        ("Cached tokens are counted", "`cached_input_tokens`, from `input_tokens_details`", _OPENAI),
        ("Breakpoints on system prompt, tools and conversation", "", _ANTHROPIC),
        ("The beta header `prompt-caching-2024-07-31`",
        "is not sent: the feature left its beta, and hosts that don't know the header refuse it", _ANTHROPIC),
        ("Tokens read from and written to the cache are counted", "", _ANTHROPIC),
        ("`auto_cache = false` switches it off", "", _ANTHROPIC), ("Caching needs nothing from the client", "",
        _GEMINI), ("Cached tokens are counted", "`cached_input_tokens`", _GEMINI),
        ("From the fifth turn on more than half of the input is read from the cache",
        "of simulated caches that obey each provider's rules, and of the local model", PROVIDERS)],
    "8.7": [("Active tools are run, in a loop", "", ()), ("Calls of passive tools are returned", "", ()),
        ("`max_tool_rounds` is respected", "", ()), ("`max_tool_rounds = 0` runs nothing", "", ()),
        ("N calls of one reply run at once", "", ()), ("N results go back in one request", "", PROVIDERS),
        ("A tool's failure goes to the model as an error", "", PROVIDERS),
        ("So does a call of a tool that there isn't", "", PROVIDERS),
        ("The four tool choices are translated", "", PROVIDERS), (
        "Arguments are parsed and validated before a tool runs", "", ()),
        ("StepResults have each step's calls, results and usage", "", ())],
    "8.8": [("Each status raises the right error", "413 is InvalidRequestError", ()),
        ("`retryable` is right for each", "", ()), ("Waits grow with each attempt, with jitter", "", ()),
        ("`Retry-After` goes before the computed wait, up to `max_delay`", "", PROVIDERS),
        ("`max_retries = 0` switches retries off", "", PROVIDERS), ("429 is retried unseen", "", PROVIDERS),
        ("401, 403 and 404 are raised at once", "", PROVIDERS), (
        "Retries are a step's, not the whole operation's", "", PROVIDERS),
        ("No retry of a stream that has given something", "", PROVIDERS)],
    "8.9": [("Simple text generation", "", PROVIDERS), ("Streaming text generation", "", PROVIDERS),
        ("Image input (base64)", "", PROVIDERS), ("Image input (URL)", "", PROVIDERS),
        ("Single tool call and execution", "", PROVIDERS), ("Multiple parallel tool calls", "", PROVIDERS),
        ("Multi-step tool loop (3+ rounds)", "", PROVIDERS), ("Streaming with tool calls", "", PROVIDERS),
        ("Structured output (generate_object)", "", PROVIDERS), ("Reasoning token reporting",
        "None where the provider says nothing", PROVIDERS), ("Invalid API key",
        "AuthError; Gemini says it with 400", PROVIDERS), ("Rate limit", "", PROVIDERS),
        ("Usage is accurate", "", PROVIDERS), ("Prompt caching: tokens read from the cache from turn 2 on", "",
        PROVIDERS), ("Provider-specific options pass through", "", PROVIDERS)],
    "8.10": [("Basic generation", "`stop_reason` is `end_turn`", PROVIDERS), ("Streaming", "", PROVIDERS),
        ("Tools in parallel", "", PROVIDERS), ("Image input", "", PROVIDERS),
        ("Structured output", "", PROVIDERS), ("A model that there isn't: NotFoundError", "", PROVIDERS)],
}  # fmt: skip

ROWS: dict[str, Row] = {
    f"{section}.{place}": Row(f"{section}.{place}", *row)
    for section, rows in _TABLE.items()
    for place, row in enumerate(rows, 1)
}


def row(number: str, *, of: str | tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Mark a test that proves a row.

    Args:
        number: The row's number.
        of: The providers for which the test proves it. By default, those in the test's parameters.
    """
    named = (of,) if isinstance(of, str) else of
    assert set(named) <= set(ROWS[number].providers), f"row {number} doesn't name {of}"
    return pytest.mark.row(number, of=named)
