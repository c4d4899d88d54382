"""Reads the input items of a Responses request into messages. Pure.

Clients send a reply back as several items: reasoning, messages, calls. Consecutive items of the model become one
assistant message. Consecutive outputs become one tool message. Data that only OpenAI understands is stored
unchanged in the blocks' `provider_raw`, in the adapter's form.
"""

from __future__ import annotations

from mimetypes import guess_type

import msgspec

from callboard.adapters import Message
from callboard.adapters.providers.openai.response import CUSTOM, IMAGE_CALL, REASONING_PART
from callboard.adapters.replies.block import parse_arguments
from callboard.adapters.requests.content import image_of_base64, read_data_url
from callboard.adapters.requests.settings import INPUT
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    ResultPart,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Role

from .failures import BadRequest
from .responses_tools import CALLS, FUNCTION, OPENAI, OUTPUTS, ToolTable, call_input, canonical_name, output_text
from .wire import CallIds, a_list, a_text, an_object, missing, objects_in, rest_of, wrong_type, wrong_value

TOKEN = "callboard:"
"""The prefix of an `encrypted_content` that represents another provider's reasoning."""

REFERENCE = "item_reference"
"""The type of an item that refers to a stored item by id."""

ROLES = ("assistant", "system", "developer", "user")

_MADE_BY_MODELS = frozenset(
    {"mcp_list_tools", "mcp_approval_request", "compaction", "compaction_summary", "program", "program_output"}
)
"""Items of a reply whose type does not end in ``_call``."""

_AUDIO = {"wav": "audio/wav", "mp3": "audio/mpeg", "flac": "audio/flac", "ogg": "audio/ogg", "opus": "audio/ogg"}


