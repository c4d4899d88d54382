"""If a stream breaks off in its text, another attempt continues it, and its readers see one text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters import AdapterConfig, AdapterError, CanonicalRequest, Message, ProviderAdapter
from callboard.adapters.contract import AttemptFailed, AttemptReport, AttemptStarted, CanonicalResponse
from callboard.adapters.providers.anthropic.adapter import AnthropicAdapter
from callboard.adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from callboard.bus.errors import NetworkError
from callboard.bus.streams.events import MessageComplete, MessageStart, StreamEvent, TextDelta
from callboard.bus.values.messages import ToolChoice
from callboard.bus.values.usage import StopReason
from tests.support.continuing_server import TextProvider
from tests.support.virtual_time import FakeClock, run_virtual

SERVERS = {
    "messages": ("https://api.anthropic.com", "claude-sonnet-4-5"),
    "plain": ("https://api.groq.com", "llama-4"),
    "prefix": ("https://api.mistral.ai", "mistral-large"),
    "partial": ("https://api.moonshot.ai", "kimi-k2"),
    "final_message": ("http://vllm.example:8000", "m"),
}
TEXT = "The tide comes in,\n\n  and the tide goes out;  twice a day.\n"
BREAKS = st.one_of(st.integers(0, 60), st.sampled_from(["ok", "end", "refuse", "busy"]))


def adapter_to(provider: TextProvider, **options: Any) -> ProviderAdapter:
    url, _ = SERVERS[provider.kind]
    if provider.kind == "final_message":
        options["quirks"] = "vllm"
    kind = AnthropicAdapter if provider.kind == "messages" else OpenAICompatibleAdapter
    config = AdapterConfig(api_key="k", base_url=url, options=options, max_retries=20)
    return kind(config, transport=provider, clock=FakeClock())


def ask(kind: str = "messages", **more: Any) -> CanonicalRequest:
    fields = {"continue_broken": True, "max_output_tokens": 1000, "message_id": "msg_1", **more}
    model = fields.pop("model", SERVERS[kind][1])
    return CanonicalRequest(request_id="r", model=f"x:{model}", messages=(Message.user("Hm?"),), **fields)


class Seen:
    """The events of a reader and the reports of an observer."""

    def __init__(self) -> None:
        self.events: list[StreamEvent] = []
        self.reports: list[AttemptReport] = []
        self.response: CanonicalResponse | None = None
        self.error: AdapterError | None = None

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))

    @property
    def reasons(self) -> list[str]:
        return [each.reason for each in self.reports if isinstance(each, AttemptStarted)]

    @property
    def failures(self) -> list[AdapterError]:
        return [each.error for each in self.reports if isinstance(each, AttemptFailed)]


def read(adapter: ProviderAdapter, request: CanonicalRequest) -> Seen:
    seen = Seen()

    async def run() -> None:
        async with adapter.stream(request, on_attempt=seen.reports.append) as stream:
            try:
                async for event in stream:
                    seen.events += [event]
            except AdapterError as error:
                seen.error = error
            seen.response = stream.response

    run_virtual(run)
    return seen


WORDS = st.text(st.sampled_from("ab \n"), min_size=1, max_size=40).filter(lambda text: bool(text.strip()))


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(SERVERS)),
    st.one_of(st.just(TEXT), WORDS),
    st.lists(BREAKS, max_size=6),
    st.integers(1, 9),
)
def test_readers_get_one_text_after_any_break(kind: str, text: str, breaks: list[int | str], piece: int) -> None:
    """The message has each character once, including white space. Each attempt is reported with its own usage."""
    provider = TextProvider(text, breaks, kind, piece=piece)
    seen = read(adapter_to(provider), ask(kind))
    assert seen.error is None
    assert seen.response is not None
    assert seen.text == text == seen.response.text
    assert sum(isinstance(event, MessageStart) for event in seen.events) == 1
    last = seen.events[-1]
    assert isinstance(last, MessageComplete)
    assert last.final_content == seen.response.content
    assert last.stop_reason is StopReason.END_TURN
    assert (seen.response.usage.input_tokens, seen.response.usage.output_tokens) == provider.bill[-1]
    assert len(seen.failures) == len(seen.reasons) - 1
    assert set(seen.reasons[1:]) <= {"retry", "continued"}


def test_the_text_is_sent_without_its_last_white_space() -> None:
    """Anthropic refuses final white space. The continuation repeats it, and readers get it once."""
    provider = TextProvider(TEXT, [20], "messages")
    seen = read(adapter_to(provider), ask())
    first, second = provider.bodies
    assert first["messages"][-1]["role"] == "user"
    assert (
        second["messages"][-1] == {"role": "assistant", "content": "The tide comes in,"}
        or second["messages"][-1]["content"][0]["text"] == "The tide comes in,"
    )
    assert second["max_tokens"] < first["max_tokens"]
    assert seen.reasons == ["first", "continued"]
    assert seen.text == TEXT
    (broke,) = seen.failures
    assert broke.usage is not None
    assert broke.usage.input_tokens == provider.bill[0][0]


@pytest.mark.parametrize("asked", [
    {"continue_broken": None},
    {"model": "claude-sonnet-4-6"},
    {"model": "claude-opus-5-5"},
    {"model": "claude-haiku-4-5", "reasoning_effort": "low"},
    {"provider_options": {"anthropic": {"thinking": {"type": "enabled", "budget_tokens": 1024}}}},
    {"output_schema": {"type": "object", "properties": {}}},
    {"tool_choice": ToolChoice("named", "t")},
    {"max_output_tokens": 3},
])  # fmt: skip
def test_without_support_for_continuing_the_break_is_the_error(asked: dict[str, Any]) -> None:
    """The received text is kept, and no further request is sent."""
    from callboard.adapters import ToolDefinition

    if "tool_choice" in asked:
        asked = {**asked, "tools": (ToolDefinition("t", "", {"type": "object", "properties": {}}),)}
    provider = TextProvider(TEXT, [20], "messages")
    seen = read(adapter_to(provider), ask(**asked))
    assert isinstance(seen.error, NetworkError)
    assert seen.text == TEXT[:20]
    assert len(provider.bodies) == 1
    assert isinstance(seen.events[-1], MessageComplete)
    assert seen.events[-1].stop_reason is StopReason.ERROR


@pytest.mark.parametrize("url", ["https://api.openai.com", "https://openrouter.ai", "https://api.deepseek.com"])
def test_servers_that_start_again_get_no_continuation(url: str) -> None:
    """DeepSeek only continues a text at its beta address."""
    wire = OpenAICompatibleAdapter(AdapterConfig(api_key="k", base_url=url)).wire
    assert not wire.takes_beginning(ask())
    if "deepseek" in url:
        wire = OpenAICompatibleAdapter(AdapterConfig(api_key="k", base_url=f"{url}/beta")).wire
        assert wire.takes_beginning(ask())


def test_without_retries_left_the_text_is_kept_with_the_last_error() -> None:
    """The usage is that of the last attempt, because each attempt has its own row."""
    provider = TextProvider(TEXT, [20, 5, 5, 5], "messages")
    seen = read(adapter_to(provider), ask(max_retries=2))
    assert seen.reasons == ["first", "continued", "continued"]
    assert isinstance(seen.error, NetworkError)
    assert TEXT.startswith(seen.text)
    assert len(seen.text) > 20
    assert seen.error.usage is not None
    assert seen.error.usage.input_tokens == provider.bill[2][0]
    assert isinstance(seen.events[-1], MessageComplete)


def test_a_continuation_that_never_starts_ends_the_message() -> None:
    """A continuation that fails before its first event ends it, too."""
    provider = TextProvider(TEXT, [20, "busy", "busy", "busy"], "messages")
    seen = read(adapter_to(provider), ask(max_retries=2))
    assert seen.reasons == ["first", "continued", "continued"]
    assert seen.error is not None
    assert seen.error.usage is None
    assert seen.error.content == seen.events[-1].final_content  # type: ignore[union-attr]
    assert isinstance(seen.events[-1], MessageComplete)
    assert seen.events[-1].final_content[0].text == TEXT[:20]  # type: ignore[union-attr]
    assert seen.error.content == seen.events[-1].final_content


@pytest.mark.parametrize(("breaks", "reasons", "starts"), [
    ([8], ["first", "continued"], 2),
    (["overloaded"], ["first", "continued"], 2),
    ([0, "busy"], ["first", "retry", "retry"], 1),
], ids=["a break", "an error in the stream", "attempts without an event"])  # fmt: skip
def test_the_raw_reply_has_the_events_of_both_attempts(breaks: list[Any], reasons: list[str], starts: int) -> None:
    """The raw reply has the events before the break, then those of the continuation. An attempt that failed before
    its first event has none.
    """
    seen = read(adapter_to(TextProvider(TEXT, breaks)), ask(include_raw=True))
    assert (seen.text, seen.reasons) == (TEXT, reasons)
    assert seen.response is not None
    assert seen.response.raw is not None
    events: list[Any] = list(seen.response.raw.events)
    assert "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta") == TEXT
    assert [event["type"] for event in events].count("message_start") == starts
