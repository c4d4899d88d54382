"""`callboard logs`: what was said lately, or says some words, where content is captured."""

from __future__ import annotations

import argparse

from callboard.tracestore import Store
from callboard.tracestore.filters import SearchFilter
from callboard.tracestore.rows import FoundMessage
from callboard.tracestore.search.words import Term, excerpt, terms_of
from callboard.tracestore.timestamps import to_us

from ...opening import store_to_write
from ..common.arguments import add_trace, chosen_trace, moment, positive
from ..common.harmless import note, write_json
from ..common.output import json_text
from ..common.reading import from_trace
from ..common.screen import make_console
from ..common.words import moment_text, plural

_LONGEST = 2000
"""The number of characters of a message that are shown without a search."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "logs",
        help="Show and search questions and answers",
        description='The latest messages, or those that say some words: all of them, "a phrase", begin*, -not. '
        "Only where content is captured: by `ask`, `chat --save`, and an Engine with capture_content=True. The "
        "first search makes an index.",
    )
    parser.add_argument("-q", "--query", metavar="WORDS", help="only messages that say this")
    add_trace(parser)
    parser.add_argument("--session", metavar="ID", help="only of this session")
    parser.add_argument(
        "--since", type=moment, metavar="TIME", help="from this day or time on (ISO 8601), or for the last 24h, 7d"
    )
    parser.add_argument("--until", type=moment, metavar="TIME", help="before this day or time, or so long ago")
    parser.add_argument("-n", "--limit", type=positive, default=20, metavar="N", help="at most N (default 20)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line for each message")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""
    where = SearchFilter(
        text=arguments.query,
        session_id=arguments.session,
        since_us=None if arguments.since is None else to_us(arguments.since),
        until_us=None if arguments.until is None else to_us(arguments.until),
        limit=arguments.limit,
    )

    async def read(store: Store) -> list[FoundMessage]:
        return await store.search(where)

    # A search keeps its index up, and so it writes; but it makes no trace where there is none.
    found = from_trace(arguments, read, opened=None if where.text is None else store_to_write)
    if arguments.json:
        for message in found:
            write_json(json_text(message))
        return 0
    show(found, () if where.text is None else terms_of(where.text))
    if len(found) == where.limit:
        note(f"callboard: only the latest {plural(where.limit, 'message')}; see --limit")
    elif not found:
        note(f"callboard: no such messages in {chosen_trace(arguments)}")
    return 0


def show(found: list[FoundMessage], terms: tuple[Term, ...]) -> None:
    """Write messages, the latest first. With terms, only the part of each around them."""
    console = make_console()
    for message in found:
        head = f"{moment_text(message.ts_us)}  {message.session_id}  {message.role or 'unreadable'}"
        console.print(head, style="bold", soft_wrap=True)
        text = excerpt(message.text, terms) if terms else _cut(message.text)
        console.print(text or "(no words)", soft_wrap=True)
        console.print()


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
