"""Captured message content: redaction, and the stored bytes.

A message's body has only its role and content, so equal messages have equal bodies. A body is stored once, under
the SHA-256 of its bytes. Large blocks, and the bytes of media, are separate bodies that other bodies refer to.
Bodies are JSON, except the bytes of media.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from callboard.bus.events import Envelope
from callboard.bus.events.sessions import SessionConfigured, SessionMessageAppended
from callboard.bus.log import Log
from callboard.bus.values.content import AudioBlock, ContentBlock, DocumentBlock, ImageBlock, ToolResultBlock
from callboard.bus.values.messages import Message, MessageMetadata, SessionSetup

_log = Log("tracestore.captured")

Redact: TypeAlias = Callable[[Message], Message | None]
"""A host's function that changes a message before it is stored. If it returns None, the message is not stored."""

LARGE_BYTES = 1024
"""The size in bytes from which a block, or the bytes of media, is a separate body."""

_STORED = "stored"


# --- Capturing a message ---


class CapturedMessage(SessionMessageAppended, frozen=True, kw_only=True, tag=SessionMessageAppended.topic_of()):
    """A redacted message, with the content for the store."""

    withheld: str | None = None
    """The reason why the content is not stored; None if it is stored. With a reason, there is no content."""


class CapturedSetup(SessionConfigured, frozen=True, kw_only=True, tag=SessionConfigured.topic_of()):
    """A session's setup, with the content for the store."""

    withheld: str | None = None
    """The reason why the system prompt is not stored; None if it is stored."""


class Capture:
    """Converts published events to events that may be stored.

    The host's hook runs on the event loop and must not block. The hook also gets the system prompt, as a system
    message. It does not get the definitions of tools. A message is not stored if the hook raises, or returns
    neither a message nor None. With a hook, no raw reply (`RawReply`) is stored, because it would still contain
    the text that the hook removes.

    Args:
        redact: The host's hook, which is called once for each message; None stores every message as it is.
    """

    def __init__(self, redact: Redact | None = None) -> None:
        self._redact = redact

    @property
    def redacts(self) -> bool:
        """Whether the host's hook processes messages before they are stored."""
        return self._redact is not None

    def apply(self, envelope: Envelope) -> Envelope:
        """Prepare the content of an event for the store. An event without content is not changed."""
        data = envelope.data
        if type(data) is SessionMessageAppended:
            message, withheld = self._cleared(data.message)
            captured = CapturedMessage(
                position=data.position, message=message, withheld=withheld, epoch=data.epoch
            )
            return msgspec.structs.replace(envelope, data=captured)
        if type(data) is SessionConfigured and data.setup is not None:
            setup, withheld = self._cleared_setup(data.setup)
            return msgspec.structs.replace(
                envelope,
                data=CapturedSetup(
                    history=data.history, begins=data.begins, setup=setup, withheld=withheld, epoch=data.epoch
                ),
            )
        return envelope

    def _cleared_setup(self, setup: SessionSetup) -> tuple[SessionSetup, str | None]:
        if setup.system_prompt is None or self._redact is None:
            return setup, None
        message, withheld = self._cleared(Message.system(setup.system_prompt))
        prompt = None if withheld else message.text
        return msgspec.structs.replace(setup, system_prompt=prompt), withheld

    def _cleared(self, message: Message) -> tuple[Message, str | None]:
        if self._redact is None:
            return message, None
        try:
            cleared = self._redact(message)
            if cleared is None:
                return _emptied(message), "redacted"
            if not isinstance(cleared, Message):
                raise TypeError(f"redact returned {type(cleared).__name__}")
        except Exception as error:
            # The error's text may contain the content that must not be stored, so only its type is logged.
            _log.error("redaction_failed", message_id=message.id, error=type(error).__name__)
            return _emptied(message), f"redaction failed: {type(error).__name__}"
        return msgspec.structs.replace(cleared, id=message.id, metadata=_without_raw(cleared.metadata)), None


def _emptied(message: Message) -> Message:
    return msgspec.structs.replace(message, content=(), metadata=_without_raw(message.metadata))


def _without_raw(metadata: MessageMetadata | None) -> MessageMetadata | None:
    if metadata is None or (metadata.raw is None and metadata.provider_details is None):
        return metadata
    return msgspec.structs.replace(metadata, raw=None, provider_details=None)


# --- JSON of any content ---


def encode_json(value: object) -> bytes:
    """Encode a value as one line of JSON.

    Raises:
        TypeError, ValueError, RecursionError: A host's value can't be written as JSON.
    """
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # half a surrogate pair, which Python's json module can escape
        return json.dumps(_plain(value), separators=(",", ":")).encode("ascii")


