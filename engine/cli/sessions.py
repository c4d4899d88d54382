"""`callboard sessions` and `callboard logs`: show the sessions of a trace, and their messages."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import assert_never

import anyio
import msgspec

from callboard import adapters
from callboard.adapters.requests.content import repair_json
from callboard.bus import CallboardError
from callboard.bus.clock import to_us
from callboard.bus.files import write_private
from callboard.bus.values.usage import CostSum
from callboard.tracestore import CallFilter, SavedSession, SessionRow
from callboard.tracestore.call_columns import SearchFilter
from callboard.tracestore.rows import FoundMessage
from callboard.tracestore.search import Term, excerpt, terms_of
from callboard.tracestore.writing.content import encode_json, encode_metadata

from ..sessions.stored import document_of
from ..stores import TracePlace, store_to_read, store_to_write
from .chat_input import forget_lines
from .options import add_limit, add_period, add_tag, add_trace, chosen_trace, flag, from_trace
from .sanitize import echo, note, write_json
from .screen import make_console
from .table import Column, FittingTable, count, figure, json_text, moment_text, plural, sum_text


def add_sessions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", nargs="?", metavar="SESSION", help="show the stored messages of this session")
    add_trace(parser)
    parser.add_argument("--export", type=Path, metavar="FILE", help="write SESSION as a document")
    flag(parser, "--delete", help="delete SESSION with its name, tags and errors, but keep tokens and costs")
    add_tag(parser)
    add_limit(parser, 50, "sessions")
    flag(parser, "--json", help="print one JSON object a line for each session or message")
    parser.set_defaults(
        run=run_sessions, draws=lambda arguments: not arguments.delete and arguments.export is None
    )


def run_sessions(arguments: argparse.Namespace) -> int:
    if arguments.session is None and (arguments.delete or arguments.export is not None):
        raise CallboardError("name the session: callboard sessions SESSION --export FILE, or --delete")
    trace = chosen_trace(arguments)
    tell = note if arguments.json else echo  # stdout has the rows for a program
    if arguments.export is not None:
        document = document_of(anyio.run(_saved, trace, arguments.session))
        try:
            write_private(arguments.export, document)
        except OSError as error:
            raise CallboardError(f"{arguments.export}: {error.strerror or error}. Nothing was deleted") from error
        tell(f"Exported {arguments.session} to {arguments.export}.")
    if arguments.delete:
        from callboard.tracestore.shipping.marks import marks

        anyio.run(_delete, trace, arguments.session)
        tell(f"Deleted {arguments.session}; the tokens and costs of its calls are kept.")
        for target in [mark.target for mark in marks(trace)] if isinstance(trace, Path) else ():
            tell(f"The next shipping deletes it from {target}: run a program with ship_to, or `callboard ship`.")
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
    show_sessions(trace, rows)
    return 0


async def _saved(trace: TracePlace, session_id: str) -> SavedSession:
    async with store_to_read(trace) as store:
        saved = await store.saved_session(session_id)
        if saved is not None:
            return saved
        if not await store.calls(CallFilter(session_id=session_id), limit=1):
            raise CallboardError(f"{trace} has no session {session_id!r}. `callboard sessions` lists all sessions")
    raise CallboardError(
        f"{trace} has the calls of {session_id} but not its messages: only `callboard chat --save`, and "
        f"an Engine with capture_content=True, store messages"
    )


async def _delete(trace: TracePlace, session_id: str) -> None:
    async with store_to_write(trace) as store:
        saved = await store.saved_session(session_id)
        if saved is not None:
            typed = (message for message in saved.messages if message.role is adapters.Role.USER)
            forget_lines({message.text.strip() for message in typed})
        if not await store.delete_session(session_id):
            raise CallboardError(f"{trace} has no session {session_id!r}. `callboard sessions` lists all sessions")


def show_sessions(trace: TracePlace, rows: list[SessionRow]) -> None:
    console = make_console()
    if not rows:
        console.print(f"No sessions in {trace}.", soft_wrap=True)
        return
    console.print(sessions_table(rows))
    resumable = sum(row.resumable for row in rows)
    total = sum_text(reduce(add, map(_sum, rows)))
    console.print(
        f"\n{plural(len(rows), 'session')}, {resumable} of them can be resumed, {total}, from {trace}", style="dim"
    )


def transcript(saved: SavedSession, *, as_json: bool) -> None:
    """Write everything that is stored about a session, the oldest first. Missing parts are reported on stderr."""
    if as_json:
        for message in saved.messages:
            write_json(as_json_line(message))
    else:
        console = make_console()
        prompt = None if saved.setup is None else saved.setup.system_prompt
        entries = [] if prompt is None else [("system", prompt)]
        entries += [(_speaker(message), "\n".join(map(_of_block, message.content))) for message in saved.messages]
        for speaker, words in entries:
            console.print(f"{speaker}>", style="bold", end=" ", soft_wrap=True)
            console.print(words, soft_wrap=True)
    for missing in saved.missing:
        note(f"callboard: {missing}")


def as_json_line(message: adapters.Message) -> str:
    written = encode_json(
        {
            "id": message.id,
            "role": message.role,
            "name": message.name,
            "content": msgspec.Raw(encode_json(message.content)),
            "metadata": None if message.metadata is None else msgspec.Raw(encode_metadata(message.metadata)),
        }
    )
    return repair_json(written).decode()


def _speaker(message: adapters.Message) -> str:
    made = message.metadata
    return made.model if made is not None and message.role is adapters.Role.ASSISTANT else str(message.role)


def _of_block(block: adapters.ContentBlock) -> str:
    match block:
        case adapters.TextBlock():
            return block.text
        case adapters.ThinkingBlock():
            return f"(reasoning: {block.text})"
        case adapters.RedactedThinkingBlock():
            return "(reasoning, hidden by the provider)"
        case adapters.ImageBlock() | adapters.AudioBlock() | adapters.DocumentBlock():
            kind = block.media_type or type(block).__name__.removesuffix("Block").lower()
            size = (block.url or "")[:99] if block.data is None else f"{len(block.data):,} bytes"
            return f"({kind}, {size})"
        case adapters.ToolUseBlock():
            arguments = encode_json(block.input).decode()
            return f"(calls {block.name} with {arguments}{', cut off' if block.incomplete else ''})"
        case adapters.ToolResultBlock():
            return f"({'error' if block.is_error else 'result'}: {block.text})"
        case adapters.OpaqueBlock():
            return f"({block.kind}, of {block.provider_raw.provider})"
        case _:
            assert_never(block)


def sessions_table(rows: Sequence[SessionRow]) -> FittingTable[SessionRow]:
    """A table with a line for each session. The number of messages includes only stored ones."""
    columns: list[Column[SessionRow]] = [
        Column("last", lambda row: moment_text(row.last_us)),
        Column("session", lambda row: row.session_id if row.name is None else (row.session_id, row.name)),
        Column("model", lambda row: row.model or "-", folds=True, may_go=1),
        count("turns", lambda row: row.turns, may_go=2),
        count("calls", lambda row: row.calls, may_go=3),
        count("in", lambda row: row.total_input_tokens, may_go=4),
        count("out", lambda row: row.output_tokens, may_go=5),
        figure("cost", lambda row: sum_text(_sum(row))),
        count("messages", lambda row: row.messages, may_go=6, zero="-"),
        Column("resume", lambda row: "yes" if row.resumable else "-"),
    ]
    return FittingTable(columns, rows)


def _sum(row: SessionRow) -> CostSum:
    return CostSum(row.cost_nano_usd, row.calls, row.estimated, row.unpriced, row.unknown)


# --- Logs ---

_LONGEST = 2000
"""The maximum number of characters of a message that are shown without a search."""


def add_logs(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Show the latest messages, or search for words: all words, "a phrase", prefix*, -not. '
        "Messages are stored by `ask`, `chat --save`, and an Engine with capture_content=True. The first "
        "search builds an index."
    )
    parser.add_argument("-q", "--query", metavar="WORDS", help="show only messages with this text")
    add_trace(parser)
    parser.add_argument("--session", metavar="ID", help="show only this session")
    add_period(parser)
    add_limit(parser, 20, "messages", "-n")
    flag(parser, "--json", help="print one JSON object a line for each message")
    parser.set_defaults(run=run_logs, draws=True)


def run_logs(arguments: argparse.Namespace) -> int:
    where = SearchFilter(
        text=arguments.query,
        session_id=arguments.session,
        since_us=None if arguments.since is None else to_us(arguments.since),
        until_us=None if arguments.until is None else to_us(arguments.until),
        limit=arguments.limit,
    )
    # A search updates the trace's index, so it needs a store that can be written. If there is no trace, none is
    # created.
    opened = None if where.text is None else store_to_write
    found = from_trace(arguments, lambda store: store.search(where), opened=opened)
    if arguments.json:
        for message in found:
            write_json(json_text(message))
        return 0
    show_messages(found[::-1], () if where.text is None else terms_of(where.text))
    if len(found) == where.limit:
        note(f"callboard: only the latest {plural(where.limit, 'message')}; see --limit")
    elif not found:
        note(f"callboard: no matching messages in {chosen_trace(arguments)}")
    return 0


def show_messages(found: list[FoundMessage], terms: tuple[Term, ...]) -> None:
    """Print messages in order. With search terms, only the part around the terms of each message."""
    console = make_console()
    for message in found:
        head = f"{moment_text(message.ts_us)}  {message.session_id}  {message.role or 'unreadable'}"
        console.print(head, style="bold", soft_wrap=True)
        cut = message.text if len(message.text) <= _LONGEST else f"{message.text[:_LONGEST]}…"
        text = excerpt(message.text, terms) if terms else cut
        console.print(text or "(no words)", soft_wrap=True)
        console.print()
