"""`stream_object`: an object as it grows, its end, and going away from it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import anyio
import pytest

from callboard.adapters import AdapterCapabilities, NetworkError, StopReason
from callboard.bus import CancelledError, Json
from callboard.engine import NoObjectGeneratedError, ObjectStream
from callboard.engine.middleware import Cache
from tests.support.scripted import CAPABILITIES, Say

from .object_engines import ADA, NO_SCHEMA, ONLY_WORDS, PERSON, Person, ended, running
from .test_partial_json import is_prefix

pytestmark = pytest.mark.anyio

TEXT = '{"name": "Ada L.", "age": 36, "tags": ["a", "b"]}'
WHOLE = Person("Ada L.", 36, "", ["a", "b"])


async def slowly() -> None:
    """Before each piece, so that it comes alone."""
    await anyio.sleep(0.1)


async def read_into(partials: list[Json], stream: ObjectStream[Any]) -> None:
    """Keep what was read before it failed."""
    async for partial in stream:
        partials.append(partial)  # noqa: PERF401 (a comprehension would lose them)


async def test_an_object_grows_and_is_whole_and_typed_at_the_end() -> None:
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


@pytest.mark.parametrize("cut", range(len(TEXT) + 1))
async def test_wherever_the_text_is_cut_the_end_is_the_same(cut: int) -> None:
    async with running(Say(*filter(None, (TEXT[:cut], TEXT[cut:])), pause=slowly)) as (engine, _):
        async with engine.stream_object("s:m", "Who?", schema=Person) as stream:
            partials = [partial async for partial in stream]
            assert await stream.object() == WHOLE
    assert partials[-1] == json.loads(TEXT)


THOUGHTFUL = f'<think>{{"name": "Draft"}} or {{</think>\n{TEXT}'
OPEN = f"Perhaps a name?\n</think>\n```json\n{TEXT}\n```"


@pytest.mark.parametrize("text", [THOUGHTFUL, OPEN], ids=["tagged", "open"])
@pytest.mark.parametrize("size", [1, 2, 5, 7, 1000])
async def test_an_object_within_reasoning_is_no_part_of_the_answer(text: str, size: int) -> None:
    """Only what comes after the last mark of the reasoning grows, and is the object."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    async with running(Say(*pieces, pause=slowly)) as (engine, _):
        async with engine.stream_object("s:m", "Who?", schema=Person) as stream:
            partials = [partial async for partial in stream]
            assert await stream.object() == WHOLE
    assert partials[-1] == json.loads(TEXT)
    assert all(is_prefix(before, after) for before, after in pairwise(partials))


async def test_a_mark_of_reasoning_within_a_string_is_the_strings() -> None:
    """An object may speak of reasoning."""
    said = json.dumps({"name": "<think> and </think>", "age": 1})
    async with running(Say(*said, pause=slowly)) as (engine, _):
        async with engine.stream_object("s:m", "Who?", schema=Person) as stream:
            partials = [partial async for partial in stream]
            assert (await stream.object()).name == "<think> and </think>"
    assert partials[-1] == json.loads(said)


async def test_deltas_that_came_together_make_one_partial() -> None:
    """A reader that is slow is spared what it would only skip."""
    async with running(Say(*TEXT)) as (engine, _):
        async with engine.stream_object("s:m", "Who?", schema=Person) as stream:
            await stream.object()
            partials = [partial async for partial in stream]
    assert partials == [json.loads(TEXT)]


async def test_a_value_that_is_no_object_grows_without_what_is_around_it() -> None:
    async with running(Say(*'{"value": [1, 2, "x"]}', pause=slowly)) as (engine, _):
        async with engine.stream_object("s:m", "Which?", schema=list[int | str]) as stream:
            partials = [partial async for partial in stream]
            assert await stream.object() == [1, 2, "x"]
    assert partials == [[], [1], [1, 2], [1, 2, ""], [1, 2, "x"]]


async def test_the_arguments_of_a_forced_call_grow_like_text() -> None:
    reply = Say("Well, ", calls=[("answer", {"name": "Ada", "age": 36})])
    async with running(reply, can=NO_SCHEMA) as (engine, _):
        async with engine.stream_object("s:m", "Who?", schema=PERSON) as stream:
            partials = [partial async for partial in stream]
            assert await stream.object() == {"name": "Ada", "age": 36}
            late = [partial async for partial in stream]
    assert partials[-1] == {"name": "Ada", "age": 36}
    assert late == partials[-1:]


