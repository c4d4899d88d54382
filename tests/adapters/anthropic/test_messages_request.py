"""Requests on the wire. The expected bodies are written by hand from facts about the wire."""

from __future__ import annotations

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
from callboard.bus.values.messages import Message, Role, ToolDefinition
from tests.support.logs import captured_logs

from ...support.fake_http import request

READ_FILE = ToolDefinition("read_file", "Reads.", {"type": "object", "properties": {"path": {"type": "string"}}})


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


def test_the_contracts_first_example() -> None:
    """This is example 9.1 of the adapter contract, word for word."""
    asked = CanonicalRequest(
        request_id="req_01HZ",
        model="anthropic:claude-sonnet-4-6",
        messages=(Message.user("Read README.md and summarize"),),
        tools=(READ_FILE,),
        system_prompt="You are a helpful assistant.",
        max_output_tokens=2048,
        stream=True,
    )
    wire = write_request(asked, provider="anthropic", options={}, stream=True)
    assert wire.path == "/v1/messages"
    assert wire.headers == {"anthropic-version": "2023-06-01"}
    assert wire.warnings == ()
    assert written(wire) == {
        "model": "claude-sonnet-4-6",
        "max_tokens": 2048,
        "system": "You are a helpful assistant.",
        "messages": [user(says("Read README.md and summarize"))],
        "tools": [{"name": "read_file", "description": "Reads.", "input_schema": READ_FILE.input_schema}],
        "stream": True,
    }


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
    asked = request(
        messages=(
            Message.user("Go"),
            Message.assistant((ToolUseBlock("tu_1", "f", {}),)),
            Message.tool_result("tu_1", content, is_error=is_error),
        )
    )
    call = write_request(
        asked, provider="anthropic", options={"errors_in_words": True, "auto_cache": False}, stream=False
    )
    (result,) = msgspec.json.decode(call.body)["messages"][-1]["content"]
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


def test_a_message_without_content_is_removed() -> None:
    """The neighbours of the empty message have the same role and become one message."""
    wire = write(Message.user("Go"), Message.assistant((ThinkingBlock("Hm"),)), Message.user("On"))
    assert written(wire)["messages"] == [user(says("Go"), says("On"))]


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
    asked = request(
        model="anthropic:x",
        messages=(
            Message.user("Go"),
            Message(Role.ASSISTANT, (TextBlock("a"), call, stray), id="msg_7"),
            Message.user("On"),
        ),
    )
    wire = write_request(asked, provider="anthropic", options={}, stream=False)
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


