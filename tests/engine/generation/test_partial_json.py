"""JSON text that grows, cut anywhere."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.bus.values.base import Json, JsonObject
from callboard.engine.objects.generate import repair
from callboard.engine.objects.partial_json import PartialJson

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(), max_size=8),
)
VALUES: st.SearchStrategy[Json] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=8,
)


def is_prefix(before: Json, after: Json) -> bool:
    """Whether a value may have been there before another: nothing of it was taken back."""
    match before, after:
        case dict(), dict():
            names = list(before)
            return names == list(after)[: len(names)] and all(
                is_prefix(before[name], after[name]) if name == names[-1] else before[name] == after[name]
                for name in names
            )
        case list(), list():
            kept = after[: len(before)]
            return len(kept) == len(before) and (
                before == kept or (before[:-1] == kept[:-1] and is_prefix(before[-1], kept[-1]))
            )
        case str(), str():
            return after.startswith(before)
        case _:
            return type(before) is type(after) and before == after


def values_of(pieces: list[str], machine: PartialJson) -> list[Json]:
    """The value after each piece by which it grew, and after the end."""
    values = [machine.value for piece in pieces if machine.feed(piece)]
    if machine.close():
        values.append(machine.value)
    assert machine.error is None
    assert machine.complete
    return values


@settings(max_examples=150, deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 1]), st.data())
def test_however_a_document_is_cut_its_values_grow_into_it(
    document: Json, ascii_only: bool, indent: int | None, data: st.DataObject
) -> None:
    text = json.dumps(document, ensure_ascii=ascii_only, indent=indent)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=10)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    values = values_of(pieces, PartialJson())
    assert values[-1] == document
    assert all(is_prefix(before, after) for before, after in pairwise(values))


@pytest.mark.parametrize(
    "text",
    [
        r'{"a": "\u00e9\ud83d\ude00\ud83d", "b": [1.5e3, -0, true, [], {}], "c\n\"": {"d": null}}',
        r'["\ud83d\ud83d\ude00", "\ude00", "\ud83dx", "\ud83d\n", "\\u0041", "\/"]',
        ' \n"text" \t',
        "-12.50",
        "null",
    ],
)
def test_cut_at_every_character_or_at_any_one_a_document_is_read_as_a_whole(text: str) -> None:
    expected = json.loads(text)
    values = values_of(list(text), PartialJson())
    assert values[-1] == expected
    assert all(is_prefix(before, after) for before, after in pairwise(values))
    for cut in range(len(text) + 1):
        assert values_of([text[:cut], text[cut:]], PartialJson())[-1] == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": "Lon', {"a": "Lon"}),
        ('{"a": "', {"a": ""}),
        ('{"a": 12', {}),
        ('{"a": 12,', {"a": 12}),
        ('{"a": tru', {}),
        ('{"a": 1, "b', {"a": 1}),
        ('{"a": 1, "b":', {"a": 1}),
        ('[1, [2, {"x": ["y', [1, [2, {"x": ["y"]}]]),
        (r'["\ud83d', [""]),
        (r'["\ud83d\ude0', [""]),
        (r'["\ud83d\ude00', ["😀"]),
        (r'["a\u00', ["a"]),
        ("  ", None),
    ],
)
def test_what_there_is_of_a_value_whose_text_is_not_whole(text: str, value: Json) -> None:
    """A string is there as far as it goes; a name, a number and a literal only when they are whole."""
    machine = PartialJson()
    machine.feed(text)
    assert machine.value == value
    machine.close()
    assert machine.error is not None
    assert machine.value == value


def test_snapshots_stay_as_they_were() -> None:
    machine = PartialJson()
    machine.feed('{"list": [{"name": "A')
    before = machine.value
    machine.feed('da"}, {"name": "Bo"}], "more": 1}')
    assert before == {"list": [{"name": "A"}]}
    assert machine.value == {"list": [{"name": "Ada"}, {"name": "Bo"}], "more": 1}


def test_feeding_says_whether_the_value_grew() -> None:
    machine = PartialJson()
    fed = [machine.feed(piece) for piece in [" ", "{", ' "na', 'me"', ":", ' "', "A", "", '"', ",", '"n": 1', "}"]]
    assert fed == [False, True, False, False, False, True, True, False, False, False, False, True]


def test_what_is_whole_is_not_read_or_copied_again() -> None:
    """A long document costs what its pieces cost: finished parts are shared between snapshots."""
    machine = PartialJson()
    machine.feed('{"big": [' + ",".join(["[1, 2, 3]"] * 1000) + '], "text": "')
    first = machine.value
    machine.feed("more")
    second = machine.value
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert first["big"] is second["big"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{a: 1}", "a name in double quotes was expected, at character 1"),
        ("[1,]", "a value was expected, at character 3"),
        ('{"a": 1,}', "a name in double quotes was expected, at character 8"),
        ('{"a" 1}', "a colon was expected, at character 5"),
        ("[1 2]", "a comma or the end was expected, at character 3"),
        ("[1}", "a comma or the end was expected, at character 2"),
        ("[truth]", "'truth' is neither a number nor true, false or null, at character 6"),
        ("[01]", "'01' is neither a number nor true, false or null, at character 3"),
        ("[NaN]", "a value was expected, at character 1"),
        ('["a\nb"]', "a control character stands in a string, at character 3"),
        (r'["\x"]', "there is no escape \\x, at character 3"),
        (r'["\u00g0"]', "four hexadecimal digits were expected, at character 6"),
        ("{} {}", "there is text after the value, at character 3"),
        ("", "there is no JSON, at character 0"),
        ("[1", "the text ends before the value does, at character 2"),
        ("Sure!", "a value was expected, at character 0"),
    ],
)
def test_text_that_is_no_json_is_told_with_its_place(text: str, error: str) -> None:
    for pieces in ([text], list(text)):
        machine = PartialJson()
        for piece in pieces:
            machine.feed(piece)
        machine.close()
        assert machine.error == error
        assert not machine.complete


def test_a_number_with_too_many_digits_for_python_is_an_error_not_an_exception() -> None:
    machine = PartialJson()
    machine.feed("[" + "9" * 5000 + "]")
    assert machine.error is not None


@settings(max_examples=100, deadline=None)
@given(st.text('{}[]",:\\u0123eE.-tfn \n`x', max_size=30))
def test_the_strict_machine_takes_what_the_standard_library_takes(text: str) -> None:
    machine = PartialJson()
    for piece in text:
        machine.feed(piece)
    machine.close()
    try:
        expected = json.loads(text)
    except ValueError:
        assert machine.error is not None
    else:
        assert machine.error is None
        assert machine.value == expected


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"a": [1, 2]}\n```',
        'Here it is:\n\n{"a": [1, 2]}\n\nHope that helps {:-)}!',
        'For {you} and {me}: {"a": [1, 2]}',
        '{"a": [1, 2]}',
    ],
)
def test_a_value_amid_other_text_is_found_wherever_the_text_is_cut(text: str) -> None:
    for cut in range(len(text) + 1):
        assert values_of([text[:cut], text[cut:]], PartialJson(embedded=True))[-1] == {"a": [1, 2]}
    assert values_of(list(text), PartialJson(embedded=True))[-1] == {"a": [1, 2]}


def test_an_opening_that_is_not_wanted_is_passed_over() -> None:
    machine = PartialJson(embedded=True, opening="{")
    assert values_of(['See [1]. {"a": [1]}'], machine)[-1] == {"a": [1]}


def test_a_value_amid_text_that_breaks_off_is_not_taken_back() -> None:
    machine = PartialJson(embedded=True)
    machine.feed('{"a": "x", oops} {"b": 1}')
    assert machine.value == {"a": "x"}
    assert machine.error is not None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1, 2,], "b": {"c": 3,},}', {"a": [1, 2], "b": {"c": 3}}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('The answer is {"a": 1}, I think.', {"a": 1}),
        ('{"a": [{"b": "two\nlines"', {"a": [{"b": "two\nlines"}]}),
        (r'{"path": "C:\dir"}', {"path": "C:dir"}),
        ('{"a": 1, "b": 23', {"a": 1, "b": 23}),
        ('{"a": 1, "b', {"a": 1}),
        ('{"a": 1, "b":', {"a": 1}),
        ('{"a": 1,', {"a": 1}),
        (r'{"a": "\ud83d\ud', {"a": ""}),
    ],
)
def test_nearly_valid_json_is_repaired(text: str, value: Json) -> None:
    assert repair(text) == value


def test_a_number_that_may_lack_digits_is_left_out_of_a_repair() -> None:
    assert repair('{"a": 1, "b": 23', cut_off=True) == {"a": 1}
    assert repair('{"a": 1, "b": 23}', cut_off=True) == {"a": 1, "b": 23}


@pytest.mark.parametrize("text", ["", "I can't do that.", "{a: 1}", "[truth]", '{"a": tru'])
def test_what_can_not_be_repaired_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"character|no JSON"):
        repair(text)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=3), st.data())
def test_any_truncation_of_a_document_is_repaired_to_a_part_of_it(
    document: JsonObject, data: st.DataObject
) -> None:
    text = json.dumps(document)
    cut = data.draw(st.integers(1, len(text)))
    try:
        repaired = repair(text[:cut], cut_off=True)
    except ValueError:
        pytest.fail(f"not repaired: {text[:cut]!r}")
    assert is_prefix(repaired, document)
