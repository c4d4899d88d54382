"""Bodies on each wire: the smallest body, system texts, tools, settings, calls with results, and media."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters import (
    AdapterConfig,
    AnthropicAdapter,
    GeminiAdapter,
    OpenAIAdapter,
    OpenAICompatibleAdapter,
)
from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.providers.ollama.adapter import OllamaAdapter
from callboard.adapters.requests.history import FAILED_SILENTLY, NO_RESULT, NOT_EXECUTED
from callboard.adapters.requests.history_target import WireCall
from callboard.bus.errors import CapabilityError, InvalidRequestError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ProviderRaw,
    TextBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, ToolChoice, ToolDefinition

from ...support.fake_http import ask
from ...support.wires import WIRES, ChatWire, Wire
from .cases import (
    CHANGED,
    CHAT,
    CLAUDE,
    DROPPED,
    GEMINI,
    LOST,
    OLDER_GEMINI,
    OLLAMA,
    OPENAI_CHAT,
    PATH,
    PNG,
    PNG_64,
    READ_FILE,
    RESPONSES,
    TGI,
    Case,
    Written,
    ours,
    row,
    table,
)

HELLO: JsonObject = {"role": "user", "content": "Hello"}
BLOCKS: JsonObject = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
MODEL: JsonObject = {"model": "some-model"}
ENCRYPTED = ["reasoning.encrypted_content"]


@table(
    row(CLAUDE, "least", {"": {**MODEL, "messages": [BLOCKS], "max_tokens": 64, "stream": False}}),
    row(RESPONSES, "least", {"": {
        **MODEL, "input": [HELLO], "max_output_tokens": 64, "store": False, "include": ENCRYPTED}}),
    row(CHAT, "least", {"": {**MODEL, "messages": [HELLO], "max_tokens": 64}}),
    row(GEMINI, "least", {"": {
        "contents": [{"role": "user", "parts": [{"text": "Hello"}]}],
        "generationConfig": {"maxOutputTokens": 64}}}),
    row(OLLAMA, "least", {"": {
        **MODEL, "messages": [HELLO], "stream": False, "truncate": False, "shift": False,
        "options": {"num_ctx": 16384, "num_predict": 64}}}),
    row(TGI, "least", {"": {"inputs": "User: Hello\nAssistant:", "parameters": {
        "max_new_tokens": 64, "details": True, "return_full_text": False, "stop": ["\nUser:"]}}}),
)  # fmt: skip
def test_the_smallest_request(case: Case) -> None:
    """The body only has the requested fields, and fields that replace an unwanted default of the server."""
    case.check()


@pytest.mark.parametrize("wire", [CLAUDE, RESPONSES, CHAT, OLLAMA], ids=lambda wire: wire.name)
def test_a_streamed_request_has_its_mark(wire: Wire) -> None:
    """Gemini and TGI have it in the address."""
    assert Written(wire, stream=True).body["stream"] is True


SYSTEM = "P\n\nS\n\nD"
U: JsonObject = {"role": "user", "content": "U"}
DEVELOPER: JsonObject = {"role": "developer", "content": "D"}
FIRST: JsonObject = {"role": "system", "content": SYSTEM}


@table(
    row(CLAUDE, "hoisted", {
        "system": SYSTEM, "messages": [{"role": "user", "content": [{"type": "text", "text": "U"}]}]}),
    row(RESPONSES, "in place", {"instructions": "P\n\nS", "input": [DEVELOPER, U]}),
    row(CHAT, "first", {"messages": [FIRST, U]}),
    row(OPENAI_CHAT, "in place", {"messages": [{"role": "system", "content": "P\n\nS"}, DEVELOPER, U]}),
    row(GEMINI, "hoisted", {
        "systemInstruction": {"parts": [{"text": SYSTEM}]},
        "contents": [{"role": "user", "parts": [{"text": "U"}]}]}),
    row(OLLAMA, "first", {"messages": [FIRST, U]}),
    row(TGI, "first", {"inputs": f"{SYSTEM}\n\nUser: U\nAssistant:"}),
)  # fmt: skip
def test_system_texts(case: Case) -> None:
    """The prompt comes first, then SYSTEM, then DEVELOPER messages, with blank lines between. OpenAI's stay in
    their places.
    """
    said = (Message.developer("D"), Message.user("U"), Message.system("S"))
    case.check(messages=said, system_prompt="P")


FUNCTION: JsonObject = {"name": "read_file", "description": "Reads.", "parameters": PATH}
NOW, ANY_NOW = ToolDefinition("now"), ToolDefinition("now", "", {"type": "object"})
ODD = ToolDefinition("odd", "", {"type": "object", "properties": {"a": {"const": 1}}})
FITTED: JsonObject = {"type": "object", "properties": {"a": {"enum": [1]}}}


@table(
    row(CLAUDE, "schema", {"tools": [{"name": "read_file", "description": "Reads.", "input_schema": PATH}]}),
    row(CHAT, "schema", {"tools": [{"type": "function", "function": FUNCTION}]}),
    row(OLLAMA, "schema", {"tools": [{"type": "function", "function": FUNCTION}]}),
    row(OLLAMA, "always properties", {"tools.0.function.parameters": {"type": "object", "properties": {}}},
        tools=(ANY_NOW,)),
    row(GEMINI, "schema, and none", {"tools": [{"functionDeclarations": [
        {"name": "read_file", "description": "Reads.", "parametersJsonSchema": PATH}, {"name": "now"}]}]},
        tools=(READ_FILE, NOW)),
    row(GEMINI, "fitted", {"tools.0.functionDeclarations.0": {"name": "odd", "parametersJsonSchema": FITTED}},
        tools=(ODD,)),
)  # fmt: skip
def test_tools_are_declared_with_their_schemas(case: Case) -> None:
    case.check(tools=(READ_FILE,))


ANY: JsonObject = {"type": "object"}
TITLED: JsonObject = {"title": "My Reply!", **PATH, "required": ["path"], "additionalProperties": False}
LOOSE: JsonObject = {**TITLED, "required": []}
CLOSED: JsonObject = {"type": "json_schema", "schema": {**PATH, "additionalProperties": False}}
BUDGET: Json = {"type": "tokens", "total": 9}
IN_GEMINI, OF_TYPE = "generationConfig.responseJsonSchema", "generationConfig.responseMimeType"


@table(
    row(CLAUDE, "closed", {"output_config": {"format": CLOSED}}),
    row(CLAUDE, "beside effort and the host's", {
        "output_config": {"effort": "high", "format": CLOSED, "task_budget": BUDGET}},
        reasoning_effort="high", provider_options={"anthropic": {"output_config": {"task_budget": BUDGET}}}),
    row(RESPONSES, "strict", {
        "text.format.type": "json_schema", "text.format.name": "My_Reply_", "text.format.strict": True},
        output_schema=TITLED),
    row(RESPONSES, "loose", {
        "text": {"format": {"type": "json_schema", "name": "My_Reply_", "schema": LOOSE, "strict": False}}},
        output_schema=LOOSE),
    row(RESPONSES, "any: the word is added", {
        "text": {"format": {"type": "json_object"}},
        "input": [{"role": "developer", "content": "Answer with a JSON object."}, HELLO]}, output_schema=ANY),
    row(RESPONSES, "any: the word was said", {"input": [{"role": "user", "content": "As JSON, please"}]},
        output_schema=ANY, messages=(Message.user("As JSON, please"),)),
    row(CHAT, "named", {
        "response_format": {"type": "json_schema", "json_schema": {"name": "My_Reply", "schema": TITLED}}},
        output_schema=TITLED),
    row(OPENAI_CHAT, "strict", {"response_format.json_schema.strict": True}, output_schema=TITLED),
    row(CHAT, "any: the word is added", {
        "response_format": {"type": "json_object"},
        "messages.0": {"role": "system", "content": "Reply with a JSON object."}}, output_schema=ANY),
    row(GEMINI, "schema", {OF_TYPE: "application/json", IN_GEMINI: PATH}),
    row(GEMINI, "any", {OF_TYPE: "application/json", IN_GEMINI: None}, output_schema={**ANY, "title": "T"}),
    row(GEMINI, "with tools", {OF_TYPE: "application/json", IN_GEMINI: PATH}, tools=(READ_FILE,)),
    row(OLLAMA, "schema", {"format": PATH}),
    row(OLLAMA, "any", {"format": "json"}, output_schema=ANY),
    row(OLLAMA, "with tools", {"format": PATH}, ["schema_hinders_tools"], tools=(READ_FILE,)),
    row(TGI, "grammar", {"parameters.grammar": {"type": "json", "value": PATH}}),
)  # fmt: skip
def test_output_schemas(case: Case) -> None:
    """A title becomes the name. A bare object is JSON mode, for which some servers need the word JSON in the
    prompt.
    """
    case.check(output_schema=PATH)


SAMPLING: dict[str, Json] = {
    "temperature": 0.0, "top_p": 0.5, "frequency_penalty": -1.0, "presence_penalty": 0.0, "seed": 0,
}  # fmt: skip


@table(
    row(CLAUDE, "nothing", dict.fromkeys(
        ("temperature", "top_p", "stop_sequences", "tools", "system", "output_config"))),
    row(CLAUDE, "lowered", {"temperature": 1.0, "top_p": 0.9, "stop_sequences": ["END"]},
        ["stop_sequence_dropped", "temperature_lowered"],
        temperature=1.5, top_p=0.9, stop_sequences=("END", "\n")),
    row(RESPONSES, "no stop", {"stop": None}, [DROPPED], stop_sequences=("X",)),
    row(RESPONSES, "16 tokens at least", {"max_output_tokens": 16}, [CHANGED], max_output_tokens=3),
    row(CHAT, "four stops", {"temperature": 0.0, "top_p": 0.5, "stop": list("abcd")}, [DROPPED],
        temperature=0.0, top_p=0.5, stop_sequences=tuple("abcde")),
    row(OPENAI_CHAT, "while it reasons", {"temperature": None, "top_p": None}, [DROPPED] * 2,
        temperature=0.0, top_p=0.5, model="o3-mini"),
    row(GEMINI, "all", {"generationConfig": {
        "maxOutputTokens": 64, "temperature": 0.0, "topP": 0.5, "frequencyPenalty": -1.0, "presencePenalty": 0.0,
        "seed": 0, "stopSequences": ["a"]}}, **SAMPLING, stop_sequences=("a", "")),
    row(GEMINI, "five stops", {"generationConfig.stopSequences": list("abcde")}, [DROPPED],
        stop_sequences=tuple("abcdef")),
    row(GEMINI, "no field", {"generationConfig": {"maxOutputTokens": 64}}, [DROPPED] * 3,
        verbosity="low", user="u", tools=(READ_FILE,), parallel_tool_calls=False),
    row(OLLAMA, "all", {"options": {"num_ctx": 16384, "num_predict": 64, **SAMPLING, "stop": ["END"]}},
        [DROPPED] * 2, **SAMPLING, stop_sequences=("END",), verbosity="low", user="u"),
    row(OLLAMA, "parallel calls", {"parallel_tool_calls": None}, [DROPPED],
        tools=(READ_FILE,), parallel_tool_calls=False),
)  # fmt: skip
def test_sampling_and_stop_sequences(case: Case) -> None:
    """Zero is a value. Settings that a wire or a model does not support are adapted or dropped with a warning."""
    case.check()


SEARCH: JsonObject = {"type": "web_search", "name": "web_search"}
SOURCES = "web_search_call.action.sources"
ADAPTIVE: JsonObject = {"type": "adaptive"}
SAFETY: Json = [{"category": "HARM_CATEGORY_HATE_SPEECH", "threshold": "BLOCK_NONE"}]


def host(wire: Wire, **options: Json) -> dict[str, JsonObject]:
    return {wire.name: options, "other": {"foreign": 1}}


@table(
    row(CLAUDE, "tools and limits", {
        "tools.0.name": "read_file", "tools.1": SEARCH, "thinking": ADAPTIVE, "max_tokens": 9,
        "beta_headers": None},
        tools=(READ_FILE,), tool_choice=ToolChoice("named", "web_search"),
        provider_options=host(CLAUDE, tools=[SEARCH], thinking=ADAPTIVE, max_tokens=9, beta_headers=["b"])),
    row(RESPONSES, "objects and includes", {
        "reasoning": {"effort": "low", "summary": "auto"}, "include": [*ENCRYPTED, SOURCES],
        "store": True, "metadata": {"a": "b"}, "tools.0.name": "read_file", "tools.1": SEARCH, "tools.2": None},
        tools=(READ_FILE,), reasoning_effort="low", provider_options=host(
            RESPONSES, reasoning={"summary": "auto"}, tools=[SEARCH], include=[SOURCES], store=True,
            metadata={"a": "b"})),
    row(CHAT, "fields", {"seed": 2, "n": 1}, seed=1, provider_options=host(CHAT, seed=2, n=1)),
    row(GEMINI, "objects and tools", {
        "safetySettings": SAFETY, "tools.0.functionDeclarations.0.name": "read_file",
        "tools.1": {"googleSearch": {}}, "toolConfig": None, "generationConfig": {
            "maxOutputTokens": 64, "temperature": 1, "topK": 3,
            "thinkingConfig": {"includeThoughts": True, "thinkingBudget": -1}}},
        model=OLDER_GEMINI, temperature=0.5, reasoning_effort="low", tools=(READ_FILE,), provider_options=host(
            GEMINI, safetySettings=SAFETY, tools=[{"googleSearch": {}}], generationConfig={
                "topK": 3, "temperature": 1, "thinkingConfig": {"thinkingBudget": -1}})),
    row(TGI, "parameters", {"parameters.repetition_penalty": 1.1, "parameters.max_new_tokens": 7},
        provider_options=host(TGI, repetition_penalty=1.1, max_new_tokens=7)),
)  # fmt: skip
def test_host_options_are_merged_into_the_body(case: Case) -> None:
    """Host options replace fields, objects are merged, and tools and includes are added. Options for others are
    ignored.
    """
    assert "foreign" not in case.check()


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_host_options_are_an_object(wire: Wire) -> None:
    for options in ("x", 7, []):
        with pytest.raises(InvalidRequestError, match="object"):
            Written(wire, provider_options={wire.name: options})


# -- Fields of a host for a part of the system text, such as a breakpoint of the prompt cache.


MARK: JsonObject = {"type": "ephemeral", "ttl": "1h"}
ADAPTERS: dict[str, HttpAdapter] = {
    "anthropic": AnthropicAdapter(AdapterConfig(api_key="k")),
    "openai_compatible": OpenAICompatibleAdapter(AdapterConfig(api_key="k", base_url="https://x.test")),
    "openai": OpenAIAdapter(AdapterConfig(api_key="k")),
    "gemini": GeminiAdapter(AdapterConfig(api_key="k")),
    "ollama": OllamaAdapter(AdapterConfig()),
}


def asked(name: str, of: str, **fields: object) -> CanonicalRequest:
    manual = TextBlock("The manual.", ProviderRaw(of, {"cache_control": MARK}))
    instructions = Message(Role.SYSTEM, (manual, TextBlock("Be brief.")))
    return ask(instructions, Message.user("Hi"), model=f"{name}:m", system_prompt="You sell screws.", **fields)


def written(name: str, of: str, **fields: object) -> tuple[WireCall, JsonObject]:
    call = ADAPTERS[name].write_request(asked(name, of, **fields), stream=False)
    return call, msgspec.json.decode(call.body)


def parts(*texts: str) -> list[JsonObject]:
    return [
        {"type": "text", "text": text} | ({"cache_control": MARK} if "manual" in text else {}) for text in texts
    ]


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_part_of_the_system_text_keeps_the_host_s_fields(name: str) -> None:
    """The text is then sent in parts, in order, with the remaining texts at the end. Wires that send it as one
    string, and fields for another provider, leave it one string.
    """
    call, _ = written(name, "another")
    assert "You sell screws.\\n\\nThe manual.Be brief." in call.body.decode()
    assert (b"cache_control" in call.body, call.losses) == (False, ())
    call, body = written(name, name)
    if name in ("anthropic", "openai_compatible"):
        said = body["system"] if name == "anthropic" else body["messages"][0]["content"]
        assert said == parts("You sell screws.", "The manual.", "Be brief.")
        assert (call.losses, call.warnings) == ((), ())
    else:
        assert "You sell screws.\\n\\nThe manual.Be brief." in call.body.decode()
        assert b"cache_control" not in call.body
        assert [loss.reason for loss in call.losses] == [
            "the system prompt has no parts here, so its fields can't be sent"
        ]


def test_a_developers_message_keeps_its_fields() -> None:
    """The text is a message if the provider has that role. Otherwise the text is a part of the system text."""
    for name, place in (("openai", "input"), ("anthropic", "system")):
        text = TextBlock("The manual.", ProviderRaw(name, {"cache_control": MARK}))
        request = ask(Message(Role.DEVELOPER, (text,)), Message.user("Hi"), model=f"{name}:m")
        body = msgspec.json.decode(ADAPTERS[name].write_request(request, stream=False).body)
        told = body[place] if name == "anthropic" else body[place][0]["content"]
        assert told[0]["cache_control"] == MARK
    _, body = written("openai_compatible", "openai_compatible", output_schema={"type": "object"})
    assert body["messages"][0]["content"][-1]["text"] == "Reply with a JSON object."


# -- Calls and their results in the form of each wire.


AND: JsonObject = {"type": "text", "text": "And?"}
SENT: JsonObject = {"path": "Köln"}


def function(call_id: str, name: str, arguments: str) -> JsonObject:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def both(wire: Wire) -> tuple[Message, ...]:
    """Two calls, one with an id of the provider. The results have another order, one is an error, and the user's
    text follows.
    """
    own = ToolUseBlock("tu_2", "list", {}, provider_raw=ours(wire, id="own"))
    results = (Message.tool_result("tu_2", "two"), Message.tool_result("tu_1", "gone", is_error=True))
    calls = (TextBlock("So"), ToolUseBlock("tu_1", "read_file", {"path": "Köln"}), own)
    return Message.user("Go"), Message.assistant(calls), *results, Message.user("And?")


@table(
    row(CLAUDE, "in the user's message", {
        "messages.1.content": [
            {"type": "text", "text": "So"}, {"type": "tool_use", "id": "tu_1", "name": "read_file", "input": SENT},
            {"type": "tool_use", "id": "own", "name": "list", "input": {}}],
        "messages.2": {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "tu_1", "content": "gone", "is_error": True},
            {"type": "tool_result", "tool_use_id": "own", "content": "two"}, AND]},
        "messages.3": None}),
    row(RESPONSES, "an item each", {
        "input.2": {
            "type": "function_call", "call_id": "tu_1", "name": "read_file", "arguments": '{"path":"Köln"}'},
        "input.3": {"type": "function_call", "call_id": "own", "name": "list", "arguments": "{}"},
        "input.4": {"type": "function_call_output", "call_id": "tu_1", "output": "Error: gone"},
        "input.5": {"type": "function_call_output", "call_id": "own", "output": "two"},
        "input.6": {"role": "user", "content": "And?"}}),
    row(CHAT, "a message each", {
        "messages.1": {"role": "assistant", "content": "So", "tool_calls": [
            function("tu_1", "read_file", '{"path":"Köln"}'), function("own", "list", "{}")]},
        "messages.2": {"role": "tool", "tool_call_id": "tu_1", "content": "Error: gone"},
        "messages.3": {"role": "tool", "tool_call_id": "own", "content": "two"},
        "messages.4": {"role": "user", "content": "And?"}}),
    row(GEMINI, "a content of their own", {
        "contents.1.parts": [
            {"text": "So"}, {"functionCall": {"id": "tu_1", "name": "read_file", "args": SENT}},
            {"functionCall": {"id": "own", "name": "list", "args": {}}}],
        "contents.2": {"role": "user", "parts": [
            {"functionResponse": {"id": "tu_1", "name": "read_file", "response": {"error": "gone"}}},
            {"functionResponse": {"id": "own", "name": "list", "response": {"output": "two"}}}]},
        "contents.3": {"role": "user", "parts": [{"text": "And?"}]}}, model=OLDER_GEMINI),
    row(OLLAMA, "a message each", {
        "messages.1": {"role": "assistant", "content": "So", "tool_calls": [
            {"id": "tu_1", "function": {"name": "read_file", "arguments": SENT}},
            {"id": "own", "function": {"name": "list", "arguments": {}}}]},
        "messages.2": {"role": "tool", "content": "Error: gone", "tool_name": "read_file", "tool_call_id": "tu_1"},
        "messages.3": {"role": "tool", "content": "two", "tool_name": "list", "tool_call_id": "own"},
        "messages.4": {"role": "user", "content": "And?"}}),
)  # fmt: skip
def test_results_follow_their_calls_in_the_same_order(case: Case) -> None:
    """Results have the ids of their calls, which may be the provider's own. The user's text comes after them."""
    case.check(messages=both(case.wire))


RESULT = {
    "anthropic": "messages.2.content.0",
    "openai": "input.2",
    "openai_compatible": "messages.2",
    "gemini": "contents.2.parts.0.functionResponse.response",
    "ollama": "messages.2",
}
"""The path of the only result on each wire."""

CALLED = (Message.user("Go"), Message.assistant([ToolUseBlock("tu_1", "look", {})]))
CUT = (CALLED[0], Message.assistant([ToolUseBlock("tu_1", "look", {}, raw_arguments='{"a": ', incomplete=True)]))
IMAGE = ImageBlock(data=PNG)
BAD = TextBlock("bad")
CLAUDES: JsonObject = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG_64}}
FOLLOWS = "The result is an image. It follows."
RESULTS: list[tuple[Wire, str, str | tuple[TextBlock | ImageBlock, ...], bool, JsonObject]] = [
    *[(CLAUDE, *rest) for rest in [
        ("empty", "", False, {"content": "(no output)"}),
        ("blank", " \n", False, {"content": "(no output)"}),
        ("empty text", (TextBlock(""),), False, {"content": "(no output)"}),
        ("text and image", (TextBlock("one"), IMAGE, TextBlock(" ")), False,
         {"content": [{"type": "text", "text": "one"}, CLAUDES]}),
        ("error", "gone", True, {"content": "gone", "is_error": True}),
        ("silent error", "", True, {"content": FAILED_SILENTLY, "is_error": True}),
        ("error of an image", (IMAGE,), True, {"content": FAILED_SILENTLY, "is_error": True}),
        ("error and image", (BAD, IMAGE), True, {"content": [{"type": "text", "text": "bad"}], "is_error": True}),
    ]],
    *[(RESPONSES, *rest) for rest in [
        ("error", "12°", True, {"type": "function_call_output", "call_id": "tu_1", "output": "Error: 12°"}),
        ("error and image", (BAD, IMAGE), True, {"output": [
            {"type": "input_text", "text": "Error: "}, {"type": "input_text", "text": "bad"},
            {"type": "input_image", "image_url": f"data:image/png;base64,{PNG_64}", "detail": "auto"}]}),
    ]],
    *[(wire, "image", (IMAGE,), False, {"content": FOLLOWS}) for wire in (CHAT, OLLAMA)],
    *[(GEMINI, *rest) for rest in [
        ("silent error", "", True, {"error": FAILED_SILENTLY, "output": None}),
    ]],
]  # fmt: skip


@pytest.mark.parametrize(("wire", "content", "is_error", "expected"), [(row[0], *row[2:]) for row in RESULTS],
                         ids=[f"{row[0].name}-{row[1]}" for row in RESULTS])  # fmt: skip
def test_the_content_of_a_result_is_adapted_to_the_wire(
    wire: Wire, content: str | tuple[TextBlock | ImageBlock, ...], is_error: bool, expected: JsonObject
) -> None:
    """An empty result is sent without content, but a failure needs a text."""
    result = Written(wire, *CALLED, Message.tool_result("tu_1", content, is_error=is_error)).at(RESULT[wire.name])
    assert isinstance(result, dict)
    assert {key: result.get(key) for key in expected} == expected


@table(
    row(CLAUDE, "cut off", {"messages.2.content": [
        {"type": "tool_result", "tool_use_id": "tu_1", "content": NOT_EXECUTED, "is_error": True}, AND]},
        [LOST], messages=(*CUT, Message.user("And?"))),
    row(GEMINI, "cut off", {RESULT["gemini"]: {"error": NOT_EXECUTED}}, [LOST], messages=CUT),
    row(GEMINI, "unanswered", {RESULT["gemini"]: {"error": NO_RESULT}}, messages=CALLED),
)  # fmt: skip
def test_a_call_without_a_result_gets_one(case: Case) -> None:
    """Without an added result, a cancelled call would make every later request fail."""
    case.check()


# -- Images, audio and documents in the form of each wire, and media that are left out.


PDF = b"%PDF-1.7"
PDF_64 = "JVBERi0xLjc="
AT, PDF_AT, FILES = "https://x.test/a.webp?b=c", "https://x.test/a.pdf", "https://x.test/files/abc"
DATA = f"data:image/png;base64,{PNG_64}"


def seen(wire: Wire, *parts: Json) -> JsonObject:
    """A message of the user with the text See and these parts."""
    match wire.name:
        case "gemini":
            return {"role": "user", "parts": [{"text": "See"}, *parts]}
        case "ollama":
            return {"role": "user", "content": "See", **({"images": list(parts)} if parts else {})}
        case "openai":
            return {"role": "user", "content": [{"type": "input_text", "text": "See"}, *parts]}
        case _:
            return {"role": "user", "content": [{"type": "text", "text": "See"}, *parts]}


def claude(kind: str, media_type: str, data: str, *, block: str = "image") -> JsonObject:
    return {"type": block, "source": {"type": kind, "media_type": media_type, "data": data}}


def claudes_url(block: str, url: str) -> JsonObject:
    return {"type": block, "source": {"type": "url", "url": url}}


def inline(media_type: str, data: str) -> JsonObject:
    return {"inlineData": {"mimeType": media_type, "data": data}}


def file(name: str, data: str) -> JsonObject:
    return {"type": "input_file", "filename": name, "file_data": data}


SHOWN: list[tuple[Wire, str, ContentBlock, Json]] = [
    *[(CLAUDE, name, block, part) for name, block, part in [
        ("image by url", ImageBlock(url=AT), claudes_url("image", AT)),
        ("image of no stated type", ImageBlock(data=b"\xff\xd8\xffx"), claude("base64", "image/jpeg", "/9j/eA==")),
        ("image of a type misspelt", ImageBlock(data=b"x", media_type="image/jpg"),
         claude("base64", "image/jpeg", "eA==")),
        ("image as a data url", ImageBlock(url=DATA), claude("base64", "image/png", PNG_64)),
        ("image as a plain data url", ImageBlock(url="data:image/gif,%78"), claude("base64", "image/gif", "eA==")),
        ("pdf", DocumentBlock(data=PDF), claude("base64", "application/pdf", PDF_64, block="document")),
        ("pdf by url", DocumentBlock(url=PDF_AT), claudes_url("document", PDF_AT)),
        ("text", DocumentBlock(url="data:text/plain,a%20b"),
         claude("text", "text/plain", "a b", block="document")),
        ("markdown", DocumentBlock(data="a☃".encode(), media_type="text/markdown"),
         claude("text", "text/plain", "a☃", block="document")),
    ]],
    *[(RESPONSES, name, block, part) for name, block, part in [
        ("image", ImageBlock(data=PNG), {"type": "input_image", "image_url": DATA, "detail": "auto"}),
        ("image by url", ImageBlock(url=AT, detail="low"),
         {"type": "input_image", "image_url": AT, "detail": "low"}),
        ("pdf", DocumentBlock(data=PDF, name="report.pdf"),
         file("report.pdf", f"data:application/pdf;base64,{PDF_64}")),
        ("nameless", DocumentBlock(data=b"a,b", media_type="text/csv"),
         file("document.csv", "data:text/csv;base64,YSxi")),
        ("pdf by url", DocumentBlock(url=PDF_AT), {"type": "input_file", "file_url": PDF_AT}),
        ("pdf as a data url", DocumentBlock(url="data:application/pdf;base64,JVBERi0x"),
         file("document.pdf", "data:application/pdf;base64,JVBERi0x")),
    ]],
    *[(CHAT, name, block, {"type": "image_url", "image_url": sent}) for name, block, sent in [
        ("image", ImageBlock(data=PNG, detail="low"), {"url": DATA, "detail": "low"}),
        ("image by url", ImageBlock(url=AT), {"url": AT}),
    ]],
    *[(GEMINI, name, block, part) for name, block, part in [
        ("image", ImageBlock(data=PNG), inline("image/png", PNG_64)),
        ("image of a type misspelt", ImageBlock(data=b"x", media_type="image/jpg"), inline("image/jpeg", "eA==")),
        ("image as a data url", ImageBlock(url=DATA), inline("image/png", PNG_64)),
        ("image by url", ImageBlock(url=AT), {"fileData": {"mimeType": "image/webp", "fileUri": AT}}),
        ("image by a url of no type", ImageBlock(url=FILES), {"fileData": {"fileUri": FILES}}),
        ("image in a bucket", ImageBlock(url="gs://b/a", media_type="image/png"),
         {"fileData": {"mimeType": "image/png", "fileUri": "gs://b/a"}}),
        ("sound", AudioBlock(data=b"ID3"), inline("audio/mp3", "SUQz")),
        ("sound of another name", AudioBlock(data=b"x", media_type="audio/x-wav"), inline("audio/wav", "eA==")),
        ("pdf", DocumentBlock(data=PDF), inline("application/pdf", PDF_64)),
        ("json", DocumentBlock(data=b"{}", media_type="application/json"), inline("text/plain", "e30=")),
    ]],
    (OLLAMA, "image", ImageBlock(data=PNG), PNG_64),
    (OLLAMA, "image as a data url", ImageBlock(url=DATA), PNG_64),
    (OLLAMA, "image as a plain data url", ImageBlock(url="data:image/png,%89PNG%0D%0A%1A%0A"), PNG_64),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "block", "part"), [(wire, block, part) for wire, _, block, part in SHOWN],
                         ids=[f"{wire.name}-{name}" for wire, name, *_ in SHOWN])  # fmt: skip
def test_media_are_sent_in_the_form_of_the_wire(wire: Wire, block: ContentBlock, part: Json) -> None:
    """A data URL is converted if the wire only fetches its own kind of addresses."""
    written = Written(wire, Message.user([TextBlock("See"), block]))
    assert written.history == [seen(wire, part)]
    assert written.codes == []


LEFT_OUT: list[tuple[Wire, ContentBlock]] = [
    *[(CLAUDE, block) for block in (
        ImageBlock(url="file:///etc/passwd"), ImageBlock(url="/etc/passwd"), ImageBlock(url="data:nothing"),
        ImageBlock(url="data:image/png;base64,e"), ImageBlock(data=b"x", media_type="image/tiff"),
        DocumentBlock(data=b"PK", media_type="application/zip"),
        DocumentBlock(data=b"\xff\xfe", media_type="text/plain"),
        DocumentBlock(data=b" ", media_type="text/plain"), DocumentBlock(url="file:///etc/passwd"),
        DocumentBlock(url="https://x.test/a.csv", media_type="text/csv"))],
    *[(GEMINI, block) for block in (
        ImageBlock(data=b"GIF89a"), ImageBlock(url="data:image/gif;base64,R0lG"), ImageBlock(url="file:///etc/passwd"),
        ImageBlock(url="data:image/png;base64,x"), AudioBlock(data=b"x", media_type="audio/midi"),
        DocumentBlock(data=b"x", media_type="application/zip"))],
]  # fmt: skip


@pytest.mark.parametrize(("wire", "block"), LEFT_OUT, ids=[f"{row[0].name}-{n}" for n, row in enumerate(LEFT_OUT)])
def test_media_that_the_wire_cannot_send_are_left_out_and_reported(wire: Wire, block: ContentBlock) -> None:
    """No URL is read from disk. A message without other content keeps a note."""
    written = Written(wire, Message.user([TextBlock("See"), block]))
    assert (written.history, written.codes) == ([seen(wire)], [LOST])
    alone = Written(wire, Message.user([block]), Message.assistant("What?"), Message.user("This"))
    assert "left out: not supported here" in str(alone.history[0])
    assert alone.codes == [LOST]


REFUSED: list[tuple[Wire, ContentBlock]] = [
    (ChatWire("ollama"), ImageBlock(url=AT)),
    (OLLAMA, ImageBlock(url=AT)),
    (OLLAMA, ImageBlock(url="data:image/png;base64,iVBO?Rw0KGgo=")),
    (OLLAMA, ImageBlock(data=b"GIF89a")),
    (OLLAMA, AudioBlock(url="data:,x")),
    (TGI, ImageBlock(url=AT)),
]


@pytest.mark.parametrize(("wire", "block"), REFUSED, ids=[f"{row[0].name}-{n}" for n, row in enumerate(REFUSED)])
def test_unsupported_media_are_refused_when_new_and_dropped_when_old(wire: Wire, block: ContentBlock) -> None:
    """In the current turn, such media are refused before any network access. For older turns, the response reports
    the loss.
    """
    with pytest.raises(CapabilityError):
        Written(wire, Message.user([TextBlock("See"), block]))
    past = Written(wire, Message.user([TextBlock("See"), block]), Message.assistant("So."), Message.user("And?"))
    assert past.codes == [LOST]
    assert "x.test" not in str(past.body)
