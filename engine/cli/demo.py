"""`callboard demo`: a tour of Callboard on a local model."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import anyio
import msgspec

from callboard.adapters import AdapterConfig, AdapterError, ToolDefinition, ToolResultBlock
from callboard.adapters.cassettes import CassetteTransport, RecordingTransport
from callboard.adapters.health import AdapterHealth
from callboard.adapters.providers.local import LocalAdapter, LocalServer, LocalServerSettings, SharedServer
from callboard.adapters.providers.local.adapter import create_inner, read_options
from callboard.adapters.providers.local.child import choose_model
from callboard.adapters.transport.connection_pool import new_transport
from callboard.bus import SYSTEM_CLOCK, Clock, ConfigurationError, Subscription
from callboard.bus.values.base import Json, JsonObject
from callboard.tracestore import CallFilter, PriceTable, RepriceReport

from .. import Engine, Session
from ..models.entries import AdapterEntry, ModelEntry
from ..models.registry import ModelRegistry
from ..routing.model_choice import model_text
from ..tools import Tool
from .options import command_name, demo_trace, flag, near, short
from .replay import describe
from .repricing_report import reprice_table
from .screen import LABEL_WIDTH, ReplyWriter, Screen, make_console
from .table import percent, usd
from .traces import calls_table, summarise

HOSTED_MODELS = ("anthropic:claude-sonnet-4-6", "openai:gpt-5")
_WATCHED = ("session.*", "llm.*", "actor.*", "tool.*", "pricing.*", "provider.*", "store.*")
_BESIDE_THE_TRACE = ("", "-wal", "-shm", ".lock")


def add_command(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run Callboard with a small model on this machine, in one or two minutes."
    flag(parser, "--cassettes", help="replay recordings instead of running a model")
    flag(parser, "--record", help=argparse.SUPPRESS)
    flag(parser, "--keep", help="keep calls of earlier demos in the trace file")
    flag(parser, "--plain", help="use no colours and no animation")
    parser.set_defaults(run=run, draws=True)


def run(arguments: argparse.Namespace) -> int:
    screen = Screen(make_console(plain=arguments.plain))
    trace = demo_trace()
    if not arguments.keep:
        for ending in _BESIDE_THE_TRACE:  # only demos use the name of this trace
            trace.with_name(trace.name + ending).unlink(missing_ok=True)
    source: Source = "cassettes" if arguments.cassettes else "record" if arguments.record else "live"
    demo = Demo(screen, trace, source)
    screen.run(demo.play)
    return 0


class Demo:
    """One run of the demo, step by step."""

    def __init__(self, screen: Screen, trace: Path, source: Source) -> None:
        self._screen = screen
        self._trace = trace
        self._source: Source = source
        self._prices = PriceTable.all_from_yaml(demo_prices())
        self._steps = 0
        self._engine: Engine
        self._events: Subscription
        self._began_ns = 0
        self._calls: CallFilter

    async def play(self) -> None:
        self._screen.line("Callboard: sessions over any model, every call an event, every cost a query.", "bold")
        async with self._model(), self._running_engine():
            await self._conversation()
            await self._structured_object()
            await self._tool_round()
            await self._engine.flush()
            await self._trace_table()
            await self._repricing()
        self._outro()
        await self._screen.drawn()

    # --- Setup ---

    def _heading(self, title: str, *about: str) -> None:
        self._steps += 1
        self._screen.line()
        self._screen.line(f"{self._steps}. {title}", "bold cyan")
        for line in about:
            self._screen.line(f"   {line}", "dim")
        self._screen.line()

    @asynccontextmanager
    async def _model(self) -> AsyncIterator[None]:
        """Start the local model's server while the demo runs. Without a local model, the cassettes are used."""
        if self._source == "cassettes":
            self._say_cassettes("as requested")
            yield
            return
        self._heading("A model on this machine", "No key, no network: llama.cpp and SmolLM2, 135M parameters.")
        self._screen.busy("   Starting its server ...")
        try:
            claim = shared_server()
            server = await claim.acquire()
        # llama.cpp is not installed, or its server does not start
        except (ConfigurationError, AdapterError) as error:
            self._screen.idle()
            self._screen.line(f"   {error}", "yellow")
            self._steps = 0
            self._source = "cassettes"
            self._say_cassettes("because the model can't run here")
            yield
            return
        self._screen.idle()
        took = server.statistics().startup_seconds
        self._fact("server", f"{server.url}, up in {took:.1f} s, process {server.pid}")
        self._fact("weights", server.settings.model_path.name)
        self._fact("context", f"{server.context_tokens:,} tokens for each of {server.settings.slots} requests")
        try:
            yield
        finally:
            # This takes a limited time: a server that has not stopped after 2 s is killed.
            with anyio.CancelScope(shield=True):
                await claim.release()

    def _say_cassettes(self, why: str) -> None:
        self._heading(
            f"Recorded replies, {why}",
            "The recorded replies of the local model, replayed byte for byte.",
            "Everything else is real: adapters, bus, streams, store, prices.",
        )
        self._fact("cassettes", str(cassette("*")))

    @asynccontextmanager
    async def _running_engine(self) -> AsyncIterator[None]:
        """An engine whose bus is watched from the first event to the last."""
        self._engine = Engine(models=demo_registry(self._source), store=self._trace, prices=self._prices[0])
        self._calls = CallFilter(tags={"demo": self._engine.bus.run_id})
        self._began_ns = self._engine.clock.monotonic_ns()
        self._events = self._engine.bus.subscribe(*_WATCHED, name="demo")
        watcher = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):  # this takes at most the engine's shutdown time
                await self._engine.aclose()  # this closes the bus, which ends the watcher
                self._events.close()
                await watcher

    async def _watch(self) -> None:
        while not self._events.closed:
            await self._events.wait()
            self._show_events()

    def _show_events(self) -> None:
        for envelope in self._events.take():
            since = (envelope.mono_ns - self._began_ns) // 1_000_000
            at = f"{since // 1000}.{since % 1000:03d}"
            self._screen.line(f"  {at:>6}  {envelope.topic:<25}{describe(envelope)}", "dim")

    # --- Steps ---

    async def _conversation(self) -> None:
        self._heading(
            "One session, three wire protocols, one history",
            "Each turn uses another protocol and needs the turns before it.",
            "The tokens as they arrive, with the events on the bus and their times in grey.",
        )
        session = self._session(CONVERSATION[0].model, system_prompt=SYSTEM_PROMPT)
        for number, question in enumerate(CONVERSATION):
            if number:
                self._screen.line()
            session.model = question.model
            await self._turn(session, question.text)

    async def _structured_object(self) -> None:
        self._heading(
            "A structured object", "The reply must follow a JSON Schema and is decoded into a typed Struct."
        )
        session = self._session(PERSON_MODEL)
        text = await self._turn(session, PERSON_TEXT, output_schema=PERSON_SCHEMA)
        self._screen.line()
        self._show("decoded", _decoded(text))

    async def _tool_round(self) -> None:
        self._heading(
            "A tool round, emulated",
            "A model this small can't call tools by itself. A schema makes it write a call.",
            "The rest is real: the tool runs, and its result goes back to the model.",
        )
        session = self._session(TOOL_MODEL, system_prompt=SYSTEM_PROMPT, tools=True)
        await self._turn(session, TOOL_TEXT)

    async def _trace_table(self) -> None:
        self._heading("The trace", f"Every call, from {short(self._trace)}.", f"Costs: {self._prices[0].label}.")
        assert self._engine.store is not None
        rows = await self._engine.store.calls(self._calls)
        self._screen.show(calls_table(summarise(reversed(rows)), when=False))
        await self._screen.drawn()

    async def _repricing(self) -> None:
        first, second = self._prices[0], self._prices[-1]
        self._heading(
            "The same calls under other prices",
            f"before: {first.label} ({first.version})",
            f"after:  {second.label} ({second.version})",
        )
        report = await self._engine.reprice(second, where=self._calls)
        self._show_events()
        self._screen.line()
        self._screen.show(reprice_table(report))
        self._screen.line()
        for model in HOSTED_MODELS:
            hosted = await self._engine.reprice(second, where=self._calls, as_model=model)
            self._screen.line(_as_if(hosted, report))
        self._heading("The engine stops")
        await self._screen.drawn()

    def _outro(self) -> None:
        command = command_name()
        home = f"CALLBOARD_HOME={short(self._trace.parent)} " if "CALLBOARD_HOME" in os.environ else ""
        database, prices = short(self._trace), short(demo_prices())
        self._screen.line()
        self._screen.line("Next", "bold cyan")
        self._screen.line()
        for what, how in (
            ("chat with it", f"{home}{command} chat"),
            ("query", f"{command} traces --db {database}"),
            ("reprice", f"{command} reprice --db {database} --prices {prices} --label first"),
            ("see it in a browser", f"{command} web --db {database}"),
        ):
            self._screen.line(f"   # {what}", "dim")
            self._screen.line(f"   {how}", whole=True)

    # --- One turn ---

    def _session(self, model: str, *, system_prompt: str | None = None, tools: bool = False) -> Session:
        return self._engine.session(
            model,
            system_prompt=system_prompt,
            tools=(WEATHER,) if tools else (),
            tags={"demo": self._engine.bus.run_id},
        )

    async def _turn(self, session: Session, text: str, **options: Any) -> str:
        """Show one turn on the screen. Returns the text of the reply."""
        self._show("you", text)
        shown = len(session.messages) + 1

        def before_reply() -> None:
            nonlocal shown
            self._show_events()
            for message in session.messages[shown:]:
                shown += 1
                for block in message.content:
                    if isinstance(block, ToolResultBlock):
                        self._show("the tool", block.text)

        writer = ReplyWriter(self._screen, f"{model_text(session.model):<{LABEL_WIDTH}}", before=before_reply)
        async with session.stream(text, **OPTIONS, **options) as turn:
            async for event in turn:
                writer.feed(event)
            message = await turn.message()
        self._show_events()
        await self._screen.drawn()
        return message.text

    def _show(self, who: str, text: str) -> None:
        self._screen.begin_reply(f"{who:<{LABEL_WIDTH}}", "bold")
        self._screen.text(text)
        self._screen.end_reply()

    def _fact(self, name: str, text: str) -> None:
        self._screen.line(f"   {name:<{LABEL_WIDTH - 3}}{text}")


