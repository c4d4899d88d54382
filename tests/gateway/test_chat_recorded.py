"""Recorded traffic of Chat's servers through the gateway's reader and writer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from callboard.adapters import CanonicalResponse
from callboard.adapters.providers.openai_compatible.quirks import QUIRKS, choose_quirks
from callboard.adapters.providers.openai_compatible.response import ChatNormaliser, read_whole
from callboard.adapters.providers.openai_compatible.wire import decode_reply
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ContentBlock, ThinkingBlock
from callboard.bus.values.usage import StopReason, TokenUsage
from callboard.engine.gateway.chat_replies import WIRE
from tests.support.depth import each_nth_is_quick

from ..support.recordings import FOLDER, needs_recordings
from .chat_kit import INFO, Reply, adapters_body, in_general, new_assembler, read_body, read_stream, response_of

pytestmark = needs_recordings


def cases() -> list[dict[str, Any]]:
    path = FOLDER / "openai_chat.jsonl"
    if not path.is_file():
        return []
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


CASES = cases()
ALLOWED = {
    ".stream": "the adapter adds it to streamed requests only",
    ".stream_options": "the adapter always asks for usage", ".n": "one choice is the default",
    ".max_tokens": "the adapter has one name of the limit for each server",
    ".max_completion_tokens": "the adapter has one name of the limit for each server",
    ".stop": "the adapter omits it for a model that refuses it while it reasons",
    ".model": "the part before a colon is the provider", ".tools": "no tools are like an empty list",
    ".tools[].type": "Mistral's clients omit it",
    ".tools[].function.strict": "the adapter states strictness where the server has it, and only there",
    ".tools[].function.parameters.$defs.Answer.required[]": "strict mode requires all properties, in order",
    ".tools[].function.parameters.required[]": "strict mode requires all properties, in order",
    ".response_format.json_schema.strict": "the adapter states strictness where the server has it, and only there",
    ".response_format.json_schema.schema.additionalProperties": "strict mode requires it",
    ".response_format.json_schema.schema.title": "the name of the format is the title of its schema",
    ".reasoning_effort": "Z.ai has no efforts, only reasoning on and off",
    ".reasoning.effort": "an enabled reasoning has the middle effort",
    ".thinking.type": "an enabled reasoning has the middle effort",
    ".tool_choice.type": "the adapter always states it", ".messages": "system messages are one, at the start",
    ".messages[].content": "the adapter joins texts of one message", ".messages[].prefix": "false is the default",
    ".messages[].name": "Mistral's results have the tool's name",
    ".messages[].tool_calls": "no calls are like an empty list",
    ".messages[].tool_calls[].index": "the place in the list says it",
    ".messages[].tool_calls[].function.arguments": "the adapter writes the same arguments without blanks",
}  # fmt: skip
"""Differences between a recorded request and the one that the adapter writes, with the reasons."""


def differences(one: Json, other: Json, path: str = "") -> Iterator[str]:
    """The paths at which two JSON values differ. A null equals a missing field."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in one.keys() | other.keys():
            first, second = one.get(name), other.get(name)
            if first is None or second is None:
                if first is not second:
                    yield f"{path}.{name}"
            else:
                yield from differences(first, second, f"{path}.{name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for first, second in zip(one, other, strict=True):
            yield from differences(first, second, f"{path}[]")
    elif one != other and not _same_text(one, other):
        yield path


def _same_text(one: Json, other: Json) -> bool:
    """Whether parts of a message are the texts that the other form joins."""
    if not isinstance(one, list) or not isinstance(other, str):
        return False
    texts = [part.get("text") for part in one if isinstance(part, dict)]
    return len(texts) == len(one) and other == "\n\n".join(str(text) for text in texts)


@pytest.mark.parametrize("case", each_nth_is_quick(CASES, 5, "each recording"), ids=[case["id"] for case in CASES])
def test_a_recorded_request_is_written_again_as_it_was(case: dict[str, Any]) -> None:
    body = case["request_body"]
    quirks = choose_quirks({}, f"https://{case['provider_host']}")
    client = WIRE.read_request(body, {})
    found = set(differences(body, adapters_body(client.request, quirks)))
    assert found <= ALLOWED.keys()
    assert (client.model, client.stream) == (body["model"], body.get("stream") is True)


def read_recorded(case: Mapping[str, Any]) -> Reply | None:
    """Read the recorded reply with the adapter. None if the recording is no reply."""
    data = case["response_body"].encode()
    assembler = new_assembler()
    if case["response_status"] != 200 or case["oracle"].get("must_not_succeed"):
        return None
    if case["streamed"]:
        normaliser = ChatNormaliser(assembler, QUIRKS["default"])
        events = normaliser.feed(data) + normaliser.close()
        if normaliser.error is not None:
            return None
        return Reply(response_of(assembler), events)
    read_whole(decode_reply(data), data, assembler, QUIRKS["default"])
    return Reply(response_of(assembler), assembler.take())


REPLIES = [(case, reply) for case in CASES if (reply := read_recorded(case)) is not None]


def counts(usage: TokenUsage) -> tuple[object, ...]:
    return (
        usage.input_tokens, usage.output_tokens, usage.cached_input_tokens, usage.cache_creation_input_tokens,
        usage.reasoning_tokens or 0, usage.details,
    )  # fmt: skip


def reasoning_apart(content: Sequence[ContentBlock]) -> tuple[object, ...]:
    """The content of a streamed reply, with the opaque parts of reasoning after the rest."""
    thoughts = [block for block in content if isinstance(block, ThinkingBlock)]
    others = [block for block in content if not isinstance(block, ThinkingBlock)]
    return (
        "".join(thought.text for thought in thoughts),
        [thought.signature for thought in thoughts if thought.signature],
        in_general(others),
    )


def check(read: CanonicalResponse, reply: CanonicalResponse) -> None:
    if reply.stop_reason is not StopReason.PROVIDER_SPECIFIC:
        assert read.stop_reason == reply.stop_reason
    assert counts(read.usage) == counts(reply.usage)


@pytest.mark.parametrize(
    ("case", "reply"),
    each_nth_is_quick(REPLIES, 5, "each recording", rows=True),
    ids=[case["id"] for case, _ in REPLIES],
)
def test_a_recorded_reply_goes_through_the_gateway_unchanged(case: dict[str, Any], reply: Reply) -> None:
    options: JsonObject = {"stream_options": {"include_usage": True}}
    client = WIRE.read_request({**case["request_body"], **options}, {})
    whole = msgspec.json.encode(WIRE.write_reply(client, INFO, reply.response))
    read = read_body(whole)
    assert in_general(read.content) == in_general(reply.response.content)
    check(read, reply.response)
    writer = WIRE.writer(client, INFO)
    pieces = [writer.start(), *map(writer.write, reply.events), writer.finish(reply.response)]
    read = read_stream(pieces)
    assert reasoning_apart(read.content) == reasoning_apart(reply.response.content)
    check(read, reply.response)
