"""The servers of this protocol: the address, the body of the same request, and a typical reply of each.

The replies are written by hand from facts about the wire. They show the peculiarities of each server.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from callboard.adapters.contract import CanonicalRequest
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ProviderRaw, ThinkingBlock, ToolUseBlock
from callboard.bus.values.messages import Message, ToolDefinition

from ...support.wires.chat import DONE, ask, body, chunk, tool, tools

SCHEMA: JsonObject = {"type": "object", "properties": {"at": {"type": "integer"}}}
STRICT: JsonObject = {
    "type": "object",
    "properties": {"at": {"type": ["integer", "null"]}},
    "required": ["at"],
    "additionalProperties": False,
}
SIGNED: JsonObject = {"google": {"thought_signature": "c2ln"}}
DETAILS: list[Json] = [{"type": "reasoning.text", "text": "Hm", "signature": "c2ln", "index": 0}]
ALL_SENT: JsonObject = {
    "max_tokens": 64, "parallel_tool_calls": False, "temperature": 0.5, "top_p": 0.25, "frequency_penalty": 0.5,
    "presence_penalty": 0.75, "seed": 7, "user": "u_1", "stop": ["END", "STOP"], "reasoning_effort": "high",
    "stream": True, "stream_options": {"include_usage": True},
}  # fmt: skip
"""The fields for an unknown server, other than model, messages and tools."""


def everything(name: str) -> CanonicalRequest:
    """A request with everything in which servers differ: in the middle of a tool loop, with every portable
    setting.
    """
    raw = ProviderRaw(name, {"reasoning_details": DETAILS, "extra_content": SIGNED})
    call_raw = ProviderRaw(name, {"id": "abcdefgh9", "extra_content": SIGNED})
    return ask(
        Message.system("Be brief."),
        Message.developer("In English."),
        Message.user("Look at it"),
        Message.assistant(
            [ThinkingBlock("Hm", None, raw), ToolUseBlock("tu_1", "look", {"at": 1}, provider_raw=call_raw)]
        ),
        Message.tool_result("tu_1", "seen"),
        tools=(ToolDefinition("look", "Look at it", SCHEMA),),
        parallel_tool_calls=False,
        temperature=0.5,
        top_p=0.25,
        frequency_penalty=0.5,
        presence_penalty=0.75,
        seed=7,
        user="u_1",
        verbosity="low",
        reasoning_effort="high",
        stop_sequences=("END", "STOP"),
        model=f"{name}:m",
    )


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One server."""

    name: str
    base_url: str
    """The address as a user would write it."""
    url: str = ""
    """The address of the request, if it is not the usual one below `base_url`."""
    lacks: Sequence[str] = ()
    """The fields of ALL_SENT that are not sent."""
    has: JsonObject = {}
    """The fields that are sent in place of others or in addition."""
    call: JsonObject = {}
    """The differences in the assistant's message."""
    result: JsonObject = {}
    """The differences in the tool's message."""
    tool: JsonObject = {}
    """The differences in the tool's definition."""
    system: Sequence[JsonObject] = ({"role": "system", "content": "Be brief.\n\nIn English."},)
    options: JsonObject = {}
    reply: bytes = b""
    """A streamed body. It means the fields below, and a call of ``look`` with ``{"at": 1}``."""
    text: str = "Well."
    thinking: str = ""
    call_id: str = "call_1"
    """The call's id from the server."""
    usage: tuple[int, int, int, int | None] = (100, 0, 20, None)
    """The tokens of the fresh input, the cached input, the output and the reasoning."""
    cost_nano_usd: int | None = None


COUNTS: JsonObject = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


def usage_chunk(usage: JsonObject = COUNTS, **extra: Json) -> JsonObject:
    return {"id": "c", "choices": [], "usage": usage, **extra}


def with_usage(last: JsonObject, usage: JsonObject = COUNTS) -> JsonObject:
    return {**last, "usage": usage}


WHOLE_CALL = tool(arguments='{"at":1}')
FRAGMENTS = (tools(tool()), tools(tool(0, None, None, '{"at"')), tools(tool(0, None, None, ":1}")))
FINISH = chunk("tool_calls")