class InputReader:
    """Reads the items of one request. Tools among the items are added to the request's tools."""

    def __init__(self, tools: ToolTable) -> None:
        self.messages: list[Message] = []
        self._tools = tools
        self._reply: list[ContentBlock] = []
        self._results: list[ContentBlock] = []
        self._reasoning: str | None = None  # the id of the last reasoning in the reply
        self._calls = CallIds()
        self._found: dict[str, list[str]] = {}  # names of tools by the path of the item that contains them

    def read(self, value: Json) -> tuple[Message, ...]:
        if isinstance(value, str):
            return (Message.user(value),)
        if not isinstance(value, list):
            raise wrong_type("input", "a string or an array", value)
        # The tools come first, because a call's name depends on them.
        items = list(objects_in(value, "input"))
        for item, place in items:
            if brings_tools(item):
                self._found[place] = self._tools.add(item.get("tools"), f"{place}.tools")
        for item, place in items:
            self._item(item, place)
        self._end_reply()
        self._end_results()
        return tuple(self.messages)

    def _item(self, item: JsonObject, place: str) -> None:
        kind = item.get("type")
        if kind is None:
            kind = REFERENCE if is_reference(item) else "message"
        match kind:
            case "message":
                self._message(item, place)
            case "reasoning":
                self._reasoning_item(item)
            case "function_call" | "custom_tool_call":
                self._call(item, place)
            case "function_call_output" | "custom_tool_call_output":
                output = self._output(item.get("output"), f"{place}.output")
                more = rest_of(item, "type", "call_id", "output", "id", "status", "name", "caller")
                self._result(item, output, place, raw=ProviderRaw(OPENAI, more) if more else None)
            case "additional_tools":
                pass  # the item was read before
            case _ if isinstance(kind, str) and kind in CALLS and _runs_at_client(item):
                self._host_call(CALLS[kind], item, place)
            case _ if isinstance(kind, str) and kind in OUTPUTS and _runs_at_client(item):
                self._host_output(OUTPUTS[kind], item, place)
            case str():
                self._other(kind, item)
            case _:
                raise wrong_type(f"{place}.type", "a string", kind)

    # --- Messages ---

    def _message(self, item: JsonObject, place: str) -> None:
        role, content = item.get("role"), item.get("content")
        if role is None:
            raise missing(f"{place}.role")
        if role not in ROLES:
            raise wrong_value(f"{place}.role", role, ROLES)
        if role == "assistant":
            self._add_content(item, content, f"{place}.content")
            return
        blocks = self._content(content, f"{place}.content")
        if role == "user":
            self._add(Message(Role.USER, tuple(blocks)))
            return
        # An instruction can only have text. Its images become the user's, because no wire supports images in
        # instructions.
        texts = tuple(block for block in blocks if isinstance(block, TextBlock))
        self._add(Message(Role(str(role)), texts))
        rest = tuple(block for block in blocks if not isinstance(block, TextBlock))
        if rest:
            self._add(Message(Role.USER, rest))

    def _add(self, message: Message) -> None:
        self._end_reply()
        self._end_results()
        self.messages.append(message)

    def _end_reply(self) -> None:
        if self._reply:
            self.messages.append(Message(Role.ASSISTANT, tuple(self._reply)))
            self._reply, self._reasoning = [], None

    def _end_results(self) -> None:
        if self._results:
            self.messages.append(Message(Role.TOOL, tuple(self._results)))
            self._results = []

    def _say(self, block: ContentBlock) -> None:
        self._end_results()
        self._reply.append(block)

    def _content(self, content: Json, place: str) -> list[ContentBlock]:
        if isinstance(content, str):
            return [TextBlock(content)]
        if content is None:
            raise missing(place)
        if not isinstance(content, list):
            raise wrong_type(place, "a string or an array", content)
        blocks = [_part(part, f"{place}[{number}]") for number, part in enumerate(content)]
        for block in blocks:
            raw = block.provider_raw
            # Content that can't be sent is reported in a later step.
            if raw is not None and not isinstance(block, OpaqueBlock):
                for name in raw.data:
                    self._tools.losses.parameter(f"{name!r} of a part of a message")
        return blocks

    def _add_content(self, item: JsonObject, content: Json, place: str) -> None:
        """Add a message of the model."""
        if isinstance(content, str):
            content = [{"type": "output_text", "text": content}]
        parts = [] if content is None else a_list(content, place)
        fields: JsonObject = {"after": self._reasoning} if self._reasoning else {}
        item_id = item.get("id")
        if len(parts) > 1 and not item_id:
            item_id = f"msg_{place}"
        if item_id and (fields or len(parts) > 1):
            fields["item_id"] = item_id
        if item.get("phase"):
            fields["phase"] = item["phase"]
        for part, _ in objects_in(parts, place):
            self._say(_message_part(part, fields))

    # --- Reasoning ---

    def _reasoning_item(self, item: JsonObject) -> None:
        texts = _texts(item.get("summary"))
        texts = texts if any(texts) else _texts(item.get("content"))
        secret = item.get("encrypted_content")
        if isinstance(secret, str) and secret.startswith(TOKEN):
            # This is another provider's reasoning. The gateway has stored the original, and finds it by the
            # reply's content.
            self._say(ThinkingBlock("".join(texts)))
            return
        for text in texts[:-1]:
            self._say(ThinkingBlock(text, None, ProviderRaw(OPENAI, {"type": REASONING_PART})))
        signature = secret if isinstance(secret, str) and secret else None
        self._say(ThinkingBlock(texts[-1] if texts else "", signature, ProviderRaw(OPENAI, item)))
        named = item.get("id")
        self._reasoning = named if isinstance(named, str) and named else None

    # --- Calls and outputs ---

    def _call(self, item: JsonObject, place: str) -> None:
        call_id, name = _required(item, "call_id", place), _required(item, "name", place)
        namespace = item.get("namespace")
        custom = item["type"] == CUSTOM
        space = namespace if isinstance(namespace, str) and namespace else None
        declared = self._tools.named("custom" if custom else FUNCTION, name, space)
        fields: JsonObject = {
            "id": call_id,
            "item_id": item.get("id") if self._reasoning else None,
            "after": self._reasoning,
            "namespace": None if declared is not None else space,
            "caller": item.get("caller"),
            "async": item.get("async"),
            "type": CUSTOM if custom else None,
        }
        raw = ProviderRaw(OPENAI, {field: value for field, value in fields.items() if value})
        unreadable = None
        if custom:
            text = item.get(INPUT)
            arguments: JsonObject = {INPUT: text if isinstance(text, str) else ""}
        else:
            written = item.get("arguments")
            written = written if isinstance(written, str) else msgspec.json.encode(written or {}).decode()
            parsed = parse_arguments(written).value if written.strip() else {}
            arguments, unreadable = parsed or {}, written if parsed is None else None
        self._say(
            ToolUseBlock(
                self._call_id(item, call_id),
                declared or canonical_name(name),
                arguments,
                raw_arguments=unreadable,
                incomplete=item.get("status") == "incomplete" or unreadable is not None,
                provider_raw=raw,
            )
        )

    def _call_id(self, item: JsonObject, call_id: str) -> str:
        """The id of a call's block. The output of the call may refer to the item's id instead."""
        block_id, named = self._calls.new(call_id), item.get("id")
        if isinstance(named, str) and named:
            self._calls.latest.setdefault(named, block_id)
        return block_id

    def _host_call(self, kind: str, item: JsonObject, place: str) -> None:
        call_id = item.get("call_id") or item.get("id")
        call_id = call_id if isinstance(call_id, str) else _required(item, "call_id", place)
        name = self._tools.named(kind, kind) or canonical_name(kind)
        self._say(ToolUseBlock(self._call_id(item, call_id), name, call_input(kind, item)))

    def _host_output(self, kind: str, item: JsonObject, place: str) -> None:
        text = output_text(kind, item, self._found.get(place, []))
        self._result(item, text, place, failed=item.get("status") == "failed")

    def _result(
        self,
        item: JsonObject,
        output: str | tuple[ResultPart, ...],
        place: str,
        *,
        raw: ProviderRaw | None = None,
        failed: bool = False,
    ) -> None:
        wire_id = item.get("call_id") or item.get("id")
        call_id = wire_id if isinstance(wire_id, str) else _required(item, "call_id", place)
        self._end_reply()
        self._results.append(ToolResultBlock(self._calls.latest.get(call_id, call_id), output, failed, raw))

    def _output(self, output: Json, place: str) -> str | tuple[ResultPart, ...]:
        if isinstance(output, str):
            return output
        if not isinstance(output, list):
            return "" if output is None else msgspec.json.encode(output).decode()
        parts: list[ResultPart] = []
        for block in self._content(output, place):
            if isinstance(block, ResultPart):
                parts.append(block)
            else:
                self._tools.losses.content(f"the audio in {place}", "a tool's output has none")
        return tuple(parts)

    # --- Items that only OpenAI understands ---

    def _other(self, kind: str, item: JsonObject) -> None:
        image = image_of_base64(item.get("result")) if kind == IMAGE_CALL else None
        block: ContentBlock = OpaqueBlock(kind, ProviderRaw(OPENAI, item))
        if image is not None:
            rest = {name: value for name, value in item.items() if name != "result"}
            block = msgspec.structs.replace(image, provider_raw=ProviderRaw(OPENAI, rest))
        if kind.endswith("_call") or kind in _MADE_BY_MODELS or _ran_at_provider(item):
            self._say(block)
        else:
            self._add(Message(Role.USER, (block,)))