def _decoded(text: str) -> str:
    """The JSON object in a reply, even if the reply was cut off."""
    try:
        return repr(msgspec.json.decode(text, type=Person))
    except msgspec.DecodeError as error:
        return f"no complete object: {error}"


def _as_if(hosted: RepriceReport, now: RepriceReport) -> str:
    after = hosted.total.all_after_nano_usd
    cost = usd(after) if hosted.calls > hosted.unpriced else "unpriced"
    change = percent(now.total.all_after_nano_usd, after)
    return f"as if on {hosted.as_model:<30}{cost}  {change}"


# --- The models ---

Source: TypeAlias = Literal["live", "cassettes", "record"]

ADAPTERS: Mapping[str, dict[str, Json]] = {
    "local-chat": {"protocol": "chat"},
    "local-messages": {"protocol": "messages"},
    "local-responses": {"protocol": "responses"},
    "local-tools": {"protocol": "chat", "tools": "emulate"},
}
PROTOCOLS = {
    "local-chat": "Chat Completions",
    "local-messages": "Anthropic Messages",
    "local-responses": "OpenAI Responses",
    "local-tools": "Chat Completions",
}
WIRE_NAME = "smollm2"

_TYPES: Mapping[Source, str] = {
    "live": "local",
    "cassettes": f"{__name__}:ReplayedLocal",
    "record": f"{__name__}:RecordedLocal",
}


