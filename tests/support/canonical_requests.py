"""Random requests that the canonical types allow, in the forms that hosts and providers really create."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from callboard.adapters.contract import CanonicalRequest
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, ToolChoice, ToolDefinition

PNG = b"\x89PNG\r\n\x1a\n"
TEXTS = st.sampled_from(["", " ", "Hi", "a\nb", "☃ \u2028", "json", "x\ud800"]) | st.text(max_size=8)
CALL_IDS = st.sampled_from(["tu_1", "tu_2", "call_1", "x" * 70, "odd id!", "tu.3"])
NAMES = st.sampled_from(["read", "write", "search"])
OBJECTS: st.SearchStrategy[JsonObject] = st.sampled_from(
    [{}, {"path": "a.txt"}, {"n": 1, "deep": {"list": [1, None, "x", True]}}, {"cache_control": "x"}]
)
SCHEMAS: st.SearchStrategy[JsonObject] = st.sampled_from(
    [{"type": "object"}, {"type": "object", "properties": {}}, {"type": "object", "title": "A reply!",
        "properties": {"a": {"type": "string"}}, "required": ["a"]},
        {"type": "object", "properties": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}},
        {"type": "object", "properties": {"m": {"type": "object", "additionalProperties": {"type": "number"}}}},
        {"type": "object", "properties": {"t": {"$ref": "#/$defs/t"}}, "$defs": {"t": {"type": "string"}}}],
)  # fmt: skip

_REASONING: JsonObject = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
_RAWS: dict[str, list[JsonObject]] = {
    "anthropic": [{}, {"id": "toolu_1"}, {"id": "toolu_2", "caller": {"type": "direct"}}],
    "openai": [{}, {"id": "call_9", "item_id": "fc_1"}, {"item_id": "msg_1", "phase": "final_answer"},
        _REASONING],
    "openai_compatible": [{}, {"id": "call_7"}],
    "gemini": [{}, {"id": "c_1", "thoughtSignature": "c2ln"}, {"signatures": [{"start": 0, "end": 1,
        "signature": "c2ln"}]}],
    "ollama": [{}, {"id": "call_5"}],
    "somebody": [{}, {"id": "any"}],
}  # fmt: skip
RAWS: st.SearchStrategy[ProviderRaw | None] = st.none() | st.one_of(
    [st.builds(ProviderRaw, st.just(name), st.sampled_from(datas)) for name, datas in _RAWS.items()]
)


def opaque(provider: str, *items: JsonObject) -> list[OpaqueBlock]:
    return [OpaqueBlock(str(data["type"]), ProviderRaw(provider, data)) for data in items]


_SEARCH: JsonObject = {
    "type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"},
}  # fmt: skip
_FOUND: JsonObject = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
_SEARCHED: JsonObject = {
    "type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"},
}  # fmt: skip
_COMPACTED: JsonObject = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}
_SHELL: JsonObject = {
    "type": "custom_tool_call", "id": "ctc_1", "call_id": "call_c", "name": "run", "input": "ls",
}  # fmt: skip
_SHELL_OUTPUT: JsonObject = {"type": "custom_tool_call_output", "call_id": "call_c", "output": "a"}
OPAQUE: st.SearchStrategy[list[OpaqueBlock]] = st.sampled_from(
    [opaque("anthropic", _SEARCH, _FOUND), opaque("anthropic", _SEARCH), opaque("anthropic", _FOUND),
        opaque("openai", _SEARCHED), opaque("openai", _COMPACTED), opaque("openai", _SHELL, _SHELL_OUTPUT),
        opaque("openai", _SHELL), opaque("somebody", {"type": "strange", "x": 1}),
        [OpaqueBlock("executableCode", ProviderRaw("gemini", {"executableCode": {"code": "1"}}))],
        [OpaqueBlock("thoughtSignature", ProviderRaw("gemini", {"text": "", "thoughtSignature": "c2ln"}))],
        [OpaqueBlock("groundingMetadata", ProviderRaw("gemini", {"groundingMetadata": {}}))]],
)  # fmt: skip

_MARK: JsonObject = {"cache_control": {"type": "ephemeral"}}
_SAID_OF: dict[str, list[JsonObject]] = {
    "anthropic": [_MARK, {"citations": {"enabled": True}, "context": "Of May.", "title": "Said"}, {"unknown": 1}],
    "openai": [{"prompt_cache_breakpoint": {"mode": "explicit"}}],
    "openai_compatible": [{"prompt_cache_breakpoint": {"mode": "explicit"}}],
    "gemini": [{"videoMetadata": {"fps": 2.0}, "mediaResolution": {"level": "MEDIA_RESOLUTION_LOW"}},
        {"unknown": 1}],
    "somebody": [{"x": 1}],
}  # fmt: skip
FIELDS: st.SearchStrategy[ProviderRaw | None] = st.none() | st.one_of(
    [st.builds(ProviderRaw, st.just(name), st.sampled_from(datas)) for name, datas in _SAID_OF.items()]
)
"""A host's fields of a block for one provider."""


