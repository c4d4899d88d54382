"""Parameters as the statements of `tracestore.sql` write them, in the way that psycopg reads."""

from __future__ import annotations

import functools
import re

# What a parameter may not be looked for in: literals, quoted names, comments, and the casts of PostgreSQL.
_TOKEN = re.compile(
    r"""
    '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | ::
    | (?P<place>\?) | :(?P<name>[A-Za-z_]\w*) | (?P<percent>%)
    """,
    re.VERBOSE | re.DOTALL,
)


@functools.lru_cache(maxsize=1024)
def translated(sql: str) -> str:
    """A statement with ``%s`` for ``?``, ``%(name)s`` for ``:name``, and every other per cent sign doubled."""
    return _TOKEN.sub(_one, sql)


def _one(token: re.Match[str]) -> str:
    if token["place"]:
        return "%s"
    if token["name"]:
        return f"%({token['name']})s"
    return token[0].replace("%", "%%")
