"""What a docstring tells of a function and its parameters."""

from __future__ import annotations

import pytest

from callboard.engine.tools.parameters import read_docstring

GOOGLE = """Find a book
    in the catalogue.

    By title, or by author.

    Args:
        title (str): What it is called,
            in any language.
        *limit: At most so many.
        undocumented:

    Returns:
        limit: not a parameter.
    """

NUMPY = """Find a book
    in the catalogue.

    By title, or by author.

    Parameters
    ----------
    title : str
        What it is called,
        in any language.
    limit, undocumented : int, optional
        At most so many.

    Returns
    -------
    limit : int
        Not a parameter.
    """

SPHINX = """Find a book
    in the catalogue.

    By title, or by author.

    :param str title: What it is called,
        in any language.
    :param limit: At most so many.
    :type limit: int
    :returns: limit: not a parameter.
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_each_style_tells_the_description_and_the_parameters(text: str) -> None:
    """The same function in three styles is told in the same words, without the line breaks of its width."""
    found = read_docstring(text)
    assert found.description == "Find a book in the catalogue.\n\nBy title, or by author."
    assert found.parameters["title"] == "What it is called, in any language."
    assert found.parameters["limit"] == "At most so many."


def test_a_list_in_the_description_keeps_its_lines() -> None:
    """Only running text is joined."""
    found = read_docstring("Do one of:\n\n- this\n- that, which\n  is longer\n\nThen stop.")
    assert found.description == "Do one of:\n\n- this\n- that, which\n  is longer\n\nThen stop."


def test_what_looks_like_a_section_but_is_none_stays_text() -> None:
    """A colon in a sentence, or at its end, begins nothing."""
    found = read_docstring("Say hello to: everybody\nNote that args: are fine.\n\nFormat:\n    x: y")
    assert "everybody" in found.description
    assert found.description.endswith("Format:\n    x: y")
    assert found.parameters == {}


@pytest.mark.parametrize("text", [None, "", "  \n"])
def test_no_docstring_says_nothing(text: str | None) -> None:
    """There is nothing to read, and nothing fails."""
    assert read_docstring(text) == ("", {})