def brings_tools(item: JsonObject) -> bool:
    """Whether an item adds tools to the conversation."""
    return item.get("type") == "additional_tools" or _is_search_output(item)


def is_reference(item: JsonObject) -> bool:
    """Whether an item refers to a stored item. It may have no type."""
    kind = item.get("type")
    return kind == REFERENCE or (kind is None and "role" not in item and "id" in item)


def _is_search_output(item: JsonObject) -> bool:
    return item.get("type") == "tool_search_output"


def _ran_at_provider(item: JsonObject) -> bool:
    return _is_search_output(item) and not _runs_at_client(item)


def _runs_at_client(item: JsonObject) -> bool:
    """Whether the client executes a call. A tool search has a field for this. A shell call in a container has an
    environment.
    """
    if item.get("type") in ("tool_search_call", "tool_search_output"):
        return item.get("execution") == "client"
    environment = item.get("environment")
    return not isinstance(environment, dict) or environment.get("type") == "local"


def _required(fields: JsonObject, name: str, place: str) -> str:
    return a_text(fields.get(name), f"{place}.{name}")


def _texts(parts: Json) -> list[str]:
    if not isinstance(parts, list):
        return []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return [text for text in texts if isinstance(text, str)]


# --- Parts ---


def _message_part(part: JsonObject, fields: JsonObject) -> ContentBlock:
    kind = part.get("type")
    raw = dict(fields)
    if kind == "refusal" or isinstance(part.get("refusal"), str):
        text, raw["type"] = part.get("refusal"), "refusal"
    elif kind in ("output_text", "input_text", "text", None):
        text = part.get("text")
    else:
        return OpaqueBlock(str(kind), ProviderRaw(OPENAI, part))
    raw |= {name: part[name] for name in ("annotations", "logprobs") if part.get(name)}
    return TextBlock(text if isinstance(text, str) else "", ProviderRaw(OPENAI, raw) if raw else None)


