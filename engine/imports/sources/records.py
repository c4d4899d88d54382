"""Shared code of several sources: JSON records, counts, times, vendor names, and messages.

For imports with content, messages of other programs are converted to Callboard's. They may have the format of the
Messages API, Chat Completions, Responses, Gemini or OpenTelemetry. Text, thinking, tool calls and their results
are kept. Other blocks, such as images, are replaced by their names. Instructions are left out.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec

from callboard.bus.clock import to_us
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ContentBlock, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from callboard.bus.values.messages import Message, Role
from callboard.bus.values.usage import StopReason, TokenUsage, UsageSource

from ..source import START, ImportedCall, ImportedMessage, Mark, SourceFile, UnreadablePart, lines, name, why_not

LARGEST_FILE: Final = 64 * 1024 * 1024
"""The maximum size in bytes of a file with a single JSON value, which must fit into memory."""

_records = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Record(NamedTuple):
    line: int
    """The line, from 1; 0 in a file with one value."""
    data: msgspec.Raw | bytes


def read_whole(stream: BinaryIO) -> bytes | None:
    """All bytes of a file; None if there are too many."""
    data = stream.read(LARGEST_FILE + 1)
    return None if len(data) > LARGEST_FILE else data


def json_records(stream: BinaryIO, start: Mark = START) -> Iterator[Record | UnreadablePart | Mark]:
    """The records of a file: JSON lines, an array, or an object with an array in ``data``.

    Lines are read one at a time, with a mark after each hundred lines.
    """
    head = stream.peek(64).lstrip() if hasattr(stream, "peek") else b""
    if not start.read_to and (head[:1] == b"[" or head[:8] == b'{"data":'):
        yield from _array(stream)
        return
    mark = start
    for line in lines(stream, start):
        text = line.data.strip()
        if line.too_long:
            yield UnreadablePart(line=line.number, why="the line is too long")
        elif text:
            yield Record(line.number, text)
        if line.complete:
            mark = Mark(read_to=line.end, line=line.number)
            if not line.number % 100:
                yield mark
    yield mark


def _array(stream: BinaryIO) -> Iterator[Record | UnreadablePart | Mark]:
    data = read_whole(stream)
    if data is None:
        yield UnreadablePart(line=0, why="a JSON array of this size can't be read. Export JSON lines")
        return
    try:
        inner = msgspec.json.decode(data, type=dict[str, msgspec.Raw])["data"] if data[:1] == b"{" else data
        found = _records(inner)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, KeyError):
        yield UnreadablePart(line=0, why="not valid JSON")
        return
    for record in found:
        yield Record(0, record)


def files_below(place: Path, endings: Collection[str]) -> Iterator[SourceFile]:
    """The file itself, or all files below a folder with one of these endings, in the order of their paths."""
    if place.is_file():
        yield SourceFile(path=place)
        return
    for file in sorted(place.rglob("*")):
        if file.suffix in endings:
            yield SourceFile(path=file)


_row = msgspec.json.Decoder(dict[str, Json]).decode


class JsonRow(NamedTuple):
    """A record that is a JSON object."""

    line: int
    """The line, from 1; 0 in a file with one value."""
    fields: JsonObject


def json_rows(stream: BinaryIO, start: Mark = START) -> Iterator[JsonRow | UnreadablePart | Mark]:
    """The records of a file, each of which must be a JSON object."""
    for record in json_records(stream, start):
        if not isinstance(record, Record):
            yield record
            continue
        try:
            yield JsonRow(record.line, _row(record.data))
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            yield UnreadablePart(line=record.line, why=why_not(error))


# --- Values of records, which may be anything ---


def text_of(value: Json) -> str | None:
    """A text from a record; None for any other value."""
    return name(value) if isinstance(value, str) else None


def object_of(value: Json) -> JsonObject:
    """An object of a record, or of a JSON text in a record; empty for any other value."""
    if isinstance(value, str) and value[:1] == "{":
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def count_of(*values: Json) -> int:
    """The first count above zero, or 0. A count may be a string, as in CSV."""
    for value in values:
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                continue
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**53:
            return int(value)
    return 0


def amount_of(value: Json) -> float | str | None:
    """An amount of money from a file; None for any other value."""
    return value if isinstance(value, str | float | int) else None


def moment_of(value: Json) -> int | None:
    """A time in microseconds, from the formats of PostgreSQL, Prisma or Python; None for any other value."""
    if not isinstance(value, str):
        return None
    text = value.strip().replace(" ", "T", 1)
    if text[-3:-2] == "+" or text[-3:-2] == "-":
        text += ":00"  # psql writes the zone as +00
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return to_us(found if found.tzinfo is not None else found.replace(tzinfo=UTC))


def milliseconds(began: int, ended: int | None) -> int | None:
    """The milliseconds between two times in microseconds; None if the second is missing or earlier."""
    return None if ended is None or ended < began else (ended - began) // 1000


def tokens(
    *, total_input: int, output: int, read: int = 0, written: int = 0, hour: int = 0, reasoning: int | None = None
) -> TokenUsage:
    """The usage for an input count that includes cache reads and cache writes.

    If these exceed the input, the input is assumed to exclude them.
    """
    fresh = total_input - read - written
    if fresh < 0:
        fresh = total_input
    source = UsageSource.REPORTED if (reasoning or 0) <= output and hour <= written else UsageSource.INCONSISTENT
    return TokenUsage(
        input_tokens=fresh,
        output_tokens=output,
        cached_input_tokens=read,
        cache_creation_input_tokens=written,
        cache_creation_1h_input_tokens=min(hour, written),
        reasoning_tokens=None if reasoning is None else min(reasoning, output),
        source=source,
    )


STOP_REASONS: Final[Mapping[str, StopReason]] = {
    "stop": StopReason.END_TURN,
    "end_turn": StopReason.END_TURN,
    "length": StopReason.MAX_TOKENS,
    "max_tokens": StopReason.MAX_TOKENS,
    "tool_calls": StopReason.TOOL_USE,
    "tool-calls": StopReason.TOOL_USE,
    "tool_use": StopReason.TOOL_USE,
    "content_filter": StopReason.CONTENT_FILTER,
    "content-filter": StopReason.CONTENT_FILTER,
}
"""The stop reasons of gateways and tracing tools."""


def stop_reason(word: Json) -> StopReason | None:
    """Callboard's stop reason for a word of these programs; None for an unknown word."""
    return STOP_REASONS.get(word.lower()) if isinstance(word, str) else None


