"""The vendors' SDKs as clients of a gateway, with one interface for all tests."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import anthropic
import openai
from google import genai
from google.genai import errors as genai_errors
from google.genai import types

from callboard.adapters.conformance import CALLS
from tests.support.canonical_requests import PNG
from tests.support.wires import Wire

from .scripted_providers import ScriptedProvider, serving
from .sdk_client import PICTURE, City, Client, Said, picture

# --- OpenAI ---


class OpenAIClient(Client):
    error = openai.APIError

    def __init__(self, url: str, provider: ScriptedProvider, wire: Wire) -> None:
        super().__init__(url, provider, wire)
        self.sdk = openai.AsyncOpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0, timeout=20)

    def facts(self, error: Any) -> tuple[int, str, str | None]:
        return error.status_code, error.code, error.response.headers.get("retry-after")

    def user(self, text: str) -> Any:
        return {"role": "user", "content": text}


def _schema() -> dict[str, Any]:
    return {"name": "City", "schema": {**City.model_json_schema(), "required": ["name", "people"]}, "strict": True}


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {key: {} for key in given}}


class ChatClient(OpenAIClient):
    protocol, model = "openai_compatible", "gpt-5"
    thinks: ClassVar[Mapping[str, Any]] = {"reasoning_effort": "high"}
    structured: ClassVar[Mapping[str, Any]] = {
        "response_format": {"type": "json_schema", "json_schema": _schema()}
    }
    tools: ClassVar[Mapping[str, Any]] = {
        "tools": [{"type": "function", "function": {"name": name, "description": f"Does {name}.",
            "parameters": _parameters(given)}} for name, given in CALLS],
    }  # fmt: skip

    def media(self, page: bytes, media_type: str) -> Any:
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}", "detail": "low"}}
        data = f"data:{media_type};base64,{b64encode(page).decode()}"
        file = {"type": "file", "file": {"filename": "a", "file_data": data}}
        return {"role": "user", "content": [image, file, {"type": "text", "text": "What is this?"}]}

    def results(self, said: Said, text: str) -> list[Any]:
        return [{"role": "tool", "tool_call_id": call_id, "content": text} for call_id, *_ in said.calls]

    async def ask(self, history: Any, *, streamed: bool = False, **fields: Any) -> Said:
        create: Any = self.sdk.chat.completions.with_raw_response.create
        if streamed:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        raw = await create(model=self.model, messages=history, **fields)
        self.warnings = raw.headers.get("x-callboard-warnings", "")
        if streamed:
            found = joined([chunk.model_dump(exclude_none=True) async for chunk in raw.parse()])
        else:
            completion = raw.parse().model_dump(exclude_none=True)
            (choice,) = completion["choices"]
            found = {**choice, "usage": completion["usage"], "model": completion["model"]}
        message, usage = found["message"], found["usage"]
        assert found["model"] == self.model or self.wire.name == self.protocol
        calls = [
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls", ())
            if "function" in call
        ]
        counts = (
            usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"],
            usage["completion_tokens"],
        )
        images = [image["image_url"]["url"].partition(",")[2] for image in message.get("images", ())]
        said = message.get("content") or message.get("refusal", "")
        thoughts = message.get("reasoning_content", "")
        return Said(said, calls, thoughts, found["finish_reason"], counts, images, [message], found)

    async def deltas(self, history: Any) -> AsyncIterator[str]:
        reply = await self.sdk.chat.completions.create(model=self.model, messages=history, stream=True)
        try:
            async for chunk in reply:
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content
        finally:
            await reply.close()


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Join a stream's chunks into one choice, as users of the SDK do."""
    message: dict[str, Any] = {}
    choice: dict[str, Any] = {"message": message, "pieces": len(chunks)}
    for chunk in chunks:
        choice["model"] = chunk["model"]
        if "usage" in chunk:
            choice["usage"] = chunk["usage"]
        for each in chunk["choices"]:
            if "finish_reason" in each:
                choice["finish_reason"] = each["finish_reason"]
            _join(message, each["delta"])
    for call in message.get("tool_calls", ()):
        del call["index"]
    return choice


