"""The wire and the adapter of Ollama's own protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import anyio
import msgspec

from callboard.bus.errors import AdapterError
from callboard.bus.values.base import Json, JsonObject

from ...contract import AdapterCapabilities, CanonicalRequest
from ...embeddings import EmbeddingCapabilities, EmbeddingRequest
from ...http.adapter import HttpAdapter
from ...http.errors import read_error
from ...http.wire import ChatWire, Endpoint, LookUp, OtherWires
from ...operations.wires import EmbeddingReply, from_numbers
from ...replies.assembler import Assembler
from ...replies.usage import reported_count
from ...requests.content import encode_json
from ...requests.estimate import at_most
from ...requests.history_target import WireCall, bearer, get
from ...requests.settings import SharedOptions, merge_own_options, read_options
from ...transport.transport import HttpReply
from . import response
from .request import UNKNOWN, Catalogue, ModelFacts, Windows, read_show, read_tags, write_request
from .response import ChatNormaliser, classify, read_whole

PATH = "/api/embed"


class _Reply(msgspec.Struct, gc=False):
    embeddings: list[list[float]]
    model: str | None = None
    prompt_eval_count: float | None = None


_decode = msgspec.json.Decoder(_Reply).decode


class OllamaEmbeddings(msgspec.Struct, frozen=True):
    defaults: Mapping[str, Json] = {}
    """More fields of the body, such as the time that the model stays loaded."""

    def capabilities(self, model: str) -> EmbeddingCapabilities:
        return EmbeddingCapabilities(max_inputs=128, supports_truncation=True)

    def write(self, request: EmbeddingRequest, provider: str) -> WireCall:
        body: JsonObject = {
            **self.defaults,
            "model": request.wire_model,
            "input": list(request.texts),
            "truncate": request.truncate,
        }
        if request.dimensions is not None:
            body["dimensions"] = request.dimensions
        merge_own_options(body, request, "ollama", provider)
        return WireCall(PATH, encode_json(body))

    def read(self, body: bytes, headers: Mapping[str, str]) -> EmbeddingReply:
        reply = _decode(body)
        counted = reported_count(reply.prompt_eval_count)
        vectors = [from_numbers(numbers) for numbers in reply.embeddings]
        usage = msgspec.json.encode({"prompt_eval_count": counted}) if counted is not None else None
        return EmbeddingReply(vectors, counted, reply.model, usage=usage)


LOOK_UP_SECONDS = 5.0
"""Seconds for all requests about the server's models. A call that needs the answers waits no longer than this."""

ASKED_AT_START = 64
"""The number of the server's latest models to look up at the adapter's start. Other models are looked up at their
first use.
"""

QUESTIONS_AT_ONCE = 4


class OllamaOptions(SharedOptions, frozen=True, kw_only=True):
    """`AdapterConfig.options` of type ``ollama``."""

    num_ctx: int | None = None
    """A fixed window for all calls, in tokens; None lets each call request its own."""
    keep_alive: str | float | None = None
    """The time that the server keeps the model loaded (``5m``, seconds, or -1 without end)."""
    options: dict[str, Json] = msgspec.field(default_factory=dict)
    """More options of the model (``top_k``, ``num_gpu``, …)."""
    tools: Literal["native", "emulate"] = "native"
    """``emulate`` for models that can't call tools; see `adapters.requests.emulation`."""
    discover: bool = True
    """Whether to look up the models' abilities. Otherwise every model is assumed to support everything."""