# --- Vendors ---

_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "gemini": ("google", "google-vertex", "vertex_ai", "vertexai", "gcp.gemini", "gcp.gen_ai", "gcp.vertex_ai"),
    "azure": ("az.ai.openai", "az.ai.inference", "azure.ai.openai", "azure.ai.inference", "azure_ai"),
    "aws": ("aws.bedrock", "bedrock", "bedrock_converse", "amazon-bedrock"),
    "mistral": ("mistral_ai", "mistralai"),
    "xai": ("x_ai", "x-ai"),
    "fireworks": ("fireworks_ai",),
    "together": ("together_ai", "togetherai"),
    "moonshot": ("moonshotai",),
    "openai": ("text-completion-openai",),
}
"""Names of vendors in other programs, by the names in price tables."""

_VENDORS: Final = {alias: vendor for vendor, aliases in _ALIASES.items() for alias in aliases}

_FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "anthropic": ("claude",),
    "gemini": ("gemini",),
    "openai": ("gpt", "chatgpt", "o1", "o3", "o4", "codex", "text-embedding"),
    "xai": ("grok",),
    "mistral": ("mistral", "codestral"),
    "deepseek": ("deepseek",),
    "cohere": ("command",),
    "perplexity": ("sonar",),
    "zai": ("glm",),
    "moonshot": ("kimi",),
}
"""The starts of the names of well-known models, by vendor."""