async def test_a_value_in_a_code_fence_grows_like_one_without() -> None:
    async with running(
        Say("```json\n", '{"name": "A', 'da", "age": 36}', "\n```", pause=slowly), can=ONLY_WORDS
    ) as (
        engine,
        _,
    ):
        async with engine.stream_object("s:m", "Who?", schema=PERSON) as stream:
            partials = [partial async for partial in stream]
    assert partials == [{"name": "A"}, {"name": "Ada", "age": 36}]


async def test_the_text_may_be_read_beside_the_partials() -> None:
    partials: list[Json] = []
    texts: list[str] = []
    async with running(Say(*TEXT, pause=slowly)) as (engine, _):
        async with engine.stream_object("s:m", "Who?", schema=Person) as stream:

            async def read_partials() -> None:
                await read_into(partials, stream)

            async def read_text() -> None:
                texts.extend([piece async for piece in stream.text_stream])

            async with anyio.create_task_group() as group:
                group.start_soon(read_partials)
                group.start_soon(read_text)
    assert "".join(texts) == TEXT
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


async def test_partials_begin_anew_when_the_model_is_asked_again() -> None:
    replies = [
        Say('{"name": "Ada", ', '"age": "x"}', pause=slowly),
        Say('{"name": "Ada"', ', "age": 36}', pause=slowly),
    ]
    async with running(*replies) as (engine, asked):
        async with engine.stream_object("s:m", "Who?", schema=Person, max_reasks=1) as stream:
            partials = [partial async for partial in stream]
            result = await stream.result()
    assert partials == [
        {"name": "Ada"},
        {"name": "Ada", "age": "x"},
        {"name": "Ada"},
        {"name": "Ada", "age": 36},
    ]
    assert (len(asked), len(result.steps), result.total_usage.input_tokens) == (2, 2, 20)


async def test_several_readers_share_what_is_asked_again() -> None:
    async with running(Say("no"), Say("no"), Say(ADA)) as (engine, asked):
        async with engine.stream_object("s:m", "Who?", schema=Person, max_reasks=2) as stream:
            found: list[Person] = []

            async def wait() -> None:
                found.append(await stream.object())

            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(wait)
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


async def test_a_cancelled_stream_says_so_to_its_readers() -> None:
    async with running(Say(*TEXT, pause=slowly)) as (engine, _):
        async with engine.stream_object("s:m", "Who?", schema=Person, max_reasks=1) as stream:
            with pytest.raises(CancelledError):
                async for _ in stream:
                    await stream.cancel()
            assert not await stream.cancel()


async def test_a_call_that_breaks_off_raises_after_its_partials() -> None:
    async with running(Say('{"name": "Ad', fails=NetworkError("gone"))) as (engine, _):
        async with engine.stream_object("s:m", "Who?", schema=Person) as stream:
            partials: list[Json] = []
            with pytest.raises(NetworkError):
                await read_into(partials, stream)
    assert partials == [{"name": "Ad"}]


async def test_the_call_begins_when_something_is_asked_for() -> None:
    async with running(Say(ADA)) as (engine, asked):
        stream = engine.stream_object("s:m", "Who?", schema=Person)
        assert asked == []
        assert await stream.object() == Person("Ada", 36)
        assert [partial async for partial in stream] == [json.loads(ADA)]


@pytest.mark.parametrize("can", [CAPABILITIES, NO_SCHEMA], ids=["native", "forced"])
async def test_an_object_from_a_cache_grows_at_once(can: AdapterCapabilities) -> None:
    """Also one that came as a forced call: above the call it is text, as ever."""
    said = Say(ADA) if can is CAPABILITIES else Say(calls=[("answer", {"name": "Ada", "age": 36})])
    async with running(said, can=can, middleware=[Cache()]) as (engine, asked):
        first = await engine.generate_object("s:m", "Who?", schema=Person)
        second = await engine.generate_object("s:m", "Who?", schema=Person)
        async with engine.stream_object("s:m", "Who?", schema=Person) as stream:
            partials = [partial async for partial in stream]
            assert await stream.object() == first.output == second.output == Person("Ada", 36)
    assert partials == [json.loads(ADA)]
    assert len(asked) == 1
