"""The gateway as an ASGI application: its routes, its clients' keys, and its limits.

It is plain ASGI, so it needs no web framework and can be mounted in any framework.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.provider import providers
from callboard.adapters.transport.addresses import host_of
from callboard.bus import CallboardError
from callboard.bus.values.base import JsonObject

from ..engine import Engine
from ..imports.sources.otlp import SpanImports
from . import embeddings, images
from .addresses import OPEN, Address, Purpose, check_media, find, key_of, named_media, wire_of
from .clients import KEY_PREFIX, Clients
from .conversations import Conversations, EarlierConversation
from .exchange import (
    Exchange,
    Serving,
    cost_header,
    id_headers,
    models_of,
    send_failure,
    unknown_model,
    warnings_header,
)
from .failures import BadRequest, Failure, failure_of
from .http import (
    UNSUPPORTED_MEDIA_TYPE,
    Bodies,
    ClientGone,
    GatewayLimits,
    Headers,
    Incoming,
    Receive,
    Scope,
    Send,
    answer,
    form_fields,
    json_object,
    rate_headers,
)
from .stored_responses import StoredResponses
from .wire import ClientRequest, ClientWire, ListedModel

if TYPE_CHECKING:
    from callboard.tracestore.gateway import Client


THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
"""The hosts that a keyless gateway always accepts."""

MODELS_SECONDS = 5.0
"""Seconds for which a list of models is cached."""


@cache
def _vendors() -> frozenset[str | None]:
    return frozenset(provider.home for provider in providers())


@cache
def wires() -> Mapping[str, ClientWire]:
    from . import chat_replies, gemini_replies, messages_replies, responses_replies

    kinds = chat_replies, responses_replies, messages_replies, gemini_replies
    return {each.WIRE.name: each.WIRE for each in kinds}


class ServedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The record of an answered request, for a log."""

    method: str
    path: str
    status: int
    """The HTTP status; 0 if the client disconnected before it was sent."""
    seconds: float
    client: str = ""
    """The client's name; empty without keys."""
    model: str = ""
    """The client's name for the model."""
    served_by: str = ""
    """``provider:name`` of the model that served the request."""
    nano_usd: int | None = None
    """The cost; None if there was no call or the cost is unknown."""
    request_id: str = ""
    """The id of the request's call in the trace."""


class Call(NamedTuple):
    """An authenticated request, for a handler."""

    request: Incoming
    wire: ClientWire
    client: Client | None
    """The client; None in a gateway without keys."""
    address: Address

    @property
    def client_name(self) -> str:
        """The client's name; empty in a gateway without keys."""
        return "" if self.client is None else self.client.name


