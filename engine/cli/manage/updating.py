"""What the updates of models and prices share: their options, the difference that they show, and the download.

A file, or a page over https, is read because someone asked for it, and bounded in size and time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import anyio

from callboard.bus import AdapterError, CallboardError, ConfigurationError

SECONDS = 60.0
"""The time limit of a download."""

MOST_SHOWN = 20
"""The largest number of lines of one kind in a difference."""


def add_update_options(parser: argparse._ActionsContainer, upstream: str, shipped: str) -> None:
    """The options of an update.

    Args:
        parser: The parser, or a group of it.
        upstream: The address that is read where none is given.
        shipped: What ``--shipped`` goes back to, in words.
    """
    parser.add_argument("--from", dest="source", default=upstream, metavar="FILE|URL", help="https only")
    parser.add_argument("--dry-run", action="store_true", help="only show the difference")
    parser.add_argument("--shipped", action="store_true", help=f"go back to {shipped}")


def differences(old: Mapping[str, object], new: Mapping[str, object], facts: Callable[[str], str]) -> list[str]:
    """The names that are new, gone or changed, a line each; at most `MOST_SHOWN` lines of a kind.

    Args:
        old: What is known now, by name.
        new: What would be known, by name.
        facts: A function that says what has changed of a name.
    """
    kinds = {
        "new": sorted(new.keys() - old.keys()),
        "gone": sorted(old.keys() - new.keys()),
        "changed": sorted(name for name in new.keys() & old.keys() if new[name] != old[name]),
    }
    lines = []
    for kind, names in kinds.items():
        lines += [f"{kind}: {name} {facts(name)}" for name in names[:MOST_SHOWN]]
        if len(names) > MOST_SHOWN:
            lines.append(f"{kind}: and {len(names) - MOST_SHOWN} more")
    return lines


def download(source: str, most_bytes: int) -> bytes:
    """The bytes of a path or of an https URL.

    Raises:
        ConfigurationError: The file can't be read or is too large, or the URL is none of https.
        CallboardError: The network failed.
    """
    if "://" not in source:
        return _read(Path(source), most_bytes)
    if not source.startswith("https://"):
        raise ConfigurationError(f"{source}: is taken over https only, or from a file")
    return anyio.run(_fetch, source, most_bytes)


def _read(path: Path, most_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error}") from error
    _refuse_large(data, str(path), most_bytes)
    return data


async def _fetch(url: str, most_bytes: int) -> bytes:
    from callboard.adapters.transport.opening import new_transport
    from callboard.adapters.transport.transport import HttpRequest

    transport, data = new_transport(), b""
    try:
        with anyio.fail_after(SECONDS):
            reply = await transport.send(HttpRequest("GET", url, {"accept": "application/json"}, b""))
            try:
                if reply.status != 200:
                    raise CallboardError(f"{url}: answered with status {reply.status}; nothing was changed")
                while (chunk := await reply.chunk()) is not None:
                    data += chunk
                    _refuse_large(data, url, most_bytes)
            finally:
                await reply.aclose()
    except AdapterError as error:
        raise CallboardError(f"{url} can't be read, and nothing was changed: {error}") from error
    except TimeoutError as error:
        raise CallboardError(f"{url}: no answer within {SECONDS:.0f} s; nothing was changed") from error
    finally:
        await transport.aclose()
    return data


def _refuse_large(data: bytes, source: str, most_bytes: int) -> None:
    if len(data) > most_bytes:
        raise ConfigurationError(f"{source}: is larger than {most_bytes} bytes, which is too large")
