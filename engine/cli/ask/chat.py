"""`callboard chat`: a plain chat over the same engine that a host embeds.

The main thread is the person's: it reads lines, draws, and is where Ctrl-C arrives. The engine has an event loop
in a thread of its own, so that neither ever waits for the other.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

from anyio.from_thread import BlockingPortal, start_blocking_portal

from adapters import CancelledError, StopReason
from bus import CallboardError, ConfigurationError
from engine import Engine, ModelRegistry, Reply, Session, TurnStream, load_registry
from engine.routing.model_choice import in_words

from ..common.arguments import add_key, add_model, add_models_file
from ..common.harmless import note, say
from ..common.money import cost_text, replies_text
from ..common.places import command_name
from ..common.screen import Screen, complain, make_console
from ..common.words import plural, seconds
from ..given.model import first_model
from .replies import ReplyWriter

HELP = "/model NAME swaps the model, /model lists them, /cost, /quit. Ctrl-C cancels a reply, Ctrl-D leaves."


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("chat", help="talk to a model; swap it in mid-conversation")
    add_model(parser, required=False)
    add_models_file(parser)
    add_key(parser)
    parser.add_argument("--system", metavar="TEXT", help="the system prompt")
    parser.add_argument("--save", action="store_true", help="keep what is said, so that it can be resumed")
    parser.add_argument(
        "--resume", metavar="SESSION", help="go on with a saved session, and save it (see `callboard sessions`)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the chat. Errors inside the conversation are shown in it.

    Raises:
        CallboardError: There can be no chat.
    """
    registry = load_registry(arguments.models_file)
    screen = Screen(make_console())
    with start_blocking_portal("asyncio") as portal:
        backstage = portal.call(Backstage, registry, arguments.save or arguments.resume is not None)
        try:
            if arguments.resume is None:
                portal.call(
                    backstage.begin, arguments.model or first_model(registry), arguments.system, arguments.key
                )
                portal.call(backstage.engine.start)
            else:
                portal.call(backstage.resume, arguments.resume, arguments.model, arguments.system, arguments.key)
            Chat(screen, portal, backstage).talk()
        finally:
            portal.call(backstage.engine.aclose)
    return 0


class Backstage:
    """The parts of the chat that live on the event loop: the engine and the session. They are made and used there.

    `session` is there from `begin` or `resume` on.

    Args:
        save: Whether to keep the content of the conversation.
    """

    def __init__(self, registry: ModelRegistry, save: bool) -> None:
        self.engine = Engine(models=registry, capture_content=save)
        self.saved = save
        self.session: Session

    def begin(self, model: str, system_prompt: str | None, key: str | None) -> None:
        """Raises ConfigurationError, also if the model's key is missing."""
        registry = self.engine.registry
        registry.adapter_of(registry.resolve(model).model)
        self.session = self.engine.session(model, system_prompt=system_prompt, key=key)

    async def resume(self, session_id: str, model: str | None, system_prompt: str | None, key: str | None) -> None:
        """Go on with a stored session.

        Args:
            session_id: The session's id.
            model: Another model; None keeps the session's own.
            system_prompt: Another system prompt; None keeps the session's own.
            key: The name of the key to send; None is the adapter's own.

        Raises:
            CallboardError: The session can't be resumed.
        """
        self.session = await self.engine.resume(session_id, model=model, system_prompt=system_prompt, key=key)

    def swap(self, name: str) -> None:
        """Give the session another model.

        Raises:
            ConfigurationError: There is no such model, or its key is missing.
        """
        registry = self.engine.registry
        registry.adapter_of(registry.resolve(name).model)
        self.session.model = name


