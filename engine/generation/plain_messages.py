"""Messages as plain mappings, where their meaning is plain: ``{"role": "user", "content": "Hi"}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, get_args

from callboard.adapters import ContentBlock, Message, Role, TextBlock

MessageLike: TypeAlias = Message | Mapping[str, object]
"""A message; or a mapping with a role (``user``, ``assistant``, ``system``, ``developer``) and a content: text, or
a list of texts, of ``{"type": "text", "text": …}`` and of content blocks."""

_SPEAKERS = (Role.USER, Role.ASSISTANT, Role.SYSTEM, Role.DEVELOPER)


def as_messages(given: Sequence[MessageLike]) -> tuple[Message, ...]:
    """The messages that a program means.

    Raises:
        TypeError: One of them is no message, or its meaning isn't plain; the text says what to write.
    """
    return tuple(each if isinstance(each, Message) else _message(each) for each in given)


def _message(given: object) -> Message:
    if not isinstance(given, Mapping):
        raise TypeError(
            f"messages takes Message objects, not {type(given).__name__}: Message.user('...') makes one, and "
            "{'role': 'user', 'content': '...'} is one, too"
        )
    if more := given.keys() - {"role", "content"}:
        raise TypeError(
            f"a message as a dict has role and content, not {min(map(repr, more))}: Message(...) and its blocks "
            "say everything else"
        )
    role, content = given.get("role"), given.get("content")
    if role not in _SPEAKERS:
        raise TypeError(
            f"role is {role!r}; a message as a dict is of {', '.join(map(str, _SPEAKERS))}. The answer of a "
            "tool is Message.tool_result(...)"
        )
    if isinstance(content, str):
        return Message(Role(role), (TextBlock(content),))
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        return Message(Role(role), tuple(map(_block, content)))
    raise TypeError(f"content is {type(content).__name__}; it is text or a list of blocks")


def _block(given: object) -> ContentBlock:
    match given:
        case str():
            return TextBlock(given)
        case {"type": "text", "text": str(text), **more} if not more:
            return TextBlock(text)
        case _ if isinstance(given, get_args(ContentBlock)):
            return given  # type: ignore[no-any-return]
        case _:
            shown = (
                f"a block of type {given.get('type')!r}" if isinstance(given, Mapping) else type(given).__name__
            )
            raise TypeError(
                f"content holds {shown}; as plain values there are texts and "
                "{'type': 'text', 'text': '...'}, and for everything else blocks, such as ImageBlock"
            )
