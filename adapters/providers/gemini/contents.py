"""A fitted history as contents of generateContent. Pure.

* The role of a content is `user` or `model`. The last content has the role `user`.
* The results of one reply's calls are in one content: exactly one result per call, and nothing else.
* A signature is sent back in its own part. Newer models require a signature on the first call of each turn. A call
  that another model made gets a fixed value instead.
* A result is an object. Only newer models accept media in it. For other models, the media follow it.
* Visible thoughts are a summary for people. Only signed thoughts are sent back.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from mimetypes import guess_type
from typing import NamedTuple, TypeAlias, cast
from urllib.parse import urlsplit

import msgspec

from callboard.bus.errors import InvalidRequestError, WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import CallWarning, Message, Role

from ...contract import CanonicalRequest
from ...requests.content import WEB, is_remote, media_bytes, media_type_of
from ...requests.history import FAILED_SILENTLY
from ...requests.history_target import FittedHistory, Loss, Target, ToolIdRule, encoded, left_out
from . import wire
from .data import Model

FINISH_REASON = "CONTINUATION"
KIND = "continuationToken"
"""The name of the token in replies and requests, which is also the kind of its opaque block."""


def read_token(request: CanonicalRequest, provider: str) -> tuple[CanonicalRequest, str | None]:
    """The request to write, and the token with which a reply continues."""
    messages, token = request.messages, None
    while messages and (found := _token(messages[-1], provider, request.wire_model)) is not None:
        messages, token = messages[:-1], token or found
    return (request if token is None else msgspec.structs.replace(request, messages=messages)), token


def _token(message: Message, provider: str, model: str) -> str | None:
    last = message.content[-1] if message.role is Role.ASSISTANT and message.content else None
    if not isinstance(last, OpaqueBlock) or last.kind != KIND:
        return None
    raw = last.provider_raw
    token = raw.data.get(KIND) if raw.provider == provider and raw.model in (None, model) else None
    return token if isinstance(token, str) and token else None


# --- Fields of a part ---

NOTHING: JsonObject = {}
"""The data of most parts: empty and never modified."""

OF_TEXT = ("partMetadata", "speechMetadata")
"""Possible extra fields of a model's text or call."""

OF_A_PART = (
    *OF_TEXT, "videoMetadata", "mediaResolution", "mediaProcessing", "audioMetadata", "documentMetadata",
    "spreadsheetMetadata",
)  # fmt: skip
"""Possible extra fields from a host, in the `provider_raw` of a block."""

SIBLINGS = frozenset(("text", "thought", "thoughtSignature", "functionCall", *OF_A_PART))
"""The fields of a part that don't determine its kind."""

REPLY_KINDS = ("citationMetadata", "groundingMetadata", "urlContextMetadata", "logprobsResult", KIND)
"""Opaque blocks with data about the whole reply. They are never sent back."""

SIGNATURE_KIND = "thoughtSignature"
"""The kind of an opaque block with a signature only."""


def metadata_of(part: wire.Part) -> JsonObject:
    metadata = {"partMetadata": part.partMetadata, "speechMetadata": part.speechMetadata}
    return {name: wire.decode_json(raw) for name, raw in metadata.items() if raw != wire.ABSENT}


def has_others(parts: Sequence[wire.Part]) -> bool:
    for part in parts:  # noqa: SIM110  (a generator costs more than the loop, and this is done for every delta)
        if part.text is None and part.functionCall is None:
            return True
    return False


def raw_parts(data: bytes) -> Sequence[Json]:
    """The first candidate's parts as plain JSON."""
    value = wire.decode_json(data)
    candidates = value.get("candidates") if isinstance(value, dict) else None
    for one in candidates if isinstance(candidates, list) else ():
        if isinstance(one, dict) and one.get("index") in (None, 0) and isinstance(one.get("content"), dict):
            parts = one["content"].get("parts")
            return parts if isinstance(parts, list) else ()
    return ()


# --- Media ---

Media: TypeAlias = ImageBlock | AudioBlock | DocumentBlock

IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif")
AUDIO_TYPES = (
    "audio/wav", "audio/x-wav", "audio/wave", "audio/mp3", "audio/mpeg", "audio/aiff", "audio/x-aiff", "audio/aac",
    "audio/ogg", "audio/flac", "audio/x-flac",
)  # fmt: skip
VIDEO_TYPES = (
    "video/mp4", "video/mpeg", "video/quicktime", "video/avi", "video/x-flv", "video/mpg", "video/webm",
    "video/wmv", "video/3gpp", "video/x-msvideo", "video/x-ms-wmv",
)  # fmt: skip
DOCUMENT_TYPES = (
    *VIDEO_TYPES, "application/pdf", "application/json", "text/plain", "text/markdown", "text/html", "text/css",
    "text/csv", "text/xml", "text/md", "text/x-python", "text/rtf", "text/javascript",
)  # fmt: skip
SCHEMES = (*WEB, "gs")

_ALIASES = {
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/mpeg": "audio/mp3",
    "audio/x-aiff": "audio/aiff",
    "audio/x-flac": "audio/flac",
    "application/json": "text/plain",
    "video/x-msvideo": "video/avi",
    "video/x-ms-wmv": "video/wmv",
}
"""Media types with the names that the API requires."""

NEITHER = "its url is neither http(s), gs nor a data url"
"""The reason why a medium can't be sent."""


class SentMedium(NamedTuple):
    media_type: str | None
    """The media type, by the name that the API requires. Empty for bytes of an unknown type; None for an address
    of an unknown type.
    """
    url: str | None = None
    """The address that the provider fetches."""
    data: str = ""


def sent_medium(media: Media) -> SentMedium | None:
    """A medium in the form to send; None if neither its address nor its bytes can be sent."""
    if media.url is not None and is_remote(media.url, SCHEMES):
        media_type = media.media_type or guess_type(urlsplit(media.url).path)[0]
        return SentMedium(media_type and _ALIASES.get(media_type, media_type), url=media.url)
    found = media_bytes(media)
    if found is None:
        return None
    media_type = media_type_of(media) or ""
    return SentMedium(_ALIASES.get(media_type, media_type), data=b64encode(found[1]).decode())


NO_SIGNATURE = b64encode(b"skip_thought_signature_validator").decode()
"""The value that replaces the signature of a call that Gemini did not make."""

_IN_RESULTS = frozenset({"image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain"})
"""Media types that a newer model accepts in a result. Other media follow the result."""

GO_ON = "Go on."
"""The user's text that is added if the history ends with the model's message. Some models reject an empty part."""


def _plain(text: str, place: int) -> JsonObject:
    return {"role": "model" if place % 2 else "user", "parts": [{"text": text}]}


