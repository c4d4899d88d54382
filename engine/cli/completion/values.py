"""The values that a shell may propose: names of models, sessions, templates, keys. No engine is started for them.

Whatever can't be read has none. A value that a shell might take for more than a word is not proposed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable

from callboard.bus import CallboardError
from callboard.tracestore import Store

from .wanted import Source

MOST_SESSIONS = 100
"""The number of sessions that are proposed, the latest first."""

_PLAIN = re.compile(r"[\w.:/@%+,=-]+")


def values_of(source: Source) -> list[str]:
    """The values of a source that begin in any way, in a good order."""
    try:
        return [value for value in _READ[source]() if _PLAIN.fullmatch(value)]
    except (CallboardError, OSError):
        return []


def _models() -> Iterable[str]:
    from ...models.config import load_registry

    registry = load_registry(None)
    return (*dict.fromkeys((*registry.models, *sorted(registry.names))),)


def _sessions() -> Iterable[str]:
    from ..common.reading import from_trace

    async def read(store: Store) -> list[str]:
        return [row.session_id for row in await store.sessions(MOST_SESSIONS)]

    return from_trace(argparse.Namespace(db=None, store=None), read)


def _templates() -> Iterable[str]:
    from ..templates.folder import names

    return names()


def _keys() -> Iterable[str]:
    from callboard.adapters.provider import providers

    from ...keys.key_file import keys_file, read_keys

    return (
        *(provider.name for provider in providers() if provider.key_variables),
        *read_keys(keys_file()).keys,
    )


def _collections() -> Iterable[str]:
    from callboard.tracestore.collections.collection_file import CollectionFile

    from ..collections.place import collections_file

    with CollectionFile(collections_file(), readonly=True) as file:
        return [each.name for each in file.collections()]


_READ: dict[Source, Callable[[], Iterable[str]]] = {
    "models": _models,
    "sessions": _sessions,
    "templates": _templates,
    "keys": _keys,
    "collections": _collections,
    "files": lambda: (),
}
