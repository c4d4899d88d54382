"""The queue between a host that steers and its turn: nothing is lost, nothing comes twice."""

from __future__ import annotations

import threading
from typing import Literal, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters import ImageBlock, Message, Role, TextBlock
from callboard.bus import NoTurnRunning
from callboard.engine.conversation.turn_context import SteeringQueue, steering_message

Act: TypeAlias = Literal["add", "take", "close", "close_if_empty"]
ACTS: tuple[Act, ...] = ("add", "take", "close", "close_if_empty")


@given(st.lists(st.sampled_from(ACTS)))
def test_it_does_what_a_list_with_a_flag_does(acts: list[Act]) -> None:
    """Whatever is done in whatever order, each message is refused, taken or left over, in the order of adding."""
    queue, waiting, closed = SteeringQueue(), list[Message](), False
    for number, act in enumerate(acts):
        match act:
            case "add":
                message = steering_message(f"message {number}", f"msg_{number}")
                if closed:
                    with pytest.raises(NoTurnRunning, match="why"):
                        queue.add(message)
                else:
                    queue.add(message)
                    waiting.append(message)
            case "take":
                assert queue.take() == tuple(waiting)
                waiting.clear()
            case "close":
                queue.close("why")
                closed = True
            case "close_if_empty":
                assert queue.close_if_empty("why") is (not waiting)
                closed = closed or not waiting
        assert queue.waiting == tuple(waiting)


def test_messages_of_many_threads_are_taken_once_or_refused() -> None:
    """While threads add, one takes and closes: no message is in two places, and none in no place."""
    queue, refused, taken = SteeringQueue(), list[str](), list[str]()

    def add(thread: int) -> None:
        for number in range(200):
            try:
                queue.add(steering_message("more", f"{thread}.{number}"))
            except NoTurnRunning:
                refused.append(f"{thread}.{number}")

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while len(taken) < 100:
        taken += [str(message.id) for message in queue.take()]
    while not queue.close_if_empty("over"):
        taken += [str(message.id) for message in queue.take()]
    for thread in threads:
        thread.join()
    assert queue.waiting == ()
    assert sorted(taken + refused) == sorted(f"{thread}.{number}" for thread in range(4) for number in range(200))


def test_the_first_reason_for_closing_stays() -> None:
    """A turn that was cancelled says so, even when it is over."""
    queue = SteeringQueue()
    queue.close("cancelled")
    queue.close("over")
    assert queue.close_if_empty("empty")
    with pytest.raises(NoTurnRunning, match="cancelled"):
        queue.add(steering_message("more", "msg_1"))


@pytest.mark.parametrize("content", ["", " \n", [], [TextBlock("")]])
def test_an_empty_message_is_refused(content: str | list[TextBlock]) -> None:
    """No provider could be told it."""
    with pytest.raises(ValueError, match="empty"):
        steering_message(content, "msg_1")


def test_an_image_alone_is_a_message() -> None:
    """What is no text counts as content."""
    image = ImageBlock(data=b"\x89PNG", media_type="image/png")
    assert steering_message([image], "msg_1") == Message(Role.USER, (image,), id="msg_1", steers=True)
