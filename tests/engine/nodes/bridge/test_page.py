"""Pages: what is in a message, and what is not."""

from __future__ import annotations

import pytest

from callboard.bus import (
    Envelope,
    Message,
    SessionConfigured,
    SessionMessageAppended,
    SessionSetup,
    encode_envelope,
)
from callboard.engine.nodes.bridge import PAGE_EVENTS, decode_page, encode_page, pages_of
from callboard.tracestore import Capture

from .event_making import event, events

PLENTY = 1 << 20


def said(seq: int, *, captured: bool) -> list[Envelope]:
    """A message and a setup, as the writer commits them."""
    message = SessionMessageAppended(position=0, message=Message.user("secret"))
    setup = SessionConfigured(history=0, setup=SessionSetup(model="s:m", system_prompt="secret"))
    spoken = [Envelope(seq + n, "run_a", 1, 1, data) for n, data in enumerate((message, setup))]
    return [Capture().apply(envelope) for envelope in spoken] if captured else spoken


def test_a_page_comes_back_as_it_was() -> None:
    """With every event, and the place behind which it begins."""
    (page,) = pages_of("run_a", 3, events([5, 6, 9]), content=False, most_bytes=PLENTY)
    read = decode_page(encode_page(page))
    assert read == page
    assert (read.after, read.last, read.message_id) == (3, 9, "run_a:3-9")
    assert read.envelopes() == events([5, 6, 9])


@pytest.mark.parametrize("captured", [False, True])
def test_what_was_said_stays_here(captured: bool) -> None:
    """Unless the host says otherwise; also where the trace keeps it."""
    (page,) = pages_of("run_a", 0, said(1, captured=captured), content=False, most_bytes=PLENTY)
    assert b"secret" not in encode_page(page)
    assert [envelope.topic for envelope in page.envelopes() or ()] == [
        "session.message_appended",
        "session.configured",
    ]
    (page,) = pages_of("run_a", 0, said(1, captured=captured), content=True, most_bytes=PLENTY)
    message, setup = (envelope.data for envelope in page.envelopes() or ())
    assert isinstance(message, SessionMessageAppended)
    assert message.message.text == "secret"
    assert isinstance(setup, SessionConfigured)
    assert setup.setup is not None
    assert setup.setup.system_prompt == "secret"


def test_pages_follow_one_another() -> None:
    """However many events there are, and however large."""
    many = events(range(1, 3 * PAGE_EVENTS))
    assert [page.last for page in pages_of("run_a", 0, many, content=False, most_bytes=PLENTY)] == [
        PAGE_EVENTS,
        2 * PAGE_EVENTS,
        3 * PAGE_EVENTS - 1,
    ]
    small = len(encode_envelope(event(1))) * 3
    pages = pages_of("run_a", 0, events(range(1, 20)), content=False, most_bytes=small)
    assert all(len(page.lines or b"") <= small for page in pages)
    assert [page.after for page in pages] == [0, *(page.last for page in pages[:-1])]
    assert [each for page in pages for each in page.envelopes() or ()] == events(range(1, 20))


def test_an_event_too_large_for_the_broker_is_left_to_the_store() -> None:
    """Its page says that it is there; those beside it go out."""
    batch = [event(1), event(2, name="x" * 1000), event(3)]
    pages = pages_of("run_a", 0, batch, content=False, most_bytes=500)
    read = [decode_page(encode_page(page)) for page in pages]
    assert [(page.after, page.last, page.envelopes()) for page in read] == [
        (0, 1, [event(1)]),
        (1, 2, None),
        (2, 3, [event(3)]),
    ]


@pytest.mark.parametrize("message", [b"", b"{}", b"\xff\n", b'{"run":1,"after":0,"last":1}\n'])
def test_what_is_no_page_is_refused(message: bytes) -> None:
    """By a ValueError, which readers expect."""
    with pytest.raises(ValueError):
        decode_page(message)
