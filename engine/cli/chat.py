"""`callboard chat`: a chat that uses the same engine as a host.

The main thread reads lines, draws, and receives Ctrl-C. The engine has an event loop in a second thread, so
neither thread waits for the other.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

from anyio.from_thread import BlockingPortal, start_blocking_portal

from callboard.adapters import CancelledError, ContentBlock, Role, StopReason
from callboard.bus import CallboardError, ConfigurationError, Message
from callboard.bus.errors import AdapterError
from callboard.bus.values.usage import CostSum

from .. import (
    Engine,
    GenerateResult,
    ModelRegistry,
    Reply,
    RequestLoss,
    RequestPreview,
    Session,
    ToolLike,
    TurnOptions,
    TurnStream,
    load_registry,
)
from ..calls.outcome import NOT_KNOWN
from ..mcp.hooks import SamplingRequest
from ..routing.model_choice import model_text
from .chat_input import (
    HELP,
    SHORT_HELP,
    Interrupts,
    PlainReader,
    Reader,
    SlashCommand,
    command_of,
    edited,
    unknown,
    unwrapped,
)
from .conversation_setup import (
    LastSession,
    add_tools_and_options,
    approver,
    first_model,
    given_tools,
    last_session,
    remember,
)
from .inputs import attachment, content_of, options_of
from .options import add_key, add_model, add_models_file, command_name, flag
from .sanitize import echo, note
from .screen import ReplyWriter, Screen, error_text, make_console, print_error
from .table import cost_text, plural, seconds, sum_text, usd


class Setting(NamedTuple):
    model: str | None  # None uses the default model, or the model of the continued session
    system: str | None
    key: str | None  # the name of the adapter's key to send
    resumed: str | None  # the id of the session to continue
    saved: bool  # whether the chat is saved from the start
    options: TurnOptions
    tools: Sequence[str] = ()  # the tools, as words of the command line
    asks_always: bool = False  # whether the user is asked about every tool call


class ChatEngine:
    """The engine and the session of a chat. Everything runs on the event loop, in one task."""

    engine: Engine
    session: Session

    def __init__(self, registry: ModelRegistry, setting: Setting) -> None:
        self.saved = setting.saved or setting.resumed is not None
        self._registry = registry
        self._setting = setting
        self._life = AsyncExitStack()
        self._tools: Sequence[ToolLike] = ()

    async def __aenter__(self) -> ChatEngine:
        try:
            self._tools = await given_tools(self._setting.tools, self._life, self._generate)
            self.engine = Engine(models=self._registry, capture_content=self.saved)
            self._life.push_async_callback(lambda: self.engine.aclose())  # `save` replaces the engine
            await self._begin()
        except BaseException:
            await self._life.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._life.aclose()

    async def _generate(self, request: SamplingRequest) -> GenerateResult:
        """Generate a reply with the chat's model, for an MCP server that requested it."""
        from ..mcp.hooks import sampled_by

        return await sampled_by(self.session.model, self.engine)(request)

    async def _begin(self) -> None:
        setting = self._setting
        approve = approver(self._tools, asks_always=setting.asks_always, tells=False) if self._tools else None
        if setting.resumed is not None:
            self.session = await self.engine.resume(
                setting.resumed,
                model=setting.model,
                system_prompt=setting.system,
                tools=self._tools,
                approve=approve,
                key=setting.key,
            )
            return
        model = setting.model or first_model(self._registry)
        self._require(model)
        self.session = self.engine.session(
            model, system_prompt=setting.system, tools=self._tools, approve=approve, key=setting.key
        )
        await self.engine.start()

    def _require(self, model: str) -> None:
        registry = self.engine.registry
        registry.adapter_of(registry.resolve(model).model)

    def swap(self, name: str) -> None:
        """Change the model of the session."""
        self._require(name)
        self.session.model = name

    async def preview(self, name: str, content: Sequence[ContentBlock]) -> RequestPreview:
        """The request that would be sent to a model for this message."""
        text = content or "…"
        return await self.engine.preview(self.session, text, model=name or None, **self._setting.options)

    def back_to(self, count: int) -> None:
        """Keep only the first messages, up to this number, and continue in a new session with them."""
        if len(self.session.messages) > count:
            self.session = self.session.fork(at=count)

    async def save(self) -> None:
        """Save the conversation, and all later messages. A second call does nothing."""
        if self.saved:
            return
        document = self.session.export()
        await self.engine.aclose()
        self.engine = Engine(models=self._registry, capture_content=True)
        self.session = await self.engine.import_session(document, tools=self._tools, key=self._setting.key)
        await self.engine.flush()
        self.saved = True


