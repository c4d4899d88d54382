"""Requests on the wire. The expected bodies are written by hand from facts about the wire."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.providers.anthropic.request import write_request
from callboard.adapters.requests.history import FAILED_SILENTLY
from callboard.adapters.requests.history_target import WireCall
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    DocumentBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message

from ...support.fake_http import request


def written(wire: WireCall) -> JsonObject:
    body: JsonObject = msgspec.json.decode(wire.body)
    return body


def write(*messages: Message, **changes: object) -> WireCall:
    asked: CanonicalRequest = request(
        model="anthropic:claude-test", messages=messages or (Message.user("Hi"),), **changes
    )
    return write_request(asked, provider="anthropic", options={"auto_cache": False}, stream=False)


def messages_of(wire: WireCall) -> list[Json]:
    found = written(wire)["messages"]
    assert isinstance(found, list)
    return found


def sent(*messages: Message, **changes: object) -> list[Json]:
    """The messages on the wire."""
    return messages_of(write(*messages, **changes))


def sent_to(model: str, *messages: Message, **options: Json) -> list[Json]:
    """Return the messages that a model gets."""
    asked: CanonicalRequest = request(model=f"anthropic:{model}", messages=messages)
    given: JsonObject = {"auto_cache": False, **options}
    return messages_of(write_request(asked, provider="anthropic", options=given, stream=False))


def codes(wire: WireCall) -> list[str]:
    return [warning.code for warning in wire.warnings]


def user(*blocks: JsonObject) -> JsonObject:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: JsonObject) -> JsonObject:
    return {"role": "assistant", "content": list(blocks)}


def says(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def ours(**data: Json) -> ProviderRaw:
    return ProviderRaw("anthropic", data, "claude-test")


def opaque(kind: str, **data: Json) -> OpaqueBlock:
    return OpaqueBlock(kind, ours(type=kind, **data))


@pytest.mark.parametrize(("content", "is_error", "expected"), [
    ("no such file", True, "Error: no such file"),
    ((TextBlock("bad"),), True, [says("Error: "), says("bad")]),
    ("", True, f"Error: {FAILED_SILENTLY}"),
    ("all well", False, "all well"),
])  # fmt: skip
def test_a_failed_result_has_a_text_for_servers_that_ignore_is_error(
    content: str | tuple[TextBlock, ...], is_error: bool, expected: Json
) -> None:
    """llama.cpp does not show `is_error` to the model. Other servers still get the field."""
    called = Message.assistant((ToolUseBlock("tu_1", "f", {}),))
    said = (Message.user("Go"), called, Message.tool_result("tu_1", content, is_error=is_error))
    (result,) = msgspec.convert(sent_to("m", *said, errors_in_words=True)[-1], Any)["content"]
    assert result["content"] == expected
    assert result.get("is_error", False) is is_error


def test_reasoning_is_sent_back_unchanged() -> None:
    """Signed, redacted and omitted reasoning is in its place before the call."""
    call = ToolUseBlock("tu_1", "f", {}, provider_raw=ours(id="toolu_1"))
    blocks = (
        ThinkingBlock("Hm ", "c2ln", ours()),
        ThinkingBlock("", "b21pdHRlZA", ours()),
        RedactedThinkingBlock("ZGF0YQ", ours(type="redacted_thinking", data="ZGF0YQ")),
        ThinkingBlock("of unstated origin", "c2ln"),
        call,
    )
    assert sent(Message.user("Go"), Message.assistant(blocks))[1] == assistant(
        {"type": "thinking", "thinking": "Hm ", "signature": "c2ln"},
        {"type": "thinking", "thinking": "", "signature": "b21pdHRlZA"},
        {"type": "redacted_thinking", "data": "ZGF0YQ"},
        {"type": "thinking", "thinking": "of unstated origin", "signature": "c2ln"},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
    )


@pytest.mark.parametrize("block", [
    ThinkingBlock("Hm", None, ours()),
    ThinkingBlock("Hm", "", ours()),
    ThinkingBlock("Hm", "c2ln", ProviderRaw("openai", {})),
    RedactedThinkingBlock("x", ProviderRaw("gemini", {})),
    OpaqueBlock("custom", ProviderRaw("openai", {"type": "custom"})),
])  # fmt: skip
def test_reasoning_that_would_be_refused_is_left_out_and_reported(block: ContentBlock) -> None:
    """Unsigned or foreign reasoning is left out with a warning. The rest of the message stays."""
    wire = write(Message.user("Go"), Message.assistant((block, TextBlock("a"))), Message.user("On"))
    assert written(wire)["messages"] == [user(says("Go")), assistant(says("a")), user(says("On"))]
    assert codes(wire) == ["content_dropped"]


def test_server_tools_are_sent_back_without_nulls() -> None:
    """Optional fields of a reply may be null, but those of a request may not. Only the content may be null."""
    found: JsonObject = {"type": "web_search_result", "url": "https://x.test", "page_age": None}
    blocks = (
        opaque("server_tool_use", id="srvtoolu_1", name="web_search", input={"q": "x"}, caller=None),
        opaque("web_search_tool_result", tool_use_id="srvtoolu_1", content=[found], caller=None),
        opaque("server_tool_use", id="srvtoolu_2", name="code_execution", input={}),
        opaque(
            "code_execution_tool_result", tool_use_id="srvtoolu_2", content={"stdout": "", "abort_reason": None}
        ),
        opaque("compaction", content=None),
        TextBlock("Found.", ours(citations=[{"type": "page_location", "file_id": None, "document_title": None}])),
        TextBlock("Plain.", ours(citations=None)),
    )
    wire = write(Message.user("Go"), Message.assistant(blocks), Message.user("On"))
    assert messages_of(wire)[1] == assistant(
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"q": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [found]},
        {"type": "server_tool_use", "id": "srvtoolu_2", "name": "code_execution", "input": {}},
        {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_2", "content": {"stdout": ""}},
        {"type": "compaction", "content": None},
        {**says("Found."), "citations": [{"type": "page_location", "document_title": None}]},
        says("Plain."),
    )
    assert wire.warnings == ()


def test_a_paused_server_tool_waits_for_its_result_across_messages() -> None:
    """The continuation begins with the result. Call and result belong to one turn."""
    call = opaque("server_tool_use", id="srvtoolu_1", name="web_search", input={})
    result = opaque("web_search_tool_result", tool_use_id="srvtoolu_1", content=[])
    paused = (Message.user("Go"), Message.assistant((call,)))
    assert sent(*paused)[1] == assistant(call.provider_raw.data)
    assert sent(*paused, Message.assistant((result, TextBlock("Done"))))[1] == assistant(
        call.provider_raw.data, result.provider_raw.data, says("Done")
    )


def test_a_server_tool_without_its_other_half_is_left_out() -> None:
    """A cancelled reply must not make every later request fail."""
    call = opaque("server_tool_use", id="srvtoolu_1", name="web_search", input={})
    stray = opaque("web_fetch_tool_result", tool_use_id="srvtoolu_2", content={})
    wire = write(Message.user("Go"), Message.assistant((TextBlock("a"), call, stray)), Message.user("On"))
    assert written(wire)["messages"] == [user(says("Go")), assistant(says("a")), user(says("On"))]
    assert codes(wire) == ["content_dropped", "content_dropped"]


def test_after_a_change_of_model_only_text_and_complete_searches_are_sent_back() -> None:
    """The vendor's guide to refusals requires it. Content before an earlier change of model is treated the
    same.
    """
    change = opaque("fallback", **{"from": {"model": "a"}, "to": {"model": "b"}})
    search = opaque("server_tool_use", id="srvtoolu_1", name="web_search", input={})
    found = opaque("web_search_tool_result", tool_use_id="srvtoolu_1", content=[])
    waiting = opaque("server_tool_use", id="srvtoolu_2", name="web_search", input={})
    told = opaque("connector_text", text="So,")
    said = (
        ThinkingBlock("No.", "sig", ours()), TextBlock("a"), search, found, change,
        RedactedThinkingBlock("aGk=", ours()), told, ToolUseBlock("tu_1", "f", {}), waiting, TextBlock("b"),
        change, ThinkingBlock("Hm.", "sig", ours()), ToolUseBlock("tu_2", "f", {}),
    )  # fmt: skip
    results = (Message.tool_result("tu_1", "one"), Message.tool_result("tu_2", "two"))
    wire = write(Message.user("Go"), Message.assistant(said), *results)
    data = [block.provider_raw.data for block in (search, found, change)]
    assert messages_of(wire)[1:] == [
        assistant(
            says("a"), *data, says("b"), change.provider_raw.data,
            {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
            {"type": "tool_use", "id": "tu_2", "name": "f", "input": {}},
        ),
        user({"type": "tool_result", "tool_use_id": "tu_2", "content": "two"}),
    ]  # fmt: skip
    assert codes(wire) == ["content_dropped"] * 5
    assert {loss.reason for loss in wire.losses} == {"its model declined, and another model continued"}


def test_a_reply_to_be_continued_loses_its_last_white_space() -> None:
    """Only the last text is trimmed."""
    messages = sent(Message.user("Go"), Message.assistant("a "), Message.user("On"), Message.assistant("b \n"))
    assert messages == [user(says("Go")), assistant(says("a ")), user(says("On")), assistant(says("b"))]


def test_names_of_betas_become_a_header() -> None:
    """The header has the betas of the configuration and of the request, each once."""
    asked = request(model="claude-test", provider_options={"anthropic": {"beta_headers": ["b", "c", "b"]}})
    wire = write_request(asked, provider="anthropic", options={"beta_headers": "a, b"}, stream=False)
    assert wire.headers["anthropic-beta"] == "a,b,c"
    assert "beta_headers" not in written(wire)


def test_an_adapter_with_another_name_has_its_own_blocks() -> None:
    """A second server with this protocol does not get Anthropic's signatures, and has its own options."""
    thinking = ThinkingBlock("Hm", "c2ln", ours())
    asked = request(
        messages=(Message.user("Go"), Message.assistant((thinking, TextBlock("a"))), Message.user("On")),
        provider_options={"anthropic": {"top_k": 1, "x": 1}, "kimi": {"top_k": 2}},
    )
    wire = write_request(asked, provider="kimi", options={}, stream=False)
    assert messages_of(wire)[1] == assistant(says("a"))
    assert (written(wire)["top_k"], written(wire)["x"]) == (2, 1)


