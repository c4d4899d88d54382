"""`callboard background`: replies that were asked for in the background, and whose program has ended."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

import msgspec

from callboard.bus import CallboardError, Cost
from callboard.engine import Engine, load_registry
from callboard.tracestore import OpenReply

from ..common.arguments import add_models_file
from ..common.engine import on_engine
from ..common.fitting import FittingTable
from ..common.harmless import harmless, note, say
from ..common.output import add_format, write
from ..common.screen import make_console


class ReplyLine(msgspec.Struct, frozen=True):
    """An open reply, as the command writes it."""

    id: str
    """The id of its call."""
    model: str
    """The model, ``provider:name``."""
    session: str | None
    """The id of its session; None without one."""
    response: str
    """The provider's id of the reply."""
    asked_us: int
    """When it was asked for, in microseconds since the Unix epoch."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "background",
        help="Read replies that a provider completes in the background",
        description="A reply that was asked for with `-o background true` goes on at its provider when its "
        "program ends. Here it is found again.",
    )
    inner = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = inner.add_parser(
        "list", help="List replies that are not read yet", description="Lists the replies that nobody has read."
    )
    add_format(listing, "for each reply")
    read = inner.add_parser(
        "read",
        help="Wait for a reply, and write its text",
        description="Waits for a reply and writes its text. Nothing is asked for again. A session that is stored "
        "gets the reply into its history.",
    )
    read.add_argument("id", metavar="ID", nargs="?", help="the reply (default: the latest one)")
    for one, run in ((listing, list_replies), (read, read_reply)):
        add_models_file(one)
        one.set_defaults(run=run)


def list_replies(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""

    async def work(engine: Engine) -> list[OpenReply]:
        return await engine.open_replies()

    found = on_engine(arguments, work)
    lines = [
        ReplyLine(each.request_id, each.model, each.session_id, each.response_id, each.started_us)
        for each in found
    ]
    if arguments.format != "table":
        write(arguments.format, ReplyLine, lines)
        return 0
    table = FittingTable()
    for heading in ("reply", "model", "session"):
        table.add_column(heading, folds=True)
    table.add_column("asked", may_go=1)
    for line in lines:
        asked = datetime.fromtimestamp(line.asked_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M")
        table.add_row(harmless(line.id), harmless(line.model), harmless(line.session or ""), asked)
    make_console().print(table)
    return 0


def read_reply(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""
    registry = load_registry(arguments.models_file)

    async def work(engine: Engine) -> tuple[str, Cost | None]:
        found = await engine.open_replies()
        wanted = [each for each in found if arguments.id in (None, each.request_id, each.response_id)]
        if not wanted:
            named = "no reply" if arguments.id is None else f"no reply {arguments.id}"
            raise CallboardError(f"{named} is open: see `callboard background list`")
        return await _read(engine, wanted[-1])

    text, cost = on_engine(arguments, work, make=lambda: Engine(models=registry, capture_content=True))
    say(text)
    if cost is not None:
        note(f"{cost.usd} USD")
    return 0


async def _read(engine: Engine, reply: OpenReply) -> tuple[str, Cost | None]:
    """The text of a reply, and its cost."""
    if reply.session_id is not None:
        try:
            session = await engine.resume(reply.session_id)
        except CallboardError as error:
            note(f"its session stays as it is: {error}")
        else:
            message = await session.take_up(reply)
            return message.text, message.metadata.cost
    result = await engine.take_up(reply)
    return result.text, result.total_cost
