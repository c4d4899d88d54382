"""Reads messages of Chat Completions into the canonical history. Pure.

It reads the messages of OpenAI's clients, with the additional fields of OpenRouter, DeepSeek, Mistral, Gemini and
LiteLLM. A part without a canonical block becomes an `OpaqueBlock`, which only this protocol accepts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from callboard.adapters.replies.block import parse_object
from callboard.adapters.requests.settings import CUSTOM, INPUT
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    ResultPart,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role

from .failures import BadRequest
from .wire import (
    CallIds,
    LossReport,
    ToolNames,
    a_list,
    a_text,
    an_object,
    missing,
    objects_in,
    rest_of,
    wrong_type,
    wrong_value,
)

PROTOCOL = "openai_compatible"
"""The adapters' name for the protocol. It marks the fields that only this protocol understands."""

ANTHROPIC = "anthropic"
ANTHROPIC_FORMAT = "anthropic-claude-v1"
"""OpenRouter's name for Anthropic's reasoning."""


def as_list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def flat_text(value: Json) -> str:
    """The text in a string, in a text part, or in a list of them."""
    texts = [part.get("text") if isinstance(part, dict) else part for part in [value, *as_list(value)]]
    return "".join(text for text in texts if isinstance(text, str))


def read_reasoning(message: JsonObject) -> Iterator[ThinkingBlock | RedactedThinkingBlock]:
    """The reasoning of a reply in the history. If it has several forms, the most exact one is read."""
    text = message.get("reasoning_content") or message.get("reasoning")
    plain_text = text if isinstance(text, str) else ""
    extra = message.get("extra_content")
    if isinstance(extra, dict):
        yield ThinkingBlock("", provider_raw=ProviderRaw(PROTOCOL, {"extra_content": extra}))
    blocks = as_list(message.get("thinking_blocks"))
    details = _merged(as_list(message.get("reasoning_details")))
    if blocks:
        yield from _thinking_blocks(blocks)
    elif details:
        yield from _details(details, plain_text)
    elif plain_text:
        field: JsonObject = {} if message.get("reasoning_content") else {"reasoning_field": "reasoning"}
        yield ThinkingBlock(plain_text, provider_raw=ProviderRaw(PROTOCOL, field))


def _thinking_blocks(blocks: list[Json]) -> Iterator[ThinkingBlock | RedactedThinkingBlock]:
    """Read LiteLLM's form of Anthropic's blocks."""
    for block in blocks:
        match block:
            case {"type": "redacted_thinking", "data": str(data)}:
                yield RedactedThinkingBlock(data)
            case {"thinking": str(text), "signature": str(signature)} if signature:
                yield ThinkingBlock(text, signature)
            case {"thinking": str(text)}:
                yield ThinkingBlock(text)
            case _:
                pass


def _details(details: list[JsonObject], plain_text: str) -> Iterator[ThinkingBlock | RedactedThinkingBlock]:
    """Read OpenRouter's form. Each part of Anthropic's reasoning becomes a block. All other parts become one
    block.
    """
    others: list[Json] = []
    signed = [detail for detail in details if detail.get("signature")]
    for detail in details:
        signature, data = detail.get("signature"), detail.get("data")
        if detail.get("format") != ANTHROPIC_FORMAT or not (signature or data):
            others.append(detail)
        elif isinstance(signature, str):
            text = _detail_text(detail) or (plain_text if len(signed) == 1 else "")
            yield ThinkingBlock(text, signature, _raw({**detail, "text": text}))
        else:
            yield RedactedThinkingBlock(str(data), _raw(detail))
    if others:
        text = "".join(_detail_text(detail) for detail in others if isinstance(detail, dict))
        last = others[-1]
        mark = last.get("signature") if isinstance(last, dict) else None
        yield ThinkingBlock(text, mark if isinstance(mark, str) and mark else None, _raw(*others))


def _raw(*details: Json) -> ProviderRaw:
    return ProviderRaw(PROTOCOL, {"reasoning_details": [*details]})


def _detail_text(detail: JsonObject) -> str:
    text = detail.get("text") or detail.get("summary")
    return text if isinstance(text, str) else ""


def _merged(details: list[Json]) -> list[JsonObject]:
    """Join the pieces of each detail that were streamed separately."""
    merged: list[JsonObject] = []
    for detail in details:
        if not isinstance(detail, dict):
            continue
        last = merged[-1] if merged else None
        joins = last is not None and "data" not in detail and not last.get("signature")
        if last is None or not joins or any(last.get(name) != detail.get(name) for name in ("type", "index")):
            merged.append(dict(detail))
            continue
        for name, value in detail.items():
            old = last.get(name)
            if name in ("text", "summary") and isinstance(value, str) and isinstance(old, str):
                last[name] = old + value
            elif value is not None:
                last[name] = value
    return merged


