"""Reads a file, or a page over https: bounded in size and time, and only because someone asked for it."""

from __future__ import annotations

from pathlib import Path

import anyio

from bus import AdapterError, CallboardError, ConfigurationError

SECONDS = 60.0


def download(source: str, most_bytes: int) -> bytes:
    """The bytes of a path or of an https URL. Raises ConfigurationError, CallboardError if the network fails."""
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
    from adapters.transport.transport import HttpRequest, HttpxTransport

    transport, data = HttpxTransport(), b""
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
