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
    "Until then calls, traces, money and sessions go on; readers on other nodes get what the shared store has, "
    "later, and events wait in the trace until the broker is back."
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
        fix = f"Start nats-server with -js, and give this user a right to it. {_WITHOUT_BROKER}"
        return [Check("broker", False, f"{said}, which keeps no messages: JetStream is off", fix)]
    kept = "no events of this cluster yet"
    if found.events is not None:
        kept = f"{_megabytes(found.events.bytes)} of this cluster's events"
    if found.frames is not None:
        kept += (
            f", and for ten minutes {found.frames.messages} frames of streams ({_megabytes(found.frames.bytes)})"
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
        detail += f", {found.lost} messages not sent while the broker was away"
    return Check("node:streams", True, f"{detail}; {len(frames.mirrors)} of other nodes read here")


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:,.1f} MB"


def _outgoing(node: Node) -> Check:
    assert node.bridge is not None
    found = node.bridge.statistics()
    if found.failures:
        fix = "They are in the trace, and go out when the broker takes them again."
        detail = f"events behind number {found.sent} were not taken, {found.failures} times in a row"
        return Check("node:events", False, detail, fix)
    waits = found.committed - found.sent
    behind = ", read from the trace, since they are too many for memory" if found.is_behind else ""
    waiting = f", up to {waits} wait{behind}" if waits > 0 else ""
    return Check("node:events", True, f"{found.sent} sent{waiting}")


async def _others(ownership: Ownership) -> Check:
    """The other living nodes, according to the shared store."""
    try:
        found = await ownership.tables.nodes()
    except StoreError as error:
        return Check("node:others", False, str(error), "Mend the way to the shared store.")
    others = [row for row in found if row.lives and row.node != ownership.info.node]
    said = (f"{row.name} ({row.sessions} sessions, {row.seconds_left:.0f} s)" for row in others)
    return Check("node:others", True, ", ".join(said) or "no other node lives")


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
        f"{owns}, but its lease is over",
        "Mend the way to the shared store. Until then turns of sessions are refused, calls without a session go "
        "on, and other nodes may take the sessions over.",
    )