def _join(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        match value:
            case str() if name not in ("role", "id", "type"):
                message[name] = message.get(name, "") + value
            case dict():
                _join(message.setdefault(name, {}), value)
            case list() if name == "tool_calls":
                calls = message.setdefault(name, [])
                for call in value:
                    if call["index"] == len(calls):
                        calls.append({})
                    _join(calls[call["index"]], call)
            case list():
                message.setdefault(name, []).extend(value)
            case _:
                message[name] = value


class ResponsesClient(OpenAIClient):
    protocol, model, brief = "openai", "gpt-5-codex", {"instructions": "Be brief."}
    thinks: ClassVar[Mapping[str, Any]] = {
        "reasoning": {"effort": "high", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "store": False,
    }
    structured: ClassVar[Mapping[str, Any]] = {"text": {"format": {"type": "json_schema", **_schema()}}}
    tools: ClassVar[Mapping[str, Any]] = {
        "tools": [{"type": "function", "name": name, "description": f"Does {name}.",
            "parameters": _parameters(given), "strict": False} for name, given in CALLS],
    }  # fmt: skip

    def media(self, page: bytes, media_type: str) -> Any:
        image = {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}", "detail": "low"}
        data = f"data:{media_type};base64,{b64encode(page).decode()}"
        file = {"type": "input_file", "filename": "a", "file_data": data}
        return {"role": "user", "content": [image, file, {"type": "input_text", "text": "What is this?"}]}

    def results(self, said: Said, text: str) -> list[Any]:
        return [{"type": "function_call_output", "call_id": call_id, "output": text} for call_id, *_ in said.calls]

    async def ask(self, history: Any, *, streamed: bool = False, **fields: Any) -> Said:
        """Send a request and return the reply. The reply of a stream is in its last event, and must equal the
        earlier items.
        """
        create: Any = self.sdk.responses.with_raw_response.create
        raw = await create(model=self.model, input=history, **fields, **({"stream": True} if streamed else {}))
        self.warnings = raw.headers.get("x-callboard-warnings", "")
        reply: Any = raw.parse()
        if streamed:
            events = [event async for event in reply]
            self.kinds = [event.type for event in events]
            reply = events[-1].response
            items = [event.item for event in events if event.type == "response.output_item.done"]
            assert items == reply.output
        assert reply.model == self.model or self.wire.name == self.protocol
        calls = [
            (item.call_id, item.name, json.loads(item.arguments))
            for item in reply.output
            if item.type == "function_call"
        ]
        refusals = [
            part.refusal
            for item in reply.output
            if item.type == "message"
            for part in item.content
            if part.type == "refusal"
        ]
        thoughts = [part.text for item in reply.output if item.type == "reasoning" for part in item.summary]
        images = [item.result for item in reply.output if item.type == "image_generation_call"]
        usage = reply.usage
        counts = usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens
        finish = reply.incomplete_details.reason if reply.incomplete_details else reply.status
        again = [item.model_dump(exclude_none=True) for item in reply.output]
        text = reply.output_text or "".join(refusals)
        return Said(text, calls, "".join(thoughts), finish, counts, images, again, reply)

    async def deltas(self, history: Any) -> AsyncIterator[str]:
        reply = await self.sdk.responses.create(model=self.model, input=history, stream=True)
        try:
            async for event in reply:
                if event.type == "response.output_text.delta":
                    yield event.delta
        finally:
            await reply.close()


# --- Anthropic ---


class MessagesClient(Client):
    protocol, model, brief = "anthropic", "claude-opus-4-6", {"system": "Be brief."}
    error = anthropic.APIStatusError
    thinks: ClassVar[Mapping[str, Any]] = {"thinking": {"type": "adaptive"}}
    structured: ClassVar[Mapping[str, Any]] = {
        "output_config": {"format": {"type": "json_schema", "schema": _schema()["schema"]}}
    }
    tools: ClassVar[Mapping[str, Any]] = {
        "tools": [{"name": name, "description": f"Does {name}.", "input_schema": _parameters(given),
            "cache_control": {"type": "ephemeral"}} for name, given in CALLS],
    }  # fmt: skip

    def __init__(self, url: str, provider: ScriptedProvider, wire: Wire) -> None:
        super().__init__(url, provider, wire)
        self.sdk = anthropic.AsyncAnthropic(api_key="none", base_url=url, max_retries=0, timeout=20)

    def user(self, text: str) -> Any:
        return {"role": "user", "content": [{"type": "text", "text": text}]}

    def media(self, page: bytes, media_type: str) -> Any:
        data = page.decode() if media_type == "text/plain" else b64encode(page).decode()
        kind = "text" if media_type == "text/plain" else "base64"
        document = {"type": "document", "source": {"type": kind, "media_type": media_type, "data": data}}
        return {"role": "user", "content": [picture(), document, {"type": "text", "text": "What is this?"}]}

    def results(self, said: Said, text: str) -> list[Any]:
        results = [{"type": "tool_result", "tool_use_id": call[0], "content": text} for call in said.calls]
        return [{"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]}]

    async def ask(self, history: Any, *, streamed: bool = False, **fields: Any) -> Said:
        messages: Any = self.sdk.beta.messages
        given = {"model": self.model, "max_tokens": 2000, "messages": history, **fields}
        if streamed:
            async with messages.stream(**given) as found:
                self.warnings = found.response.headers.get("x-callboard-warnings", "")
                message = await found.get_final_message()
        else:
            raw = await messages.with_raw_response.create(**given)
            self.warnings = raw.headers.get("x-callboard-warnings", "")
            message = await raw.parse()
        assert message.model == self.model or self.wire.name == self.protocol
        blocks, usage = message.content, message.usage
        cached = usage.cache_read_input_tokens or 0
        thoughts = [block for block in blocks if block.type == "thinking"]
        assert all(block.signature for block in thoughts)
        return Said(
            "".join(block.text for block in blocks if block.type == "text"),
            [(block.id, block.name, block.input) for block in blocks if block.type == "tool_use"],
            "".join(block.thinking for block in thoughts), message.stop_reason,
            (usage.input_tokens + cached, cached, usage.output_tokens), [],
            [{"role": "assistant", "content": [block.to_dict() for block in blocks]}], message,
        )  # fmt: skip

    async def deltas(self, history: Any) -> AsyncIterator[str]:
        async with self.sdk.beta.messages.stream(model=self.model, max_tokens=9, messages=history) as events:
            async for event in events:
                self.kinds.append(event.type)
                if event.type == "text":
                    yield event.text

    def facts(self, error: Any) -> tuple[int, str, str | None]:
        return error.status_code, error.type, error.response.headers.get("retry-after")


# --- Gemini ---


class GeminiClient(Client):
    protocol, model, brief = "gemini", "gemini-2.5-pro", {"system_instruction": "Be brief."}
    error = genai_errors.APIError
    thinks: ClassVar[Mapping[str, Any]] = {
        "thinking_config": types.ThinkingConfig(include_thoughts=True, thinking_budget=8192)
    }
    structured: ClassVar[Mapping[str, Any]] = {"response_mime_type": "application/json", "response_schema": City}
    tools: ClassVar[Mapping[str, Any]] = {
        "tools": [types.Tool(function_declarations=[types.FunctionDeclaration(name=name,
            description=f"Does {name}.", parameters_json_schema=_parameters(given)) for name, given in CALLS])],
    }  # fmt: skip

    def __init__(self, url: str, provider: ScriptedProvider, wire: Wire) -> None:
        super().__init__(url, provider, wire)
        self.sdk = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=url, timeout=20_000))

    def user(self, text: str) -> Any:
        return types.UserContent(text)

    def media(self, page: bytes, media_type: str) -> Any:
        image = types.Part.from_bytes(data=PNG, mime_type="image/png")
        document = types.Part.from_bytes(data=page, mime_type=media_type)
        return types.UserContent([image, document, types.Part(text="What is this?")])

    def results(self, said: Said, text: str) -> list[Any]:
        parts = [
            types.Part(function_response=types.FunctionResponse(id=call_id, name=name, response={"output": text}))
            for call_id, name, _ in said.calls
        ]
        return [types.Content(role="user", parts=parts)]

    async def ask(self, history: Any, *, streamed: bool = False, **fields: Any) -> Said:
        given: Any = {"model": self.model, "contents": history, "config": types.GenerateContentConfig(**fields)}
        models = self.sdk.aio.models
        if streamed:
            chunks = [chunk async for chunk in await models.generate_content_stream(**given)]
        else:
            chunks = [await models.generate_content(**given)]
        answer: Any = chunks[0].sdk_http_response
        self.warnings = answer.headers.get("x-callboard-warnings", "")
        assert {chunk.model_version for chunk in chunks} == {self.model} or self.wire.name == self.protocol
        contents = [candidate.content for chunk in chunks for candidate in chunk.candidates or ()]
        finishes = [
            each.finish_reason for chunk in chunks for each in chunk.candidates or () if each.finish_reason
        ]
        parts = [part for content in contents if content for part in content.parts or ()]
        last: Any = chunks[-1]
        usage = last.usage_metadata
        made = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
        return Said(
            "".join(part.text or "" for part in parts if not part.thought),
            [(part.function_call.id, part.function_call.name,
                part.function_call.args) for part in parts if part.function_call],
            "".join(part.text or "" for part in parts if part.thought), finishes[-1].value,
            ((usage.prompt_token_count or 0), usage.cached_content_token_count or 0, made),
            [b64encode(part.inline_data.data or b"").decode() for part in parts if part.inline_data],
            [content for content in contents if content and content.parts], chunks,
        )  # fmt: skip

    async def deltas(self, history: Any) -> AsyncIterator[str]:
        reply: Any = await self.sdk.aio.models.generate_content_stream(model=self.model, contents=history)
        try:
            async for chunk in reply:
                if chunk.text:
                    yield chunk.text
        finally:
            await reply.aclose()
            await self.sdk.aio.aclose()

    def facts(self, error: Any) -> tuple[int, str, str | None]:
        details = error.details["error"].get("details", ())
        delays = [one["retryDelay"].removesuffix("s") for one in details if "RetryInfo" in one["@type"]]
        return error.code, error.status, delays[0] if delays else None


CLIENTS: Mapping[str, type[Client]] = {
    kind.protocol: kind for kind in (ChatClient, ResponsesClient, MessagesClient, GeminiClient)
}


@asynccontextmanager
async def client_of(kind: type[Any], wire: Wire, named: str | None = None) -> AsyncIterator[Any]:
    """A client of a gateway with one provider of a wire."""
    async with serving(wire, kind.model, named) as (url, provider):
        found = kind(url, provider, wire)
        async with alone(found.sdk):
            yield found


@asynccontextmanager
async def alone(sdk: Any) -> AsyncIterator[Any]:
    """An SDK that is closed at the end of the block."""
    try:
        yield sdk
    finally:
        if isinstance(sdk, genai.Client):
            await sdk.aio.aclose()
            sdk.close()
        else:
            await sdk.close()
