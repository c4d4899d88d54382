"""Adapters for chats in tests. A models.yaml names such an adapter, for example as `tests.cli.adapters:Parrot`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import msgspec

from callboard.adapters import AttemptObserver, CanonicalRequest, InvalidRequestError, ServerError, ToolResultBlock
from callboard.adapters.embeddings import EmbeddingCapabilities, EmbeddingRequest, EmbeddingResponse
from callboard.adapters.requests.settings import dropped
from callboard.bus.errors import ConfigurationError
from tests.support.scripted import Say, ScriptedAdapter

from .faulty_day import HOSTILE


class Parrot(ScriptedAdapter):
    """Replies with the number of messages in the request and the text of the last message."""

    def say(self, request: CanonicalRequest) -> Say:
        return Say(f"{self.name} heard {len(request.messages)} messages, ", f"last: {request.messages[-1].text}")


class Endless(ScriptedAdapter):
    """Stops in the middle of a story, and answers every other request with the history."""

    def say(self, request: CanonicalRequest) -> Say:
        if request.messages[-1].text != "Tell me a story.":
            history = " / ".join(message.text for message in request.messages[:-1])
            return Say("And before that: ", history)
        return Say("Once upon a time", " there was", pause=_stop_after(1))


class Broken(ScriptedAdapter):
    """Fails every call."""

    def say(self, request: CanonicalRequest) -> Say:
        return Say(fails=ServerError("the provider\nis on fire", retryable=False))


class Misplaced(ScriptedAdapter):
    """Raises ConfigurationError when it starts."""

    async def initialize(self) -> None:
        raise ConfigurationError("misplaced: there is no such file")


class Rude(ScriptedAdapter):
    """Replies with control characters that would steer a terminal."""

    def say(self, request: CanonicalRequest) -> Say:
        return Say("a\x1b[2Jb\x07c", "\x9b31md")


class Obedient(ScriptedAdapter):
    """Does what the last message says: `say TEXT`, `call TOOL JSON`, or `what` for a description of the
    request.
    """

    def say(self, request: CanonicalRequest) -> Say:
        last = request.messages[-1]
        results = [block.text for block in last.content if isinstance(block, ToolResultBlock)]
        verb, _, rest = last.text.partition(" ")
        match verb:
            case _ if results:
                return Say("The tool says ", *results)
            case "say":
                return Say(*rest.splitlines(keepends=True))
            case "call":
                name, _, arguments = rest.partition(" ")
                return Say("Let me see.", calls=[(name, msgspec.json.decode(arguments or "{}"))])
            case _:
                kinds = " ".join(type(block).__name__ for block in last.content)
                tools = " ".join(tool.name for tool in request.tools)
                return Say(f"{kinds}|{request.system_prompt}|{request.temperature}|{tools}")


class Hostile(ScriptedAdapter):
    """Fails every call. Its error messages contain control characters and markup."""

    def say(self, request: CanonicalRequest) -> Say:
        return Say(fails=ServerError(HOSTILE, retryable=False))

    async def embed(
        self, request: EmbeddingRequest, *, on_attempt: AttemptObserver | None = None
    ) -> EmbeddingResponse:
        raise InvalidRequestError(HOSTILE)


def _stop_after(steps: int) -> Callable[[], Awaitable[object]]:
    taken = 0

    async def pause() -> None:
        nonlocal taken
        if taken >= steps:
            await anyio.sleep_forever()
        taken += 1

    return pause


class PoorEmbedder(ScriptedAdapter):
    """Accepts one text for each call, and refuses the text "bad"."""

    async def embed(
        self, request: EmbeddingRequest, *, on_attempt: AttemptObserver | None = None
    ) -> EmbeddingResponse:
        if request.inputs == ("bad",):
            raise InvalidRequestError("I don't like it")
        return await super().embed(request, on_attempt=on_attempt)

    def get_embedding_capabilities(self, model: str) -> EmbeddingCapabilities:
        return EmbeddingCapabilities(max_inputs=1)


class PlainEmbedder(ScriptedAdapter):
    """Embeds every text, and warns that it drops `input_type`."""

    async def embed(
        self, request: EmbeddingRequest, *, on_attempt: AttemptObserver | None = None
    ) -> EmbeddingResponse:
        done = await super().embed(request, on_attempt=on_attempt)
        return msgspec.structs.replace(done, warnings=(dropped("input_type", self.name, "it has none"),))
