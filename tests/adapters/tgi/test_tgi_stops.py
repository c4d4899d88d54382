"""Stop sequences of TGI, which the server leaves at the end of the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.providers.tgi.response import StopTrimmer
from callboard.bus.values.usage import StopReason

from ...support.wires import WIRES
from ...support.wires import tgi as t
from ...support.wires.reading import read, read_whole

TGI = WIRES[5]


@pytest.mark.parametrize(
    ("asked", "generated", "reason", "text", "expected"),
    [
        ((), "Hi.\nUser:", "stop_sequence", "Hi.", StopReason.END_TURN),  # the template's own stop
        (("END",), "Hi.END", "stop_sequence", "Hi.", StopReason.STOP_SEQUENCE),
        (("END", "DEND"), "Hi.DEND", "stop_sequence", "Hi.", StopReason.STOP_SEQUENCE),
        (("END",), "Hi.END", "length", "Hi.END", StopReason.MAX_TOKENS),  # it was no stop
        (("END",), "Hi.EN", "eos_token", "Hi.EN", StopReason.END_TURN),
        (("END",), "Hi. ENDEAVOUR", "eos_token", "Hi. ENDEAVOUR", StopReason.END_TURN),
        (("END",), "Hi.", "stop_sequence", "Hi.", StopReason.STOP_SEQUENCE),  # cut off by the server already
        ((), "Hi.", "tired", "Hi.", StopReason.PROVIDER_SPECIFIC),
        (("END",), "END", "stop_sequence", "", StopReason.STOP_SEQUENCE),
    ],
)
def test_stop_sequences_are_no_text(
    asked: tuple[str, ...], generated: str, reason: str, text: str, expected: StopReason
) -> None:
    """However the tokens cut them; streamed and whole are the same."""
    last = t.end(generated, t.details(reason))
    for reading in (
        read(TGI, *map(t.token, generated), last, stop_sequences=asked),
        read(TGI, t.token(generated), last, stop_sequences=asked),
        read_whole(TGI, {"generated_text": generated, "details": t.details(reason)}, stop_sequences=asked),
    ):
        reply = reading.reply
        assert (reply.text, reply.stop_reason, reply.raw_stop_reason) == (text, expected, reason)


def test_a_stop_is_recognised_without_details() -> None:
    """At the end of the text, where the template's own stands."""
    assert read_whole(TGI, {"generated_text": "Hi\nUser:"}).reply.stop_reason is StopReason.END_TURN


@given(
    st.lists(st.text(alphabet="abX\n", max_size=4), max_size=8),
    st.lists(st.text(alphabet="abX\n", min_size=1, max_size=4), max_size=4),
    st.booleans(),
)
def test_trimming_loses_nothing_but_the_stop(parts: list[str], stops: list[str], stopped: bool) -> None:
    """What is shown, and the stop, are the text; and no stop is left at its end."""
    trimmer = StopTrimmer(stops)
    shown = "".join(trimmer.feed(part) for part in parts)
    rest, stop = trimmer.finish(stopped=stopped)
    text = "".join(parts)
    assert shown + rest + (stop or "") == text
    ends = [one for one in stops if text.endswith(one)]
    assert stop == (max(ends, key=len) if stopped and ends else None)