class ContentWriter:
    def __init__(self, history: FittedHistory, model: str, row: Model) -> None:
        self.history = history
        self.provider = history.adapter
        self.model = model
        self.row = row
        self.losses: list[Loss] = []
        self.warnings: list[CallWarning] = []
        beginning, done = encoded(history, "gemini", _plain)
        self.contents = cast("list[JsonObject]", beginning)
        self.contents += [_plain(text, place) for place, text in enumerate(history.plain[done:], done)]
        self._may_join = len(history.plain) % 2 == 1  # whether more user parts can be added to the last content

    def write(self) -> list[JsonObject]:
        for message in self.history.messages[len(self.history.plain) :]:
            text = message.plain_text
            match message.role:
                case Role.ASSISTANT if text is not None:
                    self.contents.append({"role": "model", "parts": [{"text": text}]})
                    self._may_join = False
                case Role.USER if text is not None:
                    self._add("user", [{"text": text}])
                case Role.ASSISTANT:
                    self._add("model", self._model_turn(message.content))
                case Role.TOOL:
                    self._results([block for block in message.content if isinstance(block, ToolResultBlock)])
                case _:
                    parts: list[Json] = [part for block in message.content for part in self._parts_of(block)]
                    self._add("user", parts or [{"text": block.text} for block in left_out(message.content)])
        if not self.contents:
            raise InvalidRequestError(f"{self.provider}: the request has no message to send")
        if self.contents[-1]["role"] == "model":
            self.contents.append({"role": "user", "parts": [{"text": GO_ON}]})
            why = f"{self.provider}: a conversation must end with the user; {GO_ON!r} was added"
            self.warnings.append(CallWarning(WarningCode.TURN_ADDED, why))
        return self.contents

    def _add(self, role: str, parts: list[Json], *, alone: bool = False) -> None:
        if not parts:
            return
        last = self.contents[-1] if self.contents else None
        if last is not None and role == "user" and self._may_join and not alone:
            joined = last["parts"]
            assert isinstance(joined, list)
            joined += parts
            return
        self.contents.append({"role": role, "parts": parts})
        self._may_join = role == "user" and not alone

    # --- The user ---

    def _parts_of(self, block: ContentBlock) -> Iterator[JsonObject]:
        match block:
            case TextBlock():
                yield {"text": block.text, **self._fields(block.provider_raw, OF_A_PART)}
            case ImageBlock() | AudioBlock() | DocumentBlock():
                yield from self._media(block, block)
            case OpaqueBlock():
                yield block.provider_raw.data
            case _:
                self._lose(block, "this protocol has no such part")

    def _media(self, media: Media, home: ContentBlock) -> Iterator[JsonObject]:
        sent = sent_medium(media)
        if sent is None:
            self._lose(home, NEITHER)
            return
        of_type: JsonObject = {} if sent.media_type is None else {"mimeType": sent.media_type}
        fields = self._fields(media.provider_raw, OF_A_PART)
        if sent.url is not None:
            yield {"fileData": {**of_type, "fileUri": sent.url}, **fields}
        else:
            yield {"inlineData": {**of_type, "data": sent.data}, **fields}

    def _fields(self, raw: ProviderRaw | None, names: Iterable[str]) -> JsonObject:
        data = self.history.own(raw)
        return {name: data[name] for name in names if data.get(name) is not None} if data else {}

    # --- The model ---

    def _model_turn(self, content: tuple[ContentBlock, ...]) -> list[Json]:
        parts: list[Json] = []
        signed = False
        for block in content:
            match block:
                case TextBlock():
                    parts += self._text(block)
                case ToolUseBlock():
                    part = self._call(block)
                    if self.row.modern and not signed:
                        part.setdefault("thoughtSignature", NO_SIGNATURE)
                    signed = True
                    parts.append(part)
                case ThinkingBlock(signature=None) | ThinkingBlock(signature=""):
                    self._lose(block, "it has no signature")
                case ThinkingBlock():
                    parts.append(self._thought(block))
                case ImageBlock(data=bytes()):
                    parts.append(self._own_image(block))
                case OpaqueBlock() if block.kind in REPLY_KINDS:
                    pass  # these blocks are data about the reply, not a part of it
                case OpaqueBlock():
                    parts += self._opaque(block)
                case _:
                    self._lose(block, "this protocol has no such part")
        return parts

    def _thought(self, block: ThinkingBlock) -> JsonObject:
        start = self._data_of(block).get("start")
        text = block.text[start:] if isinstance(start, int) else block.text
        fields = self._fields(block.provider_raw, OF_TEXT)
        return {"text": text, "thought": True, "thoughtSignature": block.signature, **fields}

    def _data_of(self, block: TextBlock | ToolUseBlock | ThinkingBlock) -> JsonObject:
        """The data that the target attached to a block. Data with another model's signature is ignored."""
        raw = block.provider_raw
        return self.history.own(raw) if raw is not None and self._is_ours(raw) else {}

    def _is_ours(self, raw: ProviderRaw) -> bool:
        return raw.model is None or raw.model == self.model

    def _opaque(self, block: OpaqueBlock) -> Iterator[JsonObject]:
        part = block.provider_raw.data
        if not self._is_ours(block.provider_raw):
            part = {name: value for name, value in part.items() if name != "thoughtSignature"}
            if block.kind == SIGNATURE_KIND:
                return
        yield part

    def _own_image(self, block: ImageBlock) -> JsonObject:
        assert block.data is not None
        assert block.provider_raw is not None
        about = block.provider_raw.data.get("inlineData")
        data: JsonObject = {"mimeType": block.media_type, **(about if isinstance(about, dict) else {})}
        data["data"] = b64encode(block.data).decode()
        part = self._fields(block.provider_raw, ("thought", "thoughtSignature", *OF_A_PART))
        return {**part, "inlineData": data}

    def _text(self, block: TextBlock) -> Iterator[JsonObject]:
        """Split a text into parts: each signed piece has its own part."""
        at = 0
        fields = self._fields(block.provider_raw, OF_TEXT)
        signed = self._data_of(block).get("signatures")
        for piece in signed if isinstance(signed, list) else ():
            match piece:
                case {"start": int(start), "end": int(end), "signature": str(signature)}:
                    if not at <= start <= end <= len(block.text):
                        break  # the text has changed since it was signed
                    if start > at:
                        yield {"text": block.text[at:start], **fields}
                    yield {"text": block.text[start:end], "thoughtSignature": signature, **fields}
                    at = end
        if at < len(block.text):
            yield {"text": block.text[at:], **fields}

    def _call(self, block: ToolUseBlock) -> JsonObject:
        call: JsonObject = {"id": self.history.tool_ids[block.id], "name": block.name, "args": block.input}
        signature = self._data_of(block).get("thoughtSignature")
        fields = self._fields(block.provider_raw, OF_TEXT)
        return {"functionCall": call, **({"thoughtSignature": signature} if signature else {}), **fields}

    # --- Tools ---

    def _results(self, results: list[ToolResultBlock]) -> None:
        parts: list[Json] = []
        after: list[Json] = []
        for block in results:
            name = self.history.tool_names[block.tool_use_id]
            content: JsonObject = (
                {"error": block.text or FAILED_SILENTLY} if block.is_error else {"output": block.text}
            )
            response: JsonObject = {
                "id": self.history.tool_ids[block.tool_use_id],
                "name": name,
                "response": content,
            }
            response |= self._fields(block.provider_raw, ("scheduling", "willContinue"))
            media = list(self._result_media(block))
            within: list[Json] = [part for part in media if self.row.modern and _fits_result(part)]
            if within:
                response["parts"] = within
            parts.append({"functionResponse": response})
            behind = [part for part in media if part not in within]
            if behind:
                after += [{"text": f"In the result of {name}:"}, *behind]
        self._add("user", parts, alone=True)
        self._add("user", after)

    def _result_media(self, block: ToolResultBlock) -> Iterator[JsonObject]:
        for part in () if isinstance(block.content, str) else block.content:
            if isinstance(part, ImageBlock | DocumentBlock):
                yield from self._media(part, block)
            elif isinstance(part, OpaqueBlock):
                yield part.provider_raw.data

    def _lose(self, block: ContentBlock, reason: str) -> None:
        self.losses.append(self.history.loss(block, reason))


def _fits_result(part: JsonObject) -> bool:
    data = part.get("inlineData")
    return isinstance(data, dict) and data["mimeType"] in _IN_RESULTS


TOOL_IDS = ToolIdRule(max_length=64)


def target_of(
    provider: str, model: str, row: Model, *, keeps_own_blanks: bool = False, takes_system: bool = True
) -> Target:
    return Target(
        provider=provider,
        model=model,
        tool_ids=TOOL_IDS,
        accepts_images=True,
        accepts_audio=row.media,
        accepts_documents=row.media,
        image_types=IMAGE_TYPES,
        audio_types=AUDIO_TYPES,
        document_types=DOCUMENT_TYPES,
        fetches=SCHEMES,
        results_carry=("image", "document", "opaque"),
        replays_thinking=True,
        replays_images=True,
        begins_with_user=True,
        keeps_own_blanks=keeps_own_blanks,
        takes_system=takes_system,
        takes_opaque=True,
    )