def _plain(value: object) -> object:
    match value:
        case msgspec.Raw():
            return json.loads(bytes(value))
        case dict():
            return {name: _plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case _:
            return msgspec.to_builtins(value)


def decode_json(data: bytes) -> Any:
    """Decode the result of `encode_json` to plain JSON. Raises ValueError."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return json.loads(data)  # Python's json module reads escaped half surrogate pairs.


class _WithRaw(msgspec.Struct):
    raw: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _WithUsage(msgspec.Struct):
    usage: _WithRaw


_raw_usage: msgspec.json.Decoder[_WithUsage] = msgspec.json.Decoder(_WithUsage)


def encode_metadata(metadata: MessageMetadata) -> bytes:
    """Encode metadata as one line of JSON, with the provider's usage object unchanged."""
    raw = b"" if metadata.usage.raw is None else bytes(metadata.usage.raw)
    if b"\n" in raw or not raw.isascii():
        raw = raw.decode("utf-8", "replace").encode()
        one_line = msgspec.json.format(raw, indent=-1) if b"\n" in raw else raw
        usage = msgspec.structs.replace(metadata.usage, raw=msgspec.Raw(one_line))
        metadata = msgspec.structs.replace(metadata, usage=usage)
    try:
        return msgspec.json.encode(metadata)
    except UnicodeEncodeError:  # Another field contains half a surrogate pair: the raw usage object is dropped.
        usage = msgspec.structs.replace(metadata.usage, raw=None)
        return encode_json(msgspec.structs.replace(metadata, usage=usage))


def decode_metadata(data: bytes) -> MessageMetadata:
    """Decode the result of `encode_metadata`. Raises ValueError."""
    fields = decode_json(data)
    had_raw = fields["usage"].pop("raw", None) is not None
    metadata = msgspec.convert(fields, MessageMetadata)
    if not had_raw:
        return metadata
    # Copied from the text unchanged, because later prices may need fields that this version does not know.
    raw = _raw_usage.decode(data).usage.raw
    if not isinstance(raw, msgspec.Raw):
        return metadata
    return msgspec.structs.replace(metadata, usage=msgspec.structs.replace(metadata.usage, raw=raw.copy()))


# --- Messages as bodies ---


Bodies: TypeAlias = dict[bytes, bytes]
"""Bodies by their hashes."""


def bodies_of(message: Message) -> tuple[bytes, Bodies]:
    """The hash of a message's body, and all its bodies. Raises the errors of `encode_json`."""
    bodies: Bodies = {}
    more: dict[str, object] = {} if message.name is None else {"name": message.name}
    if message.steers:
        more["steers"] = True
    blocks = [_block(block, bodies) for block in message.content]
    return _keep(encode_json({"role": message.role, **more, "content": blocks}), bodies), bodies


def bodies_of_setup(setup: SessionSetup) -> tuple[bytes, Bodies]:
    bodies: Bodies = {}
    return _keep(encode_json(setup), bodies), bodies


def message_of(body: bytes, fetch: Callable[[bytes], bytes]) -> Message:
    """The message of a stored body, without its id and its metadata."""
    fields = decode_json(body)
    fields["content"] = [_fetched(block, fetch) for block in fields["content"]]
    return msgspec.convert(fields, Message)


def setup_of(body: bytes) -> SessionSetup:
    """The setup in a body. Raises ValueError if this version can't read it."""
    return msgspec.convert(decode_json(body), SessionSetup)


def _keep(body: bytes, bodies: Bodies) -> bytes:
    import hashlib

    digest = hashlib.sha256(body).digest()
    bodies[digest] = body
    return digest


def _block(block: ContentBlock, bodies: Bodies) -> msgspec.Raw:
    encoded = _encoded_block(block, bodies)
    if len(encoded) >= LARGE_BYTES:
        encoded = encode_json({"type": _STORED, "hash": _keep(encoded, bodies).hex()})
    return msgspec.Raw(encoded)


def _encoded_block(block: ContentBlock, bodies: Bodies) -> bytes:
    match block:
        case ToolResultBlock(content=tuple()):
            fields = msgspec.structs.asdict(block)
            fields["content"] = [_block(part, bodies) for part in block.content if not isinstance(part, str)]
        case ImageBlock() | AudioBlock() | DocumentBlock() if len(block.data or b"") >= LARGE_BYTES:
            fields = msgspec.structs.asdict(block)
            fields["stored_data"] = _keep(fields.pop("data"), bodies).hex()
        case _:
            return encode_json(block)
    return encode_json({"type": block.__struct_config__.tag, **fields})


def _fetched(block: dict[str, Any], fetch: Callable[[bytes], bytes]) -> dict[str, Any]:
    if block.get("type") == _STORED:
        block = decode_json(fetch(bytes.fromhex(block["hash"])))
    stored_data = block.pop("stored_data", None)
    if stored_data is not None:
        block["data"] = fetch(bytes.fromhex(stored_data))
    if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
        block["content"] = [_fetched(part, fetch) for part in block["content"]]
    return block


# --- Messages in a spill file ---


class SpilledContent(msgspec.Struct, omit_defaults=True):
    """The captured content in a line of a spill file, next to the event without content. Media are base64."""

    withheld: str | None = None
    """The reason why the content is not stored; None if it is stored."""
    message: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    metadata: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    setup: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def spilled(event: CapturedMessage | CapturedSetup) -> SpilledContent:
    """Encode captured content for a spill file. Raises the errors of `encode_json`."""
    match event:
        case CapturedMessage(message=message):
            metadata = message.metadata
            bare = msgspec.structs.replace(message, metadata=None)
            return SpilledContent(
                withheld=event.withheld,
                message=msgspec.Raw(encode_json(bare)),
                metadata=msgspec.UNSET if metadata is None else msgspec.Raw(encode_metadata(metadata)),
            )
        case CapturedSetup():
            return SpilledContent(withheld=event.withheld, setup=msgspec.Raw(encode_json(event.setup)))


def unspilled(
    event: SessionMessageAppended | SessionConfigured, content: SpilledContent
) -> CapturedMessage | CapturedSetup:
    if isinstance(event, SessionConfigured):
        if not isinstance(content.setup, msgspec.Raw):
            raise ValueError("a line with a setup's content has no setup")
        setup = setup_of(bytes(content.setup))
        return CapturedSetup(
            history=event.history, begins=event.begins, setup=setup, withheld=content.withheld, epoch=event.epoch
        )
    if not isinstance(content.message, msgspec.Raw):
        raise ValueError("a line with a message's content has no message")
    message = msgspec.convert(decode_json(bytes(content.message)), Message)
    if isinstance(content.metadata, msgspec.Raw):
        message = msgspec.structs.replace(message, metadata=decode_metadata(bytes(content.metadata)))
    return CapturedMessage(position=event.position, message=message, withheld=content.withheld, epoch=event.epoch)