class ReplyUnderWay:
    """One turn, from the loop's side, that the main thread may cancel at any time."""

    def __init__(self, session: Session, text: str, writer: ReplyWriter) -> None:
        self._session = session
        self._text = text
        self._writer = writer
        self._turn: TurnStream | None = None
        self._cancelled = False

    async def run(self) -> Reply:
        try:
            async with self._session.stream(self._text) as turn:
                self._turn = turn
                if self._cancelled:
                    await turn.cancel()
                async for event in turn:
                    self._writer.feed(event)
                return await turn.message()
        finally:
            self._writer.end()

    async def cancel(self) -> None:
        self._cancelled = True
        if self._turn is not None:
            await self._turn.cancel()


class Chat:
    """The conversation, from the main thread's side."""

    def __init__(self, screen: Screen, portal: BlockingPortal, backstage: Backstage) -> None:
        self.backstage = backstage
        self._screen = screen
        self._portal = portal
        self._at_terminal = sys.stdin.isatty() and screen.console.is_terminal
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 (it gives input() arrows and a history)

    @property
    def _session(self) -> Session:
        return self.backstage.session

    def talk(self) -> None:
        """Until the person leaves."""
        if self._session.messages:
            self._say(f"{plural(len(self._session.messages), 'message')} so far")
        self._say(f"{in_words(self._session.model)}. {HELP}")
        while (line := self._read()) is not None:
            text = line.strip()
            if text in ("/quit", "/exit"):
                break
            if text.startswith("/"):
                self._command(*text[1:].split(maxsplit=1))
            elif text:
                self._reply(text)
        if self.backstage.saved and self._session.messages:
            self._say(f"To go on: {command_name()} chat --resume {self._session.id}")

    def _read(self) -> str | None:
        """The next line; None at the end of the input and after Ctrl-C, when the chat ends."""
        try:
            return input("\nyou> " if self._at_terminal else "")
        except (EOFError, KeyboardInterrupt):
            if self._at_terminal:
                say()
            return None

    def _command(self, name: str = "", argument: str = "") -> None:
        match name, argument:
            case "model", "":
                self._list_models()
            case "model", _:
                self._swap(argument)
            case "cost", "":
                self._say(replies_text(self._session.messages))
            case "help", _:
                self._say(HELP)
            case _:
                complain(f"no such command: /{name} {argument}".rstrip() + f". {HELP}")

    def _swap(self, name: str) -> None:
        try:
            self._portal.call(self.backstage.swap, name)
        except ConfigurationError as error:
            complain(str(error))
        else:
            self._say(f"now {name}; the conversation goes on")

    def _list_models(self) -> None:
        registry = self.backstage.engine.registry
        current = None
        with contextlib.suppress(ConfigurationError):  # a resumed session may leave the choice to the router
            current = registry.resolve(in_words(self._session.model)).model.id
        for model in registry.models.values():
            key = registry.adapters[model.adapter].missing_key
            names = ", ".join(model.aliases)
            note = f"needs {key}" if key else names
            self._say(f"{'*' if model.id == current else ' '} {model.id:<32} {note}".rstrip())

    def _reply(self, text: str) -> None:
        label = f"{in_words(self._session.model)}> " if self._at_terminal else ""
        reply = ReplyUnderWay(self._session, text, ReplyWriter(self._screen, label, before=self._screen.idle))
        if self._at_terminal:
            self._screen.busy(f"{in_words(self._session.model)} ...")
        with interrupts_call(lambda: self._portal.start_task_soon(reply.cancel)):
            try:
                message = self._screen.serve(self._portal.start_task_soon(reply.run))
            except CancelledError:
                complain("cancelled; what had arrived is kept")
            except CallboardError as error:
                provider = getattr(error, "provider", None)
                complain(f"{type(error).__name__}{f' of {provider}' if provider else ''}: {error}")
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
        """A message of the chat itself. It is dim on a terminal, and goes to stderr if the conversation is
        piped."""
        if self._at_terminal:
            self._screen.console.print(text, style="dim")
        else:
            note(text)


@contextlib.contextmanager
def interrupts_call(cancel: Callable[[], object]) -> Iterator[None]:
    """While the context lasts, the first Ctrl-C calls `cancel`. A second one interrupts as usual. On the main
    thread only."""

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, previous)
        cancel()

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