def vendor_and_model(vendor: str | None, model: str | None) -> tuple[str, str]:
    """The provider and the model, by their names in price tables.

    A model's name may begin with the vendor, as in ``anthropic/claude-opus-4-6``. Without a vendor, the vendor of
    a well-known model family is used. Anything else is ``unknown``, and has no price.
    """
    model = model or "unknown"
    if vendor is None and "/" in model:
        vendor, _, model = model.partition("/")
    elif vendor is not None and model.startswith(f"{vendor}/"):
        model = model.removeprefix(f"{vendor}/")
    if vendor is None:
        vendor = next((maker for maker, starts in _FAMILIES.items() if model.startswith(starts)), "unknown")
    vendor = vendor.lower()
    return _VENDORS.get(vendor, vendor), model


_decode = msgspec.json.Decoder(Json).decode
_DEEPEST = 8

_ROLES = {
    **{"user": Role.USER, "human": Role.USER},
    **{"assistant": Role.ASSISTANT, "model": Role.ASSISTANT, "ai": Role.ASSISTANT, "gemini": Role.ASSISTANT},
    **{"tool": Role.TOOL, "function": Role.TOOL, "tool_result": Role.TOOL},
}
_KINDS = {
    Role.USER: (TextBlock,),
    Role.ASSISTANT: (TextBlock, ThinkingBlock, ToolUseBlock),
    Role.TOOL: (ToolResultBlock,),
}
_TEXT = frozenset(("text", "input_text", "output_text"))
_THINKING = frozenset(("thinking", "reasoning"))
_USE = frozenset(("tool_use", "tool_call", "tool-call", "function_call", "custom_tool_call", "functionCall"))
_RESULT = frozenset(
    (
        *("tool_result", "tool_call_response", "tool-result", "function_call_output", "custom_tool_call_output"),
        "functionResponse",
    )
)


def decoded(raw: msgspec.Raw | bytes | str) -> Json:
    """The value of a JSON text; None if it is not JSON."""
    try:
        found: Json = _decode(raw)
        return found
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def message_of(value: Json, role: str = "user", message_id: str | None = None) -> Message | None:
    """One message; None if it has no supported content."""
    inner = value
    blocks: list[ContentBlock] = []
    if isinstance(value, dict):
        role_name = value.get("role")
        role = role_name if isinstance(role_name, str) else role
        inner = next((value[name] for name in ("content", "parts") if value.get(name) is not None), None)
        if role in ("tool", "function") and "tool_call_id" in value:
            blocks, inner = [ToolResultBlock(str(value["tool_call_id"]), _text(inner))], None
        elif ("role" not in value and inner is None) or value.get("type") in _RESULT:
            inner = [value]
    blocks += _blocks(inner)
    if isinstance(value, dict):
        calls = value.get("tool_calls")
        blocks += [block for each in calls if (block := _block(each))] if isinstance(calls, list) else []
    return made(role, blocks, message_id)


def made(role: str, blocks: Iterable[ContentBlock], message_id: str | None = None) -> Message | None:
    """Make a message of the blocks that its role allows. Tool results become a separate message."""
    blocks = list(blocks)
    kind = _ROLES.get(role.lower())
    if any(isinstance(block, ToolResultBlock) for block in blocks):
        kind = Role.TOOL
    elif any(isinstance(block, ToolUseBlock | ThinkingBlock) for block in blocks):
        kind = Role.ASSISTANT
    if kind is None:
        return None
    matching = tuple(block for block in blocks if isinstance(block, _KINDS[kind]))
    return Message(kind, matching, message_id) if matching else None