class Gateway:
    """The ASGI application of the gateway, made by `gateway`."""

    def __init__(
        self,
        engine: Engine,
        *,
        keyless: bool,
        hosts: Collection[str],
        limits: GatewayLimits,
        on_disconnect: str,
        private_media: bool,
    ) -> None:
        self.engine = engine
        self.limits = limits
        self._serving = Serving(engine._runtime, limits, cancels=on_disconnect == "cancel")
        self.clients = Clients(engine)
        self._conversations = Conversations(engine)
        self._stored = StoredResponses(engine._runtime, self._conversations)
        self.on_request: Callable[[ServedRequest], object] | None = None
        """Called after each request."""
        self._keyless = keyless
        self._hosts = frozenset(hosts)
        self._private_media = private_media
        self._bodies = Bodies(limits)
        self._models: tuple[float, object, list[ListedModel]] | None = None
        self._spans: SpanImports | None = None
        self._handlers: Mapping[Purpose, Callable[[Call], Awaitable[None]]] = {
            "reply": self._reply,
            "respond": self._respond,
            "count_tokens": self._count_tokens,
            "embed": self._embed,
            "make_images": self._make_images,
            "edit_images": self._edit_images,
            "list_models": self._list_models,
            "show_model": self._show_model,
            "show_response": self._show_response,
            "delete_response": self._delete_response,
            "cancel_response": self._cancel_response,
            "list_items": self._list_items,
            "take_spans": self._take_spans,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http" if self.on_request is not None:
                await self._logged(Incoming(scope, receive, send), self.on_request)
            case "http":
                await self._http(Incoming(scope, receive, send))
            case "lifespan":
                await self._lifespan(receive, send)
            case "websocket":
                await send({"type": "websocket.close", "code": 1008})

    async def _logged(self, request: Incoming, tell: Callable[[ServedRequest], object]) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            await self._http(request)
        finally:
            tell(
                ServedRequest(
                    method=request.method,
                    path=request.path,
                    status=request.status,
                    seconds=loop.time() - started,
                    client=request.client_name,
                    **({} if request.summary is None else request.summary()),
                )
            )

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Start the engine. The owner of the engine closes it."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.engine.start()
                except CallboardError as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, request: Incoming) -> None:
        if request.path.rstrip("/") in OPEN and request.method in ("GET", "HEAD"):
            await self._health(request)
            return
        wire = wires()[wire_of(request)]
        try:
            if (wrong := request.check_headers(self.limits)) is not None:
                await self._refuse(request, wire, Failure(kind="invalid_request", message=wrong), 431)
                return
            address = find(request)
            wire = wires()[address.wire]
            self._check_origin(request)
            client = await self._authenticate(request)
            if client is not None:
                request.client_name = client.name
            await self._handlers[address.purpose](Call(request, wire, client, address))
        except ClientGone:
            pass
        except Exception as error:
            failure = getattr(error, "failure", None) or failure_of(error)
            if request.status:  # an error in the gateway after it started to answer; it is logged
                request.abort()
                return
            status = 415 if failure.code == UNSUPPORTED_MEDIA_TYPE else None
            await self._refuse(request, wire, failure, status)

    async def _refuse(
        self, request: Incoming, wire: ClientWire, failure: Failure, status: int | None = None
    ) -> None:
        """Answer a request that is refused before a call."""
        request_id = self.engine.clock.new_id("req")
        headers = id_headers(request_id)
        if not request.is_read:
            headers.append((b"connection", b"close"))  # otherwise the server reads the rest of the body
        failure = msgspec.structs.replace(failure, request_id=request_id)
        await send_failure(request, wire, failure, headers, status=status)

    async def _health(self, request: Incoming) -> None:
        state = "closed" if self.engine.closed else "ok"
        body = b"" if request.method == "HEAD" else msgspec.json.encode({"status": state})
        await answer(request.send, 200 if state == "ok" else 503, body)

    # --- Clients ---

    def _check_origin(self, request: Incoming) -> None:
        """Refuse requests from web pages, because no key protects a keyless gateway."""
        if not self._keyless:
            return
        host = request.headers.get("host", "")
        name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
        if name.strip("[]").lower() not in self._hosts:
            raise BadRequest(f"the host {host[:100]!r} is not on the list of hosts", kind="permission")
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise BadRequest("the request comes from a page of another origin", kind="permission")

    async def _authenticate(self, request: Incoming) -> Client | None:
        """The client of a request. In a keyless gateway, it is None, unless the request has a client's key."""
        key = key_of(request)
        if self._keyless and not (key or "").startswith(KEY_PREFIX):
            return None
        return await self.clients.authenticate(key)

    # --- Replies ---

    async def _reply(self, call: Call) -> None:
        body = await self._bodies.read_json(call.request)
        client_request = call.wire.read_request(
            body,
            call.request.headers,
            model=call.address.name or None,
            stream=call.address.action == "streamGenerateContent",
        )
        # the reply is an array, unless the client requests events
        if call.address.action == "streamGenerateContent":
            query = call.request.query
            alt = query.get("$alt") or query.get("alt") or "json"
            client_request = msgspec.structs.replace(
                client_request, options={**client_request.options, "alt": alt.lower()}
            )
        async with self._exchange(call, client_request) as exchange:
            call.request.summary = exchange.summary
            await exchange.answer()

    async def _respond(self, call: Call) -> None:
        """Answer a request of the Responses API, which may continue a stored response and be stored itself."""
        body = await self._bodies.read_json(call.request)
        continued = await self._stored.read(call.wire, call.client_name, body, call.request)
        exchanging = self._exchange(call, continued.client_request, continued.earlier)
        if body.get("background") is True and not continued.client_request.stream:
            await self._answer(call, await self._stored.begin(call.client_name, continued, exchanging))
            return
        async with exchanging as exchange:
            exchange.body = continued.body
            call.request.summary = exchange.summary
            exchange.on_reply.append(lambda: self._stored.store(call.client_name, continued, exchange))
            await exchange.answer()

    @asynccontextmanager
    async def _exchange(
        self, call: Call, client_request: ClientRequest, earlier: EarlierConversation | None = None
    ) -> AsyncIterator[Exchange]:
        """The exchange for a request, if the client is allowed to make the request. Raises ClientRefused or
        BadRequest.
        """
        clients, client = self.clients, call.client
        if client is None:
            yield await self._new_exchange(call, client_request, earlier)
            return
        clients.require_model(client, client_request.model)
        sent = 0 if client.tokens_per_minute is None else self._estimate(client_request)
        admission = await clients.admit(client, sent, client_request.request.max_output_tokens)
        usage = None
        try:
            with clients.in_progress(client) as revoked:
                exchange = await self._new_exchange(call, client_request, earlier)
                exchange.tags = clients.tags(client)
                exchange.more_headers = rate_headers(call.wire.name, admission.rates)
                exchange.revoked = revoked
                try:
                    yield exchange
                finally:
                    usage = exchange.usage
        finally:
            admission.over(usage)

    async def _new_exchange(
        self, call: Call, client_request: ClientRequest, earlier: EarlierConversation | None
    ) -> Exchange:
        if not self._private_media and (named := set(named_media(client_request.request.messages))):
            await check_media(named, resolve=self._has_own_server(client_request.model))
        conversation = await self._conversations.recognise(call.client_name, client_request, earlier=earlier)
        exchange = Exchange(self._serving, call.wire, client_request, conversation.request, call.request)

        async def keep() -> None:
            if exchange.response is not None:
                await self._conversations.keep(conversation, exchange.response.content)

        exchange.on_reply.append(keep)
        return exchange

    def _has_own_server(self, model: str) -> bool:
        """Whether a model may have a server in a private network, because the server is not the vendor's."""
        runtime = self.engine._runtime
        for name in models_of(runtime, model):
            entry = runtime.registry.resolve(name).model
            adapter = runtime.adapters.consult(runtime.registry.adapter_of(entry))
            if not isinstance(adapter, HttpAdapter) or host_of(adapter.base_url) not in _vendors():
                return True
        return False

    def _estimate(self, client_request: ClientRequest) -> int:
        """An estimate of the input tokens of a request. Raises BadRequest."""
        runtime, canonical = self.engine._runtime, client_request.request
        entry = runtime.registry.resolve(models_of(runtime, client_request.model)[0]).model
        adapter = runtime.adapters.consult(runtime.registry.adapter_of(entry))
        return adapter.estimate_input_tokens(
            canonical.messages, canonical.tools, canonical.system_prompt, model=entry.wire_name
        )

    async def _count_tokens(self, call: Call) -> None:
        body = await self._bodies.read_json(call.request)
        if call.wire.name == "gemini" and isinstance(inner := body.get("generateContentRequest"), dict):
            body = inner
        if call.wire.name == "messages":
            body = {"max_tokens": 1, **body}  # the field is required, but a token count does not use it
        client_request = call.wire.read_request(body, call.request.headers, model=call.address.name or None)
        if call.client is not None:
            self.clients.require_model(call.client, client_request.model)
        await self._answer(call, call.wire.write_token_count(self._estimate(client_request)))

    # --- Embeddings and images ---

    async def _embed(self, call: Call) -> None:
        body, address = await self._bodies.read_json(call.request), call.address
        if call.wire.name == "gemini":
            single = address.action == "embedContent"
            client_request = embeddings.read_gemini(body, model=address.name, single=single)
            write = embeddings.write_gemini
        else:
            client_request, write = embeddings.read_openai(body), embeddings.write_openai
        await self._make(
            call,
            client_request.model,
            client_request.tokens,
            lambda tags: embeddings.embed(self.engine, client_request, write, tags),
        )

    async def _make_images(self, call: Call) -> None:
        await self._images(call, images.read_images(await self._bodies.read_json(call.request)))

    async def _edit_images(self, call: Call) -> None:
        body, kind = await self._bodies.read(call.request), call.request.headers.get("content-type", "")
        if kind.lower().startswith("multipart/form-data"):
            client_request = images.read_image_edit(form_fields(body, kind))
        else:
            client_request = images.read_image_edit_json(json_object(body))
        await self._images(call, client_request)

    async def _images(self, call: Call, client_request: images.ClientImageRequest) -> None:
        await self._make(
            call, client_request.model, 0, lambda tags: images.make_images(self.engine, client_request, tags)
        )

    async def _make(
        self,
        call: Call,
        model: str,
        sent: int,
        make: Callable[[Mapping[str, str]], Awaitable[embeddings.OperationResult]],
    ) -> None:
        """Run an operation and answer, if the client is allowed to request the operation. Raises ClientRefused or
        BadRequest.
        """
        headers: Headers = []
        if call.client is None:
            made = await make({})
        else:
            self.clients.require_model(call.client, model)
            admission = await self.clients.admit(call.client, sent, 0)
            usage = None
            try:
                made = await make(self.clients.tags(call.client))
                usage = made.usage
            finally:
                admission.over(usage)
            headers = rate_headers(call.wire.name, admission.rates)
        headers += [(b"x-callboard-call-id", made.call_id.encode()), *id_headers(made.call_id)]
        headers += [*cost_header(made.cost), *warnings_header(made.warnings)]
        await answer(call.request.send, 200, made.body, headers, kind=made.kind)

    # --- Stored responses ---

    async def _show_response(self, call: Call) -> None:
        if call.request.query.get("stream") == "true":
            raise BadRequest("a stored response can't be streamed again", param="stream")
        await self._answer(call, await self._stored.show(call.client_name, call.address.name))

    async def _delete_response(self, call: Call) -> None:
        await self._answer(call, await self._stored.delete(call.client_name, call.address.name))

    async def _cancel_response(self, call: Call) -> None:
        await self._answer(call, await self._stored.cancel(call.client_name, call.address.name))

    async def _list_items(self, call: Call) -> None:
        await self._answer(call, await self._stored.items(call.client_name, call.address.name, call.request.query))

    async def _take_spans(self, call: Call) -> None:
        if self.engine.store is None:
            raise BadRequest("this gateway has no trace to store spans in", kind="missing")
        await self.engine.start()
        body, kind = await self._bodies.read(call.request), call.request.headers.get("content-type", "")
        client = call.client
        tags = {} if client is None or self.clients is None else self.clients.tags(client)
        if self._spans is None:
            self._spans = SpanImports(self.engine.store, self.engine.clock)
        try:
            summary = await self._spans.take(body, kind, tags)
        except ValueError as error:
            raise BadRequest(f"the spans can't be read: {error}") from None
        await answer(call.request.send, 200, summary, kind=kind.partition(";")[0].encode())

    # --- Models ---

    async def _list_models(self, call: Call) -> None:
        await self._answer(call, call.wire.write_models(self._models_for(call.client)))

    async def _show_model(self, call: Call) -> None:
        name = call.address.name
        found = next((model for model in self._models_for(call.client) if model.id == name), None)
        if found is None:
            registry = self.engine.registry
            is_known = name in registry.names or registry.serving(name) != (name,)
            if not is_known or (call.client is not None and not self.clients.may_use(call.client, name)):
                raise unknown_model(name)
            found = ListedModel(id=name)
        await self._answer(call, call.wire.write_model(found))

    def _models_for(self, client: Client | None) -> list[ListedModel]:
        """The models that a client may use: first the client names in models.yaml, then the configured models."""
        models = self._listed()
        if client is None:
            return models
        return [model for model in models if self.clients.may_use(client, model.id)]

    def _listed(self) -> list[ListedModel]:
        registry, now = self.engine.registry, asyncio.get_running_loop().time()
        if self._models is not None and self._models[0] > now and self._models[1] is registry:
            return self._models[2]
        by_id = {
            model.id: ListedModel(
                id=model.id,
                owned_by=model.provider,
                context_tokens=None if model.capabilities is None else model.capabilities.max_context_tokens,
                output_tokens=None if model.capabilities is None else model.capabilities.max_output_tokens,
            )
            for model in self.engine.models()
            if model.kind == "chat" and model.state != "not_configured"
        }
        names: list[ListedModel] = []
        for name, models in registry.client_names.items():
            if "*" not in name:
                served = by_id.get(registry.resolve(models[0]).model.id)
                named = ListedModel(id=name) if served is None else msgspec.structs.replace(served, id=name)
                names.append(named)
        found = [*names, *(model for model in by_id.values() if model.id not in registry.client_names)]
        self._models = (now + MODELS_SECONDS, registry, found)
        return found

    async def _answer(self, call: Call, body: JsonObject) -> None:
        headers = id_headers(self.engine.clock.new_id("req"))
        await answer(call.request.send, 200, msgspec.json.encode(body), headers)


