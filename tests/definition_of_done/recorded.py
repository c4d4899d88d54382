"""Recorded replies of the three providers for the public functions. They are not part of this repository.

They are the exchanges of `test_recorded_agreement`. If their folder is unknown, the tests that need them are
skipped. Tests select exchanges by their features, not by their names, so any similar collection works.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from jsonschema import Draft202012Validator

from callboard import AdapterError, Json, JsonObject, Message, Tool, ToolError

from ..support.fake_http import FakeReply
from ..support.recordings import FOLDER, THRESHOLD, fragments, read_cases
from ..support.recordings import needs_recordings as recorded
from ..support.wires.wire import Wire
from .conversations import Call, Conversation, NotPlain, Result, Text, read
from .providers import Asked, asking

__all__ = ["Exchange", "Loop", "exchanges", "loops", "most_agree", "recorded"]

FILES = {"openai": "openai_responses", "anthropic": "anthropic", "gemini": "gemini"}
HISTORY = {"openai": "input", "anthropic": "messages", "gemini": "contents"}

BAD_ENDS = frozenset({"UNEXPECTED_TOOL_CALL"})
"""Stop reasons of recorded replies whose tool calls must not be run."""


class Exchange(NamedTuple):
    """A recorded request and its reply, with the values that a correct reader finds in the reply (`oracle`)."""

    case: dict[str, Any]

    @property
    def asked(self) -> JsonObject:
        return self.case["request_body"]

    @property
    def oracle(self) -> dict[str, Any]:
        return self.case["oracle"]

    @property
    def streamed(self) -> bool:
        return bool(self.case["streamed"])

    @property
    def features(self) -> frozenset[str]:
        """The features of the reply: text, tools, parallel_tools, signature and so on."""
        return frozenset(self.case["features"])

    @property
    def tags(self) -> frozenset[str]:
        """The features of the request: tools, images, structured_output, server_tools and so on."""
        return frozenset(self.case["request_tags"])

    @property
    def ok(self) -> bool:
        return self.case["response_status"] == 200 and not self.oracle.get("must_not_succeed")

    @property
    def paused(self) -> bool:
        """Whether the reply is incomplete, so the engine sends another request."""
        return self.oracle["stop_raw"] == "pause_turn"

    def reply(self) -> FakeReply:
        """The reply, to be sent again. A stream arrives in many pieces."""
        body = self.case["response_body"].encode()
        chunks = fragments(body, "random-1" if self.streamed else "whole")
        return FakeReply(*chunks, status=self.case["response_status"], headers=self.case["response_headers"])


def exchanges(wire: Wire, wanted: Callable[[Exchange], bool] = lambda exchange: exchange.ok) -> list[Exchange]:
    """Return a provider's exchanges of one kind. If there are none, the test is skipped."""
    found = [exchange for exchange in _all(wire.name) if wanted(exchange)]
    if not found:
        pytest.skip(f"no such exchange was recorded with {wire.name}")
    return found


@functools.cache
def _all(provider: str) -> tuple[Exchange, ...]:
    return tuple(Exchange(case) for case in read_cases(FOLDER / f"{FILES[provider]}.jsonl"))


async def most_agree(found: Sequence[Any], check: Callable[[Any], Awaitable[None]]) -> None:
    """Assert that the check passes for the share of exchanges that `test_recorded_agreement` requires."""
    differing: list[str] = []
    for each in found:
        exchange = each.exchanges[0] if isinstance(each, Loop) else each
        try:
            await check(each)
        except (AssertionError, AdapterError) as error:
            differing.append(f"{exchange.case['id']}: {error}")
    assert 100.0 * (len(found) - len(differing)) >= THRESHOLD * len(found), "\n".join(differing)


# -- conversations with tools


async def play(wire: Wire, found: Sequence[Exchange], check: Callable[[Asked, Exchange], Awaitable[None]]) -> None:
    """Run one engine that gets these replies, one for each request. The check must pass for most of the
    exchanges.
    """
    async with asking(wire, *[exchange.reply() for exchange in found]) as at:
        await most_agree(found, functools.partial(check, at))


