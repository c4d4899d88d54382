"""What a message says of itself."""

from __future__ import annotations

import msgspec
import pytest

from callboard.bus import ImageBlock, Message, ProviderRaw, Role, TextBlock


@pytest.mark.parametrize("role", [Role.SYSTEM, Role.DEVELOPER, Role.USER, Role.ASSISTANT])
@pytest.mark.parametrize("text", ["hello", " hello\n", "grüß dich", "\U0001f600"])
def test_one_text_block_is_plain_text(role: Role, text: str) -> None:
    """Whoever says it, and in whatever script."""
    assert Message(role, (TextBlock(text),)).plain_text == text


@pytest.mark.parametrize(
    "content",
    [
        (),
        (TextBlock(""),),
        (TextBlock(" \n"),),
        (TextBlock("half \ud83d"),),
        (TextBlock("one"), TextBlock("two")),
        (TextBlock("signed", provider_raw=ProviderRaw("gemini", {})),),
        (ImageBlock(url="https://example.org/a.png"),),
    ],
)
def test_a_message_that_some_target_may_have_to_change_is_not_plain_text(
    content: tuple[TextBlock | ImageBlock, ...],
) -> None:
    """Nothing in it, a blank, half a surrogate pair, several blocks, a provider's data, a picture."""
    assert Message(Role.USER, content).plain_text is None


def test_a_changed_copy_of_a_message_is_asked_anew() -> None:
    """What was found in one message is not said of another."""
    message = Message.user("hello")
    assert message.plain_text == "hello"
    assert msgspec.structs.replace(message, content=(TextBlock("bye"),)).plain_text == "bye"
    assert message == Message.user("hello")