# -- media, containers and stopped replies


PDF = b"%PDF-1.7"


def test_documents_are_in_results_with_their_names() -> None:
    called = Message.assistant((ToolUseBlock("tu_1", "f", {}),))
    wire = write(Message.user("Go"), called, Message.tool_result("tu_1", [DocumentBlock(data=PDF, name="a.pdf")]))
    source: JsonObject = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjc="}
    result = {"type": "document", "source": source, "title": "a.pdf"}
    assert messages_of(wire)[-1] == user({"type": "tool_result", "tool_use_id": "tu_1", "content": [result]})
    assert wire.warnings == ()


def test_a_reply_stopped_during_reasoning_does_not_end_in_reasoning() -> None:
    """The last block of an assistant message must not be reasoning. Earlier blocks stay."""
    blocks = (TextBlock("a"), ThinkingBlock("Hm", "c2ln", ours()), RedactedThinkingBlock("x", ours()))
    wire = write(Message.user("Go"), Message.assistant(blocks), Message.user("On"))
    assert messages_of(wire)[1] == assistant(says("a"))
    assert [loss.block_type for loss in wire.losses] == ["redacted_thinking", "thinking"]
    assert "never sent" in wire.losses[0].reason


def test_reasoning_is_only_sent_to_its_own_model() -> None:
    """A signature belongs to one model. Back at that model, the reasoning is sent again."""
    said = Message.assistant((ThinkingBlock("Hm", "c2ln", ours()), TextBlock("a")))
    history = (Message.user("Go"), said, Message.user("On"))
    assert sent_to("claude-other", *history)[1] == assistant(says("a"))
    assert sent(*history)[1] == assistant({"type": "thinking", "thinking": "Hm", "signature": "c2ln"}, says("a"))


