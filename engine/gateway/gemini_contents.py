"""Reads the contents of a Gemini client's request into canonical messages. Pure.

* Keys may be in camel case or in snake case, because clients send both.
* Consecutive contents of the model become one message, because clients append each chunk of a stream as a separate
  content.
* Texts of the model are joined like the texts of a reply; see `adapters.providers.gemini.response`.
* Function calls may lack ids. A result without a known id answers the first open call of the same name, or the
  first open call if no name matches.
* Placeholder signatures of the gateway or the client are dropped.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TypeVar
from urllib.parse import urlsplit

from callboard.adapters.providers.gemini.contents import (
    NO_SIGNATURE,
    OF_A_PART,
    OF_TEXT,
    SCHEMES,
    SIBLINGS,
    SIGNATURE_KIND,
)
from callboard.adapters.requests.content import as_text, image_of_base64, is_remote
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
from callboard.bus.values.messages import Message, Role

from .failures import BadRequest
from .wire import LossReport, ToolNames

GEMINI = "gemini"
"""The provider of data that only Gemini understands."""

_UPPER = re.compile("_([a-z0-9])")


@lru_cache(maxsize=1024)
def _camel_name(name: str) -> str:
    return _UPPER.sub(lambda found: found[1].upper(), name)


def camel(value: Json, where: str) -> JsonObject:
    """An object with its top-level keys in camel case. If they already are in camel case, the same object."""
    if not isinstance(value, dict):
        raise BadRequest(f"{where} must be an object", param=where)
    if "_" not in "".join(value):  # faster than a check of each name
        return value
    return {_camel_name(name): inner for name, inner in value.items()}


def each(value: Json, where: str) -> Sequence[Json]:
    """The items of a list. A single object is treated as a list of one, as on Google's servers."""
    if value is None:
        return ()
    if isinstance(value, dict):
        return (value,)
    if not isinstance(value, list):
        raise BadRequest(f"{where} must be a list", param=where)
    return value


def objects_of(value: Json, where: str) -> Iterator[tuple[JsonObject, str]]:
    for number, item in enumerate(each(value, where)):
        yield camel(item, f"{where}[{number}]"), f"{where}[{number}]"


# --- Signatures ---

_MARK = b64encode(b"callboard").decode()  # 9 bytes, so that the encoded mark does not depend on the bytes after it
_MADE_UP = frozenset(
    {
        NO_SIGNATURE,
        "skip_thought_signature_validator",
        "context_engineering_is_the_way_to_go",
        b64encode(b"context_engineering_is_the_way_to_go").decode(),
    }
)
"""Values that Google documents for calls without a signature (ai.google.dev, Thought signatures)."""


def token_of(state: str) -> str:
    """The signature that represents another provider's opaque state for the client.

    It is a short digest, in base64 as the wire requires.
    """
    import hashlib

    digest = hashlib.sha256(state.encode("utf-8", "surrogatepass")).digest()
    return _MARK + b64encode(digest[:9]).decode()


def real_signature(value: Json) -> str | None:
    """A signature that Gemini itself made; None for any other value."""
    if not isinstance(value, str) or not value or value in _MADE_UP or value.startswith(_MARK):
        return None
    return value


# --- Media ---

_FILES = "generativelanguage.googleapis.com"
"""The host of files that were uploaded to Gemini. Only Gemini can read them."""


def _decoded(value: Json, where: str) -> bytes:
    text = value if isinstance(value, str) else ""
    text = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise BadRequest(f"Invalid value at '{where}' (TYPE_BYTES), Base64 decoding failed", param=where) from None


def _fields(part: JsonObject, names: Sequence[str]) -> ProviderRaw | None:
    if len(part) == 1:  # true for most parts
        return None
    data = {name: part[name] for name in names if part.get(name) is not None}
    return ProviderRaw(GEMINI, data) if data else None


def _inline(part: JsonObject, where: str) -> ImageBlock | AudioBlock | DocumentBlock:
    blob = camel(part["inlineData"], f"{where}.inline_data")
    data = _decoded(blob.get("data"), f"{where}.inline_data.data")
    mime_type = blob.get("mimeType")
    media_type = mime_type if isinstance(mime_type, str) and mime_type else None
    fields = _fields(part, OF_A_PART)
    kind = (media_type or "").partition("/")[0].lower()
    try:
        if kind == "image":
            return ImageBlock(data=data, media_type=media_type, provider_raw=fields)
        if kind == "audio":
            return AudioBlock(data=data, media_type=media_type, provider_raw=fields)
        if media_type is None and (image := image_of_base64(blob.get("data"))) is not None:
            return ImageBlock(data=image.data, media_type=image.media_type, provider_raw=fields)
        return DocumentBlock(
            data=data, media_type=media_type, name=_text(blob.get("displayName")), provider_raw=fields
        )
    except ValueError as error:
        raise BadRequest(f"{where}.inline_data: {error}", param=f"{where}.inline_data.mime_type") from error


