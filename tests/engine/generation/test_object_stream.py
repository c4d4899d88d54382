"""Objects that are read while they arrive."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters import AdapterCapabilities, NetworkError, StopReason
from callboard.bus import CancelledError
from callboard.bus.values.base import Json, JsonObject
from callboard.engine import NoObjectGeneratedError, ObjectStream
from callboard.engine.generation.objects import repair
from callboard.engine.generation.partial_json import PartialJson
from callboard.engine.middleware import Cache

from ...support.scripted import CAPABILITIES, Say
from .object_engines import ADA, NO_SCHEMA, ONLY_WORDS, PERSON, Person, ended, running

# `stream_object`: an object while it grows, its end, and a reader that leaves.

TEXT = '{"name": "Ada L.", "age": 36, "tags": ["a", "b"]}'
WHOLE = Person("Ada L.", 36, "", ["a", "b"])


async def slowly() -> None:
    """A pause before each piece, so that pieces arrive one at a time."""
    await anyio.sleep(0.1)


async def grown(
    *pieces: str, schema: Any = Person, can: AdapterCapabilities = CAPABILITIES, pause: Any = slowly
) -> tuple[list[Json], Any]:
    """The partials and the object of a reply that arrives in these pieces."""
    async with running(Say(*pieces, pause=pause), can=can) as (engine, _):
        async with engine.stream_object("s:m", "Who?", schema=schema) as stream:
            return [partial async for partial in stream], await stream.object()


async def read_into(partials: list[Json], stream: ObjectStream[Any]) -> None:
    """Collect the partials. They remain if the stream fails."""
    async for partial in stream:
        partials.append(partial)  # noqa: PERF401 (a comprehension would lose them)


async def test_an_object_grows_and_is_complete_and_typed_at_the_end() -> None:
    async with running(Say(*TEXT, pause=slowly)) as (engine, _):
        async with engine.stream_object("s:m", "Who?", schema=Person) as stream:
            partials = [partial async for partial in stream]
            assert await stream.object() == WHOLE
            result = await stream.result()
    assert partials[0] == {}
    assert {"name": "Ada"} in partials
    assert {"name": "Ada L.", "age": 36, "tags": ["a", ""]} in partials
    assert partials[-1] == json.loads(TEXT)
    assert all(before != after and is_prefix(before, after) for before, after in pairwise(partials))
    assert (result.text, result.output, result.usage.output_tokens) == (TEXT, WHOLE, 5)


THOUGHTFUL = f'<think>{{"name": "Draft"}} or {{</think>\n{TEXT}'
OPEN = f"Perhaps a name?\n</think>\n```json\n{TEXT}\n```"


@pytest.mark.parametrize("text", [THOUGHTFUL, OPEN], ids=["tagged", "open"])
@pytest.mark.parametrize("size", [1, 2, 5, 7, 1000])
async def test_an_object_within_reasoning_is_no_part_of_the_reply(text: str, size: int) -> None:
    partials, found = await grown(*(text[at : at + size] for at in range(0, len(text), size)))
    assert (partials[-1], found) == (json.loads(TEXT), WHOLE)
    assert all(is_prefix(before, after) for before, after in pairwise(partials))


MARKED = {"name": "<think>", "age": 1}


@pytest.mark.parametrize(("pieces", "options", "grows"), [
    ('{"value": [1, 2, "x"]}', {"schema": list[int | str]}, [[], [1], [1, 2], [1, 2, ""], [1, 2, "x"]]),
    (["```json\n", '{"name": "A', 'da", "age": 36}', "\n```"], {"schema": PERSON, "can": ONLY_WORDS},
     [{"name": "A"}, {"name": "Ada", "age": 36}]),
    ([json.dumps(MARKED)[:14], json.dumps(MARKED)[14:]], {"schema": PERSON}, [{"name": "<thi"}, MARKED]),
], ids=["a value in its wrapper", "a code fence", "a mark of reasoning within a string"])  # fmt: skip
async def test_a_value_grows_without_its_surroundings(pieces: Any, options: dict[str, Any], grows: object) -> None:
    partials, found = await grown(*pieces, **options)
    assert (partials, found) == (grows, partials[-1])


async def test_the_arguments_of_a_forced_call_grow_like_text() -> None:
    reply = Say("Well, ", calls=[("answer", {"name": "Ada", "age": 36})])
    async with running(reply, can=NO_SCHEMA) as (engine, _):
        async with engine.stream_object("s:m", "Who?", schema=PERSON) as stream:
            partials = [partial async for partial in stream]
            assert await stream.object() == {"name": "Ada", "age": 36}
            late = [partial async for partial in stream]
    assert partials[-1] == {"name": "Ada", "age": 36}
    assert late == partials[-1:]


async def test_the_text_can_be_read_with_the_partials() -> None:
    partials: list[Json] = []
    async with running(Say(*TEXT, pause=slowly)) as (engine, _):
        async with engine.stream_object("s:m", "Who?", schema=Person) as stream:
            reading = asyncio.ensure_future(read_into(partials, stream))
            assert "".join([piece async for piece in stream.text_stream]) == TEXT
            await reading
    assert partials[-1] == json.loads(TEXT)


async def test_no_partial_is_read_of_text_that_is_no_json() -> None:
    async with running(Say("I don't know.")) as (engine, _):
        async with engine.stream_object("s:m", "Who?", schema=Person) as stream:
            partials: list[Json] = []
            with pytest.raises(NoObjectGeneratedError) as none:
                await read_into(partials, stream)
            with pytest.raises(NoObjectGeneratedError):
                await stream.object()
    assert partials == []
    assert (none.value.reason, none.value.text) == ("not_json", "I don't know.")


async def test_a_truncated_object_is_an_error_after_its_partials_unless_repair_is_asked_for() -> None:
    reply = ended(Say('{"name": "Ada", "age": 36, "tags": ["a'), StopReason.MAX_TOKENS)
    async with running(reply, reply) as (engine, _):
        async with engine.stream_object("s:m", "Who?", schema=Person) as stream:
            partials: list[Json] = []
            with pytest.raises(NoObjectGeneratedError) as none:
                await read_into(partials, stream)
        async with engine.stream_object("s:m", "Who?", schema=Person, repair=True) as stream:
            repaired = await stream.result()
    assert none.value.reason == "truncated"
    assert partials == [{"name": "Ada", "age": 36, "tags": ["a"]}]
    assert (repaired.output, repaired.repaired) == (Person("Ada", 36, "", ["a"]), True)


async def test_partials_start_again_with_the_next_request() -> None:
    ways = ('{"name": "Ada", ', '"age": "x"}'), ('{"name": "Ada"', ', "age": 36}')
    async with running(*(Say(*pieces, pause=slowly) for pieces in ways)) as (engine, asked):
        async with engine.stream_object("s:m", "Who?", schema=Person, max_reasks=1) as stream:
            partials = [partial async for partial in stream]
            result = await stream.result()
    ada = {"name": "Ada"}
    assert partials == [ada, {**ada, "age": "x"}, ada, {**ada, "age": 36}]
    assert (len(asked), len(result.steps), result.total_usage.input_tokens) == (2, 2, 20)


async def test_several_readers_share_the_same_requests() -> None:
    async with running(Say("no"), Say("no"), Say(ADA)) as (engine, asked):
        async with engine.stream_object("s:m", "Who?", schema=Person, max_reasks=2) as stream:
            found = await asyncio.gather(*(stream.object() for _ in range(3)))
    assert found == [Person("Ada", 36)] * 3
    assert len(asked) == 3


async def test_leaving_early_cancels_the_call_and_leaves_nothing_behind() -> None:
    async with running(Say(*TEXT, pause=slowly)) as (engine, asked):
        async with engine.stream_object("s:m", "Who?", schema=Person, max_reasks=3) as stream:
            async for _ in stream:
                break
        assert len(asked) == 1
        assert [provider.in_flight for provider in engine.statistics().providers] == [0]
        with pytest.raises(CancelledError):
            await stream.object()
        assert engine.streams.statistics().readers == 0


async def test_a_cancelled_stream_raises_for_its_readers() -> None:
    async with running(Say(*TEXT, pause=slowly)) as (engine, _):
        async with engine.stream_object("s:m", "Who?", schema=Person, max_reasks=1) as stream:
            with pytest.raises(CancelledError):
                async for _ in stream:
                    await stream.cancel()
            assert not await stream.cancel()


async def test_a_call_that_fails_raises_after_its_partials() -> None:
    async with running(Say('{"name": "Ad', fails=NetworkError("gone"))) as (engine, _):
        async with engine.stream_object("s:m", "Who?", schema=Person) as stream:
            partials: list[Json] = []
            with pytest.raises(NetworkError):
                await read_into(partials, stream)
    assert partials == [{"name": "Ad"}]


async def test_the_call_starts_when_the_stream_is_first_read() -> None:
    """A slow reader gets only the latest partial."""
    async with running(Say(*ADA)) as (engine, asked):
        stream = engine.stream_object("s:m", "Who?", schema=Person)
        assert asked == []
        assert await stream.object() == Person("Ada", 36)
        assert [partial async for partial in stream] == [json.loads(ADA)]


@pytest.mark.parametrize("can", [CAPABILITIES, NO_SCHEMA], ids=["native", "forced"])
async def test_an_object_from_a_cache_is_one_partial(can: AdapterCapabilities) -> None:
    """The cached reply may be a forced tool call, which the cache stores as text."""
    reply = Say(ADA) if can is CAPABILITIES else Say(calls=[("answer", {"name": "Ada", "age": 36})])
    async with running(reply, can=can, middleware=[Cache()]) as (engine, asked):
        first = await engine.generate_object("s:m", "Who?", schema=Person)
        second = await engine.generate_object("s:m", "Who?", schema=Person)
        async with engine.stream_object("s:m", "Who?", schema=Person) as stream:
            partials = [partial async for partial in stream]
            assert await stream.object() == first.output == second.output == Person("Ada", 36)
    assert partials == [json.loads(ADA)]
    assert len(asked) == 1


# JSON text that grows, cut at any place.

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
    """Whether `after` extends `before` and removes nothing."""
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
    """The value after each piece that changed it, and after the end."""
    values = [machine.value for piece in pieces if machine.feed(piece)]
    if machine.close():
        values.append(machine.value)
    assert machine.error is None
    assert machine.complete
    return values


@settings(max_examples=150, deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 1]), st.data())
def test_the_values_of_a_cut_document_grow_into_it(
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
def test_a_document_is_read_the_same_for_every_cut(text: str) -> None:
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
def test_the_value_of_an_incomplete_text(text: str, value: Json) -> None:
    """A partial string is included. A name, a number and a literal are included when they are complete."""
    machine = PartialJson()
    machine.feed(text)
    assert machine.value == value
    machine.close()
    assert machine.error is not None
    assert machine.value == value


def test_snapshots_do_not_change() -> None:
    """Snapshots share their finished parts, so the cost depends on the new pieces only."""
    machine = PartialJson()
    machine.feed('{"list": [{"name": "A')
    before = machine.value
    machine.feed('da"}, {"name": "Bo"}], "text": "')
    first: Any = machine.value
    machine.feed("more")
    second: Any = machine.value
    assert before == {"list": [{"name": "A"}]}
    assert second == {"list": [{"name": "Ada"}, {"name": "Bo"}], "text": "more"}
    assert first["list"] is second["list"]


def test_feed_returns_whether_the_value_grew() -> None:
    machine = PartialJson()
    fed = [machine.feed(piece) for piece in [" ", "{", ' "na', 'me"', ":", ' "', "A", "", '"', ",", '"n": 1', "}"]]
    assert fed == [False, True, False, False, False, True, True, False, False, False, False, True]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{a: 1}", "expected a name in double quotes, at character 1"),
        ("[1,]", "expected a value, at character 3"),
        ('{"a": 1,}', "expected a name in double quotes, at character 8"),
        ('{"a" 1}', "expected a colon, at character 5"),
        ("[1 2]", "expected a comma or the end, at character 3"),
        ("[1}", "expected a comma or the end, at character 2"),
        ("[truth]", "'truth' is neither a number nor true, false or null, at character 6"),
        ("[01]", "'01' is neither a number nor true, false or null, at character 3"),
        ("[NaN]", "expected a value, at character 1"),
        ('["a\nb"]', "a string has a control character, at character 3"),
        (r'["\x"]', "invalid escape \\x, at character 3"),
        (r'["\u00g0"]', "expected four hexadecimal digits, at character 6"),
        ("{} {}", "the value is followed by text, at character 3"),
        ("", "the text has no JSON, at character 0"),
        ("[1", "the text ends before the end of the value, at character 2"),
        ("Sure!", "expected a value, at character 0"),
    ],
)
def test_the_error_of_text_that_is_no_json_has_its_place(text: str, error: str) -> None:
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


def test_other_openings_are_skipped_and_a_started_value_is_kept() -> None:
    assert values_of(['See [1]. {"a": [1]}'], PartialJson(embedded=True, opening="{"))[-1] == {"a": [1]}
    machine = PartialJson(embedded=True)
    machine.feed('{"a": "x", oops} {"b": 1}')
    assert machine.value == {"a": "x"}
    assert machine.error is not None


@settings(max_examples=100, deadline=None)
@given(st.text('{}[]",:\\u0123eE.-tfn \n`x', max_size=30))
def test_the_strict_machine_accepts_the_same_texts_as_json_loads(text: str) -> None:
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
def test_a_value_within_other_text_is_found_for_every_cut(text: str) -> None:
    for cut in range(len(text) + 1):
        assert values_of([text[:cut], text[cut:]], PartialJson(embedded=True))[-1] == {"a": [1, 2]}
    assert values_of(list(text), PartialJson(embedded=True))[-1] == {"a": [1, 2]}


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


def test_a_repair_leaves_out_a_number_that_can_lack_digits() -> None:
    assert repair('{"a": 1, "b": 23', cut_off=True) == {"a": 1}
    assert repair('{"a": 1, "b": 23}', cut_off=True) == {"a": 1, "b": 23}
    for text in ("", "I can't do that.", "{a: 1}", "[truth]", '{"a": tru'):
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
