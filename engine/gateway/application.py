"""The gateway as an ASGI application: its addresses, its clients' keys, and its bounds.

It is plain ASGI, so it needs no web framework and can be mounted in any.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec

from callboard.bus import CallboardError
from callboard.bus.values.base import JsonObject

from ..engine import Engine
from . import gemini_embeddings, openai_extras, operations
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
from .failures import failure_of
from .http import (
    UNSUPPORTED_MEDIA_TYPE,
    Bodies,
    ClientGone,
    GatewayLimits,
    Headers,
    Incoming,
    Message,
    Receive,
    Scope,
    Send,
    answer,
    rate_headers,
)
from .stored_responses import StoredResponses
from .wire import BadRequest, ClientRequest, ClientWire, Failure, ListedModel

if TYPE_CHECKING:
    from callboard.tracestore.gateway import Client

    from .clients import Clients
    from .conversations import Conversations, Earlier

THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
"""The hosts by which a gateway without keys is always reached."""

CHARACTERS_OF_TOKEN = 4
"""A guess for the tokens of texts to embed, for the rates of a client."""

MODELS_SECONDS = 5.0
"""Seconds for which a list of models is used again."""

_GEMINI = re.compile(r"/(?:v1beta|v1|v1alpha)/(?:models|tunedModels)/(?P<model>.+):(?P<action>[A-Za-z]+)")
_RESPONSE = re.compile(r"/v1/responses/(?P<id>[^/]+)(?:/(?P<action>cancel|input_items))?")
_MODEL = re.compile(r"/(?P<version>v1|v1beta|v1alpha)/models/(?P<model>.+)")

Handler: TypeAlias = Callable[["Call"], Awaitable[None]]


@cache
def wires() -> Mapping[str, ClientWire]:
    """The wires of clients by their names."""
    from . import chat_replies, gemini_replies, messages_replies, responses_replies

    kinds: Sequence[ClientWire] = (
        chat_replies.WIRE,
        responses_replies.WIRE,
        messages_replies.WIRE,
        gemini_replies.WIRE,
    )
    return {wire.name: wire for wire in kinds}


class ServedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was answered, for a log."""

    method: str
    path: str
    status: int
    """The HTTP status; 0 if the client left before it."""
    seconds: float
    client: str = ""
    """The client's name; empty without keys."""
    model: str = ""
    """The model as the client named it."""
    served_by: str = ""
    """The ``provider:name`` of the model that served it."""
    nano_usd: int | None = None
    """The cost; None if there is none, or it is unknown."""
    request_id: str = ""
    """The id of its call in the trace."""


class Call(NamedTuple):
    """An authenticated request on its way to a handler."""

    request: Incoming
    wire: ClientWire
    client: Client | None
    """The client; None for a gateway without keys."""
    model: str = ""
    """The model in the path, or the id there; empty if there is none."""
    action: str = ""
    """The method of Gemini's API that the path names."""

    @property
    def client_name(self) -> str:
        """The client's name; empty for a gateway without keys."""
        return "" if self.client is None else self.client.name


