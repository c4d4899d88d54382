"""The findings of `callboard doctor` about a trace on a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from callboard.bus import StoreError
from callboard.tracestore.reports import StoreCondition

from .health_report import Check

if TYPE_CHECKING:
    from callboard.tracestore import PostgresStore
    from callboard.tracestore.nodes import NodeRow
    from callboard.tracestore.postgres.upkeep import ServerFacts


async def check_server(store: PostgresStore) -> list[Check]:
    """The checks of a server, of the way to it, and of the trace on it. Nothing is made there."""
    from callboard.tracestore.health import server_facts

    try:
        facts = await server_facts(store)
    except StoreError as error:
        return [Check("store", False, str(error), "Check the network, the address, and the password in it.")]
    return [*await _trace(store, facts), _writable(facts), _way(facts)]


async def _trace(store: PostgresStore, facts: ServerFacts) -> list[Check]:
    server = f"{facts.name}: PostgreSQL {facts.version}"
    if not facts.schema_version:
        return [Check("store", True, f"{server}, no trace in schema {facts.schema} yet; the first call makes it")]
    try:
        async with store.open_readonly(store.dsn, schema=store.schema, take_in=False) as reader:
            condition = await reader.condition()
            nodes = await reader.nodes()
    except StoreError as error:
        return [Check("store", False, str(error), "Bring the older of the two up to date.")]
    detail = f"{server}, schema {facts.schema} version {facts.schema_version}"
    size = f"{condition.file_bytes / 1_000_000:,.1f} MB"
    found = [Check("store", True, f"{detail}, {size}"), *leftovers(condition, "this database")]
    return [*found, _nodes(nodes)] if nodes else found


def _nodes(rows: Sequence[NodeRow]) -> Check:
    """The nodes of clusters that share the trace. One that is gone is no fault: others take its sessions over."""
    living = [row for row in rows if row.lives]
    said = [f"{row.name} ({row.cluster}, {row.sessions} sessions, {row.seconds_left:.0f} s)" for row in living]
    gone = [f"{row.name} ({row.sessions} sessions)" for row in rows if not row.lives]
    detail = ", ".join(said) or "none lives"
    fix = "Their sessions go on where they are resumed." if gone else ""
    return Check("store:nodes", True, f"{detail}; gone: {', '.join(gone)}" if gone else detail, fix)


def leftovers(found: StoreCondition, where: str) -> list[Check]:
    """The checks of what dead processes left. It is no fault: the next start deals with it.

    Args:
        found: The condition of the trace.
        where: The trace in words.
    """
    lost = f", {found.lost} lost with {found.open_calls} calls without an end" if found.lost else ", none lost"
    spilled = ", ".join(f"{path.name} ({size:,} bytes)" for path, size in found.spilled)
    next_start = f"The next start that writes to {where}"
    return [
        Check("store:runs", True, f"{found.living} live{lost}", f"{next_start} ends them." if found.lost else ""),
        Check("store:spill", True, spilled or "none left over", f"{next_start} stores it." if spilled else ""),
    ]


def _writable(facts: ServerFacts) -> Check:
    if facts.writable:
        return Check("store:writable", True, f"as {facts.user}")
    if facts.standby:
        return Check(
            "store:writable", False, "this server follows another one", "Name the one that takes writes to write."
        )
    return Check(
        "store:writable",
        False,
        f"{facts.user} may only read",
        "That is enough to read. To write, grant that role what the guide to many hosts lists.",
    )


def _way(facts: ServerFacts) -> Check:
    """Whether others on the network could read along, or pretend to be the server."""
    name = "store:tls"
    if facts.local:
        return Check(name, True, f"{facts.encrypted or 'not encrypted'}, on this machine")
    better = "sslmode=verify-full in the address, with sslrootcert, also checks who answers."
    if facts.encrypted is None:
        return Check(name, False, "not encrypted: others on the network can read along", f"Add {better}")
    return Check(name, True, facts.encrypted, "" if facts.verified else better)
