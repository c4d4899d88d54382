"""Pieces of a text that comes in fragments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.engine.middleware.guardrails import MOST_CHARACTERS, TextWindow, Window

WINDOWS = st.one_of(
    st.builds(Window.characters, st.integers(1, 20)),
    st.builds(Window.words, st.integers(1, 4)),
    st.builds(Window.sentences, st.integers(1, 3)),
    st.just(Window.block()),
)
TEXTS = st.text(st.sampled_from("ab.!?…。！\"')」 \n\t1"), max_size=60) | st.text(max_size=40)


def pieces_of(window: Window, fragments: list[str]) -> list[str]:
    cutter = TextWindow(window)
    pieces = [piece for fragment in fragments for piece in cutter.feed(fragment)]
    return [*pieces, rest] if (rest := cutter.rest()) else pieces


@given(WINDOWS, st.lists(TEXTS, max_size=8))
def test_the_pieces_are_those_of_the_text_however_it_is_cut(window: Window, fragments: list[str]) -> None:
    """Whole, in any fragments, and character by character; and together they are the text."""
    text = "".join(fragments)
    pieces = pieces_of(window, [text])
    assert pieces_of(window, fragments) == pieces
    assert pieces_of(window, list(text)) == pieces
    assert "".join(pieces) == text


@pytest.mark.parametrize(
    ("window", "pieces"),
    [
        (Window.sentences(), ["Is it 3.14? ", 'She said "No." ', "First line\n", "the rest"]),
        (Window.sentences(2), ['Is it 3.14? She said "No." ', "First line\nthe rest"]),
        (Window.words(3), ["Is it 3.14? ", 'She said "No." ', "First line\nthe ", "rest"]),
        (Window.characters(20), ["Is it 3.14? She said", ' "No." First line\nth', "e rest"]),
        (Window.block(), ['Is it 3.14? She said "No." First line\nthe rest']),
    ],
)
def test_what_ends_a_piece(window: Window, pieces: list[str]) -> None:
    """Sentences end where white space follows their mark, lines at their end, words behind their space."""
    assert pieces_of(window, ['Is it 3.14? She said "No." First line\nthe rest']) == pieces


def test_sentences_without_spaces_end_at_their_mark() -> None:
    """As in Chinese and Japanese; a closing bracket belongs to its sentence."""
    assert pieces_of(Window.sentences(), ["你好。（再见。）好！"]) == ["你好。", "（再见。）", "好！"]


def test_a_piece_is_cut_where_no_end_comes() -> None:
    """A long line without an end is not held for ever."""
    pieces = pieces_of(Window.sentences(), ["x" * 500] * 20)
    assert [len(piece) for piece in pieces] == [MOST_CHARACTERS, MOST_CHARACTERS, 2000]


@pytest.mark.parametrize(("size", "overlap"), [(0, 0), (5, -1)])
def test_a_window_holds_something(size: int, overlap: int) -> None:
    """A window of nothing is refused."""
    with pytest.raises(ValueError, match="at least one unit"):
        Window.characters(size, overlap=overlap)
