"""Types of fitted histories: the abilities of a target, the history to send, and the lost content."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from operator import is_
from typing import Literal, cast

import msgspec

from callboard.bus.errors import CapabilityError, WarningCode
from callboard.bus.log import Log
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
)
from callboard.bus.values.messages import Beginning, CallWarning, Message

from ..contract import AdapterCapabilities
from .content import WEB, encode_json, is_empty, is_unowned, media_type_of

_log = Log("adapters.history")


class ToolIdRule(msgspec.Struct, frozen=True):
    """The form of the tool call ids that a provider accepts.

    Raises:
        ValueError: Ids that the rule derives do not match its pattern.
    """

    max_length: int = 64
    pattern: str = "[A-Za-z0-9_-]"
    """A regular expression of one character."""
    prefix: str = "call_"

    def __post_init__(self) -> None:
        if not self.allows(self.derive("")):
            raise ValueError(f"ids such as {self.derive('')!r} break their derivation rule")

    def allows(self, wire_id: str) -> bool:
        return bool(re.fullmatch(f"{self.pattern}{{1,{self.max_length}}}", wire_id))

    def derive(self, canonical_id: str) -> str:
        """Derive an id for another provider's call. The same call always gets the same id, and different calls get
        different ids.

        The new id is a digest, so it reveals no part of the original id.
        """
        digest = hashlib.sha256(canonical_id.encode("utf-8", "surrogatepass")).hexdigest()
        return (self.prefix + digest)[: self.max_length]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The abilities of a provider that matter for a history."""

    provider: str
    """The adapter's name, which identifies its own opaque data."""
    model: str | None = None
    """The model, if reasoning can be sent back only to the model that wrote it. None if any model of the provider
    accepts it.
    """
    tool_ids: ToolIdRule = ToolIdRule()
    accepts_images: bool = True
    """Whether user messages may contain images."""
    accepts_audio: bool = False
    """Whether user messages may contain audio."""
    accepts_documents: bool = False
    """Whether user messages may contain documents."""
    image_types: tuple[str, ...] | None = None
    """The media types of images; None means any. An image of unknown type is accepted."""
    audio_types: tuple[str, ...] | None = None
    """The media types of audio; None means any. Audio of unknown type is accepted."""
    document_types: tuple[str, ...] | None = None
    """The media types of documents; None means any. A document of unknown type is accepted."""
    fetches: tuple[str, ...] = WEB
    """The schemes of the addresses from which the provider fetches media."""
    results_carry: tuple[Literal["image", "document", "opaque"], ...] = ("image",)
    """The kinds of content besides text that a tool's result may have. ``opaque`` means the provider's own
    kinds.
    """
    replays_thinking: bool = False
    """Whether the provider accepts its own reasoning back."""
    replays_images: bool = False
    """Whether the provider accepts images that its own models made."""
    keeps_developer: bool = False
    adopts_signatures: bool = False
    """Whether a signature without a provider is treated as this provider's; see `is_unowned`."""
    begins_with_user: bool = False
    """Whether the provider rejects a history that starts with an assistant's message."""
    keeps_own_blanks: bool = False
    """Whether blank texts with the provider's data must be sent back."""
    carries_tools: bool = True
    """Whether requests can have tool calls and results. Otherwise they are written as text."""
    takes_system: bool = True
    """Whether requests have a system text. Otherwise a user message contains it."""
    takes_system_parts: bool = False
    """Whether the system text may have parts, each with fields of the host."""
    takes_opaque: bool = False
    """Whether user messages may have the provider's own kinds of content."""

    def within(self, can: AdapterCapabilities) -> Target:
        """This target, limited to the abilities of one model."""
        return msgspec.structs.replace(
            self,
            accepts_images=self.accepts_images and can.supports_images,
            accepts_audio=self.accepts_audio and can.supports_audio,
            accepts_documents=self.accepts_documents and can.supports_documents,
            image_types=_common(self.image_types, can.accepted_image_media_types),
            audio_types=_common(self.audio_types, can.accepted_audio_media_types),
            document_types=_common(self.document_types, can.accepted_document_media_types),
            replays_thinking=self.replays_thinking and can.supports_thinking,
            carries_tools=self.carries_tools and can.supports_tools,
            takes_system=self.takes_system and can.supports_system_prompt,
        )