def _with_fields(blocks: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(lambda block, raw: msgspec.structs.replace(block, provider_raw=raw), blocks, FIELDS)


_TEXT = st.builds(TextBlock, TEXTS, RAWS | FIELDS)
_IMAGE = _with_fields(
    st.sampled_from([ImageBlock(data=PNG), ImageBlock(data=b"GIF8", media_type="image/tiff"),
        ImageBlock(url="https://example.test/a.png", detail="high"),
        ImageBlock(url="data:image/png;base64,iVBORw0KGgo="), ImageBlock(url="ftp://example.test/a.png")]),
)  # fmt: skip
_AUDIO = _with_fields(st.just(AudioBlock(data=b"RIFF\0\0\0\0WAVE")))
_DOCUMENT = _with_fields(
    st.sampled_from([DocumentBlock(data=b"%PDF-1.7", name="a.pdf"),
        DocumentBlock(data=b"text", media_type="text/plain"), DocumentBlock(data=b"film", media_type="video/mp4"),
        DocumentBlock(url="https://example.test/a.pdf", media_type="application/pdf")]),
)  # fmt: skip
_HITS: JsonObject = {
    "type": "search_result",
    "source": "https://example.test",
    "title": "A page",
    "content": [{"type": "text", "text": "found"}],
}
_IN_RESULTS = st.sampled_from(
    [*opaque("anthropic", _HITS, {"type": "tool_reference", "tool_name": "read"}),
        *opaque("openai", {"type": "input_file", "file_id": "file_1"}),
        OpaqueBlock("fileData", ProviderRaw("gemini", {"fileData": {"fileUri": "https://x.test/f",
        "displayName": "f"}})), *opaque("somebody", {"type": "strange"})],
)  # fmt: skip
_THINKING = st.builds(ThinkingBlock, TEXTS, st.sampled_from([None, "", "c2ln"]), RAWS)
_CALL = st.builds(ToolUseBlock, CALL_IDS, NAMES, OBJECTS, provider_raw=RAWS, incomplete=st.booleans())
_RESULT_PARTS = st.lists(st.builds(TextBlock, TEXTS, FIELDS) | _IMAGE | _DOCUMENT | _IN_RESULTS, max_size=3).map(
    tuple
)
_OF_RESULTS = st.none() | st.sampled_from(
    [
        ProviderRaw("anthropic", _MARK),
        ProviderRaw("gemini", {"scheduling": "SILENT"}),
        ProviderRaw("somebody", {"x": 1}),
    ]
)
RESULT_CONTENTS = TEXTS | _RESULT_PARTS
_RESULT = st.builds(ToolResultBlock, CALL_IDS, RESULT_CONTENTS, st.booleans(), _OF_RESULTS)


def _flat(groups: list[list[ContentBlock]]) -> tuple[ContentBlock, ...]:
    return tuple(block for group in groups for block in group)


def _single(blocks: st.SearchStrategy[Any]) -> st.SearchStrategy[list[ContentBlock]]:
    return blocks.map(lambda block: [block])


_SAID_TEXT = st.builds(TextBlock, TEXTS, FIELDS)
SAID = st.lists(_SAID_TEXT | _SAID_TEXT | _IMAGE | _AUDIO | _DOCUMENT, max_size=2).map(tuple)
_REPLIED = st.lists(
    _single(_TEXT)
    | _single(_THINKING)
    | _single(st.builds(RedactedThinkingBlock, st.just("x"), RAWS))
    | _single(_CALL)
    | _single(_IMAGE)
    | OPAQUE,
    max_size=4,
).map(_flat)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Message, st.just(Role.USER), SAID), st.builds(Message, st.just(Role.ASSISTANT), _REPLIED),
    st.builds(Message, st.just(Role.TOOL), st.lists(_RESULT, max_size=3).map(tuple)),
    st.builds(Message, st.sampled_from([Role.SYSTEM, Role.DEVELOPER]),
        st.lists(st.builds(TextBlock, TEXTS, FIELDS), max_size=2).map(tuple)),
)  # fmt: skip
_TOOL_OPTIONS: st.SearchStrategy[dict[str, Json]] = st.fixed_dictionaries(
    {},
    optional={"anthropic": st.sampled_from([_MARK, {"defer_loading": True, "eager_input_streaming": True},
        {"allowed_callers": ["direct"]}]), "openai": st.sampled_from([{"defer_loading": True},
        {"output_schema": {"type": "object"}}]), "gemini": st.sampled_from([{"behavior": "BLOCKING"},
        {"response": {"type": "OBJECT"}}])},
)  # fmt: skip
_GRAMMAR: JsonObject = {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}
_FREE_FORM = st.builds(
    ToolDefinition, NAMES, TEXTS,
    st.just({"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}),
    provider_options=st.sampled_from([{"type": "text"}, _GRAMMAR]).map(lambda form: {key: {"type": "custom",
        "format": form} for key in ("openai", "openai_compatible")}),
)  # fmt: skip
TOOLS = st.lists(
    st.builds(ToolDefinition, NAMES, TEXTS, SCHEMAS, st.none() | st.booleans(), provider_options=_TOOL_OPTIONS)
    | _FREE_FORM,
    max_size=3,
    unique_by=lambda tool: tool.name,
).map(tuple)
CHOICES = st.none() | st.sampled_from([ToolChoice(), ToolChoice("none"), ToolChoice("required")])
CHOICES |= NAMES.map(lambda name: ToolChoice("named", name))


def _optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def canonical_requests(
    models: list[str], *, provider_options: st.SearchStrategy[dict[str, Json]] | None = None
) -> st.SearchStrategy[CanonicalRequest]:
    """Requests to one of the models."""
    penalties = _optional(st.sampled_from([-2.0, 0.0, 0.5]))
    return st.builds(
        CanonicalRequest, request_id=st.just("req_1"), model=st.sampled_from(models),
        messages=st.lists(MESSAGES, max_size=6).map(tuple),
        max_output_tokens=st.sampled_from([1, 1024, 5000, 200_000]), tools=TOOLS,
        system_prompt=_optional(TEXTS | st.just("Long. " * 2500)),
        stop_sequences=st.lists(st.sampled_from(["END", "\n", "a", "b", "c"]), max_size=5).map(tuple),
        temperature=_optional(st.sampled_from([0.0, 0.7, 1.5])), top_p=_optional(st.sampled_from([0.1, 1.0])),
        frequency_penalty=penalties, presence_penalty=penalties, seed=_optional(st.integers(0, 9)),
        verbosity=_optional(st.sampled_from(["low", "medium", "high", "chatty"])),
        user=_optional(st.sampled_from(["u_1", "u" * 200])), output_schema=_optional(SCHEMAS), tool_choice=CHOICES,
        parallel_tool_calls=_optional(st.booleans()),
        reasoning_effort=_optional(st.sampled_from(["none", "minimal", "low", "medium", "high", "xhigh", "max"])),
        session_id=st.sampled_from(["", "ses_1"]), background=_optional(st.booleans()),
        include_raw=_optional(st.booleans()), provider_options=provider_options or st.just({}),
    )  # fmt: skip