def gateway(
    engine: Engine,
    *,
    keyless: bool = False,
    hosts: Collection[str] = (),
    limits: GatewayLimits = GatewayLimits(),  # noqa: B008 (frozen)
    on_disconnect: Literal["cancel", "finish"] = "cancel",
    private_media: bool = False,
) -> Gateway:
    """Make an ASGI application of an engine, for clients of four wires: `app.mount("/llm", gateway(engine))`.

    The wires are OpenAI's Chat Completions and Responses, Anthropic's Messages, and Gemini's generateContent.
    Every request is a call of the engine, with the tag ``client``. `callboard clients` creates the keys.

    Args:
        engine: The engine. The caller closes it.
        keyless: Whether requests need no key. Then everyone who can reach the application spends your money. The
            Host header of a request must be in `hosts`, and requests from web pages are refused. A request with a
            client's key is counted for that client.
        hosts: The allowed host names of a keyless gateway, without port. The names of this machine are always
            allowed.
        limits: The limits for requests.
        on_disconnect: What happens to a call if its client disconnects. ``cancel`` cancels the call, and the
            delivered part is billed. ``finish`` lets it complete.
        private_media: Whether images and files may have addresses that are not public. A provider on your network
            would fetch them for any client.
    """
    return Gateway(
        engine,
        keyless=keyless,
        hosts=(*THIS_MACHINE, *(host.lower() for host in hosts)),
        limits=limits,
        on_disconnect=on_disconnect,
        private_media=private_media,
    )
