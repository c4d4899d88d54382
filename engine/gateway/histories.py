"""Identifies the replies in a client's history, and restores their kept blocks. Pure.

Each history has a hash chain: the chain of a request and its reply is a prefix of the next request's chain. A
reply is identified by a hash of the parts that every client sends back: its text, and the names and arguments of
its calls.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from callboard.adapters import (
    ContentBlock,
    ImageBlock,
    Message,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.base import Json
from callboard.tracestore import encode_json

UNGUESSABLE = 16
"""The length from which a call's id is treated as unguessable, so that only a client with the same conversation
can send it.
"""


# --- Parts of a message that clients send back ---


def fingerprint(messages: Iterable[Message]) -> bytes:
    """A hash of the parts of a reply that every client sends back, over one or several messages. Empty if there
    are none.
    """
    texts, calls = [], []
    for message in messages:
        for block in message.content:
            if isinstance(block, TextBlock):
                texts.append(block.text)
            elif isinstance(block, ToolUseBlock):
                calls.append((block.name, block.raw_arguments or _plain(block.input)))
    text = "".join(texts).strip()
    return digest(text, calls) if text or calls else b""


def _plain(value: Json) -> Json:
    """Normalize JSON, to ignore common changes by clients: JavaScript turns 1.0 into 1, and a missing field may
    become false.

    Claude Code sends ``replace_all: false`` back with every edit.
    """
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {name: _plain(each) for name, each in sorted(value.items()) if each is not False}
        case list():
            return [_plain(each) for each in value]
        case _:
            return value


def digest(*parts: object) -> bytes:
    return hashlib.sha256(encode_json(parts)).digest()


def _hashed_content(message: Message) -> list[object]:
    """The part of a user's or a tool's message that enters the chain."""
    found: list[object] = []
    for block in message.content:
        match block:
            case TextBlock():
                found.append(block.text)
            case ToolResultBlock():
                found.append(block.text)
            case ImageBlock():
                found.append([block.url, len(block.data or b"")])
            case _:
                found.append(type(block).__name__)
    return found


class Run(NamedTuple):
    first: int
    """The index of the reply's first message."""
    end: int
    """The index after the reply's last message. A wire may split one reply into several messages."""
    print: bytes
    """The fingerprint of the reply."""


def replies_in(messages: Sequence[Message]) -> list[Run]:
    found: list[Run] = []
    place = 0
    while place < len(messages):
        first = place
        while place < len(messages) and messages[place].role is Role.ASSISTANT:
            place += 1
        if place > first:
            found.append(Run(first, place, fingerprint(messages[first:place])))
        place += 1
    return found


def chains(client: str, messages: Sequence[Message], replies: Sequence[Run]) -> tuple[list[bytes], bytes]:
    """The hash chain after each reply of a history, and after the whole history."""
    hashes: list[bytes] = []
    chain = digest(client)
    place = 0
    for run in replies:
        for message in messages[place : run.first]:
            chain = _link(chain, message)
        chain = after_reply(chain, run.print)
        hashes.append(chain)
        place = run.end
    for message in messages[place:]:
        chain = _link(chain, message)
    return hashes, chain


def _link(chain: bytes, message: Message) -> bytes:
    if message.role in (Role.SYSTEM, Role.DEVELOPER):  # clients change these from request to request
        return chain
    return hashlib.sha256(chain + encode_json((message.role, _hashed_content(message)))).digest()


def after_reply(chain: bytes, reply: bytes) -> bytes:
    """The chain after one more reply. `reply` is the reply's fingerprint."""
    return hashlib.sha256(b"reply" + chain + reply).digest()


def session_named(*parts: str) -> str:
    """Derive a session id from some texts. Different clients never get the same id."""
    return "ses_" + base64.b32encode(digest(*parts)).decode()[:26]


# --- Kept blocks ---


class StoredReply(msgspec.Struct, frozen=True):
    content: tuple[ContentBlock, ...]

    def ids(self) -> list[set[str]]:
        """The possible ids of each call in the client's history: Callboard's or the provider's."""
        return [
            {block.id, *_ids_in({} if block.provider_raw is None else block.provider_raw.data)}
            for block in self.content
            if isinstance(block, ToolUseBlock)
        ]


def _ids_in(data: Mapping[str, Json]) -> Iterator[str]:
    return (value for name in ("id", "call_id") if isinstance(value := data.get(name), str))


def is_worth_keeping(content: Sequence[ContentBlock]) -> bool:
    """Whether a reply has parts that a client may be unable to send back."""
    return any(
        not isinstance(block, TextBlock | ToolUseBlock) or block.provider_raw is not None for block in content
    )


def chosen(
    of_session: Sequence[StoredReply], others: Sequence[StoredReply], sent: Sequence[list[ToolUseBlock]]
) -> list[StoredReply | None]:
    """Find the kept reply for each of several messages with the same fingerprint. Pure.

    A reply with the message's own ids is preferred. The remaining replies are matched in order, from the last
    reply backwards. No reply is used twice, because providers refuse two copies of one reasoning item. A reply of
    another conversation is used only if its ids are unguessable: people may share a key, and one person's
    reasoning must not enter another's prompt.

    Args:
        of_session: The kept replies of this conversation, the oldest first.
        others: The kept replies of the client's other conversations.
        sent: The calls in each message, in the order of the history.
    """
    if len(of_session) == len(sent) == 1:
        return [of_session[0]]
    remaining, more = list(of_session), list(others)
    selected: list[StoredReply | None] = [None] * len(sent)
    for place, calls in enumerate(sent):
        candidates = [*more, *remaining] if all(len(call.id) >= UNGUESSABLE for call in calls) else remaining
        fits = [reply for reply in candidates if calls and _has_ids(reply, calls)]
        if fits:
            selected[place] = fits[-1]
            remaining = [reply for reply in remaining if reply is not fits[-1]]
            more = [reply for reply in more if reply is not fits[-1]]
    for place in reversed(range(len(sent))):
        if selected[place] is None and remaining:
            selected[place] = remaining.pop()
    return selected


def _has_ids(reply: StoredReply, calls: Sequence[ToolUseBlock]) -> bool:
    return all(call.id in ids for call, ids in zip(calls, reply.ids(), strict=True))


def put_in(reply: StoredReply, run: Sequence[Message]) -> Message:
    """The message with the kept blocks. Its calls have the client's ids, and its cache mark is kept."""
    sent = [block for message in run for block in message.content]
    ids = iter([block.id for block in sent if isinstance(block, ToolUseBlock)])
    content = [
        msgspec.structs.replace(block, id=next(ids)) if isinstance(block, ToolUseBlock) else block
        for block in reply.content
    ]
    mark = sent[-1].provider_raw if sent else None
    last = content[-1]
    if mark is not None and "cache_control" in mark.data and isinstance(last, TextBlock | ToolUseBlock):
        raw = last.provider_raw
        if raw is None:
            content[-1] = msgspec.structs.replace(last, provider_raw=mark)
        elif raw.provider == mark.provider:
            data = {**raw.data, "cache_control": mark.data["cache_control"]}
            content[-1] = msgspec.structs.replace(last, provider_raw=msgspec.structs.replace(raw, data=data))
    return msgspec.structs.replace(run[0], content=tuple(content))
