"""The adapter itself: the protocol's pure parts put together, and what it finds out about its server's models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import anyio
import msgspec

from adapters.contract import AdapterCapabilities, AdapterConfig, CanonicalRequest
from adapters.embeddings.http import EmbedsOverHttp
from adapters.http.call import HttpCall
from adapters.http.emulating import EmulatingAdapter
from adapters.http.patience import patient
from adapters.http.wire_call import WireCall, bearer
from adapters.refusals.classify import read_error
from adapters.replies.assembler import Assembler
from adapters.requests.settings import SharedOptions, read_options
from adapters.transport.transport import HttpReply, Transport
from adapters.usage.estimate import at_most
from bus.clock import SYSTEM_CLOCK, Clock
from bus.errors import AdapterError
from bus.values.json import Json

from . import wire
from .embeddings import OllamaEmbeddings
from .errors import classify
from .models import UNKNOWN, Catalogue, ModelFacts, read_show, read_tags
from .request import write_request
from .response import read_whole
from .stream import ChatNormaliser
from .window import Windows

LOOK_UP_SECONDS = 5.0
"""How long the server may take to say what it has, in all; a call that needs to know waits no longer than that."""

ASKED_AT_START = 64
"""So many of the server's models, the latest, are asked about when the adapter starts; others when first used."""

QUESTIONS_AT_ONCE = 4


class OllamaOptions(SharedOptions, frozen=True, kw_only=True):
    """`AdapterConfig.options` of type ``ollama``.

    num_ctx: a fixed window for all calls, in tokens; without it each call asks for what it needs. keep_alive: how
    long the server keeps the model loaded (``5m``, seconds, -1 for ever). options: further model options
    (``top_k``, ``num_gpu``, …). tools: ``emulate`` for models that can't call tools, see
    `adapters.requests.emulation`.
    discover: ask the server what its models can do; without it, all are taken to be able to do everything.
    """

    num_ctx: int | None = None
    keep_alive: str | float | None = None
    options: dict[str, Json] = msgspec.field(default_factory=dict)
    tools: Literal["native", "emulate"] = "native"
    discover: bool = True


class OllamaAdapter(EmbedsOverHttp, EmulatingAdapter):
    """Ollama's `/api/chat` and `/api/embed`, on this machine or elsewhere; see `OllamaOptions` for its options.

    A request's ``provider_options["ollama"]`` (or under the adapter's own name) is merged into the body, its
    ``options`` one by one. Raises ConfigurationError for options that it doesn't understand.
    """

    default_name = "ollama"
    default_base_url = "http://localhost:11434"
    capabilities = UNKNOWN

    def __init__(
        self,
        config: AdapterConfig,
        *,
        name: str | None = None,
        transport: Transport | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(patient(config), name=name, transport=transport, clock=clock)
        self.base_url = self.base_url.removesuffix("/api")
        self.options = read_options(config.options, OllamaOptions, name=self.name, type_name="ollama")
        self.emulates_tools = self.options.tools == "emulate"
        self._catalogue = Catalogue()
        self._windows = Windows()

    # -- the models

    async def initialize(self) -> None:
        """Ask what models there are and what they can do; a server that doesn't answer is asked again later."""
        if not self.options.discover:
            return
        with anyio.move_on_after(LOOK_UP_SECONDS):
            names = await self.list_models()
            limiter = anyio.CapacityLimiter(QUESTIONS_AT_ONCE)
            async with anyio.create_task_group() as questions:
                for name in names[:ASKED_AT_START]:
                    questions.start_soon(self._ask_about, name, limiter)

    async def list_models(self) -> tuple[str, ...]:
        """The names of the models that the server has, the latest first; none if it doesn't answer."""
        return read_tags(await self.look_up(WireCall(wire.TAGS_PATH, b""), LOOK_UP_SECONDS))

    async def _ask_about(self, model: str, limiter: anyio.CapacityLimiter | None = None) -> None:
        question = WireCall(wire.SHOW_PATH, msgspec.json.encode({"model": model}))
        if limiter is None:
            answer = await self.look_up(question, LOOK_UP_SECONDS)
        else:
            async with limiter:
                answer = await self.look_up(question, LOOK_UP_SECONDS)
        self._catalogue.learn(model, read_show(answer), self._seconds())

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        """What the server said of a model; the adapter's `capabilities` until it was asked."""
        facts = self._catalogue.facts(model)
        known = facts.capabilities() if facts is not None else self.capabilities
        if not self.emulates_tools:
            return known
        return msgspec.structs.replace(
            known, supports_tools=True, supports_tool_choice=True, supports_parallel_tool_calls=False
        )

    def _seconds(self) -> float:
        return self.clock.monotonic_ns() / 1e9

    async def prepare(self, call: HttpCall) -> None:
        model = call.request.wire_model
        if self.options.discover and self._catalogue.wants(model, self._seconds()):
            await call.wait(lambda: self._ask_about(model), what="what the server says of the model")

    # -- what goes over the wire

    def auth_headers(self) -> Mapping[str, str]:
        return bearer(self.config.api_key)

    def health_request(self) -> WireCall:
        return WireCall(wire.TAGS_PATH, b"")

    @property
    def embedding_wire(self) -> OllamaEmbeddings:
        defaults: dict[str, Json] = {}
        if self.options.keep_alive is not None:
            defaults["keep_alive"] = self.options.keep_alive
        if self.options.options:
            defaults["options"] = self.options.options
        return OllamaEmbeddings(defaults)

    def write_plain(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        facts = self._catalogue.facts(request.wire_model) or ModelFacts()
        estimated = self.estimate_input_tokens(
            request.messages, request.tools, request.system_prompt, model=request.wire_model
        )
        defaults: dict[str, Json] = {"options": self.options.options}
        if self.options.keep_alive is not None:
            defaults["keep_alive"] = self.options.keep_alive
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
            defaults=defaults,
            stream=stream,
        )

    def read_reply(self, body: bytes, assembler: Assembler) -> None:
        read_whole(body, assembler, self._token_rates(assembler.model))

    def normaliser(self, assembler: Assembler) -> ChatNormaliser:
        return ChatNormaliser(assembler, self._token_rates(assembler.model))

    def _error(self, body: bytes, reply: HttpReply, request_id: str) -> AdapterError:
        return classify(
            read_error(body),
            reply.status,
            reply.headers,
            provider=self.name,
            request_id=request_id,
            now_us=self.clock.now_us(),
        )