def _remote(part: JsonObject, where: str) -> ImageBlock | AudioBlock | DocumentBlock | OpaqueBlock:
    file = camel(part["fileData"], f"{where}.file_data")
    uri, media_type = _text(file.get("fileUri")), _text(file.get("mimeType"))
    if uri is None or not is_remote(uri, SCHEMES) or _host(uri) == _FILES:
        return OpaqueBlock("fileData", ProviderRaw(GEMINI, {**part, "fileData": file}))
    fields = _fields(part, OF_A_PART)
    kind = (media_type or _guessed(uri) or "").partition("/")[0].lower()
    if kind == "image":
        return ImageBlock(url=uri, media_type=media_type, provider_raw=fields)
    if kind == "audio":
        return AudioBlock(url=uri, media_type=media_type, provider_raw=fields)
    return DocumentBlock(url=uri, media_type=media_type, name=_text(file.get("displayName")), provider_raw=fields)


def _host(uri: str) -> str | None:
    try:
        return urlsplit(uri).hostname
    except ValueError:
        return None


def _guessed(uri: str) -> str | None:
    from mimetypes import guess_type

    return guess_type(uri.partition("?")[0])[0]


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) and value else None


# --- Contents ---


def read_contents(contents: Json, names: ToolNames, losses: LossReport) -> list[Message]:
    reader = _Reader(names, losses)
    for content, where in objects_of(contents, "contents"):
        reader.add(content, where)
    return reader.finish()


class _Reader:
    def __init__(self, names: ToolNames, losses: LossReport) -> None:
        self._names = names
        self._losses = losses
        self._messages: list[Message] = []
        self._reply: _Reply | None = None  # the model's message that the next content may continue
        self._calls = _Calls()

    def finish(self) -> list[Message]:
        self._end_reply()
        return self._messages

    def add(self, content: JsonObject, where: str) -> None:
        parts = [
            (_without_nulls(part), place) for part, place in objects_of(content.get("parts"), f"{where}.parts")
        ]
        role = content.get("role")
        match role:
            case "model":
                self._model(parts)
            case None | "" if parts and all("functionCall" in part for part, _ in parts):
                self._model(parts)
            case None | "" | "user" | "function" | "tool":
                self._user(parts)
            case _:
                raise BadRequest("Please use a valid role: user, model.", param=f"{where}.role")

    # --- The user ---

    def _user(self, parts: Sequence[tuple[JsonObject, str]]) -> None:
        self._end_reply()
        results = [self._result(part, where) for part, where in parts if "functionResponse" in part]
        blocks = [self._block(part, where) for part, where in parts if "functionResponse" not in part]
        if results:
            self._messages.append(Message(Role.TOOL, tuple(results)))
        if blocks:
            self._messages.append(Message(Role.USER, tuple(blocks)))

    def _block(self, part: JsonObject, where: str) -> ContentBlock:
        signed = real_signature(part.get("thoughtSignature")) is not None
        block: ContentBlock
        match part:
            case {"text": str(text)}:
                block = TextBlock(text, _fields(part, OF_A_PART))
            case {"inlineData": _}:
                block = self._named(_inline(part, where), part["inlineData"], where)
            case {"fileData": _}:
                block = self._named(_remote(part, where), part["fileData"], where)
            case _:
                return OpaqueBlock(_kind_of(part, where), ProviderRaw(GEMINI, part))
        if signed and not isinstance(block, OpaqueBlock):
            self._losses.content("the signature of a user's part")
        return block

    def _named(self, block: Medium, blob: Json, where: str) -> Medium:
        name = camel(blob, where).get("displayName")
        if name and isinstance(block, ImageBlock | AudioBlock):
            self._losses.content("the display name of an image or a recording")
        return block

    def _result(self, part: JsonObject, where: str) -> ToolResultBlock:
        where = f"{where}.function_response"
        response = camel(part["functionResponse"], where)
        text, is_error = _read_response(response.get("response"))
        content: str | tuple[ResultPart, ...] = text
        media = [
            self._in_result(inner, place) for inner, place in objects_of(response.get("parts"), f"{where}.parts")
        ]
        if media:
            content = (TextBlock(text), *media) if text else tuple(media)
        answered = self._calls.answered(_text(response.get("id")), as_text(response.get("name") or ""))
        raw = _fields(response, ("scheduling", "willContinue"))
        return ToolResultBlock(answered, content, is_error, raw)

    def _in_result(self, part: JsonObject, where: str) -> ResultPart:
        block = self._block(part, where)
        if isinstance(block, TextBlock | ImageBlock | DocumentBlock | OpaqueBlock):
            return block
        return OpaqueBlock(_kind_of(part, where), ProviderRaw(GEMINI, part))

    # --- The model ---

    def _model(self, parts: Sequence[tuple[JsonObject, str]]) -> None:
        if self._reply is None:
            self._reply = _Reply()
            self._calls.start_message()
        reply = self._reply
        for part, where in parts:
            call = part.get("functionCall")
            if call is not None:
                reply.add(self._call(part, camel(call, f"{where}.function_call"), where))
            elif isinstance(text := part.get("text"), str):
                reply.text(part, text)
            else:
                reply.other(part, _kind_of(part, where))

    def _end_reply(self) -> None:
        reply, self._reply = self._reply, None
        if reply is not None and (content := reply.finish()):
            self._messages.append(Message(Role.ASSISTANT, content))

    def _call(self, part: JsonObject, call: JsonObject, where: str) -> ToolUseBlock:
        name = call.get("name")
        if not isinstance(name, str) or not name:
            raise BadRequest(f"{where}.function_call.name: Name cannot be empty.", param=f"{where}.function_call")
        arguments = call.get("args")
        if arguments is not None and not isinstance(arguments, dict):
            raise BadRequest(f"{where}.function_call.args must be an object", param=f"{where}.function_call.args")
        client_id = _text(call.get("id"))
        raw: JsonObject = {} if client_id is None else {"id": client_id}
        if (signature := real_signature(part.get("thoughtSignature"))) is not None:
            raw["thoughtSignature"] = signature
        raw |= {field: part[field] for field in OF_TEXT if part.get(field) is not None}
        call_id = self._calls.made(client_id, name)
        return ToolUseBlock(
            call_id,
            self._names.canonical(name),
            arguments or {},
            provider_raw=ProviderRaw(GEMINI, raw) if raw else None,
        )


