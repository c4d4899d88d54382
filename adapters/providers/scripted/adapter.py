"""ScriptedAdapter: a ProviderAdapter that plays a script, over the very machinery of the real ones.

It is an HttpAdapter whose network is a script. So attempts, retries, time limits, cancelling and usage are those
of every other adapter, and a host that is tested against it meets nothing new when a provider takes its place.
"""

from __future__ import annotations

import math
import re
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import anyio.lowlevel

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import (
    AdapterCapabilities,
    AttemptFirstEvent,
    AttemptObserver,
    AttemptStarted,
    CanonicalRequest,
)
from callboard.adapters.embeddings import (
    INPUT_TYPES,
    EmbeddingCapabilities,
    EmbeddingRequest,
    EmbeddingResponse,
    Vector,
)
from callboard.adapters.health import AdapterHealth
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.http.call import HttpCall
from callboard.adapters.http.wire import ChatWire
from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.refusals.required_capabilities import check_demands
from callboard.adapters.replies.assembler import Assembler
from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.errors import ConfigurationError, InvalidRequestError
from callboard.bus.values.usage import TokenUsage

from .playing import ScriptedNormaliser, ScriptedTransport, read_lines
from .replies import ScriptedReply, read_options

REQUESTS_KEPT = 1000

DIMENSIONS = 64

Script: TypeAlias = Sequence[str | ScriptedReply] | Callable[[CanonicalRequest], str | ScriptedReply]


class ScriptedWire(ChatWire):
    """The protocol of the scripted network: a request is its id, a reply is one line of JSON for each step."""

    default_name = "scripted"
    default_base_url = "scripted://"
    capabilities = AdapterCapabilities(
        supports_images=True,
        supports_audio=True,
        supports_documents=True,
        supports_thinking=True,
        supports_tools=True,
        supports_structured_output=True,
        supports_streaming_tool_calls=True,
        supports_parallel_tool_calls=True,
    )

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        check_demands(request, self.capabilities, self.name)
        return WireCall("", request.request_id.encode())

    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
        read_lines(body, assembler)

    def normaliser(self, assembler: Assembler) -> ScriptedNormaliser:
        return ScriptedNormaliser(assembler)

    def auth_headers(self, key: str | None) -> Mapping[str, str]:
        return {}


class ScriptedAdapter(HttpAdapter):
    """Plays one reply for each attempt. An attempt that fails and is repeated takes the next reply.

    `requests` holds the last 1000 requests, one for each attempt.

    Args:
        replies: The replies in order, or a function of the request; None takes those of ``config.options``.
        repeat: Whether the list begins anew after its end. Otherwise a call beyond the replies is an
            InvalidRequestError.
        capabilities: The abilities of the model, by default all. A request for an ability declared false is
            refused.

    Raises:
        ConfigurationError: There is no reply at all.
    """

    wire_type = ScriptedWire

    def __init__(
        self,
        config: AdapterConfig = AdapterConfig(),  # noqa: B008  (it is frozen)
        *,
        name: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        replies: Script | None = None,
        repeat: bool = False,
        capabilities: AdapterCapabilities | None = None,
    ) -> None:
        super().__init__(config, name=name, transport=ScriptedTransport(self._choose), clock=clock)
        options = read_options(config.options, self.name)
        self.requests: deque[CanonicalRequest] = deque(maxlen=REQUESTS_KEPT)
        self._repeat = repeat or options.repeat
        self._played = 0
        self._script: Script = options.replies if replies is None else replies
        if capabilities is not None:
            self.wire.capabilities = capabilities
        if not callable(self._script) and not self._script:
            raise ConfigurationError(f"adapters.{self.name}.options.replies: expected at least one reply")

    def next_reply(self, request: CanonicalRequest) -> str | ScriptedReply:
        """The answer to an attempt of a request. A subclass may override it.

        Raises:
            InvalidRequestError: The script is over.
        """
        if callable(self._script):
            return self._script(request)
        if self._played == len(self._script):
            if not self._repeat:
                raise InvalidRequestError(f"the script is over: all of its {self._played} replies were played")
            self._played = 0
        self._played += 1
        return self._script[self._played - 1]

    def _choose(self, request_id: str) -> ScriptedReply:
        call = self.client.running.get(request_id)
        assert isinstance(call, HttpCall)
        request = call.request
        self.requests.append(request)
        reply = self.next_reply(request)
        return ScriptedReply(reply) if isinstance(reply, str) else reply

    # -- embeddings, which need no script

    async def embed(
        self, request: EmbeddingRequest, *, on_attempt: AttemptObserver | None = None
    ) -> EmbeddingResponse:
        """Vectors of words, see `vectors.word_vector`; 64 dimensions unless others are asked for."""
        report = on_attempt or (lambda _: None)
        report(AttemptStarted(1))
        await anyio.lowlevel.checkpoint()
        report(AttemptFirstEvent(1))
        return EmbeddingResponse(
            request_id=request.request_id,
            model=f"{self.name}:{request.wire_model}",
            provider=self.name,
            vectors=tuple(word_vector(text, request.dimensions or DIMENSIONS) for text in request.inputs),
            usage=TokenUsage(sum(self.estimate_text_tokens(text) for text in request.inputs)),
        )

    def get_embedding_capabilities(self, model: str) -> EmbeddingCapabilities:
        return EmbeddingCapabilities(input_types=INPUT_TYPES, supports_truncation=True)

    async def health_check(self) -> AdapterHealth:
        """Always well."""
        return AdapterHealth(True, "plays a script")


_WORDS = re.compile(r"\w+")


def word_vector(text: str, dimensions: int) -> Vector:
    """Of length 1: each word adds to or takes from one number, whichever its checksum says."""
    numbers = [0.0] * dimensions
    for word in _WORDS.findall(text.lower()) or [""]:
        checksum = zlib.crc32(word.encode("utf-8", "replace"))
        numbers[checksum % dimensions] += 1.0 if checksum & 0x80000000 else -1.0
    length = math.sqrt(sum(number * number for number in numbers)) or 1.0
    return array("f", (number / length for number in numbers))
