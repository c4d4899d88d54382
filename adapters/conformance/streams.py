"""The invariants of a stream, and sections 5.1 to 5.3 and 5.5: the form of a streamed reply."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence

import anyio
import msgspec

from callboard.bus.errors import AdapterError
from callboard.bus.streams.events import (
    MessageComplete,
    MessageStart,
    ProviderBlock,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import ended_well
from callboard.bus.values.usage import StopReason, TokenUsage

from .checks import (
    calling,
    check,
    content_in_short,
    expected_in_short,
    first_event,
    in_short,
    longest,
    over_http,
    read_events,
    read_stream,
    replies,
    require,
    streaming,
    with_one_id,
)
from .http_kit import HttpKit, arguments, halves, pieces
from .kit import CALLS, STOPS, Kit, NotShown, Says

# --- Invariants of a stream ---


def check_stream(events: Sequence[StreamEvent]) -> MessageComplete:
    """Check every invariant of a stream.

    Returns:
        The last event.

    Raises:
        AssertionError: An invariant is broken.
    """
    last = check_order(events)
    check_indexes(events)
    check_blocks(events)
    check_usage(last.usage)
    return last


def check_order(events: Sequence[StreamEvent]) -> MessageComplete:
    """Check that `message.start` is first and `message.complete` last, that each occurs once, and that all events
    have the same id.
    """
    require(events, "the stream has no events")
    first, *middle, _ = events
    require(isinstance(first, MessageStart), f"the first event is not message.start: {first!r}")
    last = _last_of(events)
    again = [event for event in middle if isinstance(event, MessageStart | MessageComplete)]
    require(not again, f"a message must start and end once, but between its start and its end is {again}")
    ids = {event.message_id for event in events}
    require(len(ids) == 1, f"a message must have one id, but the ids are {sorted(ids)}")
    return last


def check_indexes(events: Sequence[StreamEvent]) -> None:
    """Check that indexes never decrease, and that each index is of a block in the final content."""
    last = _last_of(events)
    indexes = [index for event in events if (index := _index(event)) is not None]
    require(indexes == sorted(indexes), f"content_block_index decreases: {indexes}")
    size = len(last.final_content)
    wrong = [index for index in indexes if not 0 <= index < size]
    require(not wrong, f"content_block_index {wrong} has no block: the final content has {size}")


def check_blocks(events: Sequence[StreamEvent]) -> None:
    """Check that the events of each block add up to the block."""
    last = _last_of(events)
    inner = [event for event in events if _index(event) is not None]
    blocks = {index: list(block) for index, block in itertools.groupby(inner, _index)}
    for index, content in enumerate(last.final_content):
        try:
            _check_block(blocks.get(index, []), content, well=ended_well(last.stop_reason))
        except AssertionError as error:
            raise AssertionError(f"block {index} ({type(content).__name__}): {error}") from None
    ids = [block.id for block in last.final_content if isinstance(block, ToolUseBlock)]
    require(len(ids) == len(set(ids)), f"each tool call must have its own id, but the ids are {ids}")


def check_usage(usage: TokenUsage) -> None:
    """Check that no count is negative, and that no part exceeds its total."""
    counts = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_input_tokens,
        usage.cache_creation_1h_input_tokens,
    )
    require(min(counts) >= 0, f"a count is negative: {usage}")
    within = usage.cache_creation_1h_input_tokens <= usage.cache_creation_input_tokens
    require(within, f"the writes for an hour are part of all cache writes: {usage}")
    if usage.reasoning_tokens is not None:
        within = 0 <= usage.reasoning_tokens <= usage.output_tokens
        require(within, f"reasoning tokens are part of the output: {usage}")


def _last_of(events: Sequence[StreamEvent]) -> MessageComplete:
    last = events[-1]
    if not isinstance(last, MessageComplete):
        raise AssertionError(f"the last event is not message.complete: {last!r}")
    return last


def _index(event: StreamEvent) -> int | None:
    return None if isinstance(event, MessageStart | MessageComplete) else event.content_block_index


def _check_block(events: Sequence[StreamEvent], content: ContentBlock, *, well: bool) -> None:
    match content:
        case TextBlock():
            texts = [event.text for event in events if isinstance(event, TextDelta)]
            require(len(texts) == len(events), f"text must have only text.delta, but the events are {events}")
            require(texts and all(texts), f"text must have deltas with text, but the texts are {texts}")
            _same_text("its deltas", "".join(texts), content.text)
        case ThinkingBlock():
            deltas = [event for event in events if isinstance(event, ThinkingDelta)]
            require(
                len(deltas) == len(events), f"thinking must have only thinking.delta, but the events are {events}"
            )
            all_filled = all(delta.text or delta.signature is not None for delta in deltas)
            require(all_filled, f"each delta must have text or the signature: {deltas}")
            early = [delta for delta in deltas[:-1] if delta.signature is not None]
            require(not early, f"only the last delta may be signed, but there is {early}")
            _same_text("its deltas", "".join(delta.text for delta in deltas), content.text)
            signature = deltas[-1].signature if deltas else None
            require(signature == content.signature, f"signed {signature!r}, kept as {content.signature!r}")
        case ToolUseBlock():
            _check_tool(events, content, well=well)
        case OpaqueBlock() | RedactedThinkingBlock():
            match list(events):
                case [ProviderBlock(raw=raw)] if content.provider_raw is not None:
                    require(raw == content.provider_raw.data, f"{raw!r} is not {content.provider_raw.data!r}")
                case _:
                    raise AssertionError(
                        f"a block outside the catalogue must be one event, but the events are {events}"
                    )
        case ImageBlock():
            shown = len(events) == 1 and isinstance(events[0], ProviderBlock)
            require(shown, f"an image must be one provider event, but the events are {events}")
        case _:
            raise AssertionError(f"a model can't return {content!r}")


def _check_tool(events: Sequence[StreamEvent], content: ToolUseBlock, *, well: bool) -> None:
    match list(events):
        case [ToolUseStart() as start, *middle, ToolUseEnd() as end]:
            pass
        case _:
            raise AssertionError(
                f"a call must be start, fragments and end, but the events are {[event.type for event in events]}"
            )
    deltas = [event for event in middle if isinstance(event, ToolUseInputDelta)]
    require(len(deltas) == len(middle), f"between start and end of a call is {middle}")
    fragments = [delta.partial_json for delta in deltas]
    require(all(fragments), f"a fragment must not be empty: {fragments}")
    ids = {start.tool_use_id, end.tool_use_id, *(delta.tool_use_id for delta in deltas)}
    require(ids == {content.id}, f"the ids of its events are {sorted(ids)}, its own is {content.id}")
    require(start.tool_name == content.name, f"started as {start.tool_name!r}, ended as {content.name!r}")
    require(isinstance(end.final_input, dict), f"final_input is not an object: {end.final_input!r}")
    require(end.final_input == content.input, f"ended with {end.final_input}, kept as {content.input}")
    msgspec.json.encode(end.final_input)  # the input must be JSON, to be sent back
    if well:
        agree = end.incomplete == content.incomplete
        require(agree, f"incomplete is {end.incomplete} at its end and {content.incomplete} in the final content")
    else:
        require(content.incomplete, "the reply was cut off, but one of its calls is not marked as incomplete")
    if content.raw_arguments is not None:
        _same_text("its fragments", "".join(fragments), content.raw_arguments)
        require(content.incomplete, "invalid arguments must make the call incomplete")
        require(content.input == {}, f"invalid arguments became {content.input}")


def _same_text(what: str, found: str, expected: str) -> None:
    require(found == expected, f"{what} add up to {found!r} instead of {expected!r}")


# --- Checks ---

STREAMING = "Streaming adapter implemented and tested"
MESSAGES = "Message conversion (both directions) implemented and tested"


async def each_stream(kit: Kit) -> list[tuple[Says, list[StreamEvent]]]:
    outcome = []
    for scene in await replies(kit):
        async with kit.stage(scene) as at:
            outcome.append((scene, await read_events(at)))
    return outcome


@check("5.3", STREAMING)
async def a_message_starts_first_and_completes_last(kit: Kit) -> None:
    """`message.start` comes first and `message.complete` last, each exactly once."""
    for _, events in await each_stream(kit):
        check_order(events)


@check("5.3", STREAMING)
async def blocks_come_one_after_another(kit: Kit) -> None:
    """`content_block_index` never decreases, and each index belongs to a block of the final content."""
    for _, events in await each_stream(kit):
        check_indexes(events)


@check("5.3", STREAMING)
async def deltas_add_up_to_the_final_content(kit: Kit) -> None:
    """The deltas of a block add up to its content. A tool call has one start, fragments, and one end.

    The end of a tool call has an object as its input.
    """
    for scene, events in await each_stream(kit):
        last = check_order(events)
        check_blocks(events)
        found, expected = content_in_short(last.final_content), expected_in_short(scene)
        require(found == expected, f"of {expected} came {found}")


@check("5.3", STREAMING)
async def the_message_has_the_requested_id(kit: Kit) -> None:
    """All events have the request's `message_id`. Without one, they share a new id."""
    async with kit.stage(Says("Hi."), Says("Hi.")) as at:
        events = await read_events(at, at.request(message_id="msg_mine"))
        made = await read_events(at, at.request(message_id=""))
    require({event.message_id for event in events} == {"msg_mine"}, "message_id of the request was not used")
    ids = {event.message_id for event in made}
    require(len(ids) == 1 and ids != {""}, f"the made up id is {ids}")