MARK = "cache_control"
"""The prompt cache mark that OpenRouter and LiteLLM accept."""
MARKS = (MARK, "prompt_cache_breakpoint")
"""All prompt cache marks. The second is OpenAI's."""

_ROLES = ("system", "assistant", "user", "function", "tool", "developer")

# --- Messages ---


class ReadHistory(NamedTuple):
    messages: tuple[Message, ...]
    system_prompt: str | None
    has_beginning: bool


def read_messages(value: Json, names: ToolNames, losses: LossReport) -> ReadHistory:
    if value is None:
        raise missing("messages")
    messages = a_list(value, "messages")
    if not messages:
        explanation = (
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array "
            "instead."
        )
        raise BadRequest(explanation, param="messages", code="empty_array")
    return _Reader(names, losses).read(messages)


class _Reader:
    def __init__(self, names: ToolNames, losses: LossReport) -> None:
        self.names = names
        self.losses = losses
        self.messages: list[Message] = []
        self.results: list[ToolResultBlock] = []  # the results of successive tool messages
        self.ids = CallIds()
        self.functions: dict[str, str] = {}  # the latest legacy call of each function

    def read(self, entries: list[Json]) -> ReadHistory:
        system: str | None = None
        for message, where in objects_in(entries, "messages"):
            role, content = message.get("role"), message.get("content")
            if role is None:
                raise missing(f"{where}.role")
            if role in ("tool", "function"):
                self.results.append(self._result(message, where))
                continue
            self._end_results()
            if role == "system" and message is entries[0] and isinstance(content, str) and MARK not in message:
                system = content
                self._author(message, where)
                self._note_others(message, ("role", "content", "name"), where)
            else:
                self.messages.append(self._message(role, message, where))
        self._end_results()
        return ReadHistory(tuple(self.messages), system, _begins(entries[-1]))

    def _end_results(self) -> None:
        if self.results:
            self.messages.append(Message(Role.TOOL, tuple(self.results)))
            self.results = []

    def _message(self, role: Json, message: JsonObject, where: str) -> Message:
        match role:
            case "user":
                return Message(Role.USER, self._content_of(message, where), name=self._author(message, where))
            case "assistant":
                return Message(Role.ASSISTANT, self._reply(message, where), name=self._author(message, where))
            case "system" | "developer":
                if self.messages:
                    self.losses.changed(
                        f"{where} becomes a part of the system prompt, if the protocol has no {role} messages"
                    )
                content = self._content_of(message, where)
                texts = tuple(block for block in content if isinstance(block, TextBlock))
                for block in content:
                    if not isinstance(block, TextBlock):
                        self.losses.content(f"a part of {where}", "a system prompt is text")
                kind = Role.SYSTEM if role == "system" else Role.DEVELOPER
                return Message(kind, texts, name=self._author(message, where))
            case _:
                raise wrong_value(f"{where}.role", role, _ROLES)

    def _author(self, message: JsonObject, where: str) -> str | None:
        name = message.get("name")
        if isinstance(name, str) and name:
            self.losses.content(f"{where}.name")
            return name
        return None

    # --- Content ---

    def _content_of(self, message: JsonObject, where: str) -> tuple[ContentBlock, ...]:
        content = message.get("content")
        if content is None:
            raise missing(f"{where}.content")
        self._note_others(message, ("role", "content", "name"), where)
        if isinstance(content, str):
            return (TextBlock(content, _raw_of({MARK: message.get(MARK)})),)
        return tuple(_with_mark(self._parts(content, f"{where}.content"), message))

    def _parts(self, content: Json, where: str) -> list[ContentBlock]:
        if not isinstance(content, list):
            raise wrong_type(where, "a string or an array of content parts", content)
        return [
            TextBlock(part) if isinstance(part, str) else self._part(part, f"{where}[{place}]")
            for place, part in enumerate(content)
        ]

    def _part(self, value: Json, where: str) -> ContentBlock:
        part: JsonObject = {name: value for name, value in an_object(value, where).items() if value is not None}
        kind = part.get("type")
        match part:
            case {"type": "text" | "input_text" | "output_text", "text": text}:
                return TextBlock(a_text(text, f"{where}.text"), self._others(part, ("text",), where))
            case {"type": "refusal", "refusal": str(text)}:
                return TextBlock(text, self._others(part, ("refusal",), where))
            case {"type": "image_url", "image_url": image}:
                return self._image(part, image, where)
            case {"type": "input_audio", "input_audio": sound}:
                return self._audio(part, an_object(sound, f"{where}.input_audio"), where)
            case {"type": "file", "file": {"file_data": str(data)}} if data:
                return self._file(part, data, where)
            case {"type": "document_url", "document_url": str(url)}:
                name = part.get("document_name")
                others = self._others(part, ("document_url", "document_name"), where)
                return DocumentBlock(url, name=name if isinstance(name, str) else None, provider_raw=others)
            case {"type": str()}:
                if kind in ("text", "image_url", "input_audio", "file") and kind not in part:
                    raise missing(f"{where}.{kind}")
                self.losses.content(f"{where} of type {kind!r}")
                return OpaqueBlock(str(kind), ProviderRaw(PROTOCOL, part))
            case _:
                raise missing(f"{where}.type")

    def _image(self, part: JsonObject, image: Json, where: str) -> ContentBlock:
        address = image.get("url") if isinstance(image, dict) else image
        url = a_text(address, f"{where}.image_url.url")
        detail = image.get("detail") if isinstance(image, dict) else None
        if not url.lower().startswith(("data:", "https://", "http://")):
            self.losses.content(f"{where}", "its address is not of the web")
            return OpaqueBlock("image_url", ProviderRaw(PROTOCOL, part))
        others = self._others(part, ("image_url",), where)
        return ImageBlock(url, detail=detail if isinstance(detail, str) else None, provider_raw=others)

    def _audio(self, part: JsonObject, sound: JsonObject, where: str) -> AudioBlock:
        data = a_text(sound.get("data"), f"{where}.input_audio.data")
        form = sound.get("format")
        media_type = f"audio/{_AUDIO.get(form, form)}" if isinstance(form, str) and form else "audio/wav"
        others = self._others(part, ("input_audio",), where)
        return AudioBlock(_data_url(data, media_type), media_type=media_type, provider_raw=others)

    def _file(self, part: JsonObject, data: str, where: str) -> ContentBlock:
        file = an_object(part["file"], f"{where}.file")
        name = file.get("filename")
        others = self._others(part, ("file",), where)
        url = _data_url(data, "application/pdf")
        media_type = url[5:].partition(",")[0].partition(";")[0].lower() if url[:5] == "data:" else ""
        if media_type.startswith("image/"):
            return ImageBlock(url, media_type=media_type, provider_raw=others)
        if media_type.startswith("audio/"):
            return AudioBlock(url, media_type=media_type, provider_raw=others)
        title = name if isinstance(name, str) and name else None
        return DocumentBlock(url, media_type=media_type or None, name=title, provider_raw=others)

    def _others(self, part: JsonObject, known_fields: tuple[str, ...], where: str) -> ProviderRaw | None:
        others = {name: value for name, value in part.items() if name != "type" and name not in known_fields}
        if not others:
            return None
        self._note_others(others, (), where)
        return _raw_of(others)

    def _note_others(self, fields: JsonObject, known_fields: tuple[str, ...], where: str) -> None:
        for name in fields.keys() - known_fields:
            if name in MARKS:
                self.losses.mark(name)
            elif fields[name] not in (None, False, [], {}):
                self.losses.content(f"{where}.{name}")

    # --- Replies in the history ---

    def _reply(self, message: JsonObject, where: str) -> tuple[ContentBlock, ...]:
        self._note_others(message, _REPLY_FIELDS, where)
        blocks: list[ContentBlock] = [*read_reasoning(message)]
        content, text = message.get("content"), message.get("refusal")
        if isinstance(content, str):
            if content:
                blocks.append(TextBlock(content, _raw_of({MARK: message.get(MARK)})))
        elif content is not None:
            blocks += _with_mark(self._reply_parts(content, f"{where}.content"), message)
        if isinstance(text, str) and text:
            blocks.append(TextBlock(text))
        blocks += self._reply_parts(as_list(message.get("images")), f"{where}.images")
        if message.get("audio") is not None:
            self.losses.content(f"{where}.audio")
        for place, call in enumerate(as_list(message.get("tool_calls"))):
            blocks.append(self._call(an_object(call, f"{where}.tool_calls[{place}]"), where, place))
        legacy = message.get("function_call")
        if isinstance(legacy, dict):
            block = self._call({"function": legacy}, where, 0)
            self.functions[str(legacy.get("name"))] = block.id
            blocks.append(block)
        return tuple(blocks)

    def _reply_parts(self, content: Json, where: str) -> Iterator[ContentBlock]:
        for place, part in enumerate(a_list(content, where)):
            match part:
                case {"type": "thinking", "thinking": str(text), "signature": str(signature)} if signature:
                    yield ThinkingBlock(text, signature)
                case {"type": "thinking", "thinking": thinking}:
                    yield ThinkingBlock(flat_text(thinking), provider_raw=ProviderRaw(PROTOCOL, {}))
                case str():
                    yield TextBlock(part)
                case _:
                    found = self._part(part, f"{where}[{place}]")
                    if isinstance(found, TextBlock | ImageBlock | OpaqueBlock):
                        yield found
                    else:
                        self.losses.content(f"{where}[{place}]", "a reply has no such content")

    def _call(self, call: JsonObject, where: str, place: int) -> ToolUseBlock:
        client_id = call.get("id")
        wire_id = client_id if isinstance(client_id, str) and client_id else f"call_{len(self.messages)}_{place}"
        data = rest_of(call, *_CALL_FIELDS)
        self._note_others(data, ("extra_content",), f"{where}.tool_calls[{place}]")
        free_form = call.get(CUSTOM)
        if isinstance(free_form, dict) and (call.get("type") == CUSTOM or "function" not in call):
            name, text = free_form.get("name"), free_form.get("input")
            block = ToolUseBlock(
                self.ids.new(wire_id),
                self._tool_name(name, f"{where}.tool_calls[{place}].custom.name"),
                {INPUT: text if isinstance(text, str) else ""},
                provider_raw=ProviderRaw(PROTOCOL, {"id": wire_id, "type": CUSTOM, **data}),
            )
        else:
            function = an_object(call.get("function"), f"{where}.tool_calls[{place}].function")
            name, arguments = function.get("name"), function.get("arguments")
            parsed = _arguments(arguments)
            block = ToolUseBlock(
                self.ids.new(wire_id),
                self._tool_name(name, f"{where}.tool_calls[{place}].function.name"),
                parsed or {},
                raw_arguments=str(arguments) if parsed is None else None,
                incomplete=parsed is None,
                provider_raw=ProviderRaw(PROTOCOL, {"id": wire_id, **data}),
            )
        return block

    def _tool_name(self, name: Json, where: str) -> str:
        return self.names.canonical(a_text(name, where))

    # --- Results ---

    def _result(self, message: JsonObject, where: str) -> ToolResultBlock:
        if message["role"] == "function":
            wire_id = self.functions.get(str(message.get("name")), "")
            call_id = wire_id
        else:
            wire_id = a_text(message.get("tool_call_id"), f"{where}.tool_call_id")
            call_id = self.ids.latest.get(wire_id, wire_id)
        content = message.get("content")
        self._note_others(message, ("role", "content", "name", "tool_call_id"), where)
        raw = _raw_of({MARK: message.get(MARK)})
        if content is None or isinstance(content, str):
            return ToolResultBlock(call_id, content or "", provider_raw=raw)
        parts: list[ResultPart] = []
        for place, block in enumerate(self._parts(content, f"{where}.content")):
            if isinstance(block, TextBlock | ImageBlock | DocumentBlock | OpaqueBlock):
                parts.append(block)
            else:
                self.losses.content(f"{where}.content[{place}]", "a tool's result can't have it")
        return ToolResultBlock(call_id, tuple(parts), provider_raw=raw)


