"""The facts of a call that are known before it starts: its place in the tree, its payer, and its published
settings.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypedDict
from urllib.parse import urlsplit

import msgspec

from callboard.adapters import CanonicalRequest
from callboard.adapters.actor import AdapterActor
from callboard.bus import RoutingDecision
from callboard.bus.values.messages import CallSettings

from ..budgets.budget import Payer
from ..runtime.adapters import RunningAdapter
from ..runtime.runtime import Runtime
from ..tree import Caller, TreeNode
from .outcome import Spending


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a call that are known before it starts. The call and its events share them."""

    runtime: Runtime
    request_id: str
    routing: RoutingDecision
    priced_as: str | None = None
    """The provider that publishes the model's prices, see `published_name`."""
    running: RunningAdapter | None = None
    """The adapter that makes the call. None for the end of a video's job, which no adapter makes."""
    session_id: str | None = None
    turn_id: str | None = None
    message_id: str | None = None
    caused_by: str | None = None
    """The id of the call that led to this one."""
    tags: dict[str, str] | None = None
    order: int = 0
    """The caller's position in the queue, from `runtime.adapters.arrival`. The lowest number gets a slot first."""
    estimated_input_tokens: int | None = None
    spending: Spending | None = None
    """The turn's sum, to which the cost of the call is added."""
    key: str | None = None
    """The name of the caller's key; None leaves the choice to the adapter."""
    spills_to: tuple[str, ...] = ()
    """The models that may serve instead if this model's rate limits are used up."""
    caller: Caller | None = None
    """The tool run that started the call's turn. A call without a turn finds it itself."""
    node: TreeNode | None = None
    """The node of the call's turn in its tree; None for a root without limits that has run no tool."""


def payer_of(
    model: str, session_id: str | None, tags: dict[str, str] | None, turn_id: str, node: TreeNode | None
) -> Payer:
    """The payer of a call. A call without a turn is its own root, with its own id."""
    if node is None:
        return Payer(model, session_id or "", tags or {}, turn_id, turn_id)
    return Payer(model, session_id or "", tags or {}, node.turn_id, node.root_turn_id, node.accounts)


class Place(TypedDict):
    """The fields of an event that contain the place of a call or turn in the tree."""

    parent_call_id: str | None
    parent_tool_use_id: str | None
    parent_turn_id: str | None
    root_turn_id: str | None
    depth: int | None


def place_below(caller: Caller) -> Place:
    """The place of a call or a turn that a tool has started."""
    node = caller.node
    return {
        "parent_call_id": caller.call_id,
        "parent_tool_use_id": caller.tool_use_id,
        "parent_turn_id": node.turn_id,
        "root_turn_id": node.root_turn_id,
        "depth": node.depth + 1,
    }


# --- The published settings ---

_PORTS = {"http": 80, "https": 443}


def server_of(running: RunningAdapter | None) -> str | None:
    """The server address of an adapter. None if it has none or doesn't report it."""
    actor = None if running is None else running.ref.actor
    url = getattr(actor.made, "base_url", None) if isinstance(actor, AdapterActor) else None
    return url if isinstance(url, str) else None


def settings_of(server: str | None, request: CanonicalRequest | None = None) -> CallSettings | None:
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
    except ValueError:  # from the host's own adapter
        return None, None
