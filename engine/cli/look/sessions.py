"""`callboard sessions`: the sessions of a trace file, or what was said in one of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import reduce
from operator import add
from pathlib import Path
from typing import assert_never

import anyio
import msgspec

from callboard.adapters import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    Message,
    OpaqueBlock,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.adapters.requests.surrogates import mend_json
from callboard.bus import CallboardError
from callboard.bus.private_file import write_private
from callboard.bus.values.cost_sum import CostSum
from callboard.tracestore import CallFilter, SavedSession, SessionRow
from callboard.tracestore.writing.captured import encode_json, encode_metadata

from ...opening import shipped_to, store_to_read, store_to_write
from ...sessions.stored import document_of
from ...store_address import TracePlace
from ..common.arguments import add_trace, chosen_trace, positive, tag
from ..common.chat_history import forget_lines
from ..common.fitting import FittingTable
from ..common.harmless import note, say, write_json
from ..common.money import sum_text
from ..common.output import json_text
from ..common.reading import from_trace
from ..common.screen import make_console
from ..common.words import moment_text, plural


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("sessions", help="Show sessions and their messages")
    parser.add_argument("session", nargs="?", metavar="SESSION", help="show what is stored of this one")
    add_trace(parser)
    parser.add_argument("--export", type=Path, metavar="FILE", help="write SESSION as a document of its own")
    parser.add_argument(
        "--delete",
        action="store_true",
        help="delete SESSION with its name, tags and errors; tokens and costs stay",
    )
    parser.add_argument(
        "--tag", metavar="KEY=VALUE", type=tag, action="append", help="only with this tag; may be repeated"
    )
    parser.add_argument("--limit", type=positive, default=50, metavar="N", help="at most N sessions (default 50)")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a line for each session, or each message of one"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""
    if arguments.session is None and (arguments.delete or arguments.export is not None):
        raise CallboardError("name the session: callboard sessions SESSION --export FILE, or --delete")
    trace = chosen_trace(arguments)
    tell = note if arguments.json else say  # beside the rows that a program asked for
    if arguments.export is not None:
        document = document_of(anyio.run(_saved, trace, arguments.session))
        try:
            write_private(arguments.export, document)
        except OSError as error:
            raise CallboardError(f"{arguments.export}: {error.strerror or error}; nothing was deleted") from error
        tell(f"Exported {arguments.session} to {arguments.export}.")
    if arguments.delete:
        anyio.run(_delete, trace, arguments.session)
        tell(f"Deleted {arguments.session}; the tokens and costs of its calls stay.")
        for target in shipped_to(trace):
            tell(f"It goes from {target} with the next shipping, by a program with ship_to or `callboard ship`.")
    if arguments.delete or arguments.export is not None:
        return 0
    if arguments.session is not None:
        transcript(anyio.run(_saved, trace, arguments.session), as_json=arguments.json)
        return 0
    rows = from_trace(arguments, lambda store: store.sessions(arguments.limit, tags=dict(arguments.tag or ())))
    if arguments.json:
        for row in rows:
            write_json(json_text(row))
        return 0
    show(trace, rows)
    return 0


async def _saved(trace: TracePlace, session_id: str) -> SavedSession:
    async with store_to_read(trace) as store:
        saved = await store.saved_session(session_id)
        if saved is not None:
            return saved
        if not await store.calls(CallFilter(session_id=session_id), limit=1):
            raise CallboardError(f"{trace} has no session {session_id!r}; `callboard sessions` lists them")
    raise CallboardError(
        f"{trace} has the calls of {session_id} and not what was said: only `callboard chat --save`, and an "
        "Engine with capture_content=True, keeps that"
    )


async def _delete(trace: TracePlace, session_id: str) -> None:
    async with store_to_write(trace) as store:
        saved = await store.saved_session(session_id)
        if saved is not None:
            forget_lines({message.text.strip() for message in saved.messages if message.role is Role.USER})
        if not await store.delete_session(session_id):
            raise CallboardError(f"{trace} has no session {session_id!r}; `callboard sessions` lists them")


def show(trace: TracePlace, rows: list[SessionRow]) -> None:
    console = make_console()
    if not rows:
        console.print(f"No sessions in {trace}.", soft_wrap=True)
        return
    console.print(sessions_table(rows))
    resumable = sum(row.resumable for row in rows)
    total = sum_text(reduce(add, map(session_sum, rows)))
    console.print(
        f"\n{plural(len(rows), 'session')}, {resumable} of them can be resumed, {total}, from {trace}",
        style="dim",
    )


def transcript(saved: SavedSession, *, as_json: bool) -> None:
    """Write everything that is stored of a session, the oldest first. Missing parts are reported on stderr."""
    if as_json:
        for message in saved.messages:
            write_json(as_json_line(message))
    else:
        console = make_console()
        prompt = None if saved.setup is None else saved.setup.system_prompt
        said = [] if prompt is None else [("system", prompt)]
        said += [(_speaker(message), _words(message)) for message in saved.messages]
        for speaker, words in said:
            console.print(f"{speaker}>", style="bold", end=" ", soft_wrap=True)
            console.print(words, soft_wrap=True)
    for missing in saved.missing:
        note(f"callboard: {missing}")


def as_json_line(message: Message) -> str:
    written = encode_json(
        {
            "id": message.id,
            "role": message.role,
            "name": message.name,
            "content": msgspec.Raw(encode_json(message.content)),
            "metadata": None if message.metadata is None else msgspec.Raw(encode_metadata(message.metadata)),
        }
    )
    return mend_json(written).decode()


def _speaker(message: Message) -> str:
    metadata = message.metadata
    return metadata.model if metadata is not None and message.role is Role.ASSISTANT else str(message.role)


def _words(message: Message) -> str:
    return "\n".join(_of_block(block) for block in message.content)


def _of_block(block: ContentBlock) -> str:
    match block:
        case TextBlock():
            return block.text
        case ThinkingBlock():
            return f"(thought: {block.text})"
        case RedactedThinkingBlock():
            return "(thought, hidden by the provider)"
        case ImageBlock() | AudioBlock() | DocumentBlock():
            kind = block.media_type or type(block).__name__.removesuffix("Block").lower()
            size = (block.url or "")[:99] if block.data is None else f"{len(block.data):,} bytes"
            return f"({kind}, {size})"
        case ToolUseBlock():
            arguments = encode_json(block.input).decode()
            return f"(calls {block.name} with {arguments}{', cut off' if block.incomplete else ''})"
        case ToolResultBlock():
            return f"({'error' if block.is_error else 'result'}: {block.text})"
        case OpaqueBlock():
            return f"({block.kind}, of {block.provider_raw.provider})"
        case _:
            assert_never(block)


def sessions_table(rows: Iterable[SessionRow]) -> FittingTable:
    """One line for each session. The number of messages counts stored ones."""
    table = FittingTable()
    table.add_column("last")
    table.add_column("session")  # whole: it is what one copies
    table.add_column("model", folds=True, may_go=1)
    numbers = (("turns", 2), ("calls", 3), ("in", 4), ("out", 5), ("cost", 0), ("messages", 6))
    for heading, may_go in numbers:
        table.add_column(heading, justify="right", may_go=may_go)
    table.add_column("resume")
    for row in rows:
        table.add_row(
            moment_text(row.last_us),
            row.session_id if row.name is None else (row.session_id, row.name),
            row.model or "-",
            f"{row.turns:,}",
            f"{row.calls:,}",
            f"{row.total_input_tokens:,}",
            f"{row.output_tokens:,}",
            sum_text(session_sum(row)),
            f"{row.messages:,}" if row.messages else "-",
            "yes" if row.resumable else "-",
        )
    return table


def session_sum(row: SessionRow) -> CostSum:
    """What a session cost, as a sum."""
    return CostSum(row.cost_nano_usd, row.calls, row.estimated, row.unpriced, row.unknown)
