"""The settings that the start of a call tells: the address that is asked, and what the request asks for."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import urlsplit

from callboard.adapters import CanonicalRequest
from callboard.adapters.actor import AdapterActor
from callboard.bus.values.call_settings import CallSettings

from ..runtime.adapters import RunningAdapter

_PORTS = {"http": 80, "https": 443}


def server_of(running: RunningAdapter | None) -> str | None:
    """The address that an adapter asks. None if the adapter asks none or doesn't tell it."""
    actor = None if running is None else running.ref.actor
    url = getattr(actor.made, "base_url", None) if isinstance(actor, AdapterActor) else None
    return url if isinstance(url, str) else None


def settings_of(server: str | None, request: CanonicalRequest | None = None) -> CallSettings | None:
    """The settings of a call.

    Args:
        server: The address that is asked.
        request: The request of a conversation. Other calls tell the address only.
    """
    address, port = (None, None) if server is None else _parts(server)
    if request is None:
        return None if address is None else CallSettings(server_address=address, server_port=port)
    return CallSettings(
        server_address=address,
        server_port=port,
        max_output_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        seed=request.seed,
        stop_sequences=request.stop_sequences,
        reasoning_effort=request.reasoning_effort,
        output_type=None if request.output_schema is None else "json",
    )


@lru_cache(maxsize=256)
def _parts(url: str) -> tuple[str | None, int | None]:
    try:
        parts = urlsplit(url)
        return parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:  # of an adapter of the host's
        return None, None
