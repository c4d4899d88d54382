"""The wire and the adapter of TGI's own protocol, with the limits of its server."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec

from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.http.wire import ChatWire, Endpoint, LookUp
from callboard.adapters.http.wire_call import WireCall, bearer, get
from callboard.bus.errors import AdapterError, ServerError
from callboard.bus.values.base import Json
from callboard.bus.values.usage import TokenUsage, UsageSource

from ...contract import AdapterCapabilities, CanonicalRequest
from ...refusals.classify import read_error
from ...replies.assembler import Assembler
from ...requests.settings import SharedOptions, read_options
from ...transport.transport import HttpReply
from ...usage.counts import reported_count
from ...usage.estimate import at_most
from . import wire
from .wire import (
    ReplyReader,
    TokenNormaliser,
    choose_template,
    classify,
    loading_seconds,
    read_whole,
    stop_sequences,
    write_request,
)

LOOK_UP_SECONDS = 5.0
"""Seconds for the request about the server's limits."""


class TGIOptions(SharedOptions, frozen=True, kw_only=True):
    """`AdapterConfig.options` of type ``tgi``."""

    template: str | dict[str, Json] = "plain"
    """The template of prompts: a name of `request.TEMPLATES`, or the fields of a PromptTemplate."""
    max_stop: int = 4
    """The largest number of stop sequences (the server's ``--max-stop-sequences``)."""


class GenerateWire(ChatWire):
    """Text Generation Inference's `/generate`. The wire caches the server's window."""

    default_name = "tgi"
    default_base_url = "http://localhost:8080"
    emulates_tools = True

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.options = read_options(self.config.options, TGIOptions, name=self.name, type_name="tgi")
        self.template = choose_template(self.options.template)
        self._window: int | None = None  # for prompt and reply together; None until reported
        self.capabilities = AdapterCapabilities(
            supports_tools=True, supports_structured_output=True, max_context_tokens=4096, max_output_tokens=4096
        )

    async def initialize(self, look_up: LookUp) -> None:
        """Request the server's limits. Without an answer, cautious defaults remain."""
        info = await look_up(get(wire.INFO_PATH), LOOK_UP_SECONDS)
        total = reported_count(info.get("max_total_tokens")) or None if isinstance(info, dict) else None
        self._window = total
        if total is not None:
            self.capabilities = msgspec.structs.replace(
                self.capabilities, max_context_tokens=total, max_output_tokens=total
            )

    # --- Requests and replies ---

    def auth_headers(self, key: str | None) -> Mapping[str, str]:
        return bearer(key)

    def health_request(self) -> WireCall:
        return get(wire.INFO_PATH)

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        room: int | None = None
        if self._window is not None:
            estimated = self.estimate_input_tokens(
                request.messages, (), request.system_prompt, model=request.wire_model
            )
            room = self._window - at_most(estimated)
        return write_request(
            request,
            provider=self.name,
            template=self.template,
            max_stop=self.options.max_stop,
            room=room,
            stream=stream,
        )

    def _reader(self, assembler: Assembler) -> ReplyReader:
        request = assembler.request
        stops = stop_sequences(request, self.template, self.options.max_stop) if request is not None else ()
        return ReplyReader(assembler, self.template, stops, self.token_rates(assembler.model))

    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
        said = headers.get("x-prompt-tokens", "")  # the details of a whole reply don't have it
        if said.isascii() and said.isdigit() and 0 < len(said) < 10:
            assembler.usage = TokenUsage(input_tokens=int(said), source=UsageSource.PARTIAL)
        read_whole(body, self._reader(assembler))

    def normaliser(self, assembler: Assembler) -> TokenNormaliser:
        return TokenNormaliser(self._reader(assembler))

    def error_of(self, body: bytes, reply: HttpReply) -> AdapterError:
        now_us = self.endpoint.clock.now_us()
        error = classify(read_error(body), reply.status, reply.headers, provider=self.name, now_us=now_us)
        if isinstance(error, ServerError) and error.retry_after_seconds is None:
            with contextlib.suppress(msgspec.DecodeError, UnicodeError, RecursionError):
                error.retry_after_seconds = loading_seconds(msgspec.json.decode(body))
        return error


class TGIAdapter(HttpAdapter):
    """Text Generation Inference's `/generate`, with tools emulated by its grammars; see `TGIOptions`.

    A request's ``provider_options["tgi"]`` (or under the adapter's own name) is merged into `parameters`. The
    server has one model and answers to any name. Raises ConfigurationError for invalid options.
    """

    wire_type = GenerateWire