class ReplyInProgress:
    """A turn in progress on the event loop. The main thread may cancel it at any time."""

    def __init__(
        self,
        session: Session,
        content: str | Sequence[ContentBlock],
        options: TurnOptions,
        writer: ReplyWriter,
    ) -> None:
        self._session = session
        self._content = content
        self._options = options
        self._writer = writer
        self._turn: TurnStream | None = None
        self._cancelled = False

    async def run(self) -> Reply:
        try:
            async with self._session.stream(self._content, **self._options) as turn:
                self._turn = turn
                if self._cancelled:
                    await turn.cancel()
                async for event in turn:
                    self._writer.feed(event)
                return await turn.message()
        finally:
            self._writer.end()

    async def cancel(self) -> None:
        """Cancel the turn; the part that has arrived is kept."""
        self._cancelled = True
        if self._turn is not None:
            await self._turn.cancel()


class Chat:
    """A conversation with the user. Use it only on the main thread."""

    def __init__(
        self,
        screen: Screen,
        portal: BlockingPortal,
        chat_engine: ChatEngine,
        interrupts: Interrupts,
        setting: Setting,
    ) -> None:
        self.chat_engine = chat_engine
        self._screen = screen
        self._portal = portal
        self._interrupts = interrupts
        self._setting = setting
        self._at_terminal = sys.stdin.isatty() and screen.console.is_terminal
        self._reader = self._make_reader()
        self._attached: list[tuple[str, ContentBlock]] = []
        self._last: tuple[int, str | Sequence[ContentBlock]] | None = None

    @property
    def _session(self) -> Session:
        return self.chat_engine.session

    # --- Input ---

    def talk(self) -> None:
        """Run the conversation until the user leaves."""
        if self._session.messages:
            self._say(f"{plural(len(self._session.messages), 'message')} so far")
        self._say(f"{model_text(self._session.model)}. {SHORT_HELP}")
        while (text := self._read()) is not None:
            command = command_of(text)
            if command is not None and command.name == "quit":
                break
            if command is not None:
                self._run_command(command)
            elif message := unwrapped(text):
                self._send(message)
        self._leave()

    def _make_reader(self) -> Reader:
        if self._at_terminal:
            with contextlib.suppress(ImportError):
                from .chat_terminal import TerminalReader

                return TerminalReader("you> ", self._names)
        return PlainReader("you> " if self._at_terminal else "")

    def _names(self) -> Iterator[str]:
        for model in self.chat_engine.engine.registry.models.values():
            yield model.id
            yield from model.aliases

    def _read(self) -> str | None:
        """The user's input; None when the chat ends: at the end of the input and after Ctrl-C."""
        try:
            with self._interrupts.reading():
                text = self._reader.read()
        except KeyboardInterrupt:
            text = None
        if text is None and self._at_terminal:
            echo()
        return text

    def _leave(self) -> None:
        if not self._session.messages:
            return
        if not self.chat_engine.saved and self._at_terminal and self._wants_to_save():
            self._save()
        if self.chat_engine.saved:
            remember(self._session.id, self._setting.tools)
            self._say(f"To continue: {command_name()} chat --resume {self._session.id}")

    def _wants_to_save(self) -> bool:
        try:
            with self._interrupts.reading():
                answer = self._reader.ask("Save this conversation, to continue it later? [y/N] ")
        except KeyboardInterrupt:
            return False
        return answer.strip().lower() in ("y", "yes")

    # --- Commands ---

    def _run_command(self, command: SlashCommand) -> None:
        name, argument = command
        try:
            match name, argument:
                case "model", "":
                    self._list_models()
                case "model", _:
                    self._swap(argument)
                case "preview", _:
                    self._preview(argument)
                case "attach", _:
                    self._attach(argument)
                case "edit", _:
                    self._edit(argument)
                case "retry", _:
                    self._retry(argument)
                case "cost", "":
                    self._say(replies_text(self._session.messages))
                case "save", "":
                    self._save()
                case "help", _:
                    for line in HELP.values():
                        self._say(line)
                case _:
                    print_error(unknown(name))
        except CallboardError as error:
            print_error(str(error))

    def _swap(self, name: str) -> None:
        self._portal.call(self.chat_engine.swap, name)
        self._say(f"the conversation continues with {name}")

    def _preview(self, name: str) -> None:
        attached = [block for _, block in self._attached]
        preview = self._portal.call(self.chat_engine.preview, name, attached)
        for line in preview_lines(preview, len(self._session.messages)):
            self._say(line)

    def _list_models(self) -> None:
        registry = self.chat_engine.engine.registry
        current = None
        with contextlib.suppress(ConfigurationError):  # the model of a resumed session may be a `ModelChoice`
            current = registry.resolve(model_text(self._session.model)).model.id
        for model in registry.models.values():
            key = registry.adapters[model.adapter].missing_key
            note = f"needs {key}" if key else ", ".join(model.aliases)
            self._say(f"{'*' if model.id == current else ' '} {model.id:<32} {note}".rstrip())

    def _attach(self, source: str) -> None:
        if source:
            self._attached.append((source, attachment(source, None, lambda: b"")))
        goes = ", ".join(name for name, _ in self._attached)
        self._say(f"attached to the next message: {goes}" if goes else "no attachments for the next message")

    def _edit(self, text: str) -> None:
        if not self._at_terminal:
            raise CallboardError("/edit needs a terminal")
        if message := edited(text):
            self._say(message)
            self._send(message)
        else:
            self._say("the message is empty and was not sent")

    def _retry(self, model: str) -> None:
        last = self._last or self._last_of_history()
        if last is None:
            raise CallboardError("there is no message to retry yet")
        if model:
            self._swap(model)
        before, content = last
        self._portal.call(self.chat_engine.back_to, before)
        self._reply(content)

    def _last_of_history(self) -> tuple[int, Sequence[ContentBlock]] | None:
        """The index and the content of the user's last message, in a continued session."""
        messages = self._session.messages
        for place in reversed(range(len(messages))):
            if messages[place].role is Role.USER and not messages[place].steers:
                return place, messages[place].content
        return None

    def _save(self) -> None:
        self._portal.call(self.chat_engine.save)
        remember(self._session.id, self._setting.tools)
        self._say(f"saved as {self._session.id}, with all messages that follow")

    # --- Replies ---

    def _send(self, message: str) -> None:
        content = content_of(message, [block for _, block in self._attached])
        self._attached.clear()
        self._reply(content)

    def _reply(self, content: str | Sequence[ContentBlock]) -> None:
        self._last = (len(self._session.messages), content)
        label = f"{model_text(self._session.model)}> " if self._at_terminal else ""
        writer = ReplyWriter(self._screen, label, before=self._screen.idle)
        reply = ReplyInProgress(self._session, content, self._setting.options, writer)
        if self._at_terminal:
            self._screen.busy(f"{model_text(self._session.model)} ...")
        with self._interrupts.replying(lambda: self._portal.start_task_soon(reply.cancel)):
            try:
                message = self._screen.serve(self._portal.start_task_soon(reply.run))
            except CancelledError:
                print_error("cancelled; the part that arrived is kept")
            except AdapterError as error:
                print_error(error_text(error))
            except CallboardError as error:
                print_error(f"{type(error).__name__}: {error}")
            else:
                self._after(message)

    def _after(self, message: Reply) -> None:
        metadata = message.metadata
        if metadata.stop_reason is StopReason.MAX_TOKENS:
            self._say("(cut off at the output limit)")
        if self._at_terminal:
            used = f"{metadata.usage.total_input_tokens} in, {metadata.usage.output_tokens} out"
            self._say(f"{used}, {cost_text(metadata.cost)}, {seconds(metadata.latency_ms)}")

    def _say(self, text: str) -> None:
        """Show a message of the chat command: dim on a terminal, and on stderr if the conversation is piped."""
        if self._at_terminal:
            self._screen.console.print(text, style="dim")
        else:
            note(text)


