"""The findings of `Engine.health()` and `callboard doctor` about the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callboard.bus import StoreError

from ..watching.health_report import Check

if TYPE_CHECKING:
    from .frames.sender import Frames
    from .node import Node
    from .ownership import Ownership

ASK_SECONDS = 3.0
"""The time that a broker has for its answer."""

_WITHOUT_BROKER = (
    "Until then, calls, traces, accounting and sessions continue. Readers on other nodes get events "
    "later, from the shared store. Events wait in the trace until the broker is back."
)


async def check_broker(url: str, cluster: str) -> list[Check]:
    """The check of a broker. Nothing is made there."""
    from .broker import broker_condition

    where = ", ".join(address.strip().rpartition("@")[2].rpartition("//")[2] for address in url.split(","))
    try:
        found = await broker_condition(url, cluster, ASK_SECONDS)
    except OSError as error:
        fix = f"Start it, or correct the address. {_WITHOUT_BROKER}"
        return [Check("broker", False, f"{where}: can't be reached: {error}", fix)]
    except ImportError:
        return [Check("broker", False, "nats-py is not installed", "pip install 'callboard[nats]'")]
    said = f"{found.server}: NATS {found.version}"
    if not found.jetstream:
        fix = f"Start nats-server with -js, and give this user access to it. {_WITHOUT_BROKER}"
        return [Check("broker", False, f"{said}, but it can't store messages: JetStream is off", fix)]
    kept = "no events of this cluster yet"
    if found.events is not None:
        kept = f"{_megabytes(found.events.bytes)} of this cluster's events"
    if found.frames is not None:
        kept += (
            f", and {found.frames.messages} frames of streams, which are kept for ten minutes "
            f"({_megabytes(found.frames.bytes)})"
        )
    return [Check("broker", True, f"{said} keeps {kept}")]


async def check_node(node: Node) -> list[Check]:
    """The checks of an engine of a cluster: its broker, what goes out and comes in over it, and its lease."""
    checks = []
    if node.cluster.nats is not None:
        checks += await check_broker(node.cluster.nats, node.cluster.name)
    if node.bridge is not None:
        checks.append(_outgoing(node))
    if node.frames is not None:
        checks.append(_streams(node.frames))
    if node.ownership is not None:
        checks += [_lease(node), await _others(node.ownership)]
    return checks


def _streams(frames: Frames) -> Check:
    """The streams that are sent and read here. Frames that could not be sent are sent again."""
    found = frames.sender.statistics()
    detail = f"{found.open} open, {found.frames} frames sent ({_megabytes(found.bytes)})"
    if found.lost:
        detail += f", {found.lost} messages not sent while the broker was unreachable"
    return Check("node:streams", True, f"{detail}; {len(frames.mirrors)} of other nodes read here")


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:,.1f} MB"


def _outgoing(node: Node) -> Check:
    assert node.bridge is not None
    found = node.bridge.statistics()
    if found.failures:
        fix = "They are in the trace. The engine sends them when the broker accepts events again."
        detail = f"the broker rejected events after number {found.sent}, {found.failures} times in a row"
        return Check("node:events", False, detail, fix)
    waits = found.committed - found.sent
    behind = ", read from the trace because memory is full" if found.is_behind else ""
    waiting = f", up to {waits} wait{behind}" if waits > 0 else ""
    return Check("node:events", True, f"{found.sent} sent{waiting}")


async def _others(ownership: Ownership) -> Check:
    """The other living nodes, according to the shared store."""
    try:
        found = await ownership.tables.nodes()
    except StoreError as error:
        return Check("node:others", False, str(error), "Restore the connection to the shared store.")
    others = [row for row in found if row.lives and row.node != ownership.info.node]
    said = (f"{row.name} ({row.sessions} sessions, {row.seconds_left:.0f} s)" for row in others)
    return Check("node:others", True, ", ".join(said) or "no other node is alive")


def _lease(node: Node) -> Check:
    assert node.ownership is not None
    found = node.ownership.statistics()
    owns = f"{found.name} owns {found.sessions} sessions"
    if found.lives:
        return Check("node:lease", True, f"{owns}, for {found.seconds_left:.1f} s at least")
    if not found.sessions:
        return Check("node:lease", True, owns)
    return Check(
        "node:lease",
        False,
        f"{owns}, but its lease has expired",
        "Restore the connection to the shared store. Until then, turns of sessions are refused and other "
        "nodes may take over the sessions. Calls without a session continue.",
    )