SERVERS = (
    Server(
        name="openai", base_url="https://api.openai.com/v1", lacks=("max_tokens",),
        has={"max_completion_tokens": 64, "verbosity": "low"}, tool={"parameters": STRICT, "strict": True},
        system=({"role": "system", "content": "Be brief."}, {"role": "developer", "content": "In English."}),
        reply=body([chunk(content="Well."), *FRAGMENTS, FINISH, usage_chunk(), DONE]),
    ),
    Server(
        name="azure", base_url="https://mine.openai.azure.com/openai/deployments/x",
        url="https://mine.openai.azure.com/openai/deployments/x/chat/completions?api-version=2025-01-01-preview",
        options={"api_version": "2025-01-01-preview"}, lacks=("max_tokens",),
        has={"max_completion_tokens": 64, "verbosity": "low"}, tool={"parameters": STRICT, "strict": True},
        system=({"role": "system", "content": "Be brief."}, {"role": "developer", "content": "In English."}),
        reply=body([{"id": "", "model": "", "created": 0, "choices": [],
            "prompt_filter_results": [{"prompt_index": 0}]}, chunk(content="Well."), *FRAGMENTS,
            {"choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {}}]}, FINISH,
            usage_chunk(), DONE]),
    ),
    Server(
        name="llama.cpp", base_url="http://127.0.0.1:8080", url="http://127.0.0.1:8080/v1/chat/completions",
        call={"reasoning_details": DETAILS}, options={"quirks": "llama.cpp"}, lacks=("user",),
        reply=body([chunk(role="assistant", content=None), chunk(reasoning_content="Hm"), chunk(content="Well."),
            tools({"index": 0, "id": "call_1", "type": "function", "function": {"name": "look"}}),
            tools({"index": 0, "function": {"arguments": '{"at":1}'}}), FINISH,
            usage_chunk(timings={"prompt_n": 100}), DONE]),
        thinking="Hm",
    ),
    Server(
        name="vllm", base_url="http://127.0.0.1:8000/v1", options={"quirks": "vllm"}, lacks=("user",),
        call={"content": "", "reasoning_details": DETAILS},
        reply=body([with_usage(chunk(role="assistant", content=""),
            {"prompt_tokens": 100, "completion_tokens": 0}), with_usage(chunk(reasoning="Hm"),
            {"prompt_tokens": 100, "completion_tokens": 5}), chunk(content="Well."),
            tools(tool(0, "chatcmpl-tool-1", "look", None)), tools(tool(0, None, None, '{"at":1}')),
            chunk("tool_calls", stop_reason=None), usage_chunk(), DONE]),
        thinking="Hm", call_id="chatcmpl-tool-1",
    ),
    Server(
        name="sglang", base_url="http://127.0.0.1:30000", url="http://127.0.0.1:30000/v1/chat/completions",
        options={"quirks": "sglang"}, lacks=("user",), call={"content": "", "reasoning_details": DETAILS},
        # The id in every fragment.
        reply=body([{**chunk(role="assistant", content="", reasoning_content="Hm"), "usage": None},
            chunk(content="Well."), tools(tool(0, "call_1", "look", "")), tools(tool(0, "call_1", None, '{"at"')),
            tools(tool(0, "call_1", None, ":1}")), FINISH, usage_chunk(), DONE]),
        thinking="Hm",
    ),
    Server(
        name="ollama", base_url="http://localhost:11434/v1", call={"reasoning_details": DETAILS},
        lacks=("user", "parallel_tool_calls"),
        reply=body([chunk(reasoning="Hm", content=""), chunk(content="Well."), tools(WHOLE_CALL), FINISH,
            usage_chunk(), DONE]),
        thinking="Hm",
    ),
    Server(
        name="lmstudio", base_url="http://localhost:1234/v1", call={"reasoning_details": DETAILS},
        lacks=("user", "parallel_tool_calls"),
        reply=body([chunk(content="Well."), tools(tool(0, "365174485", "look", "")), *FRAGMENTS[1:], FINISH,
            usage_chunk(), DONE]),
        call_id="365174485",
    ),
    Server(
        name="cloudflare", base_url="https://api.cloudflare.com/client/v4/accounts/a1/ai/v1", lacks=("user",),
        call={"content": ""},
        reply=body([chunk(content="Well."), tools(WHOLE_CALL), FINISH, usage_chunk(), DONE]),
    ),
    Server(
        name="perplexity", base_url="https://api.perplexity.ai", lacks=("user", "seed"),
        reply=body([chunk(content="Well."), tools(WHOLE_CALL), FINISH, usage_chunk(), DONE]),
    ),
    Server(
        name="tgi", base_url="http://127.0.0.1:3000", url="http://127.0.0.1:3000/v1/chat/completions",
        options={"quirks": "tgi"}, lacks=("parallel_tool_calls", "user", "reasoning_effort"),
        reply=body([chunk(content="Well."), tools(tool(0, "0", "look", '{"at"')),
            tools(tool(0, "0", "look", ":1}")), chunk("stop"), {**usage_chunk(), "id": ""}, DONE]),
        call_id="0",
    ),
    Server(
        name="groq", base_url="https://api.groq.com/openai/v1", lacks=("frequency_penalty", "presence_penalty"),
        reply=body([chunk(reasoning="Hm", channel="analysis"), chunk(content="Well."), tools(WHOLE_CALL),
            {**FINISH, "x_groq": {"id": "req_1", "usage": {**COUNTS, "queue_time": 0.1}}}, DONE]),
        thinking="Hm",
    ),
    Server(
        name="together", base_url="https://api.together.xyz", url="https://api.together.xyz/v1/chat/completions",
        call={"reasoning_details": DETAILS}, lacks=("user",),
        reply=body([{**chunk(content="<thi"), "text": "<thi", "token_id": 128}, chunk(content="nk>Hm</thin"),
            chunk(content="k>\n\nWell."), tools(WHOLE_CALL), with_usage(FINISH, {**COUNTS, "cached_tokens": 40}),
            DONE]),
        thinking="Hm", usage=(60, 40, 20, None),
    ),
    Server(
        name="huggingface", base_url="https://router.huggingface.co/v1", call={"reasoning_details": DETAILS},
        lacks=("user",),
        reply=body([chunk(content="<think>Hm</think>Well."), tools(WHOLE_CALL), FINISH, usage_chunk(), DONE]),
        thinking="Hm",
    ),
    Server(
        name="deepseek", base_url="https://api.deepseek.com", url="https://api.deepseek.com/v1/chat/completions",
        lacks=("parallel_tool_calls", "seed", "user", "reasoning_effort"), has={"thinking": {"type": "enabled"}},
        call={"content": "", "reasoning_content": "Hm"},
        reply=b": keep-alive\n\n\n" + body([chunk(role="assistant", content=None, reasoning_content="Hm"),
            chunk(content="Well.", reasoning_content=None), tools(tool(0, "call_00_x", "look", '{"at":1}')),
            with_usage(chunk("tool_calls", content="", reasoning_content=None),
            {**COUNTS, "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36,
            "completion_tokens_details": {"reasoning_tokens": 5}}), DONE]),
        thinking="Hm", call_id="call_00_x", usage=(36, 64, 20, 5),
    ),
    Server(
        name="mistral", base_url="https://api.mistral.ai/v1", lacks=("user", "seed", "stream_options"),
        has={"random_seed": 7}, call={"content": ""}, result={"name": "look"},
        reply=body([chunk(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}]),
            chunk(content=[{"type": "text", "text": "Well."}]), with_usage(chunk("tool_calls",
            tool_calls=[{"id": "D681PevKs", "function": {"name": "look", "arguments": '{"at":1}'}, "index": 0}]),
            {**COUNTS, "num_cached_tokens": 16}), DONE]),
        thinking="Hm", call_id="D681PevKs",
    ),
    Server(
        name="moonshot", base_url="https://api.moonshot.ai/v1",
        lacks=("parallel_tool_calls", "seed", "user", "reasoning_effort"),
        call={"content": "", "reasoning_content": "Hm"},
        reply=body([chunk(reasoning_content="Hm"), chunk(content="Well."),
            tools(tool(0, "functions.look:0", "look", '{"at":1}')), {"choices": [{"index": 0, "delta": {},
            "finish_reason": "tool_calls", "usage": {**COUNTS, "cached_tokens": 10}}]}, DONE]),
        thinking="Hm", call_id="functions.look:0", usage=(90, 10, 20, None),
    ),
    Server(
        name="xai", base_url="https://api.x.ai/v1",
        # Reasoning is in no other count.
        reply=body([{"choices": [{"index": 0, "delta": {"role": "assistant", "reasoning_content": "Hm"}}]},
            {"choices": [{"index": 0, "delta": {"content": "Well."}}]},
            with_usage({"choices": [{"index": 0, "delta": {"tool_calls": [WHOLE_CALL]},
            "finish_reason": "tool_calls"}]}, {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 150,
            "completion_tokens_details": {"reasoning_tokens": 30}}), DONE]),
        thinking="Hm", usage=(100, 0, 50, 30),
    ),
    Server(
        name="openrouter", base_url="https://openrouter.ai/api/v1", lacks=("reasoning_effort",),
        has={"reasoning": {"effort": "high"}, "verbosity": "low"}, call={"reasoning_details": DETAILS},
        # The usage comes after the finish chunk, and its choices are not empty.
        reply=b": OPENROUTER PROCESSING\n\n" + body([{**chunk(role="assistant", content="", reasoning="Hm",
            reasoning_details=DETAILS), "provider": "X"}, chunk(role="assistant", content="Well."), *FRAGMENTS,
            chunk("tool_calls", role="assistant", content=""), with_usage(chunk(role="assistant", content=""),
            {**COUNTS, "cost": 0.00019325, "is_byok": False, "cost_details": {}}), DONE]),
        thinking="Hm", cost_nano_usd=193_250,
    ),
    Server(
        name="zai", base_url="https://api.z.ai/api/paas/v4", call={"reasoning_details": DETAILS},
        lacks=("parallel_tool_calls", "frequency_penalty", "presence_penalty", "seed", "user", "reasoning_effort"),
        has={"thinking": {"type": "enabled"}, "user_id": "u_1", "stop": ["END"]},
        reply=body([chunk(role="assistant", reasoning_content="Hm"), chunk(content="Well."), tools(WHOLE_CALL),
            with_usage(FINISH, {**COUNTS, "prompt_tokens_details": {"cached_tokens": 30}}), DONE]),
        thinking="Hm", usage=(70, 30, 20, None),
    ),
    Server(
        name="cerebras", base_url="https://api.cerebras.ai/v1", call={"reasoning_details": DETAILS},
        lacks=("max_tokens", "frequency_penalty", "presence_penalty", "stream_options"),
        has={"max_completion_tokens": 64},
        reply=body([chunk(reasoning="Hm"), chunk(content="Well."), tools(WHOLE_CALL), with_usage(FINISH), DONE]),
        thinking="Hm",
    ),
    Server(
        name="snowflake", base_url="https://org-account.snowflakecomputing.com",
        url="https://org-account.snowflakecomputing.com/api/v2/cortex/v1/chat/completions",
        lacks=("reasoning_effort",), has={"reasoning": {"effort": "high"}},
        reply=body([chunk("", content="Well."), tools(WHOLE_CALL), usage_chunk(), DONE]),
    ),
    Server(
        name="gemini", base_url="https://generativelanguage.googleapis.com/v1beta/openai/",
        url="https://generativelanguage.googleapis.com/v1beta/openai/chat/completions",
        lacks=("parallel_tool_calls", "frequency_penalty", "presence_penalty", "seed", "user"),
        call={"extra_content": SIGNED}, result={"name": "look"},
        reply=body([chunk(role="assistant", content="Well."), tools({"id": "", "type": "function",
            "extra_content": SIGNED, "function": {"name": "look", "arguments": '{"at":1}'}}),
            with_usage(chunk("stop"), {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 180}),
            DONE]),
        call_id="", usage=(100, 0, 80, 60),
    ),
    Server(
        name="default", base_url="https://unheard-of.test", url="https://unheard-of.test/v1/chat/completions",
        call={"reasoning_details": DETAILS},
        reply=body([chunk(content="Well."), tools(WHOLE_CALL), FINISH, usage_chunk(), DONE]),
    ),
)  # fmt: skip