class Gateway:
    """An engine for the clients of four wires, made by `gateway`: an ASGI application."""

    def __init__(
        self,
        engine: Engine,
        *,
        keyless: bool,
        hosts: Collection[str],
        limits: GatewayLimits,
        on_disconnect: str,
        clients: Clients | None,
        conversations: Conversations,
    ) -> None:
        self.engine = engine
        self.limits = limits
        self._serving = Serving(engine._runtime, limits, cancels=on_disconnect == "cancel")
        self.clients = clients
        self._conversations = conversations
        self._stored = StoredResponses(engine._runtime, conversations)
        self.on_request: Callable[[ServedRequest], object] | None = None
        """Is called after each request."""
        self._keyless = keyless
        self._hosts = frozenset(hosts)
        self._bodies = Bodies(limits)
        self._models: tuple[float, object, list[ListedModel]] | None = None
        self._routes: dict[tuple[str, str], tuple[str, Handler]] = {
            ("POST", "/v1/chat/completions"): ("chat", self._reply),
            ("POST", "/v1/responses"): ("responses", self._respond),
            ("POST", "/v1/responses/input_tokens"): ("responses", self._count_tokens),
            ("POST", "/v1/messages"): ("messages", self._reply),
            ("POST", "/v1/messages/count_tokens"): ("messages", self._count_tokens),
            ("POST", "/v1/embeddings"): ("chat", self._embed_openai),
            ("POST", "/v1/images/generations"): ("chat", self._make_images),
            ("GET", "/v1/models"): ("", self._list_models),
            ("GET", "/v1beta/models"): ("gemini", self._list_models),
            ("GET", "/v1alpha/models"): ("gemini", self._list_models),
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
        send, loop = request.send, asyncio.get_running_loop()
        begun, status = loop.time(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        request.send = noting
        try:
            await self._http(request)
        finally:
            tell(
                ServedRequest(
                    method=request.method,
                    path=request.path,
                    status=status,
                    seconds=loop.time() - begun,
                    client=request.client_name,
                    **({} if request.summary is None else request.summary()),
                )
            )

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Start the engine. Its owner closes it."""
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
        if request.path in ("/health", "/", "") and request.method in ("GET", "HEAD"):
            await self._health(request)
            return
        found = self._find(request)
        wire = wires()[found[0] if found is not None else self._wire_of(request)]
        try:
            if (wrong := request.check_headers(self.limits)) is not None:
                await self._refuse(request, wire, Failure(kind="invalid_request", message=wrong), 431)
                return
            if found is None:
                method = f"{request.method} {request.path[:200]}"
                raise BadRequest(f"{method} is not an address of this gateway", kind="not_found")
            self._check_origin(request)
            client = await self._authenticate(request)
            if client is not None:
                request.client_name = client.name
            await found[1](Call(request, wire, client, *found[2:]))
        except ClientGone:
            pass
        except Exception as error:
            failure = getattr(error, "failure", None) or failure_of(error)
            status = 415 if failure.code == UNSUPPORTED_MEDIA_TYPE else None
            await self._refuse(request, wire, failure, status)

    async def _refuse(
        self, request: Incoming, wire: ClientWire, failure: Failure, status: int | None = None
    ) -> None:
        """Answer a request that came to no call."""
        request_id = self.engine.clock.new_id("req")
        headers = id_headers(request_id)
        if not request.is_read:
            headers.append((b"connection", b"close"))  # else the server reads the rest of the body
        failure = msgspec.structs.replace(failure, request_id=request_id)
        await send_failure(request, wire, failure, headers, status=status)

    # --- Addresses ---

    def _find(self, request: Incoming) -> tuple[str, Handler, str, str] | None:
        """The name of the wire, the handler, the model or id in the path, and the method that it names."""
        path = request.path.rstrip("/")
        if (route := self._routes.get((request.method, path))) is not None:
            return (route[0] or self._wire_of(request)), route[1], "", ""
        if request.method == "POST" and (match := _GEMINI.fullmatch(path)):
            model, action = match["model"], match["action"]
            handlers: Mapping[str, Handler] = {
                "generateContent": self._reply,
                "streamGenerateContent": self._reply,
                "countTokens": self._count_tokens,
                "embedContent": self._embed_gemini,
                "batchEmbedContents": self._embed_gemini,
            }
            handler = handlers.get(action)
            return None if handler is None else ("gemini", handler, model, action)
        if (match := _RESPONSE.fullmatch(path)) is not None:
            known: Mapping[tuple[str, str | None], Handler] = {
                ("GET", None): self._show_response,
                ("DELETE", None): self._delete_response,
                ("POST", "cancel"): self._cancel_response,
                ("GET", "input_items"): self._list_items,
            }
            found = known.get((request.method, match["action"]))
            return None if found is None else ("responses", found, match["id"], "")
        if request.method == "GET" and (match := _MODEL.fullmatch(path)):
            name = "gemini" if match["version"] != "v1" else self._wire_of(request)
            return name, self._show_model, match["model"], ""
        return None

    def _wire_of(self, request: Incoming) -> str:
        """The name of the wire of a client, by its path and headers."""
        path = request.path
        if path.startswith("/v1/messages") or "anthropic-version" in request.headers:
            return "messages"
        if path.startswith("/v1beta/") or "x-goog-api-key" in request.headers:
            return "gemini"
        return "responses" if path.startswith("/v1/responses") else "chat"

    async def _health(self, request: Incoming) -> None:
        state = "closed" if self.engine.closed else "ok"
        body = b"" if request.method == "HEAD" else msgspec.json.encode({"status": state})
        await answer(request.send, 200 if state == "ok" else 503, body)

    # --- Clients ---

    def _check_origin(self, request: Incoming) -> None:
        """Refuse pages of browsers, which may send requests to this machine, where no key protects the gateway."""
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
        if self.clients is None:
            return None
        return await self.clients.authenticate(key_of(request))

    # --- Replies ---

    async def _reply(self, call: Call) -> None:
        body = await self._bodies.read_json(call.request)
        asked = call.wire.read_request(
            body, call.request.headers, model=call.model or None, stream=call.action == "streamGenerateContent"
        )
        async with self._exchange(call, asked) as exchange:
            call.request.summary = exchange.summary
            await exchange.answer()

    async def _respond(self, call: Call) -> None:
        """A reply of the Responses API, which may continue a stored one, and be stored."""
        body = await self._bodies.read_json(call.request)
        continued = await self._stored.read(call.wire, call.client_name, body, call.request)
        exchanging = self._exchange(call, continued.asked, continued.earlier)
        if body.get("background") is True and not continued.asked.stream:
            await self._answer(call, await self._stored.begin(call.client_name, continued, exchanging))
            return
        async with exchanging as exchange:
            call.request.summary = exchange.summary
            exchange.on_reply.append(lambda: self._stored.store(call.client_name, continued, exchange))
            await exchange.answer()

    @asynccontextmanager
    async def _exchange(
        self, call: Call, asked: ClientRequest, earlier: Earlier | None = None
    ) -> AsyncIterator[Exchange]:
        """The exchange of a client that may make this request. Raises ClientRefused or BadRequest."""
        clients, client = self.clients, call.client
        if clients is None or client is None:
            yield await self._new_exchange(call, asked, earlier)
            return
        clients.require_model(client, asked.model)
        sent = 0 if client.tokens_per_minute is None else self._estimate(asked)
        admission = await clients.admit(client, sent, asked.request.max_output_tokens)
        usage = None
        try:
            with clients.in_progress(client) as revoked:
                exchange = await self._new_exchange(call, asked, earlier)
                exchange.tags = clients.tags(client)
                exchange.more_headers = rate_headers(call.wire.name, admission.rates)
                exchange.revoked = revoked
                try:
                    yield exchange
                finally:
                    usage = exchange.usage
        finally:
            admission.over(usage)

    async def _new_exchange(self, call: Call, asked: ClientRequest, earlier: Earlier | None) -> Exchange:
        conversation = await self._conversations.recognise(call.client_name, asked, earlier=earlier)
        exchange = Exchange(self._serving, call.wire, asked, conversation.request, call.request)

        async def keep() -> None:
            if exchange.response is not None:
                await self._conversations.keep(conversation, exchange.response.content)

        exchange.on_reply.append(keep)
        return exchange

    def _estimate(self, asked: ClientRequest) -> int:
        """An estimate of the input tokens of a request. Raises BadRequest."""
        runtime, canonical = self.engine._runtime, asked.request
        entry = runtime.registry.resolve(models_of(runtime, asked.model)[0]).model
        adapter = runtime.adapters.consult(runtime.registry.adapter_of(entry))
        return adapter.estimate_input_tokens(
            canonical.messages, canonical.tools, canonical.system_prompt, model=entry.wire_name
        )

    async def _count_tokens(self, call: Call) -> None:
        body = await self._bodies.read_json(call.request)
        if call.wire.name == "gemini" and isinstance(inner := body.get("generateContentRequest"), dict):
            body = inner
        if call.wire.name == "messages":
            body = {"max_tokens": 1, **body}  # which a count does not need
        asked = call.wire.read_request(body, call.request.headers, model=call.model or None)
        if self.clients is not None and call.client is not None:
            self.clients.require_model(call.client, asked.model)
        await self._answer(call, call.wire.write_token_count(self._estimate(asked)))

    # --- Embeddings and images ---

    async def _embed_openai(self, call: Call) -> None:
        asked = openai_extras.read_embeddings(await self._bodies.read_json(call.request))
        sent = sum(map(len, asked.request.inputs)) // CHARACTERS_OF_TOKEN
        await self._make(
            call, asked.model, sent, lambda tags: operations.openai_embeddings(self.engine, asked, tags)
        )

    async def _embed_gemini(self, call: Call) -> None:
        body = await self._bodies.read_json(call.request)
        asked = gemini_embeddings.read_embeddings(body, model=call.model, single=call.action == "embedContent")
        sent = sum(len(text) for request in asked.requests for text in request.inputs) // CHARACTERS_OF_TOKEN
        await self._make(call, asked.model, sent, lambda tags: operations.gemini_vectors(self.engine, asked, tags))

    async def _make_images(self, call: Call) -> None:
        asked = openai_extras.read_images(await self._bodies.read_json(call.request))
        await self._make(call, asked.model, 0, lambda tags: operations.openai_images(self.engine, asked, tags))

    async def _make(
        self, call: Call, model: str, sent: int, make: Callable[[Mapping[str, str]], Awaitable[operations.Made]]
    ) -> None:
        """Do an operation for a client that may request it, and answer. Raises ClientRefused or BadRequest."""
        headers: Headers = []
        if self.clients is None or call.client is None:
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
        await self._answer(call, await self._stored.show(call.client_name, call.model))

    async def _delete_response(self, call: Call) -> None:
        await self._answer(call, await self._stored.delete(call.client_name, call.model))

    async def _cancel_response(self, call: Call) -> None:
        await self._answer(call, await self._stored.cancel(call.client_name, call.model))

    async def _list_items(self, call: Call) -> None:
        await self._answer(call, await self._stored.items(call.client_name, call.model, call.request.query))

    # --- Models ---

    async def _list_models(self, call: Call) -> None:
        await self._answer(call, call.wire.write_models(self._models_for(call.client)))

    async def _show_model(self, call: Call) -> None:
        found = next((model for model in self._models_for(call.client) if model.id == call.model), None)
        if found is None:
            raise unknown_model(call.model)
        await self._answer(call, call.wire.write_model(found))

    def _models_for(self, client: Client | None) -> list[ListedModel]:
        """The models that a client may use: the names of models.yaml for clients, then the configured models."""
        models = self._listed()
        if self.clients is None or client is None:
            return models
        return [model for model in models if self.clients.may_use(client, model.id)]

    def _listed(self) -> list[ListedModel]:
        registry, now = self.engine.registry, asyncio.get_running_loop().time()
        if self._models is not None and self._models[0] > now and self._models[1] is registry:
            return self._models[2]
        known = {
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
                served = known.get(registry.resolve(models[0]).model.id)
                named = ListedModel(id=name) if served is None else msgspec.structs.replace(served, id=name)
                names.append(named)
        found = [*names, *(model for model in known.values() if model.id not in registry.client_names)]
        self._models = (now + MODELS_SECONDS, registry, found)
        return found

    async def _answer(self, call: Call, body: JsonObject) -> None:
        await answer(call.request.send, 200, msgspec.json.encode(body))


def key_of(request: Incoming) -> str | None:
    """The key of a client, wherever its SDK puts it; None if it sent none."""
    headers = request.headers
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key") or headers.get("x-goog-api-key") or request.query.get("key") or None


def gateway(
    engine: Engine,
    *,
    keyless: bool = False,
    hosts: Collection[str] = (),
    limits: GatewayLimits = GatewayLimits(),  # noqa: B008 (frozen)
    on_disconnect: Literal["cancel", "finish"] = "cancel",
) -> Gateway:
    """The engine as an ASGI application for the clients of four wires: `app.mount("/llm", gateway(engine))`.

    The wires are OpenAI's Chat Completions and Responses, Anthropic's Messages, and Gemini's generateContent.
    Every request is a call of the engine, with the tag ``client``. `callboard clients` makes the keys.

    Args:
        engine: The engine. Its owner closes it.
        keyless: Whether requests need no key. Then everyone who reaches the application spends your money.
            Requests must name one of the hosts, and pages of browsers are refused.
        hosts: The names, without a port, by which clients reach a keyless gateway, besides those of this machine.
        limits: The bounds.
        on_disconnect: What happens to the call of a client that leaves: ``cancel`` ends it, and what was delivered
            is billed. ``finish`` lets it run to its end.
    """
    from .clients import Clients
    from .conversations import Conversations

    return Gateway(
        engine,
        keyless=keyless,
        hosts=(*THIS_MACHINE, *(host.lower() for host in hosts)),
        limits=limits,
        on_disconnect=on_disconnect,
        clients=None if keyless else Clients(engine),
        conversations=Conversations(engine),
    )