@check("3.1", STREAMING)
async def stream_is_iterated_without_await(kit: Kit) -> None:
    """`async for event in adapter.stream(request)` works without await. Nothing is sent before the first read."""
    async with kit.stage(Says("Hi.")) as at:
        stream = at.adapter.stream(at.request())
        if inspect.iscoroutine(stream):
            stream.close()
        require(hasattr(stream, "__anext__"), f"stream() gives {type(stream).__name__}, which is no iterator")
        await anyio.sleep(kit.moment)
        require(at.asked() == 0, "the request was sent before anybody asked for an event")
        require(hasattr(stream, "aclose"), "a stream has aclose()")
        async with stream:
            await first_event(stream)


@check("10", MESSAGES)
async def stream_and_complete_agree(kit: Kit) -> None:
    """A streamed and a whole reply have the same content, stop reason, usage and model."""
    for scene in await replies(kit):
        async with kit.stage(msgspec.structs.replace(scene, streamed=False), scene) as at:
            plain = await at.adapter.complete(at.request())
            stream = at.adapter.stream(at.request())
            last = check_stream([event async for event in stream])
            response = stream.response
        if response is None:
            raise AssertionError("a stream that ended well has its response")
        require(in_short(plain) == in_short(response), f"whole {in_short(plain)}, streamed {in_short(response)}")
        found, expected = content_in_short(plain.content), expected_in_short(scene)
        require(found == expected, f"of {expected} came {found}")
        require(response.content == last.final_content, "the response is not what message.complete says")
        require(plain.stop_reason is STOPS[scene.stop], f"{scene.stop!r} became {plain.stop_reason!r}")
        counts = {each.total_tokens for each in (plain.usage, last.usage, response.usage)}
        require(len(counts) == 1, f"total tokens differ: {sorted(counts)}")
        for each in (plain, response):
            require(each.provider == kit.name, f"provider is {each.provider!r}")
            require(each.model.startswith(f"{kit.name}:"), f"model {each.model!r} lacks its provider's prefix")
            require(each.request_id == "req_1", f"request_id is {each.request_id!r}")