def test_a_direct_callers_call_keeps_its_caller_after_its_turn() -> None:
    raw = ours(id="toolu_1", caller={"type": "direct"})
    called = Message.assistant((ToolUseBlock("tu_1", "f", {"a": 1}, provider_raw=raw),))
    assert sent(Message.user("Go"), called, Message.tool_result("tu_1", "one"), Message.user("On"))[
        1
    ] == assistant(
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}, "caller": {"type": "direct"}}
    )


def test_ids_that_are_not_text_are_ignored() -> None:
    """A proxy can send any value. A message with such an id must not break the conversation."""
    odd: JsonObject = {"type": "code_execution_20250825", "tool_id": ["srvtoolu_1"]}
    blocks = (
        opaque("server_tool_use", id=["srvtoolu_1"], name="code_execution", input={}),
        opaque("compaction", content=None, id={"odd": True}),
        ToolUseBlock("tu_1", "f", {}, provider_raw=ours(id="toolu_1", caller=odd)),
    )
    wire = write(Message.user("Go"), Message.assistant(blocks), Message.tool_result("tu_1", "12"))
    call = messages_of(wire)[1]["content"][-1]
    assert call == {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}


def test_the_container_is_sent_only_during_a_turn() -> None:
    """A call of a tool's code waits in the container. After the turn, the container may have expired and would be
    refused.
    """
    caller: JsonObject = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
    waiting = (
        opaque("server_tool_use", id="srvtoolu_1", name="code_execution", input={}),
        ToolUseBlock("tu_1", "f", {}, provider_raw=ours(id="toolu_1", caller=caller)),
        opaque("container", id="container_1", expires_at="2026-01-01T00:00:00Z"),
    )
    history = (Message.user("Go"), Message.assistant(waiting), Message.tool_result("tu_1", "12"))
    wire = written(write(*history))
    assert wire["container"] == "container_1"
    assert messages_of(write(*history))[1] == assistant(
        waiting[0].provider_raw.data,
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}, "caller": caller},
    )
    later = write(*history, Message.user("Never mind"))
    assert "container" not in written(later)
    assert messages_of(later)[1] == assistant({"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}})
    assert codes(later) == ["content_dropped"]


# -- other vendors' servers of the protocol


@pytest.mark.parametrize(("model", "back", "sent_back"), [
    ("deepseek-v4-pro", None, [{"type": "thinking", "thinking": " ", "signature": ""}]),
    ("my-model", "with_calls", [{"type": "thinking", "thinking": " ", "signature": ""}]),
    ("deepseek-v4-pro", "signed", []),
    ("claude-opus-4-6", None, []),
])  # fmt: skip
def test_an_option_decides_whether_calls_need_thinking(
    model: str, back: str | None, sent_back: list[Json]
) -> None:
    """By default, the model's name decides. Claude also accepts a result without content, which Kimi refuses."""
    call = ToolUseBlock("toolu_1", "f", {})
    history = (Message.user("Go"), Message.assistant([call]), Message.tool_result("toolu_1", " "))
    found = msgspec.convert(sent_to(model, *history, **({"thinking_back": back} if back else {})), Any)
    assert [block for block in found[1]["content"] if block["type"] == "thinking"] == sent_back
    assert found[-1]["content"][0].get("content") == (None if "claude" in model else "(no output)")