def _common(accepted: tuple[str, ...] | None, others: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The media types that both lists contain; None means any."""
    if accepted is None or others is None or accepted == others:
        return others if accepted is None else accepted
    return tuple(media_type for media_type in accepted if media_type in others)


class Loss(msgspec.Struct, frozen=True):
    """A part of the history that is not sent, or is sent in another form."""

    session_id: str
    message_id: str
    block_type: str
    adapter: str
    reason: str
    block: ContentBlock | None = None
    """The lost block, to find its place in the history. It is never logged."""


Home = Message | tuple[str, tuple[ContentBlock, ...]]
"""A message that is sent unchanged, or the id of another message and the blocks made from it."""


class FittedHistory(msgspec.Struct, frozen=True):
    system: str | None
    """The system text; None if there is none or a user message contains it."""
    messages: tuple[Message, ...]
    tool_ids: dict[str, str]
    """The ids of tool calls on the wire, by Callboard's ids."""
    tool_names: dict[str, str]
    """The name of the tool of each call, by Callboard's id of the call."""
    losses: tuple[Loss, ...]
    session_id: str = ""
    adapter: str = ""
    homes: tuple[Home, ...] = ()
    """The original messages of the blocks in `messages`. A block that occurs in several messages belongs to the
    first.
    """
    plain: tuple[str, ...] = ()
    """The texts of the first messages, while they alternate between plain user and assistant text."""
    beginning: Beginning | None = None
    """The first of these messages, with cached values; None for a short history."""
    may_lose: bool = True
    system_parts: tuple[TextBlock, ...] = ()
    """The system text in parts, if the host gave one of them fields for the target; otherwise empty."""

    def home(self, block: ContentBlock) -> str:
        """The id of the message that a block came from; empty if there is none."""
        for home in self.homes:
            message_id, blocks = (home.id or "", home.content) if isinstance(home, Message) else home
            if any(map(is_, blocks, repeat(block))):
                return message_id
        return ""

    def own(self, raw: ProviderRaw | None) -> JsonObject:
        """The data that the target attached to a block; empty if it is another provider's."""
        return raw.data if raw is not None and raw.provider == self.adapter else {}

    def loss(self, block: ContentBlock, reason: str, *, kind: str | None = None) -> Loss:
        """The loss of a block that the protocol can't express."""
        kind = kind or block_type(block)
        return Loss(self.session_id, self.home(block), kind, self.adapter, reason, block)

    def with_losses(self, more: Sequence[Loss]) -> FittedHistory:
        return msgspec.structs.replace(self, losses=(*self.losses, *more)) if more else self

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """The losses, as warnings of the response."""
        if not self.losses:  # the usual case
            return ()
        return tuple(
            CallWarning(
                WarningCode.CONTENT_DROPPED, f"{loss.block_type} was not sent to {loss.adapter}: {loss.reason}"
            )
            for loss in self.losses
        )

    def log(self) -> None:
        """Log one warning for each loss, without content."""
        for loss in self.losses:
            fields = {name: value for name, value in msgspec.structs.asdict(loss).items() if name != "block"}
            _log.warning("content_dropped", **fields)
        if self.losses and not self.may_lose:
            reasons = "; ".join(dict.fromkeys(warning.message for warning in self.warnings))
            raise CapabilityError(f"the history can't be sent without a loss: {reasons}", provider=self.adapter)


RECENT = 4
"""The number of messages at the end of the plain history that are not cached as JSON, because a wire may mark or
join them.
"""


def encoded(history: FittedHistory, name: str, make: Callable[[str, int], JsonObject]) -> tuple[list[Json], int]:
    """The cached JSON of a history's beginning in one protocol, and the number of its messages. See `Beginning`.

    The list has one `Raw` for all these messages, or nothing. An encoder writes it unchanged. The last `RECENT`
    messages are not among them.

    Args:
        history: The history.
        name: The protocol.
        make: A function that makes the wire's message from a text and its index. User and model alternate,
            starting with the user.
    """
    most = len(history.plain) - RECENT
    if most <= 0 or history.beginning is None:
        return [], 0
    joined, count = history.beginning.json(name, most, lambda text, place: encode_json(make(text, place)))
    return ([cast("Json", joined)] if count else []), count


def block_type(block: ContentBlock) -> str:
    return str(type(block).__struct_config__.tag)


def left_out(refused: Iterable[ContentBlock]) -> list[TextBlock]:
    """Return a text for a message that lost all its blocks. Without this text, the message would be missing, and
    the reply would not have a question.
    """
    return [TextBlock(f"({block_type(block)} left out: not supported here)") for block in refused]


# --- Supported content ---


def refusal(block: ContentBlock, target: Target) -> str | None:
    """The reason why a user message can't have a block; None if it can."""
    match block:
        case OpaqueBlock():
            reason = foreign(block, target)
            return reason if reason or target.takes_opaque else "this protocol does not support this content"
        case ImageBlock():
            kind, accepts, types = "images", target.accepts_images, target.image_types
        case AudioBlock():
            kind, accepts, types = "audio", target.accepts_audio, target.audio_types
        case DocumentBlock():
            kind, accepts, types = "documents", target.accepts_documents, target.document_types
        case _:
            return None
    if not accepts:
        return f"the model does not accept {kind}"
    if is_empty(block):
        return "it is empty"
    media_type = media_type_of(block, target.fetches)
    if types is None or media_type is None or media_type in types:
        return None
    return f"{media_type or 'no media type'} is not one of {', '.join(types)}"


def refusal_in_result(block: ImageBlock | DocumentBlock | OpaqueBlock, target: Target) -> str | None:
    """The reason why a tool's result can't contain a block; None if it can."""
    if reason := refusal(block, target):
        return reason
    kind = block_type(block)
    what = block.kind if isinstance(block, OpaqueBlock) else kind
    return None if kind in target.results_carry else f"a tool result can't have {what} here"


def foreign(block: ThinkingBlock | RedactedThinkingBlock | OpaqueBlock, target: Target) -> str | None:
    """The reason why reasoning or opaque content can't be sent to the target; None if it can."""
    raw = block.provider_raw
    origin = raw.provider if raw is not None else None
    unsigned = isinstance(block, ThinkingBlock) and block.signature is None
    if target.adopts_signatures and not unsigned and is_unowned(raw):
        origin = target.provider
    if origin != target.provider:
        return "its provider is unknown" if origin is None else f"only {origin} accepts it"
    if isinstance(block, OpaqueBlock):
        return None
    if not target.replays_thinking:
        return "this protocol does not accept reasoning"
    if raw is not None and None not in (raw.model, target.model) and raw.model != target.model:
        return f"only the model {raw.model} accepts it"
    return None


def is_own_image(block: ImageBlock, target: Target) -> bool:
    """Whether the target made an image, and accepts it back as its own image."""
    raw = block.provider_raw
    if not target.replays_images or raw is None or raw.provider != target.provider:
        return False
    return None in (raw.model, target.model) or raw.model == target.model


def keeps_blank(block: TextBlock, target: Target) -> bool:
    raw = block.provider_raw
    return target.keeps_own_blanks and raw is not None and raw.provider == target.provider


def has_fields(block: TextBlock, target: Target) -> bool:
    raw = block.provider_raw
    return raw is not None and raw.provider == target.provider and bool(raw.data)


class WireCall(msgspec.Struct, frozen=True):
    """A request in a provider's own format."""

    path: str
    """The path below the base URL, with its query."""
    body: bytes
    """The body: JSON, unless a header gives another type; empty for a request without a body."""
    headers: Mapping[str, str] = {}
    """Headers of this request only. The key and the content type are added on sending."""
    warnings: tuple[CallWarning, ...] = ()
    """Warnings about request fields and values that were dropped, changed or estimated."""
    losses: tuple[Loss, ...] = ()
    """The lost parts of the history. The warnings include them."""
    tool_ids: Mapping[str, str] = {}
    """The id of each tool call in the body by Callboard's id, for errors that name an id."""
    method: str = "POST"
    once: bool = False
    """Whether the provider bills each delivery of the request, so that it must not arrive twice; see
    `HttpRequest`.
    """


class BuiltRequest(msgspec.Struct, frozen=True):
    """The body of a request, before it is encoded."""

    body: JsonObject
    history: FittedHistory
    warnings: tuple[CallWarning, ...]

    def call(self, path: str, headers: Mapping[str, str] = {}, *, encoded: bytes | None = None) -> WireCall:
        """The request on the wire. Logs the losses of the history. `encoded` is the body as JSON, if known."""
        self.history.log()
        body = encode_json(self.body) if encoded is None else encoded
        return WireCall(path, body, headers, self.warnings, self.history.losses, self.history.tool_ids)


def get(path: str, headers: Mapping[str, str] = {}) -> WireCall:
    return WireCall(path, b"", headers, method="GET")


def bearer(api_key: str | None) -> dict[str, str]:
    """The header that carries a key as a bearer token; none if there is no key."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}