@check("5.3", STREAMING)
async def events_do_not_depend_on_chunk_boundaries(kit: Kit) -> None:
    """The events do not depend on how the network splits the body: byte by byte, anywhere, or not at all."""
    wire, scene = over_http(kit), await longest(kit)
    streaming(kit)
    body = b"".join(wire.chunks(scene.text, scene.calls, scene.stop))
    reference = await _of_pieces(wire, [body])
    sizes = [[body[at : at + size] for at in range(0, len(body), size)] for size in (1, 2, 3, 17, 64)]
    cuts = [pieces(body, [place]) for place in range(1, len(body), 11)]
    for cut in (*sizes, *cuts):
        events = await _of_pieces(wire, cut)
        shown = f"cut after {[len(piece) for piece in cut][:3]} bytes the events are {events}"
        require(events == reference, f"{shown}, whole they are {reference}")


async def _of_pieces(wire: HttpKit, cut: Sequence[bytes]) -> list[bytes]:
    async with wire.stage_of(wire.stream_of(*cut)) as at:
        return with_one_id(await read_events(at))


@check("5.5", STREAMING)
async def json_fragments_are_passed_on_unchanged(kit: Kit) -> None:
    """`partial_json` is the provider's fragment, byte for byte, and never a parsed object."""
    scene = await longest(kit)
    async with kit.stage(scene) as at:
        calling(at)
        whole_calls = not (kit.streams and at.capabilities.supports_streaming_tool_calls)
        events = await read_events(at)
    calls: dict[str, list[str]] = {}
    for event in events:
        if isinstance(event, ToolUseInputDelta):
            require(isinstance(event.partial_json, str), f"partial_json is {event.partial_json!r}")
            calls.setdefault(event.tool_use_id, []).append(event.partial_json)
    for number, fragments in enumerate(calls.values()):
        if whole_calls:
            joined = msgspec.json.decode("".join(fragments))
            require(joined == CALLS[number][1], f"the call's arguments are {joined}")
        else:
            sent = list(halves(arguments(number)))
            require(fragments == sent, f"the provider sent {sent}, and the fragments are {fragments}")
    require(len(calls) == scene.calls, f"{len(calls)} of {scene.calls} calls have fragments")