def demo_registry(source: Source) -> ModelRegistry:
    """The four models by alias: on a running server, on the cassettes, or on a server whose traffic is
    recorded.
    """
    adapters: dict[str, AdapterEntry] = {}
    models: dict[str, ModelEntry] = {}
    for name, options in ADAPTERS.items():
        if source != "live":
            options = {**options, "cassette": str(cassette(name))}
        config = AdapterConfig(options=options)
        adapters[name] = AdapterEntry(name=name, type=_TYPES[source], config=config)
        models[f"{name}:{WIRE_NAME}"] = ModelEntry(
            id=f"{name}:{WIRE_NAME}", adapter=name, wire_name=WIRE_NAME, aliases=(name,)
        )
    return ModelRegistry(adapters, models, source="the demo")


def shared_server() -> SharedServer:
    """A reference to the server that all four adapters use."""
    return LocalServer.shared(LocalServerSettings(choose_model(None)))


def _cassette_of(config: AdapterConfig) -> tuple[Path, AdapterConfig]:
    options = dict(config.options)
    return Path(str(options.pop("cassette"))), msgspec.structs.replace(config, options=options)


class ReplayedLocal(LocalAdapter):
    """The local adapter with a recording instead of a server."""

    def __init__(self, config: AdapterConfig, *, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        path, config = _cassette_of(config)
        super().__init__(config, name=name, clock=clock)
        try:
            transport = CassetteTransport(path)
        except OSError as error:
            raise ConfigurationError(f"no recording at {path}: {error.strerror}") from error
        options = read_options(config, name)
        self._inner = create_inner(config, options, name=name, clock=clock, transport=transport)

    async def initialize(self) -> None: ...

    async def health_check(self) -> AdapterHealth:
        return AdapterHealth(True, "replays a recording")


class RecordedLocal(LocalAdapter):
    """The local adapter. All its HTTP traffic is recorded."""

    def __init__(self, config: AdapterConfig, *, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        path, config = _cassette_of(config)
        transport = RecordingTransport(new_transport(), path, scenario=f"callboard demo, {name}")
        super().__init__(config, name=name, clock=clock, transport=transport)


# --- The demo's prompts ---
# The committed cassettes are recordings of exactly these questions. After a change, record again with `callboard
# demo --record`.

SYSTEM_PROMPT = "You are a helpful assistant. Answer in one short sentence."
OPTIONS: dict[str, Any] = {"temperature": 0.0, "max_output_tokens": 48}


class Asked(msgspec.Struct, frozen=True):
    model: str
    text: str


CONVERSATION = (
    Asked("local-chat", "What is the capital of France?"),  # plain: a question to a model
    Asked("local-messages", "Name one famous thing to see there."),
    Asked("local-responses", "Which city are we talking about?"),
)


class Person(msgspec.Struct, frozen=True):
    """The facts that the step about structured output extracts."""

    name: str
    age: int
    city: str


PERSON_MODEL = "local-chat"
PERSON_TEXT = "Mara Lindqvist is 34 years old and lives in Oslo. Give me her name, age and city as JSON."
PERSON_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}

TOOL_MODEL = "local-tools"
TOOL_TEXT = "What is the weather in Oslo?"  # plain: a question to a model


def look_outside(arguments: JsonObject) -> Json:
    """The demo's tool. Its result is fixed."""
    return f"{arguments.get('city', 'There')}: 4 degrees, light rain."


WEATHER = Tool(
    ToolDefinition(
        "get_weather",
        "The weather in a city, now.",
        {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    ),
    execute=look_outside,
)


def demo_prices() -> Path:
    return _shipped("examples/demo-prices.yaml", "demo-prices.yaml")


def cassette(adapter: str) -> Path:
    """The path of the recorded answers of one of the demo's adapters."""
    return near(_shipped("cassettes/local", "cassettes") / f"demo-{adapter}.json")


def _shipped(in_checkout: str, in_wheel: str) -> Path:
    home = Path(__file__).resolve().parents[2]  # in a checkout, the link is resolved to the repository
    return home / in_checkout if (home / "pyproject.toml").exists() else Path(__file__).parent / in_wheel