def messages_of(value: Json, role: str = "user", depth: int = 0) -> Iterator[Message]:
    """The messages of a request or a reply, in any format of gateways and tracing tools."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        value = decoded(value) or value
    if depth > _DEEPEST:
        return
    if isinstance(value, dict):
        for name in ("messages", "choices", "candidates", "contents", "output", "input", "message", "content"):
            inner = value.get(name)
            is_whole = name in ("message", "content") and "role" not in value
            if (isinstance(inner, list) and name != "content") or (is_whole and isinstance(inner, dict)):
                of_reply = name in ("choices", "candidates", "output")
                yield from messages_of(inner, "assistant" if of_reply else role, depth + 1)
                return
    if isinstance(value, list) and any(_is_message(each) for each in value):
        for each in value:
            yield from messages_of(each, role, depth + 1)
        return
    found = message_of(value, role)
    if found is None and isinstance(value, dict) and value and "role" not in value:
        found = message_of(msgspec.json.encode(value).decode(), role)
    if found is not None:
        yield found


def conversation(call: ImportedCall, sent: Json, received: Json) -> Iterator[ImportedMessage]:
    """The messages of a call. Later calls repeat them, so a message's id is a hash of its content."""
    counts: Counter[str] = Counter()
    assert call.session is not None
    for message in (*messages_of(sent), *messages_of(received, "assistant")):
        tools = [
            block.tool_use_id if isinstance(block, ToolResultBlock) else block.id
            for block in message.content
            if isinstance(block, ToolUseBlock | ToolResultBlock)
        ]
        encoded = msgspec.json.encode((message.role, message.text.strip(), tools))
        digest = hashlib.blake2b(encoded, digest_size=16).hexdigest()
        counts[digest] += 1
        identity = f"{digest}/{counts[digest]}"
        yield ImportedMessage(identity=identity, session=call.session, at=call.started_at, message=message)


def _is_message(value: Json) -> bool:
    return isinstance(value, dict) and bool({"role", "message", "content", "parts"} & value.keys())


def _blocks(value: Json) -> list[ContentBlock]:
    if isinstance(value, str):
        return [TextBlock(value)] if value else []
    return [block for each in value if (block := _block(each))] if isinstance(value, list) else []


def _block(block: Json) -> ContentBlock | None:
    if isinstance(block, str):
        return TextBlock(block)
    if not isinstance(block, dict):
        return None
    stated_kind = block.get("type")
    kind = (
        stated_kind
        if isinstance(stated_kind, str)
        else next((name for name in ("functionCall", "functionResponse") if name in block), "text")
    )
    inner = next((found for name in (kind, "function") if isinstance(found := block.get(name), dict)), block)
    if kind in _THINKING or (kind == "text" and block.get("thought") is True):
        return ThinkingBlock(_text(_first(block, "thinking", "text", "content")))
    if kind in _TEXT:
        text = _text(_first(block, "text", "content"))
        return TextBlock(text) if text else None
    if kind in _USE or inner is block.get("function"):
        name, arguments = str(_first(inner, "name", "toolName")), _first(inner, "arguments", "input", "args")
        return ToolUseBlock(_id(block, inner), name, _object(arguments))
    if kind in _RESULT:
        text = _text(_first(inner, "content", "output", "response", "result"))
        return ToolResultBlock(_id(block, inner), text, block.get("is_error") is True)
    return TextBlock(f"[{kind}]") if kind.isidentifier() else None


def _id(block: JsonObject, inner: JsonObject) -> str:
    names = ("tool_use_id", "call_id", "tool_call_id", "toolCallId", "id")
    return str(_first(block, *names) or _first(inner, *names) or inner.get("name"))


def _first(value: JsonObject, *names: str) -> Json:
    return next((found for name in names if (found := value.get(name)) is not None), None)


def _text(value: Json) -> str:
    """The text of a value: the text itself, or the joined texts of its parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(
            _text(_first(each, "text", "content") if isinstance(each, dict) else each) for each in value
        )
    if isinstance(value, dict):
        return (
            _text(found)
            if (found := _first(value, "output", "text", "content"))
            else msgspec.json.encode(value).decode()
        )
    return ""


def _object(value: Json) -> JsonObject:
    if isinstance(value, str):
        found = decoded(value)
        return found if isinstance(found, dict) else {"input": value}
    return value if isinstance(value, dict) else {}