@check("5.2", STREAMING)
async def text_is_delivered_as_it_arrives(kit: Kit) -> None:
    """A delta is delivered before the provider sends its next piece."""
    streaming(kit)
    async with kit.stage(Says("Hello, ☃!", pause=2 * kit.moment)) as at:
        stream = at.adapter.stream(at.request())
        times = [anyio.current_time() async for event in stream if isinstance(event, TextDelta)]
    require(len(times) >= 2, f"the text came in {len(times)} pieces of 2")
    require(times[1] - times[0] >= kit.moment, "the first piece was held back until the second had come")


@check("5.3", STREAMING)
async def unknown_events_are_tolerated(kit: Kit) -> None:
    """An event of an unknown kind is ignored at any place in the stream."""
    wire, scene = over_http(kit), Says("Hello, ☃!")
    streaming(kit)
    unknown = wire.unknown_event()
    if unknown is None:
        raise NotShown("the kit shows no unknown event (unknown_event)")
    chunks = wire.chunks(scene.text)
    for place in range(len(chunks)):
        mixed = [*chunks[:place], wire.write_event(*unknown), *chunks[place:]]
        async with wire.stage_of(wire.stream_of(*mixed)) as at:
            last = check_stream(await read_events(at))
        texts = [text for text in content_in_short(last.final_content) if isinstance(text, str) and "☃" in text]
        require(texts == [scene.text], f"with one before event {place} the reply is {last.final_content}")
        require(last.stop_reason is StopReason.END_TURN, f"the stop reason became {last.stop_reason!r}")