def _part(part: Json, place: str) -> ContentBlock:
    """A part of a client's message, or of a tool's output."""
    if isinstance(part, str):
        return TextBlock(part)
    part = an_object(part, place)
    kind = part.get("type")
    match kind:
        case "input_text" | "output_text" | "text" | "summary_text":
            return TextBlock(
                _required(part, "text", place), _rest(part, "type", "text", "annotations", "logprobs")
            )
        case "refusal":
            return TextBlock(_required(part, "refusal", place))
        case "input_image" if part.get("image_url"):
            return _image(part, place)
        case "input_file" if part.get("file_url") or part.get("file_data"):
            return _file(part, place)
        case "input_audio":
            return _audio(part, place)
        case str():
            return OpaqueBlock(kind, ProviderRaw(OPENAI, part))
        case _:
            raise missing(f"{place}.type")


def _rest(part: JsonObject, *known_fields: str) -> ProviderRaw | None:
    rest = rest_of(part, *known_fields)
    return ProviderRaw(OPENAI, rest) if rest else None


def _image(part: JsonObject, place: str) -> ImageBlock:
    url = part["image_url"]
    if isinstance(url, dict):  # the form of Chat Completions, which some clients send
        url = url.get("url")
    url = a_text(url, f"{place}.image_url")
    detail = part.get("detail")
    raw = _rest(part, "type", "image_url", "detail", "file_id")
    return ImageBlock(url=url, detail=detail if isinstance(detail, str) else None, provider_raw=raw)


def _file(part: JsonObject, place: str) -> DocumentBlock:
    name, url, data = part.get("filename"), part.get("file_url"), part.get("file_data")
    name = name if isinstance(name, str) and name else None
    raw = _rest(part, "type", "filename", "file_url", "file_data", "file_id")
    if isinstance(data, str) and data:
        if data[:5].lower() != "data:":  # data without a URL, which OpenAI also accepts
            media_type = guess_type(name or "")[0] or "application/pdf"
            data = f"data:{media_type};base64,{data}"
        found = read_data_url(data)
        if found is None or not found[1]:
            at = f"{place}.file_data"
            raise BadRequest(f"Invalid '{at}'. Expected a file in base64.", param=at, code="invalid_base64")
        return DocumentBlock(url=data, name=name, provider_raw=raw)
    return DocumentBlock(url=str(url), name=name, provider_raw=raw)


def _audio(part: JsonObject, place: str) -> AudioBlock:
    audio = part.get("input_audio")
    fields = audio if isinstance(audio, dict) else {}
    data, form = _required(fields, "data", f"{place}.input_audio"), fields.get("format")
    media_type = _AUDIO.get(str(form), f"audio/{form}" if isinstance(form, str) and form else "audio/wav")
    return AudioBlock(url=f"data:{media_type};base64,{data}", media_type=media_type)