_AUDIO = {"mp3": "mpeg"}
"""Audio formats whose media types have another name."""

_REPLY_FIELDS = (
    *("role", "content", "refusal", "name", "tool_calls", "function_call", "audio", "images", "annotations"),
    "extra_content",
    *("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks", "prefix", "partial"),
)
_CALL_FIELDS = ("id", "type", "function", CUSTOM, "index")


def _begins(last: Json) -> bool:
    """Whether the last message is the start of the reply."""
    return (
        isinstance(last, dict)
        and last.get("role") == "assistant"
        and True
        in (
            last.get("prefix"),
            last.get("partial"),
        )
    )


def _raw_of(fields: Mapping[str, Json]) -> ProviderRaw | None:
    present: JsonObject = {name: value for name, value in fields.items() if value is not None}
    return ProviderRaw(PROTOCOL, present) if present else None


def _with_mark(blocks: Iterable[ContentBlock], message: JsonObject) -> list[ContentBlock]:
    """The blocks, with the cache mark of the whole message on the last text."""
    found = list(blocks)
    mark = message.get(MARK)
    last = found[-1] if found else None
    if mark is not None and isinstance(last, TextBlock) and last.provider_raw is None:
        found[-1] = TextBlock(last.text, _raw_of({MARK: mark}))
    return found


def _data_url(data: str, media_type: str) -> str:
    """Make a data URL from base64 data. A URL is returned unchanged."""
    if data[:5].lower() == "data:" or data[:8].lower().startswith(("https://", "http://")):
        return data
    return f"data:{media_type};base64,{data}"


def _arguments(arguments: Json) -> JsonObject | None:
    if isinstance(arguments, dict):
        return arguments
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    return parse_object(arguments) if isinstance(arguments, str) else None