def preview_lines(preview: RequestPreview, messages: int) -> Iterator[str]:
    """The lines that describe a request before it is sent."""
    if preview.refused is not None:
        yield f"{preview.model} can't be used: {preview.refused}"
        return
    tokens = "?" if preview.input_tokens is None else str(preview.input_tokens)
    cost = "unpriced" if preview.input_nano_usd is None else usd(preview.input_nano_usd)
    yield f"{preview.model} would receive about {tokens} tokens, {cost}"
    counted = Counter(f"{_loss_place(loss, messages)}{loss.reason}" for loss in preview.losses)
    for line, times in counted.items():
        yield line if times == 1 else f"{line} ({times} times)"
    yield "no losses" if not preview.losses else f"{len(preview.losses)} in total"


def _loss_place(loss: RequestLoss, messages: int) -> str:
    """The lost part and its place. For a warning about a setting, the setting's name."""
    if loss.message is not None:
        return f"{f'message {loss.message + 1}' if loss.message < messages else 'the next message'}, {loss.what}: "
    if loss.tool is not None:
        return f"tool {loss.tool}, {loss.what}: "
    return f"{loss.what}: " if "." in loss.what else ""


def replies_text(history: Iterable[Message]) -> str:
    """The cost of a conversation's replies, and the number of replies with unknown cost."""
    total = CostSum()
    for reply in (message.metadata for message in history if message.metadata is not None):
        unknown = reply.cost == NOT_KNOWN
        total += CostSum.of_call(None if unknown else reply.usage, reply.cost, unknown=unknown)
    replies = "1 reply" if total.calls == 1 else f"{total.calls:,} replies"
    estimated = f", {total.estimated:,} with estimated usage" if total.estimated else ""
    return f"{sum_text(total)} for {replies}{estimated}"


