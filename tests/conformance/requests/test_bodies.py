"""The parts of a body that every wire has: its least, system texts, tools, schemas, sampling, host options."""

from __future__ import annotations

import pytest

from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import Message, ToolChoice, ToolDefinition

from ...support.wires import WIRES, Wire
from .cases import (
    CHANGED,
    CHAT,
    CLAUDE,
    DROPPED,
    GEMINI,
    OLDER_GEMINI,
    OLLAMA,
    OPENAI_CHAT,
    PATH,
    READ_FILE,
    RESPONSES,
    TGI,
    Case,
    Written,
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
    """Nothing is said that was not asked for, but for defaults of a server that must not hold."""
    case.check()


@pytest.mark.parametrize("wire", [CLAUDE, RESPONSES, CHAT, OLLAMA], ids=lambda wire: wire.name)
def test_a_streamed_request_says_so(wire: Wire) -> None:
    """Gemini and TGI say it in the address."""
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
    """The prompt, then SYSTEM, then DEVELOPER messages, a blank line between them; OpenAI's keep their place."""
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
    row(GEMINI, "beside tools", {OF_TYPE: "application/json", IN_GEMINI: PATH}, tools=(READ_FILE,)),
    row(OLLAMA, "schema", {"format": PATH}),
    row(OLLAMA, "any", {"format": "json"}, output_schema=ANY),
    row(OLLAMA, "beside tools", {"format": PATH}, ["schema_hinders_tools"], tools=(READ_FILE,)),
    row(TGI, "grammar", {"parameters.grammar": {"type": "json", "value": PATH}}),
)  # fmt: skip
def test_output_schemas(case: Case) -> None:
    """A title is the name; a bare object is JSON mode, where some want the word to be said."""
    case.check(output_schema=PATH)


SAMPLING: dict[str, Json] = {
    "temperature": 0.0,
    "top_p": 0.5,
    "frequency_penalty": -1.0,
    "presence_penalty": 0.0,
    "seed": 0,
}


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
    """Zero is a value; what a wire or a model can't take is adapted or left out with a warning."""
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
    """They stand over ours; objects are merged, tools and includes added; those for others are not looked at."""
    assert "foreign" not in case.check()


@pytest.mark.parametrize("options", ["x", 7, []], ids=str)
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_host_options_are_an_object(wire: Wire, options: Json) -> None:
    with pytest.raises(InvalidRequestError, match="object"):
        Written(wire, provider_options={wire.name: options})