class OllamaWire(ChatWire):
    """Ollama's `/api/chat` and `/api/embed`. The wire caches the server's facts about each model."""

    default_name = "ollama"
    default_base_url = "http://localhost:11434"
    capabilities = UNKNOWN
    long_timeouts = True

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.base_url = self.base_url.removesuffix("/api")
        self.options = read_options(self.config.options, OllamaOptions, name=self.name, type_name="ollama")
        self.emulates_tools = self.options.tools == "emulate"
        self._catalogue = Catalogue()
        self._windows = Windows()

    # --- Models ---

    async def initialize(self, look_up: LookUp) -> None:
        """Look up the models and their abilities. If the server doesn't answer, the lookup is repeated later."""
        if not self.options.discover:
            return
        with anyio.move_on_after(LOOK_UP_SECONDS):
            names = await list_models(look_up)
            limiter = anyio.CapacityLimiter(QUESTIONS_AT_ONCE)

            async def learn(name: str) -> None:
                async with limiter:
                    await self.learn_model(name, look_up)

            async with anyio.create_task_group() as questions:
                for name in names[:ASKED_AT_START]:
                    questions.start_soon(learn, name)

    def is_unknown(self, model: str) -> bool:
        return self.options.discover and self._catalogue.wants(model, self._seconds())

    async def learn_model(self, model: str, look_up: LookUp) -> None:
        question = WireCall(response.SHOW_PATH, msgspec.json.encode({"model": model}))
        answer = await look_up(question, LOOK_UP_SECONDS)
        self._catalogue.learn(model, read_show(answer), self._seconds())

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        """The capabilities that the server reports; the adapter's `capabilities` until the model was looked up."""
        facts = self._catalogue.facts(model)
        capabilities = facts.capabilities() if facts is not None else self.capabilities
        if not self.emulates_tools:
            return capabilities
        return msgspec.structs.replace(
            capabilities, supports_tools=True, supports_tool_choice=True, supports_parallel_tool_calls=False
        )

    def _seconds(self) -> float:
        return self.endpoint.clock.monotonic_ns() / 1e9

    # --- Requests and replies ---

    def auth_headers(self, key: str | None) -> Mapping[str, str]:
        return bearer(key)

    def health_request(self) -> WireCall:
        return get(response.TAGS_PATH)

    def other_wires(self) -> OtherWires:
        defaults = self._kept_loaded()
        if self.options.options:
            defaults["options"] = self.options.options
        return OtherWires(OllamaEmbeddings(defaults))

    def _kept_loaded(self) -> JsonObject:
        return {} if self.options.keep_alive is None else {"keep_alive": self.options.keep_alive}

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        facts = self._catalogue.facts(request.wire_model) or ModelFacts()
        estimated = self.estimate_input_tokens(
            request.messages, request.tools, request.system_prompt, model=request.wire_model
        )
        return write_request(
            request,
            provider=self.name,
            facts=facts,
            capabilities=request.capabilities or self.get_capabilities(request.wire_model),
            estimated_tokens=estimated,
            num_ctx=self.options.num_ctx
            or self._windows.choose(
                request.wire_model, at_most(estimated) + request.max_output_tokens, facts.context_tokens
            ),
            defaults={"options": self.options.options, **self._kept_loaded()},
            stream=stream,
        )

    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
        read_whole(body, assembler, self.token_rates(assembler.model))

    def normaliser(self, assembler: Assembler) -> ChatNormaliser:
        return ChatNormaliser(assembler, self.token_rates(assembler.model))

    def error_of(self, body: bytes, reply: HttpReply) -> AdapterError:
        now_us = self.endpoint.clock.now_us()
        return classify(read_error(body), reply.status, reply.headers, provider=self.name, now_us=now_us)


async def list_models(look_up: LookUp) -> tuple[str, ...]:
    """The names of the server's models, the latest first; none if it doesn't answer."""
    return read_tags(await look_up(get(response.TAGS_PATH), LOOK_UP_SECONDS))


class OllamaAdapter(HttpAdapter):
    """Ollama's `/api/chat` and `/api/embed`, on this machine or elsewhere; see `OllamaOptions` for its options.

    A request's ``provider_options["ollama"]`` (or under the adapter's own name) is merged into the body, its
    ``options`` one by one. Raises ConfigurationError for invalid options.
    """

    wire_type = OllamaWire

    async def list_models(self) -> tuple[str, ...]:
        """The names of the server's models, the latest first; none if it doesn't answer."""
        return await list_models(self.client.look_up)