def _without_nulls(part: JsonObject) -> JsonObject:
    """A part without null fields, because Google's servers treat null as missing."""
    if None not in part.values():
        return part
    return {name: value for name, value in part.items() if value is not None}


Medium = TypeVar("Medium", bound=ImageBlock | AudioBlock | DocumentBlock | OpaqueBlock)


def _kind_of(part: JsonObject, where: str) -> str:
    """The field that determines the kind of a part."""
    kind = next((name for name in part if name not in SIBLINGS), None) or next(iter(part), None)
    if kind is None:
        raise BadRequest(
            f"{where}.data: required oneof field 'data' must have one initialized field", param=f"{where}.data"
        )
    return kind


def _read_response(response: Json) -> tuple[str, bool]:
    """Read the text of a function's response, and whether it is an error.

    In the API, ``output`` contains a result and ``error`` an error. Google's Python SDK writes ``result``. Without
    these fields, the whole object is the result.
    """
    match response:
        case None | {} if not response:
            return "", False
        case {"error": error, **rest} if not rest and error is not None:
            return as_text(error), True
        case {"output": output, **rest} | {"result": output, **rest} if not rest:
            return as_text(output), False
        case _:
            return as_text(response), False


class _Calls:
    """The function calls of a history. Gives each call an id, and finds the call for a result."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._number = 0
        self._by_given: dict[str, list[str]] = {}  # the open calls by the client's ids
        # The open calls of the model's last message: id and the client's name.
        self._open: list[tuple[str, str]] = []

    def start_message(self) -> None:
        self._open = []

    def made(self, client_id: str | None, name: str) -> str:
        """The id of a call: the client's id, or an id made from the call's number."""
        self._number += 1
        call_id = client_id
        number = self._number
        while call_id is None or call_id in self._ids:
            call_id = f"call_{number}" if client_id is None else f"{client_id}_{number}"
            number += 1
        self._ids.add(call_id)
        if client_id is not None:
            self._by_given.setdefault(client_id, []).append(call_id)
        self._open.append((call_id, name))
        return call_id

    def answered(self, client_id: str | None, name: str) -> str:
        """The id of the call that a result answers."""
        ids = self._by_given.get(client_id or "")
        if ids:
            found = ids.pop(0)
        else:
            # a client may invent ids for calls without ids
            named = [call_id for call_id, called in self._open if called == name]
            found = next(iter(named or [call_id for call_id, _ in self._open]), "")
        if not found:
            return client_id or f"result_{self._number}"  # a result without a call; each adapter reports it
        self._open = [call for call in self._open if call[0] != found]
        return found


class _Reply:
    """The blocks of a message of the model, joined as in a reply."""

    def __init__(self) -> None:
        self._blocks: list[ContentBlock] = []
        # the kind of the open block: text or thinking; any other value means that no block is open
        self._kind = ""
        self._pieces: list[str] = []
        self._size = 0
        self._signed: list[Json] = []
        self._about: JsonObject = {}

    def finish(self) -> tuple[ContentBlock, ...]:
        self._end()
        return tuple(self._blocks)

    def add(self, block: ContentBlock) -> None:
        self._end()
        self._blocks.append(block)

    def text(self, part: JsonObject, text: str) -> None:
        thought_signature = part.get("thoughtSignature")
        signature = real_signature(thought_signature)
        about: JsonObject = {name: part[name] for name in OF_TEXT if part.get(name) is not None}
        if part.get("thought"):
            self._thinking(text, signature, about, ends=bool(thought_signature))
        elif text or (signature and self._joins("text", about)):
            self._join("text", about)
            if signature:
                self._signed.append({"start": self._size, "end": self._size + len(text), "signature": signature})
            self._grow(text)
        elif signature:
            self.add(OpaqueBlock(SIGNATURE_KIND, ProviderRaw(GEMINI, dict(part))))
        elif about:
            self.add(OpaqueBlock(next(iter(about)), ProviderRaw(GEMINI, {"text": "", **about})))

    def _thinking(self, text: str, signature: str | None, about: JsonObject, *, ends: bool) -> None:
        if not (text or signature or about):
            return
        self._join("thinking", about)
        start = self._size
        self._grow(text)
        if not ends:
            return
        thought, (self._pieces, self._kind) = "".join(self._pieces), ([], "")
        raw: JsonObject = {**about, "start": start} if signature and start else about
        self._blocks.append(ThinkingBlock(thought, signature, ProviderRaw(GEMINI, raw) if signature else None))

    def other(self, part: JsonObject, kind: str) -> None:
        blob = part.get("inlineData")
        if isinstance(blob, dict) and not part.get("thought"):
            about = camel(blob, kind)
            media_type = about.get("mimeType")
            shown = isinstance(media_type, str) and media_type.startswith("image/")
            image = image_of_base64(about.get("data"), media_type) if shown else None
            if image is not None:
                rest = {name: value for name, value in about.items() if name != "data"}
                raw = ProviderRaw(GEMINI, _without_token({**part, "inlineData": rest}))
                self.add(ImageBlock(data=image.data, media_type=image.media_type, provider_raw=raw))
                return
        if kind == SIGNATURE_KIND:  # a signature without text
            self.text(part, "")
            return
        self.add(OpaqueBlock(kind, ProviderRaw(GEMINI, _without_token(part))))

    def _joins(self, kind: str, about: JsonObject) -> bool:
        return self._kind == kind and self._about == about

    def _join(self, kind: str, about: JsonObject) -> None:
        if not self._joins(kind, about):
            self._end()
            self._kind, self._about = kind, about
            self._pieces, self._size, self._signed = [], 0, []

    def _grow(self, text: str) -> None:
        self._pieces.append(text)
        self._size += len(text)

    def _end(self) -> None:
        kind, self._kind = self._kind, ""
        text = "".join(self._pieces)
        if kind == "text":
            raw: JsonObject = {**self._about, **({"signatures": self._signed} if self._signed else {})}
            self._blocks.append(TextBlock(text, ProviderRaw(GEMINI, raw) if raw else None))
        elif kind == "thinking":
            self._blocks.append(ThinkingBlock(text, None, ProviderRaw(GEMINI, self._about)))
        self._pieces = []


def _without_token(part: JsonObject) -> JsonObject:
    if "thoughtSignature" not in part or real_signature(part["thoughtSignature"]) is not None:
        return part
    return {name: value for name, value in part.items() if name != "thoughtSignature"}
