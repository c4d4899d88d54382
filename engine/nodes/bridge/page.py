"""Pages: some events of one run that follow one another, as one message of the broker.

A message for each event would cost a call more than all else that the bridge does. A page says behind which event
it begins, since numbers are missing in a trace: not every event is stored. So a reader sees a gap where there is
one, and nowhere else.

The first line of a message is the page's head, and each further line is an envelope. A page without lines holds
an event that is too large for the broker, which readers fetch from the shared store.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from callboard.bus import Envelope, SessionConfigured, SessionMessageAppended, decode_envelope, encode_envelope
from callboard.tracestore.codec import encode_lines

PAGE_EVENTS = 256
"""The number of events in a page at most, which is what a commit has at most."""


class Page(msgspec.Struct, frozen=True):
    """A page, still encoded."""

    run_id: str
    """The run of its events."""
    after: int
    """The `seq` of the event before its first one; 0 if there is none."""
    last: int
    """The `seq` of its last event."""
    lines: bytes | None = None
    """The envelopes, one a line; None if they are not in it."""

    @property
    def message_id(self) -> str:
        """What tells it from all other pages, so that the broker drops it if it comes twice."""
        return f"{self.run_id}:{self.after}-{self.last}"

    def envelopes(self) -> list[Envelope] | None:
        """Its events; None if they are not in it. Raises ValueError if they can't be read."""
        return None if self.lines is None else [decode_envelope(line) for line in self.lines.splitlines()]


class _Head(msgspec.Struct, frozen=True):
    run: str
    after: int
    last: int
    elsewhere: bool = False


_heads = msgspec.json.Decoder(_Head)


def encode_page(page: Page) -> bytes:
    """The message of a page."""
    head = _Head(page.run_id, page.after, page.last, page.lines is None)
    return msgspec.json.encode(head) + b"\n" + (page.lines or b"")


def decode_page(message: bytes) -> Page:
    """The page of a message. Raises ValueError if it is none."""
    encoded, _, lines = message.partition(b"\n")
    try:
        head = _heads.decode(encoded)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a page of events: {error}") from error
    return Page(head.run, head.after, head.last, None if head.elsewhere else lines)


def pages_of(
    run_id: str, after: int, envelopes: Sequence[Envelope], *, content: bool, most_bytes: int
) -> list[Page]:
    """The pages of some events that follow one another.

    Args:
        run_id: Their run.
        after: The `seq` of the event before them.
        envelopes: The events.
        content: Whether what was said goes out with them.
        most_bytes: The size that the lines of a page may have.
    """
    pages: list[Page] = []
    parts = [envelopes[begin : begin + PAGE_EVENTS] for begin in range(0, len(envelopes), PAGE_EVENTS)]
    parts.reverse()
    while parts:
        part = parts.pop()
        lines: bytes | None = _lines(part, content=content)
        if len(lines or b"") > most_bytes:
            if len(part) > 1:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
                continue
            lines = None
        pages.append(Page(run_id, after, part[-1].seq, lines))
        after = part[-1].seq
    return pages


def _lines(envelopes: Sequence[Envelope], *, content: bool) -> bytes:
    if content:
        return b"".join(encode_envelope(envelope) + b"\n" for envelope in envelopes)
    return encode_lines([_not_captured(envelope) for envelope in envelopes])


def _not_captured(envelope: Envelope) -> Envelope:
    """An event that isn't marked as one whose content is stored: nothing of it is then in its line."""
    event = envelope.data
    for kind in (SessionMessageAppended, SessionConfigured):
        if isinstance(event, kind) and type(event) is not kind:
            bare = kind(**{name: getattr(event, name) for name in kind.__struct_fields__})
            return msgspec.structs.replace(envelope, data=bare)
    return envelope
