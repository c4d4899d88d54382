"""The conversation, from the main thread's side: what the person says, the commands in it, and the replies."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

from anyio.from_thread import BlockingPortal

from callboard.adapters import CancelledError, ContentBlock, Role, StopReason
from callboard.bus import CallboardError, ConfigurationError
from callboard.bus.errors import AdapterError
from callboard.engine import Reply, Session
from callboard.engine.routing.model_choice import in_words

from ..advice import said
from ..answer.last_session import remember
from ..common.harmless import note, say
from ..common.money import cost_text, replies_text
from ..common.places import command_name
from ..common.screen import Screen, complain
from ..common.words import plural, seconds
from ..given.attachments import attachment
from ..given.prompt import content_of
from .backstage import Backstage, ReplyUnderWay, Setting
from .blocks import unwrapped
from .editor import edited
from .interrupts import Interrupts
from .losses import preview_lines
from .readers import PlainReader, Reader
from .replies import ReplyWriter
from .slash import HELP, SHORT_HELP, SlashCommand, command_of, unknown


class Chat:
    """One conversation with a person. It is for the main thread.

    Args:
        screen: Where replies are shown.
        portal: The way to the event loop.
        backstage: The engine and the session there.
        interrupts: What Ctrl-C means.
        setting: What the chat began with.
    """

    def __init__(
        self,
        screen: Screen,
        portal: BlockingPortal,
        backstage: Backstage,
        interrupts: Interrupts,
        setting: Setting,
    ) -> None:
        self.backstage = backstage
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
        return self.backstage.session

    # -- the person

    def talk(self) -> None:
        """Until the person leaves."""
        if self._session.messages:
            self._say(f"{plural(len(self._session.messages), 'message')} so far")
        self._say(f"{in_words(self._session.model)}. {SHORT_HELP}")
        while (text := self._read()) is not None:
            command = command_of(text)
            if command is not None and command.name == "quit":
                break
            if command is not None:
                self._obey(command)
            elif message := unwrapped(text):
                self._send(message)
        self._leave()

    def _make_reader(self) -> Reader:
        if self._at_terminal:
            with contextlib.suppress(ImportError):
                from .terminal import TerminalReader

                return TerminalReader("you> ", self._names)
        return PlainReader("you> " if self._at_terminal else "")

    def _names(self) -> Iterator[str]:
        for model in self.backstage.engine.registry.models.values():
            yield model.id
            yield from model.aliases

    def _read(self) -> str | None:
        """What the person says; None at the end of the input and after Ctrl-C, when the chat ends."""
        try:
            with self._interrupts.reading():
                text = self._reader.read()
        except KeyboardInterrupt:
            text = None
        if text is None and self._at_terminal:
            say()
        return text

    def _leave(self) -> None:
        if not self._session.messages:
            return
        if not self.backstage.saved and self._at_terminal and self._wants_to_save():
            self._save()
        if self.backstage.saved:
            remember(self._session.id, self._setting.tools)
            self._say(f"To go on: {command_name()} chat --resume {self._session.id}")

    def _wants_to_save(self) -> bool:
        try:
            with self._interrupts.reading():
                answer = self._reader.ask("Keep this conversation, to go on with it later? [y/N] ")
        except KeyboardInterrupt:
            return False
        return answer.strip().lower() in ("y", "yes")

    # -- commands

    def _obey(self, command: SlashCommand) -> None:
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
                    complain(unknown(name))
        except CallboardError as error:
            complain(str(error))

    def _swap(self, name: str) -> None:
        self._portal.call(self.backstage.swap, name)
        self._say(f"now {name}; the conversation goes on")

    def _preview(self, name: str) -> None:
        attached = [block for _, block in self._attached]
        preview = self._portal.call(self.backstage.preview, name, attached)
        for line in preview_lines(preview, len(self._session.messages)):
            self._say(line)

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

    def _attach(self, source: str) -> None:
        if source:
            self._attached.append((source, attachment(source, None, lambda: b"")))
        goes = ", ".join(name for name, _ in self._attached)
        self._say(f"with the next message: {goes}" if goes else "nothing goes with the next message")

    def _edit(self, text: str) -> None:
        if not self._at_terminal:
            raise CallboardError("/edit needs a terminal")
        if message := edited(text):
            self._say(message)
            self._send(message)
        else:
            self._say("nothing was written, so nothing was sent")

    def _retry(self, model: str) -> None:
        last = self._last or self._last_of_history()
        if last is None:
            raise CallboardError("there is nothing to ask again yet")
        if model:
            self._swap(model)
        before, content = last
        self._portal.call(self.backstage.back_to, before)
        self._reply(content)

    def _last_of_history(self) -> tuple[int, Sequence[ContentBlock]] | None:
        """The place and the content of the person's last message, in a session that goes on."""
        messages = self._session.messages
        for place in reversed(range(len(messages))):
            if messages[place].role is Role.USER and not messages[place].steers:
                return place, messages[place].content
        return None

    def _save(self) -> None:
        self._portal.call(self.backstage.save)
        remember(self._session.id, self._setting.tools)
        self._say(f"kept, as {self._session.id}, and so is what follows")

    # -- replies

    def _send(self, message: str) -> None:
        content = content_of(message, [block for _, block in self._attached])
        self._attached.clear()
        self._reply(content)

    def _reply(self, content: str | Sequence[ContentBlock]) -> None:
        self._last = (len(self._session.messages), content)
        label = f"{in_words(self._session.model)}> " if self._at_terminal else ""
        writer = ReplyWriter(self._screen, label, before=self._screen.idle)
        reply = ReplyUnderWay(self._session, content, self._setting.options, writer)
        if self._at_terminal:
            self._screen.busy(f"{in_words(self._session.model)} ...")
        with self._interrupts.replying(lambda: self._portal.start_task_soon(reply.cancel)):
            try:
                message = self._screen.serve(self._portal.start_task_soon(reply.run))
            except CancelledError:
                complain("cancelled; what had arrived is kept")
            except AdapterError as error:
                complain(said(error))
            except CallboardError as error:
                complain(f"{type(error).__name__}: {error}")
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