class Loop(NamedTuple):
    """A recorded conversation with tool calls. Each of its requests continues the one before."""

    provider: str
    exchanges: tuple[Exchange, ...]
    asked: tuple[Conversation, ...]

    @property
    def rounds(self) -> int:
        return len(self.exchanges) - 1

    @property
    def most_calls(self) -> int:
        return max(len(exchange.oracle["tool_calls"]) for exchange in self.exchanges[:-1])

    @property
    def streamed(self) -> bool:
        return all(exchange.streamed for exchange in self.exchanges)

    def messages(self) -> list[Message]:
        """The messages of the first request."""
        return [Message.user(turn.text) for turn in self.asked[0].turns if isinstance(turn, Text)]

    def tools(self) -> list[Tool]:
        """The tools of the conversation. They return the recorded results."""
        answers: dict[str, deque[str | None]] = defaultdict(deque)
        turns = self.asked[-1].turns
        calls = [turn for turn in turns if isinstance(turn, Call)]
        for call, result in zip(calls, [turn for turn in turns if isinstance(turn, Result)], strict=True):
            answers[_key(*call)].append(result.text)

        def answering(name: str) -> Callable[[JsonObject], Any]:
            async def answer(arguments: JsonObject) -> str:
                text = answers[_key(name, arguments)].popleft()
                if text is None:
                    raise ToolError("it failed")
                return text

            return answer

        return [Tool(definition, answering(definition.name)) for definition in self.asked[0].tools]


def _key(name: str, arguments: Json) -> str:
    return f"{name} {json.dumps(arguments, sort_keys=True)}"


def loops(wire: Wire, wanted: Callable[[Loop], bool]) -> list[Loop]:
    """Return the recorded conversations with tools of one kind. If there are none, the test is skipped."""
    found = [loop for loop in _loops(wire.name) if wanted(loop)]
    if not found:
        pytest.skip(f"no such conversation was recorded with {wire.name}")
    return found


@functools.cache
def _loops(provider: str) -> tuple[Loop, ...]:
    return tuple(loop for chain in _chains(provider) for loop in _loop(provider, chain))


def _loop(provider: str, chain: list[Exchange]) -> Iterator[Loop]:
    """Return the chain if its requests only add the model's replies and the results of their calls.

    A chain is left out if its host continued after a reply with a bad stop reason. Callboard runs no calls of such
    a reply.
    """
    if any(exchange.oracle["stop_raw"] in BAD_ENDS for exchange in chain):
        return
    try:
        asked = tuple(read(provider, exchange.asked) for exchange in chain)
    except NotPlain:
        return
    first, *later = asked
    added = [turn for each in later for turn in each.turns[len(first.turns) :]]
    if (
        first.turns
        and all(isinstance(turn, Text) and turn.role == "user" for turn in first.turns)
        and not any(isinstance(turn, Text) and turn.role == "user" for turn in added)
        and all((each.system, each.tools) == (first.system, first.tools) for each in later)
        and (provider != "openai" or all(_fits(turn, first) for turn in added))
    ):
        yield Loop(provider, tuple(chain), asked)


def _fits(turn: object, conversation: Conversation) -> bool:
    """Whether the tool exists and the arguments fit its schema. OpenAI does not mark other results as errors."""
    if not isinstance(turn, Call):
        return True
    schemas = {tool.name: tool.input_schema for tool in conversation.tools}
    return turn.name in schemas and Draft202012Validator(schemas[turn.name]).is_valid(turn.arguments)


def _chains(provider: str) -> Iterator[list[Exchange]]:
    """Chains of exchanges. Each request of a chain repeats the one before and adds to it."""
    groups: dict[object, list[Exchange]] = defaultdict(list)
    for exchange in _all(provider):
        groups[exchange.case["source_file"], exchange.case["test_key"]].append(exchange)
    for group in groups.values():
        chain: list[Exchange] = []
        for exchange in sorted(group, key=lambda each: each.case["exchange_index"]):
            if not exchange.ok:
                continue
            if not (chain and chain[-1].oracle["tool_calls"] and _goes_on(provider, chain[-1], exchange)):
                if len(chain) > 1:
                    yield chain
                chain = []
            chain.append(exchange)
        if len(chain) > 1:
            yield chain


def _goes_on(provider: str, before: Exchange, after: Exchange) -> bool:
    old, new = (each.asked.get(HISTORY[provider]) for each in (before, after))
    old = [{"role": "user", "content": old}] if isinstance(old, str) else old
    return isinstance(new, list) and len(new) > len(old) and new[: len(old)] == old