@pytest.mark.parametrize(("document", "source"), [
    (DocumentBlock(data=PDF), {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjc="}),
    (DocumentBlock(url="https://x.test/a.pdf"), {"type": "url", "url": "https://x.test/a.pdf"}),
    (DocumentBlock(url="data:text/plain,a%20b"), {"type": "text", "media_type": "text/plain", "data": "a b"}),
    (DocumentBlock(data="a☃".encode(), media_type="text/markdown"),
        {"type": "text", "media_type": "text/plain", "data": "a☃"}),
])  # fmt: skip
def test_documents_are_in_results_with_their_names(document: DocumentBlock, source: JsonObject) -> None:
    named = msgspec.structs.replace(document, name="a.pdf")
    wire = write(
        Message.user("Go"),
        Message.assistant((ToolUseBlock("tu_1", "f", {}),)),
        Message.tool_result("tu_1", [named]),
    )
    result = {"type": "document", "source": source, "title": "a.pdf"}
    assert messages_of(wire)[-1] == user({"type": "tool_result", "tool_use_id": "tu_1", "content": [result]})
    assert wire.warnings == ()


def test_a_reply_stopped_during_reasoning_does_not_end_in_reasoning() -> None:
    """The last block of an assistant message must not be reasoning. Earlier blocks stay."""
    blocks = (TextBlock("a"), ThinkingBlock("Hm", "c2ln", ours()), RedactedThinkingBlock("x", ours()))
    asked = request(
        model="anthropic:claude-test",
        messages=(Message.user("Go"), Message(Role.ASSISTANT, blocks, id="msg_7"), Message.user("On")),
        session_id="ses_1",
    )
    with captured_logs() as lines:
        wire = write_request(asked, provider="anthropic", options={}, stream=False)
    assert messages_of(wire)[1] == assistant(says("a"))
    assert [(line["block_type"], line["message_id"], line["session_id"], line["adapter"]) for line in lines] == [
        ("redacted_thinking", "msg_7", "ses_1", "anthropic"),
        ("thinking", "msg_7", "ses_1", "anthropic"),
    ]
    assert "never sent" in lines[0]["reason"]


def test_reasoning_is_only_sent_to_its_own_model() -> None:
    """A signature belongs to one model. Back at that model, the reasoning is sent again."""
    history = (Message.user("Go"), Message.assistant((ThinkingBlock("Hm", "c2ln", ours()), TextBlock("a"))))
    other = write_request(
        request(model="anthropic:claude-other", messages=(*history, Message.user("On"))),
        provider="anthropic",
        options={},
        stream=False,
    )
    assert messages_of(other)[1] == assistant(says("a"))
    assert codes(other) == ["content_dropped"]
    again = {"type": "thinking", "thinking": "Hm", "signature": "c2ln"}
    assert sent(*history, Message.user("On"))[1] == assistant(again, says("a"))


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


def sent_to(model: str, *messages: Message, **options: Json) -> list[Json]:
    """Return the messages that a model gets."""
    asked: CanonicalRequest = request(model=f"anthropic:{model}", messages=messages)
    given: JsonObject = {"auto_cache": False, **options}
    return messages_of(write_request(asked, provider="anthropic", options=given, stream=False))


def thinking_of(found: list[Json]) -> list[Json]:
    """The thinking blocks of messages."""
    return [
        block
        for message in msgspec.convert(found, list[dict[str, Json]])
        for block in msgspec.convert(message["content"], list[dict[str, Json]])
        if block["type"] == "thinking"
    ]


@pytest.mark.parametrize("signature", [None, ""])
@pytest.mark.parametrize("model", ["deepseek-v4-pro", "kimi-k2.6", "MiniMax-M2", "glm-4.7", "local"])
def test_unsigned_thinking_is_sent_back_to_models_other_than_claude(model: str, signature: str | None) -> None:
    """DeepSeek and Moonshot refuse calls without thinking. Anthropic refuses thinking without its signature."""
    history = (
        Message.user("Go"),
        Message.assistant(
            [ThinkingBlock("Hm", signature, ProviderRaw("anthropic", {})), ToolUseBlock("toolu_1", "f", {})]
        ),
        Message.tool_result("toolu_1", "ok"),
    )
    assert thinking_of(sent_to(model, *history)) == [{"type": "thinking", "thinking": "Hm", "signature": ""}]
    assert thinking_of(sent_to("claude-opus-4-6", *history)) == []
    assert thinking_of(sent_to(model, *history, thinking_back="signed")) == []


def the_call() -> JsonObject:
    return {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}


def test_calls_without_thinking_get_a_placeholder_if_the_server_needs_it() -> None:
    """The calls came from another provider. Without thinking, and for other servers, there is no placeholder."""
    history = (
        Message.user("Go"),
        Message.assistant([TextBlock("Wait."), ToolUseBlock("toolu_1", "f", {})]),
        Message.tool_result("toolu_1", "ok"),
        Message.assistant("Done."),
        Message.user("So?"),
    )
    stand_in: JsonObject = {"type": "thinking", "thinking": " ", "signature": ""}
    for model in ("deepseek-v4-pro", "moonshotai/kimi-k2.6"):
        found = sent_to(model, *history)
        assert thinking_of(found) == [stand_in]
        assert found[1] == {"role": "assistant", "content": [stand_in, says("Wait."), the_call()]}
    for model in ("MiniMax-M2", "claude-opus-4-6"):
        assert thinking_of(sent_to(model, *history)) == []
    assert thinking_of(sent_to("my-model", *history, thinking_back="with_calls")) == [stand_in]
    off: JsonObject = {"anthropic": {"thinking": {"type": "disabled"}}}
    asked: CanonicalRequest = request(model="anthropic:deepseek-v4-pro", messages=history, provider_options=off)
    wire = write_request(asked, provider="anthropic", options={"auto_cache": False}, stream=False)
    assert thinking_of(messages_of(wire)) == []


@pytest.mark.parametrize("blank", ["", "  ", [], [TextBlock("\n")]])
def test_a_blank_result_gets_a_text_for_models_other_than_claude(blank: object) -> None:
    """Kimi's endpoint refuses a result without content. Anthropic accepts it."""
    for model, content in (("kimi-k2.6", "(no output)"), ("claude-opus-4-6", None)):
        history = (
            Message.user("Go"),
            Message.assistant([ToolUseBlock("toolu_1", "f", {})]),
            Message.tool_result("toolu_1", blank),  # type: ignore[arg-type]
        )
        last = msgspec.convert(sent_to(model, *history)[-1], dict[str, Json])
        (result,) = msgspec.convert(last["content"], list[dict[str, Json]])
        assert result.get("content") == content
