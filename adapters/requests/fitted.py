"""What a target takes, what was made of a history for it, and what that cost: the values of `history`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from itertools import repeat
from operator import is_
from typing import Literal

import msgspec

from bus.errors import CapabilityError
from bus.log import Log
from bus.values.content import ContentBlock, ProviderRaw, TextBlock
from bus.values.json import JsonObject
from bus.values.messages import Message
from bus.values.warning_codes import WarningCode

from ..contract import AdapterCapabilities, CallWarning
from .media import WEB

_log = Log("adapters.history")


class ToolIdRule(msgspec.Struct, frozen=True):
    """What a provider accepts as a tool call's id. pattern: of one character. prefix: of derived ids.

    Raises ValueError if the ids that it derives would not be accepted.
    """

    max_length: int = 64
    pattern: str = "[A-Za-z0-9_-]"
    prefix: str = "call_"

    def __post_init__(self) -> None:
        if not self.allows(self.derive("")):
            raise ValueError(f"ids such as {self.derive('')!r} break the rule that they are derived by")

    def allows(self, wire_id: str) -> bool:
        return bool(re.fullmatch(f"{self.pattern}{{1,{self.max_length}}}", wire_id))

    def derive(self, canonical_id: str) -> str:
        """An id for a foreign call: deterministic, and different for different calls.

        It is a digest, so it carries nothing of what the call was known by elsewhere.
        """
        digest = hashlib.sha256(canonical_id.encode("utf-8", "surrogatepass")).hexdigest()
        return (self.prefix + digest)[: self.max_length]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider takes. provider: the adapter's name, to know its own opaque data again.

    model: the wire's name of the model, where reasoning goes back only to the very model that issued it; None
    where it goes back to any of the provider's.
    accepts_*: in user messages. *_types: the media types of those; None is any, and one that isn't known passes.
    fetches: the schemes of addresses that it can fetch media from.
    results_carry: which media may stand in a tool's result, of those accepted.
    replays_thinking: it wants its own reasoning back. keeps_developer: it has that role.
    adopts_signatures: a signature of unstated origin is taken to be its own.
    begins_with_user: it refuses a history whose first message is an assistant's.
    keeps_own_blanks: it wants text of white space alone back, if it marked it with data of its own.
    carries_tools: it takes calls and results of tools; else they are told in words.
    takes_system: it has a place for the system text; else the user says it first.
    """

    provider: str
    model: str | None = None
    tool_ids: ToolIdRule = ToolIdRule()
    accepts_images: bool = True
    accepts_audio: bool = False
    accepts_documents: bool = False
    image_types: tuple[str, ...] | None = None
    audio_types: tuple[str, ...] | None = None
    document_types: tuple[str, ...] | None = None
    fetches: tuple[str, ...] = WEB
    results_carry: tuple[Literal["image", "document"], ...] = ("image",)
    replays_thinking: bool = False
    keeps_developer: bool = False
    adopts_signatures: bool = False
    begins_with_user: bool = False
    keeps_own_blanks: bool = False
    carries_tools: bool = True
    takes_system: bool = True

    def within(self, can: AdapterCapabilities) -> Target:
        """What of it a model takes that can do no more than that."""
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


def _common(own: tuple[str, ...] | None, others: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The media types in both; None is any."""
    if own is None or others is None or own == others:
        return others if own is None else own
    return tuple(media_type for media_type in own if media_type in others)


class Loss(msgspec.Struct, frozen=True):
    """One thing that the target will not see, or not as it was, and why."""

    session_id: str
    message_id: str
    block_type: str
    adapter: str
    reason: str


class FittedHistory(msgspec.Struct, frozen=True):
    """What to send. tool_ids: from our id of a call to the one for the wire. tool_names: by our id.

    homes: which blocks came from which message, by its id; the first that has a block is its own. may_lose: the
    request allows losses.
    """

    system: str | None
    messages: tuple[Message, ...]
    tool_ids: dict[str, str]
    tool_names: dict[str, str]
    losses: tuple[Loss, ...]
    session_id: str = ""
    adapter: str = ""
    homes: tuple[tuple[str, tuple[ContentBlock, ...]], ...] = ()
    may_lose: bool = True

    def home(self, block: ContentBlock) -> str:
        """The id of the message that a block of `messages` came from; empty if it had none."""
        return next((home for home, blocks in self.homes if any(map(is_, blocks, repeat(block)))), "")

    def own(self, raw: ProviderRaw | None) -> JsonObject:
        """What the target itself attached to a block; nothing of anyone else's."""
        return raw.data if raw is not None and raw.provider == self.adapter else {}

    def loss(self, block: ContentBlock, reason: str, *, kind: str | None = None) -> Loss:
        """What a protocol can't carry of a block of `messages`. kind: of that part of the block."""
        return Loss(self.session_id, self.home(block), kind or block_type(block), self.adapter, reason)

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """The losses, as the response reports them."""
        return tuple(
            CallWarning(
                WarningCode.CONTENT_DROPPED, f"{loss.block_type} was not sent to {loss.adapter}: {loss.reason}"
            )
            for loss in self.losses
        )

    def log(self) -> None:
        """One WARN for each loss; never any content. Raises CapabilityError if the request allows no loss."""
        for loss in self.losses:
            _log.warning("content_dropped", **msgspec.structs.asdict(loss))
        if self.losses and not self.may_lose:
            reasons = "; ".join(dict.fromkeys(warning.message for warning in self.warnings))
            raise CapabilityError(f"the history can't be sent without a loss: {reasons}", provider=self.adapter)


def block_type(block: ContentBlock) -> str:
    """The name of a block's type, as it stands in stored messages."""
    return str(type(block).__struct_config__.tag)


def left_out(refused: Iterable[ContentBlock]) -> list[TextBlock]:
    """What stands where nothing else is left: an empty message would vanish, and its answer hang in the air."""
    return [TextBlock(f"({block_type(block)} left out: it can't be shown here)") for block in refused]