@check("5.3", STREAMING)
async def a_truncated_stream_is_an_error(kit: Kit) -> None:
    """A body cut at any place delivers the content so far, then raises AdapterError.

    The stream never hangs, and the reply is never reported as complete.
    """
    wire, scene = over_http(kit), await longest(kit)
    streaming(kit)
    body = b"".join(wire.chunks(scene.text, scene.calls, scene.stop))
    failed = 0
    for end in range(0, len(body), 13):
        async with wire.stage_of(wire.stream_of(body[:end]), max_retries=0) as at:
            outcome = await read_stream(at)
            await at.must_release("the connection was not closed")
        last = check_stream(outcome.events) if outcome.events else None
        if outcome.error is None:
            is_complete = last is not None and content_in_short(last.final_content) == expected_in_short(scene)
            require(is_complete, f"cut after {end} of {len(body)} bytes it passes for a whole reply")
        else:
            failed += 1
            says_so = last is None or last.stop_reason is StopReason.ERROR
            require(says_so, f"cut after {end} bytes it ends with {last}")
    require(failed, "it never failed, wherever it was cut")


@check("6.5", STREAMING)
async def an_error_in_a_stream_keeps_the_content_before_it(kit: Kit) -> None:
    """If the provider fails in mid-stream, the deltas are kept, and `message.complete(error)` comes next.

    Then the exception is raised.
    """
    streaming(kit)
    scene = await longest(kit)
    for then in ("error", "break"):
        for after in range(kit.pieces(scene)):
            async with kit.stage(msgspec.structs.replace(scene, after=after, then=then), max_retries=0) as at:
                outcome = await read_stream(at)
                await at.must_release("the connection was not closed")
            _ended_in_error(outcome.events, outcome.error, f"{then} after {after} pieces")


def _ended_in_error(events: list[StreamEvent], error: AdapterError | None, when: str) -> None:
    if error is None:
        # the protocol may have ended before its last piece
        well = bool(events) and check_stream(events).stop_reason is not StopReason.ERROR
        require(well, f"{when}: nothing was raised, and the events are {events}")
        return
    if events:
        last = check_stream(events)
        require(last.stop_reason is StopReason.ERROR, f"{when}: it ends with {last.stop_reason!r}")
        require(error.content == last.final_content, f"{when}: the error's content is {error.content}")
        require(error.usage is not None, f"{when}: the error has no usage")


@check("4", MESSAGES)
async def reasoning_is_separate_from_text(kit: Kit) -> None:
    """Reasoning arrives as thinking events or blocks, never as text, whether streamed or not."""
    scene = Says("So.", thought="Let me see.")
    async with kit.stage(msgspec.structs.replace(scene, streamed=False), scene) as at:
        plain = await at.adapter.complete(at.request())
        last = check_stream(await read_events(at))
    for content in (plain.content, last.final_content):
        thoughts = [block.text for block in content if isinstance(block, ThinkingBlock)]
        require("".join(thoughts) == "Let me see.", f"the reasoning is {thoughts}")
        require("So." in content_in_short(content), f"the text is not in {content}")


@check("7", MESSAGES)
async def usage_is_the_providers_count(kit: Kit) -> None:
    """Usage has disjoint counts, the same whether streamed or not.

    If the provider reports no usage, the counts are an estimate.
    """
    async with kit.stage(Says("Hello, ☃!", streamed=False), Says("Hello, ☃!")) as at:
        plain = (await at.adapter.complete(at.request())).usage
        streamed = check_stream(await read_events(at)).usage
    for usage in (plain, streamed):
        check_usage(usage)
        if kit.usage is None:
            require(str(usage.source) == "estimated", f"usage without a report is {usage.source!r}")
            require(usage.input_tokens > 0 and usage.output_tokens > 0, f"the estimate is {usage}")
        else:
            for count in ("input_tokens", "output_tokens", "cached_input_tokens", "cache_creation_input_tokens"):
                found, expected = getattr(usage, count), getattr(kit.usage, count)
                require(found == expected, f"{count} is {found}, and the provider reported {expected}")
            require(usage.source == kit.usage.source, f"the source is {usage.source!r}")