# --- The command ---

TOOL_ROUNDS = 10
"""The maximum number of tool rounds, unless ``-o max_tool_rounds`` sets it."""


def add_command(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Chat with a model at a terminal, or with lines from a pipe. /help shows the commands. The "
        "conversation is saved with --save or /save, or if you confirm at the end."
    )
    add_model(parser, required=False)
    parser.add_argument("-s", "--system", metavar="TEXT", help="set the system prompt")
    flag(parser, "--save", help="save the conversation, so that you can resume it")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--resume", metavar="SESSION", help="continue a saved session, and save it (see `callboard sessions`)"
    )
    flag(which, "-c", "--continue", dest="goes_on", help="continue the last saved conversation")
    add_tools_and_options(
        parser,
        tools="let the model call tools, as in `callboard ask`: a FILE.py, a module, or an MCP server",
        options="set an option for every message, such as temperature=0.2 or temperature 0.2",
    )
    add_key(parser)
    add_models_file(parser)
    parser.set_defaults(run=run, draws=True)


def run(arguments: argparse.Namespace) -> int:
    """Run the chat. Errors inside the conversation are shown in it."""
    setting = setting_of(arguments)
    registry = load_registry(arguments.models_file)
    screen = Screen(make_console())
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(portal.call(ChatEngine, registry, setting)) as chat_engine,
        Interrupts() as interrupts,
    ):
        Chat(screen, portal, chat_engine, interrupts, setting).talk()
    return 0


def setting_of(arguments: argparse.Namespace) -> Setting:
    last = last_session() if arguments.goes_on else LastSession("")
    return Setting(
        model=arguments.model,
        system=arguments.system,
        key=arguments.key,
        resumed=last.session_id or arguments.resume,
        saved=arguments.save,
        options={"max_tool_rounds": TOOL_ROUNDS, **options_of(map(tuple, arguments.options))},
        tools=arguments.tools or last.tools,
        asks_always=arguments.approve,
    )
