"""The complete simulation: hosts with all their parts, the requests of users, and the faults.

Requests and faults happen at random times. At the end all faults are repaired. Then everything must finish: all
files are shipped, and all readers get the end of their streams.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import msgspec

from tests.support.shared_tables import OwnershipModel

from .events import Bridge, EventReader
from .kernel import BrokenPromise, Host, Kernel, Network
from .money import Bank, Purse
from .sessions import Node
from .streams import Streams
from .trace import File, SharedTrace

FAULT_SECONDS = 60.0
"""The maximum duration of a fault."""

END_SECONDS = 300.0
"""The time limit for everything to finish after all faults are repaired."""


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the simulation."""

    nodes: int = 20
    """The number of hosts."""
    sessions: int = 500
    """The number of sessions."""
    steps: int = 20_000
    """The number of steps before all faults are repaired."""
    read_share: float = 0.2
    """The share of turns that are read on other hosts."""


class World:
    """A cluster.

    Args:
        seed: The seed of the simulation.
        size: The size of the simulation.
    """

    def __init__(self, seed: int, size: Size) -> None:
        self.kernel = kernel = Kernel(seed)
        self.network = network = Network(kernel)
        self.seen: Counter[str] = Counter()
        self._size = size
        self._tables = tables = OwnershipModel()
        self.trace = trace = SharedTrace(tables)
        self.bank = Bank(kernel, network, max(2, size.nodes // 5))
        self.hosts = hosts = [Host(kernel, number) for number in range(size.nodes)]
        self.files = [File(kernel, network, trace, host) for host in hosts]
        self.streams = Streams(kernel, network, tables, trace, hosts, size.read_share)
        self.nodes = [
            Node(kernel, network, tables, trace, host, file, self.streams)
            for host, file in zip(hosts, self.files, strict=True)
        ]
        self.purses = [Purse(self.bank, host) for host in hosts]
        self.bridges = [Bridge(kernel, network, file, host) for host, file in zip(hosts, self.files, strict=True)]
        self.event_readers = [
            self._event_reader(kernel.random.randrange(size.nodes), host) for host in hosts[: 1 + size.nodes // 10]
        ]
        self._mending = False
        for node, bridge, file in zip(self.nodes, self.bridges, self.files, strict=True):
            node.tell = self._tell
            file.on_write = bridge.wrote
        for host in hosts:
            self._begin(host)

    def _event_reader(self, of: int, host: Host) -> EventReader:
        reader = EventReader(self.kernel, self.network, self.trace, self.files[of], host)
        self.bridges[of].readers.append(reader)
        return reader

    # -- A run

    def run(self) -> None:
        """Run the simulation from its beginning to its end."""
        kernel, size = self.kernel, self._size
        kernel.after(5.0, self._ask_something)
        kernel.after(10.0, self._befall)
        kernel.after(20.0, self._look)
        kernel.run(size.steps)
        self._mend()
        kernel.run(1 << 62, until=kernel.now + END_SECONDS)
        self._check_the_end()

    def close(self) -> None:
        """Close all coroutines in progress."""
        for purse in self.purses:
            purse.close()

    def figures(self) -> dict[str, float]:
        """The counts of the simulated events."""
        return {
            "steps": self.kernel.steps,
            "seconds of virtual time": round(self.kernel.now),
            "turns": sum(node.turns for node in self.nodes),
            "sessions moved": sum(node.moves for node in self.nodes),
            "messages stored": sum(each.length for each in self.trace.sessions.values()),
            "events refused by the store": self.trace.refused,
            "writes behind a late claim of one's own": sum(node.own_late_claims for node in self.nodes),
            "calls admitted": self.bank.admitted,
            "calls refused": self.bank.refused,
            "events given to readers": sum(reader.given for reader in self.event_readers),
            **{f"readers that ended with {status}": count for status, count in sorted(self.streams.ended.items())},
            **{f"fault: {what}": count for what, count in sorted(self.seen.items())},
        }

    # -- What is asked

    def _ask_something(self) -> None:
        if self._mending:
            return
        kernel, random, number = self.kernel, self.kernel.random, self._size.nodes
        kernel.after(random.expovariate(0.3 * number), self._ask_something)
        host = random.randrange(number)
        session = f"session_{int(self._size.sessions * random.random() ** 3)}"
        self.hosts[host].soon(0, partial(self.nodes[host].turn, session))
        payer = random.randrange(number)
        self.hosts[payer].soon(0, self.purses[payer].call)

    def _tell(self, told: str) -> None:
        run_id, _, session_id = told.partition(" ")
        number = int(run_id.split("_")[1])
        if self.hosts[number].run_id == run_id:
            self.network.send(None, self.hosts[number], partial(self.nodes[number].wanted, session_id))

    def _look(self) -> None:
        self.kernel.after(20.0, self._look)
        self.streams.forget_the_ended()
        self.bank.check()
        for host, purse in zip(self.hosts, self.purses, strict=True):
            host.soon(self.kernel.random.uniform(0, 20), purse.tend)

    # -- What befalls

    def _befall(self) -> None:
        if self._mending:
            return
        kernel, random = self.kernel, self.kernel.random
        kernel.after(random.expovariate(0.01 * self._size.nodes), self._befall)
        lasts, fate = random.uniform(1, FAULT_SECONDS), random.random()
        host = random.choice(self.hosts)
        if fate < 0.3:
            self._kill(host, lasts)
        elif fate < 0.55:
            self._stop(host, lasts)
        elif fate < 0.75:
            self._cut_off(host, lasts)
        elif fate < 0.9:
            self.seen["clock set"] += 1
            host.set_clock()
        elif kernel.chance(5 / self._size.nodes):
            self._server_fault(lasts / 3)

    def _kill(self, host: Host, lasts: float) -> None:
        if host.state == "down":
            return
        self.seen["killed"] += 1
        host.die()
        self.kernel.after(lasts, partial(self._restart, host))

    def _restart(self, host: Host) -> None:
        if host.state == "down":
            host.restart()
            self._begin(host)

    def _begin(self, host: Host) -> None:
        number = host.number
        for part in (self.files[number], self.nodes[number], self.purses[number], self.bridges[number]):
            part.begin()
        for reader in self.event_readers:
            if reader.host is host:
                reader.begin()

    def _stop(self, host: Host, lasts: float) -> None:
        if host.state == "up":
            self.seen["stopped"] += 1
            host.stop()
            self.kernel.after(lasts, partial(self._go_on, host))

    def _go_on(self, host: Host) -> None:
        if host.state == "stopped":
            host.go_on()

    def _cut_off(self, host: Host, lasts: float) -> None:
        self.seen["cut off"] += 1
        for each in {host.number: host, **{each.number: each for each in self._some()}}.values():
            if not each.side:
                each.side = 1
                self.kernel.after(lasts, partial(self._connect, each))

    def _some(self) -> list[Host]:
        most = min(10, len(self.hosts) // 5)
        return self.kernel.random.sample(self.hosts, self.kernel.random.randint(0, most))

    def _connect(self, host: Host) -> None:
        if host.side:
            host.side = 0
            self.streams.reconnected(host)
            host.soon(0.01, self.bridges[host.number].connected)

    def _server_fault(self, lasts: float) -> None:
        if self.kernel.chance(0.5):
            self.seen["database away"] += 1
            self.network.database_up = False
            self.kernel.after(lasts, self._database_back)
        else:
            self.seen["broker away"] += 1
            self.network.broker_up = False
            self.kernel.after(lasts, self._broker_back)

    def _database_back(self) -> None:
        if not self.network.database_up:
            self.network.database_up = True
            self._tables.started = self.kernel.now

    def _broker_back(self) -> None:
        if not self.network.broker_up:
            self.network.broker_up = True
            self.streams.broker_is_back(wiped=self.kernel.chance(0.5))
            for host, bridge in zip(self.hosts, self.bridges, strict=True):
                host.soon(0.01, bridge.connected)

    # -- The end

    def _mend(self) -> None:
        """Repair all faults and stop the requests."""
        self._mending = True
        self.network.bad = 0.0
        self._database_back()
        self._broker_back()
        for host in self.hosts:
            self._connect(host)
            self._restart(host)
            self._go_on(host)

    def _check_the_end(self) -> None:
        for file in self.files:
            if not file.is_shipped:
                raise BrokenPromise(f"{len(file.events)} events are not shipped: {file.course.state}")
        for reader in self.streams.readers:
            if reader.is_there and not reader.follower.over:
                raise BrokenPromise(f"a reader of {reader.own.log.stream_id} has no end")
        for event_reader in self.event_readers:
            event_reader.check_all_given()
        self.bank.check()
